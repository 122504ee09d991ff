#!/usr/bin/env python3
"""record.py FROM TO: what golden/parity/transformers_tiny keeps of the traces that parity.sh made in FROM.

Of every recorded call: all choices, as bytes (255: none), and some rows of numbers; `rows` says which of the call.
bf16 values are stored as such whatever type they had."""
import re
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

NONE = 255
CHOICES = ("ffn.experts", "attn.indexer.selected", "attn.candidate_pool.blocks")
STREAMS = ("x_out", "pre_out", "logits")
QUANTISED = (*STREAMS, "attn.collapsed", "attn.x", "attn.window_kv", "attn.out", "ffn.out")
CACHES = ("attn.compressed_kv", "attn.indexer.key")  # kept whole

# File -> episode -> names of tensors, of the first call's rows the recorded ones (None: the last), calls.
FILES = {
    "ideal": {
        **{f"prefill{length}": (STREAMS, None, 1) for length in (1, 2, 47, 48, 49)},
        "prefill100": (STREAMS, [1, 47, 80, 99], 5),
        "chunks37": (STREAMS, [36, 37, 73, 74, 99], 1),
    },
    "quantised": {"quantised": (QUANTISED, [1, 48, 80, 99], 5)},
}


def narrow(value: torch.Tensor) -> torch.Tensor:
    value = value.reshape(value.shape[0], -1).float()
    return value.bfloat16() if torch.equal(value.bfloat16().float(), value) else value


def episode(trace, prefix: str, names: tuple, first_rows: list[int] | None, calls: int) -> dict[str, torch.Tensor]:
    starts = sorted({name.split("/")[0] for name in trace.keys()})[:calls]
    kept = {}
    for call in starts:
        rows = trace.get_slice(f"{call}/L00.x_out").get_shape()[0]
        chosen = first_rows if first_rows is not None and call == starts[0] else [rows - 1]
        kept[f"{prefix}/{call}/rows"] = torch.tensor(chosen, dtype=torch.int32)
        for name in sorted(trace.keys()):
            if not name.startswith(call + "/"):
                continue
            tensor = re.sub(r"^L\d\d\.", "", name.split("/")[1])
            if tensor in CHOICES:
                ids = trace.get_tensor(name).to(torch.int32).reshape(rows, -1)
                kept[f"{prefix}/{name}"] = torch.where(ids < 0, NONE, ids).to(torch.uint8)
            elif tensor in CACHES and names is QUANTISED:
                kept[f"{prefix}/{name}"] = narrow(trace.get_tensor(name))
            elif tensor in names:
                value = trace.get_tensor(name)
                last_alone = value.shape[0] == 1  # logits of a call whose other rows have none
                kept[f"{prefix}/{name}"] = narrow(value if last_alone else value[chosen])
    return kept


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for stem, episodes in FILES.items():
        tensors, sources = {}, []
        for name, (names, first_rows, calls) in episodes.items():
            with safe_open(source / f"{name}.theirs", "pt") as trace:
                recorded = episode(trace, name, names, first_rows, calls)
                tokens = [int(token) for token in trace.metadata()["tokens"].split(",")]
                sources.append(set(trace.metadata().items()))
            last = [key for key in recorded if key.endswith("/rows")][-1]
            count = int(last.split("_")[1][:6]) + int(recorded[last][-1]) + 1
            recorded[f"{name}/tokens"] = torch.tensor(tokens[:count], dtype=torch.int32)
            tensors |= recorded
        in_all = dict(sorted(set.intersection(*sources)))
        in_all.pop("tokens", None)
        save_file(dict(sorted(tensors.items())), target / f"{stem}.safetensors", metadata=in_all)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
