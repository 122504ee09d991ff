#!/usr/bin/env python3
"""Compares a trace of transformers with ours of the same calls, by kind of tensor, over all layers and calls.

Numbers: how far the farthest element is, in units of our row's rms, and the share of elements farther than --limit,
which has to be at most --share. Choices: rows whose sets of ids differ, and how far apart by our own scores what ours
takes and what theirs took instead is, in units of the row's rms; 0 is a tie, and more than --tie is none. A layer
that chooses among candidate blocks is judged among those that theirs kept. With --same-lists, rows whose attention
read other rows are left out of the numbers. Exit code 1 when something is beyond its limit."""
import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from run_transformers import NAME, raw_tensors, widened

SELECTED, BLOCKS, EXPERTS = "attn.indexer.selected", "attn.candidate_pool.blocks", "ffn.experts"
SCORES = {SELECTED: "attn.indexer.scores", BLOCKS: "attn.candidate_pool.block_scores", EXPERTS: "ffn.gate_scores"}
IDS = (*SCORES, "engram.row_ids")
PER_GROUP = ("attn.compressor.latent", "attn.compressed_kv", "attn.indexer.key")  # rows are not queries


class Trace:
    def __init__(self, path: Path):
        self.tensors = raw_tensors(path)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def rows(self, name: str) -> np.ndarray:
        kind, value = self.tensors[name]
        value = widened(kind, value) if kind == "BF16" else value
        return value.double().numpy().reshape(value.shape[0], -1)

    def ids(self, name: str) -> list[set[int]]:
        return [set(row[row >= 0].astype(int).tolist()) for row in self.rows(name)]


class Kind:
    """What was found in all tensors of one name."""

    def __init__(self):
        self.rows, self.elements, self.differing, self.beyond = 0, 0, 0, 0
        self.worst, self.where = 0.0, ""
        self.other_choices, self.widest_gap = [], 0.0


class Comparison:
    def __init__(self, ours: Trace, theirs: Trace, options):
        self.ours, self.theirs, self.options = ours, theirs, options
        config = json.loads((options.checkpoint / "config.json").read_text())["text_config"]
        self.source, self.block_rows = config["candidate_source_layer_id"], config["candidate_block_size"]
        self.gate_bias = {
            int(name.split(".")[1]): bias.double().numpy()
            for name, (_, bias) in raw_tensors(options.checkpoint / "model.safetensors").items()
            if name.startswith("layers.") and name.endswith("ffn.gate.bias")
        }
        self.kinds = defaultdict(Kind)
        for name in sorted(theirs.tensors):
            call, layer, tensor = NAME.fullmatch(name).groups()
            prefix, layer = f"position_{call}/", -1 if layer is None else int(layer)
            if tensor in IDS:
                self.choices(prefix, layer, tensor)
            else:
                self.numbers(prefix, layer, tensor)

    def scores(self, call: str, layer: int, tensor: str) -> np.ndarray:
        """What our choice is made from."""
        scores = self.ours.rows(f"{call}L{layer:02}.{SCORES[tensor]}").copy()
        if tensor == EXPERTS:
            scores += self.gate_bias[layer]
        if tensor == SELECTED and layer > self.source:
            for row, kept in enumerate(self.theirs.ids(f"{call}L{self.source:02}.{BLOCKS}")):
                outside = [column for column in range(scores.shape[1]) if column // self.block_rows not in kept]
                scores[row, outside] = -np.inf
        return scores

    def choices(self, call: str, layer: int, tensor: str) -> None:
        name, kind = f"{call}L{layer:02}.{tensor}", self.kinds[tensor]
        mine, others = self.ours.ids(name), self.theirs.ids(name)
        scores = self.scores(call, layer, tensor) if tensor in SCORES else None
        kind.rows += len(others)
        for row, other in enumerate(others):
            ours = mine[row]
            if tensor in (SELECTED, EXPERTS):  # ours may have been told what to take
                order = np.lexsort((np.arange(scores.shape[1]), -scores[row]))[: len(ours)]
                ours = set(order[np.isfinite(scores[row][order])].tolist())
            if ours == other:
                continue
            gap = np.inf
            if scores is not None and len(ours) == len(other):
                rms = np.sqrt((scores[row][np.isfinite(scores[row])] ** 2).mean())
                gap = (scores[row][list(ours - other)].max() - scores[row][list(other - ours)].min()) / rms
            kind.widest_gap = max(kind.widest_gap, float(gap))
            kind.other_choices.append(
                f"{name} row {row}: {sorted(ours - other)} became {sorted(other - ours)}, {gap:.1e} apart"
            )

    def rows_with_other_lists(self, call: str, layer: int) -> set[int]:
        """Of a layer's rows, those for which the list, made by it or a layer before it, is not ours."""
        makers = [f"{call}L{maker:02}.{SELECTED}" for maker in range(layer, -1, -1)]
        made = next((name for name in makers if name in self.ours and name in self.theirs), None)
        if made is None:
            return set()
        pairs = zip(self.ours.ids(made), self.theirs.ids(made))
        return {row for row, (mine, other) in enumerate(pairs) if mine != other}

    def numbers(self, call: str, layer: int, tensor: str) -> None:
        name, kind = call + (f"L{layer:02}." if layer >= 0 else "") + tensor, self.kinds[tensor]
        expected, got = self.ours.rows(name), self.theirs.rows(name)
        judged_by_lists = self.options.same_lists and tensor not in PER_GROUP
        left_out = self.rows_with_other_lists(call, layer) if judged_by_lists else set()
        kept = [row for row in range(len(got)) if row not in left_out]
        if not kept:
            return
        expected, got = expected[kept], got[kept]
        rms = np.sqrt((expected**2).mean(-1, keepdims=True))
        of_rms = np.abs(got - expected) / np.where(rms > 0, rms, 1)
        kind.rows, kind.elements = kind.rows + len(got), kind.elements + got.size
        kind.differing += int((got != expected).sum())
        kind.beyond += int((~(of_rms <= self.options.limit)).sum())
        worst = np.unravel_index(np.argmax(of_rms), of_rms.shape)[0]
        if not of_rms[worst].max() <= kind.worst:
            kind.worst, kind.where = float(of_rms[worst].max()), f"{name} row {kept[worst]}"

    def report(self) -> bool:
        """Prints it all; whether everything is within its limit."""
        passed = bool(self.kinds)
        for tensor, kind in sorted(self.kinds.items()):
            if tensor in IDS:
                text = f"{len(kind.other_choices)} others, at most {kind.widest_gap:.1e} apart"
                good = kind.widest_gap <= self.options.tie
            else:
                differing, beyond = kind.differing / max(kind.elements, 1), kind.beyond / max(kind.elements, 1)
                text = f"worst {kind.worst:.1e}, {differing:7.2%} differ, {beyond:7.3%} beyond the limit  {kind.where}"
                good = beyond <= self.options.share
            print(f"{tensor:26} {kind.rows:5} rows, {text}{'' if good else '  FAILED'}")
            passed &= good
        for kind in self.kinds.values():
            print("".join(f"  {line}\n" for line in kind.other_choices), end="")
        return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("ours", type=Path)
    parser.add_argument("theirs", type=Path)
    parser.add_argument("--limit", type=float, default=1e-4)
    parser.add_argument("--share", type=float, default=0.0)
    parser.add_argument("--tie", type=float, default=1e-6)
    parser.add_argument("--same-lists", action="store_true")
    options = parser.parse_args()
    return 0 if Comparison(Trace(options.ours), Trace(options.theirs), options).report() else 1


if __name__ == "__main__":
    sys.exit(main())
