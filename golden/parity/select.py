#!/usr/bin/env python3
"""golden/parity/select.py FROM TO: copies the recordings of a tiny model (official_tiny, see README.md here) without
the tensors that the ordinary tests do not read. Bytes are copied as they are."""
import json
import re
import struct
import sys
from pathlib import Path

# File -> what is left out of it, as regular expressions on tensor names.
LEFT_OUT = {
    "model": [],
    "prefill100": [r"/M\d", r"dspark", r"main_hidden", r"x_mid$", r"collapsed$", r"shared_out$", r"_h01$", r"attn\.list$",
                   r"index_dot$", r"wo_a_out$", r"compressor_(kv|score)$", r"engram\.(rows|kv)$", r"logits$"],
    "decode100_own": [r"/M\d", r"dspark", r"main_hidden", r"x_mid$", r"_h01$", r"attn\.list$", r"index_dot$",
                      r"wo_a_out$", r"compressor_(kv|score)$", r"engram\.(rows|kv)$"],
    "decode100_stale": [r"/M\d", r"dspark", r"main_hidden", r"_h01$", r"attn\.list$", r"index_dot$", r"wo_a_out$",
                        r"compressor_(kv|score)$", r"engram\.(rows|kv)$", r"attn\.x$", r"attn\.qr$", r"ffn\.(x|out)$"],
    "smooth": [r"/M\d", r"dspark", r"prefill100/L(0[0-8])\.x_in$", r"decode100_(own|stale)/L(0[0-8])\.x_in$",
               r"_boundary$"],
    "alternatives": [r"^(?!tables/)"],
}


def select(source: Path, target: Path, left_out: list[str]) -> None:
    with source.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        kept = {name: tensor for name, tensor in header.items()
                if not any(re.search(pattern, name) for pattern in left_out)}
        order = sorted(kept, key=lambda name: kept[name]["data_offsets"][0])
        new_header, position = {}, 0
        for name in order:
            begin, end = kept[name]["data_offsets"]
            new_header[name] = {**kept[name], "data_offsets": [position, position + end - begin]}
            position += end - begin
        text = json.dumps(new_header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with target.open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name in order:
                begin, end = kept[name]["data_offsets"]
                file.seek(8 + length + begin)
                out.write(file.read(end - begin))


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for stem, left_out in LEFT_OUT.items():
        select(source / f"{stem}.safetensors", target / f"{stem}.safetensors", left_out)
    (target / "config.json").write_bytes((source / "config.json").read_bytes())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
