#!/usr/bin/env python3
"""compare_traces.py EXPECTED GOT [--limit X]: two traces of the same calls, tensor by tensor.

Prints one line per kind of tensor, over all layers and calls: how far the farthest row is, in units of the expected
row's rms, and how many rows of ids differ as sets (listed one by one). Fails when a row is farther than --limit or,
with --choices, when ids differ."""
import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from run_transformers import NAME, raw_tensors, widened

IDS = ("ffn.experts", "attn.indexer.selected", "attn.candidate_pool.blocks", "engram.row_ids")


def numbers(kind: str, value) -> np.ndarray:
    value = widened(kind, value) if kind == "BF16" else value
    return value.double().numpy().reshape(value.shape[0], -1)


class Kind:
    """All tensors of one name."""

    def __init__(self):
        self.rows, self.worst, self.where, self.sum_squares, self.different = 0, 0.0, "", 0.0, []
        self.differing_elements, self.elements = 0, 0


def compare_ids(kind: Kind, name: str, expected: np.ndarray, got: np.ndarray) -> None:
    for row, (left, right) in enumerate(zip(expected, got)):
        left, right = set(left[left >= 0].astype(int)), set(right[right >= 0].astype(int))
        if left != right:
            kind.different.append(f"{name} row {row}: {sorted(left - right)} became {sorted(right - left)}")


def compare_numbers(kind: Kind, name: str, expected: np.ndarray, got: np.ndarray) -> None:
    rms = np.sqrt((expected**2).mean(-1))
    of_rms = np.abs(got - expected).max(-1) / np.where(rms > 0, rms, 1)
    kind.sum_squares += (of_rms**2).sum()
    kind.differing_elements += int((got != expected).sum())
    kind.elements += got.size
    if of_rms.max() > kind.worst or np.isnan(of_rms).any():
        row = int(np.argmax(of_rms))
        kind.worst, kind.where = float(of_rms[row]), f"{name} row {row}"


def compare(expected_path: Path, got_path: Path) -> dict[str, Kind]:
    expected, got = raw_tensors(expected_path), raw_tensors(got_path)
    kinds = defaultdict(Kind)
    for name in sorted(got):
        tensor = NAME.fullmatch(name).group(3)
        left, right = numbers(*expected[name]), numbers(*got[name])
        kinds[tensor].rows += left.shape[0]
        (compare_ids if tensor in IDS else compare_numbers)(kinds[tensor], name, left, right)
    return kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("expected", type=Path)
    parser.add_argument("got", type=Path)
    parser.add_argument("--limit", type=float, help="of the row's rms")
    parser.add_argument("--choices", action="store_true", help="ids have to be equal sets")
    parser.add_argument("--by-layer", action="store_true", help="x_out of each layer too")
    options = parser.parse_args()
    kinds = compare(options.expected, options.got)
    failed = not kinds
    for tensor, kind in sorted(kinds.items()):
        if tensor in IDS:
            print(f"{tensor:30} {kind.rows:6} rows, {len(kind.different)} differ")
            failed |= options.choices and bool(kind.different)
        else:
            mean = (kind.sum_squares / kind.rows) ** 0.5
            print(f"{tensor:30} {kind.rows:6} rows, worst {kind.worst:.2e} of the rms ({kind.where}), rms of rows "
                  f"{mean:.2e}, {kind.differing_elements / kind.elements:.4f} of the elements differ")
            failed |= options.limit is not None and not kind.worst <= options.limit
    for kind in kinds.values():
        for line in kind.different:
            print("  " + line)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
