#!/usr/bin/env python3
"""unit_engram_scales.py FROM TO: a checkpoint whose Engram tables have scales of 1, otherwise the same."""
import json
import shutil
import struct
import sys
from pathlib import Path

ONE = 127  # the E8M0 code of 1


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True)
    shutil.copy(source / "config.json", target)
    data = bytearray((source / "model.safetensors").read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    for name, tensor in json.loads(data[8 : 8 + length]).items():
        if name.endswith(".engram.embed.scale"):
            begin, end = (8 + length + offset for offset in tensor["data_offsets"])
            data[begin:end] = bytes([ONE]) * (end - begin)
    (target / "model.safetensors").write_bytes(data)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
