#!/usr/bin/env python3
"""Runs transformers' deepseek_v41 text model on what `touchstone run` has traced.

The checkpoint is one that `touchstone checkpoint make` wrote; TRACE is ours, of the same tokens. Calls, names, types
and shapes of the result are those of TRACE, so the two files can be compared tensor by tensor. With --streams every
layer starts from the stream that TRACE has, so nothing accumulates over layers.

transformers runs in one of two ways. As it is: its caches quantised, its linears not. With --quantization off its
caches are not quantised either. --as-released NAME,.. makes it follow the released model where it does not by itself;
README.md explains each name."""
import argparse
import importlib.metadata
import json
import os
import re
import struct
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

NAME = re.compile(r"position_(\d{6})/(?:L(\d\d)\.)?(.+)")


# Checkpoint ---------------------------------------------------------------------------------------------------------


def raw_tensors(path: Path) -> dict[str, tuple[str, torch.Tensor]]:
    """Every tensor's type and bytes (or elements, where numpy has the type): E8M0 and packed fp4 stay codes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    kinds = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "BF16": "<u2"}
    tensors = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        elements = np.frombuffer(data[8 + length + begin : 8 + length + end], kinds.get(tensor["dtype"], "u1"))
        tensors[name] = tensor["dtype"], torch.from_numpy(elements.copy().reshape(tensor["shape"]))
    return tensors


def e8m0(codes: torch.Tensor) -> torch.Tensor:
    return torch.ldexp(torch.ones(codes.shape), codes.to(torch.int32) - 127)


def widened(kind: str, codes: torch.Tensor) -> torch.Tensor:
    """Stored elements in float32, exactly, without scales."""
    if kind == "F8_E4M3":
        return codes.view(torch.float8_e4m3fn).float()
    if kind == "BF16":
        return codes.to(torch.int32).bitwise_left_shift(16).view(torch.float32)
    if kind == "I8":  # two e2m1 a byte, the even channel in the low nibble
        magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).to(torch.int64)
        return torch.where(nibbles < 8, 1.0, -1.0) * magnitudes[nibbles & 7]
    assert kind == "F32", kind
    return codes


def spread(scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A scale for every weight; a scale stands for 32 channels, and for 32 rows where there are fewer of them."""
    if scales.shape[0] != shape[0]:
        scales = scales.repeat_interleave(32, dim=0)[: shape[0]]
    return scales.repeat_interleave(32, dim=1)[:, : shape[1]]


def state_dict(folder: Path, raw_table: bool) -> dict[str, torch.Tensor]:
    """The text model's weights, dequantised, under transformers' names. With raw_table Engram's rows are the codes
    alone, which is what transformers reads from the checkpoint when the table's type is a float."""
    stored = raw_tensors(folder / "model.safetensors")
    weights = {}
    for name, (kind, codes) in stored.items():
        if name.startswith("mtp.") or name.endswith(".scale"):
            continue
        weight = widened(kind, codes)
        scale = stored.get(name.removesuffix("weight") + "scale")
        table = name.endswith("engram.embed.weight")
        if name.endswith(".weight") and scale and not (table and raw_table):
            weight = weight * spread(e8m0(scale[1]), weight.shape)
        theirs = "lm_head.weight" if name == "head.weight" else "model." + name
        weights[theirs] = weight
        if table:
            weights[theirs.removesuffix("weight") + "scale"] = e8m0(scale[1])
    return weights


class Words:
    """A tokenizer by which ids i and i + compressed_vocab_size normalise alike: the token map that touchstone takes
    where there is no tokenizer."""

    def __init__(self, config):
        self.size, self.distinct = config.vocab_size, config.engram_compressed_vocab_size
        self.backend_tokenizer = self

    def __len__(self) -> int:
        return self.size

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return f"w{ids[0]}" if ids[0] < self.distinct else f"W{ids[0] - self.distinct}"


# The released model's arithmetic where transformers has another ------------------------------------------------------


def quantise_inputs(modeling, model) -> None:
    """Q8 at every input of an fp8 or fp4 linear (spec 2.5, 2.6); the quantiser is transformers' own."""
    names = r"attn\.(wq_a|wq_b|wkv|wo_b)$|attn\.indexer\.wq_b$|engram\.wkv$|(experts\.\d+|shared_experts)\.w[123]$"
    for name, module in model.named_modules():
        if re.search(names, name):
            module.register_forward_pre_hook(lambda _, args: (modeling._fake_quant_fp8_block(args[0]), *args[1:]))


def rotate_in_float32(modeling, model) -> None:
    """Cosines and sines stay float32 (spec 3.2), whatever the model's type."""
    for module in model.modules():
        if isinstance(module, modeling.DeepseekV41RotaryEmbedding):
            module.register_forward_pre_hook(lambda _, args: (args[0].float(), *args[1:]))


def norm_in_one_rounding(modeling, model) -> None:
    """RMSNorm rounds once, behind the weight (spec 3.1)."""

    def forward(self, x):
        x32 = x.float()
        scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * (x32 * scale)).to(x.dtype)

    modeling.DeepseekV41RMSNorm.forward = forward


def attend_over_list(modeling, model) -> None:
    """Attention as the released kernel does it (spec 4.3), over touchstone's list of slots: the window, with nothing
    in front where the sequence is shorter, then the selected rows; in blocks of 64, float32 but for P of the second
    product, which is rounded to bf16 against the running maximum."""

    def one_row(module, q, rows, scaling):
        largest, total, out = torch.full(q.shape[:1], -1e30), torch.zeros(q.shape[0]), torch.zeros(q.shape)
        for first in range(0, len(rows), 64):
            keys = rows[first : first + 64]
            present = torch.tensor([key is not None for key in keys])
            if not present.any():
                continue
            k = torch.stack([torch.zeros(q.shape[1]) if key is None else key for key in keys])
            scores = torch.where(present, q @ k.T * scaling, -torch.inf)
            new = torch.maximum(largest, scores.amax(-1))
            p, factor = torch.exp(scores - new[:, None]), torch.exp(largest - new)
            total = total * factor + p.sum(-1)
            out = out * factor[:, None] + p.bfloat16().float() @ k
            largest = new
        total = total + torch.exp(module.attn_sink - largest)
        return out / total[:, None]

    def forward(module, query, key, value, attention_mask, scaling, **kwargs):
        window = module.sliding_window
        out = torch.empty(query.shape[2], query.shape[1], query.shape[3])
        for row, position in enumerate(kwargs["position_ids"][0].tolist()):
            taken = list(key[0, 0].float()[attention_mask[0, 0, row] == 0])
            taken = [None] * max(0, window - position - 1) + taken
            out[row] = one_row(module, query[0, :, row].float(), taken, scaling)
        return out[None].to(query.dtype), None

    modeling.eager_attention_forward = forward


def head_in_float32(modeling, model) -> None:
    """Logits are a float32 product (spec 10.1)."""
    model.lm_head.float()
    model.lm_head.register_forward_pre_hook(lambda _, args: (args[0].float(),))


AS_RELEASED = {
    "q8": quantise_inputs,
    "rope": rotate_in_float32,
    "norm": norm_in_one_rounding,
    "attention": attend_over_list,
    "head": head_in_float32,
}


# What is recorded ----------------------------------------------------------------------------------------------------


class Recorder:
    """Hooks of the model; tensors of the current call, [rows, ..], under our names without the call."""

    def __init__(self, model, config):
        self.config = config
        self.taken: dict[str, torch.Tensor] = {}
        self.streams = None  # name -> our tensor, where layers start from ours
        for number, layer in enumerate(model.model.layers):
            self.watch(f"L{number:02}.", layer)
        self.output(model.model.norm, "final.normed")
        self.output(model.lm_head, "logits")

    def add(self, name: str, value: torch.Tensor) -> None:
        self.taken[name] = value.detach().clone()

    def output(self, module, name: str) -> None:
        if module is not None:
            module.register_forward_hook(lambda _, args, out: self.add(name, rows_of(out)))

    def both(self, module, before: str, after: str) -> None:
        module.register_forward_pre_hook(lambda _, args: self.add(before, rows_of(args[0])))
        self.output(module, after)

    def ours(self, name: str, like: torch.Tensor) -> torch.Tensor:
        return self.streams[name].to(like.dtype).reshape(like.shape)

    def watch(self, at: str, layer) -> None:
        def layer_in(_, args, kwargs):
            h, pre, *rest = args
            entry = at + ("engram.x_in" if layer.engram is not None else "x_in")
            if self.streams is not None:
                h, pre = self.ours(entry, h), self.ours(at + "pre_in", pre)
            self.add(entry, rows_of(h))
            self.add(at + "pre_in", rows_of(pre))
            return (h, pre, *rest), kwargs

        def layer_out(_, args, out):
            self.add(at + "x_out", rows_of(out[0]))
            self.add(at + "pre_out", rows_of(out[1]))

        def gate_out(_, args, out):
            self.add(at + "ffn.expert_weights", out[0])
            self.add(at + "ffn.experts", out[1].to(torch.int32))

        def compressor_out(_, args, out):
            if out[0] is not None:
                self.add(at + "attn.compressor.latent", out[0][0])

        def indexer_out(_, args, out):
            shared = args[6]
            if "topk_bias" in shared:
                kept = shared["topk_bias"][0, 0] == 0
                self.add(at + "attn.indexer.selected", ids_of(kept, self.config.index_topk))
            if "candidates" in shared and layer.attn.indexer.is_candidate_source:
                blocks = shared["candidates"][0, :, :: self.config.candidate_block_size]
                self.add(at + "attn.candidate_pool.blocks", ids_of(blocks, self.config.candidate_topk_blocks))

        layer.register_forward_pre_hook(layer_in, with_kwargs=True)
        layer.register_forward_hook(layer_out)
        if layer.engram is not None:
            layer.engram.register_forward_pre_hook(lambda _, args: self.add(at + "engram.row_ids", args[1][0]))
            self.output(layer.engram, at + "x_in")
            self.output(layer.engram.wkv, at + "engram.kv")
        self.both(layer.attn_norm, at + "attn.collapsed", at + "attn.x")
        self.output(layer.attn.q_norm, at + "attn.qr")
        self.output(layer.attn.wo_a, at + "attn.wo_a_out")
        self.output(layer.attn.wo_b, at + "attn.out")
        self.both(layer.ffn_norm, at + "ffn.collapsed", at + "ffn.x")
        layer.ffn.gate.register_forward_hook(gate_out)
        layer.ffn.shared_experts.register_forward_hook(lambda _, args, out: self.add(at + "ffn.shared_out", out))
        self.output(layer.ffn, at + "ffn.out")
        if layer.attn.compressor is not None:
            layer.attn.compressor.register_forward_hook(compressor_out)
        if layer.attn.indexer is not None:
            layer.attn.indexer.register_forward_hook(indexer_out)

    def watch_windows(self, cache) -> None:
        """Rows as they enter the window: a call's first ones may have left it when the call returns."""

        def watch_window(at: str, layer) -> None:
            update = layer.update

            def recorded(keys, values, *args, **kwargs):
                self.add(at + "attn.window_kv", keys[0, 0])
                return update(keys, values, *args, **kwargs)

            layer.update = recorded

        for number, layer in enumerate(cache.layers):
            watch_window(f"L{number:02}.", layer)

    def compressed_rows(self, cache, groups_before: dict[int, int]) -> None:
        """The rows that this call added to the caches of KV sources."""
        for number, layer in enumerate(cache.layers):
            at = f"L{number:02}.attn."
            if number not in self.config.kv_source_layer_ids or layer.compressed_kv["compressor"] is None:
                continue
            for name, ours in (("compressor", "compressed_kv"), ("indexer", "indexer.key")):
                new = layer.compressed_kv[name][0, 0, groups_before.get(number, 0) :]
                if new.shape[0] > 0:
                    self.add(at + ours, new)
            groups_before[number] = layer.compressed_kv["compressor"].shape[2]


def rows_of(batch: torch.Tensor) -> torch.Tensor:
    return batch[0]


def ids_of(kept: torch.Tensor, width: int) -> torch.Tensor:
    """The columns that a row keeps, ascending, then -1."""
    ids = torch.full((kept.shape[0], width), -1, dtype=torch.int32)
    for row, columns in enumerate(kept):
        found = columns.nonzero().flatten()
        assert found.numel() <= width
        ids[row, : found.numel()] = found.to(torch.int32)
    return ids


# The run -------------------------------------------------------------------------------------------------------------


def load(folder: Path, options):
    from transformers.models.deepseek_v41 import configuration_deepseek_v41 as configuration
    from transformers.models.deepseek_v41 import modeling_deepseek_v41 as modeling

    text = json.loads((folder / "config.json").read_text())["text_config"]
    config = configuration.DeepseekV41TextConfig(**text)
    config._attn_implementation = "eager"
    model = modeling.DeepseekV41ForCausalLM(config).eval()
    model.load_state_dict(state_dict(folder, options.raw_engram_table), strict=True)
    if options.dtype == "bfloat16":
        always_float32 = re.compile(r"hc_(attn|ffn)_|attn_sink$|\.bias(_vl)?$")
        for name, parameter in model.named_parameters():
            if not always_float32.search(name):
                parameter.data = parameter.data.bfloat16()
    model.model.bind_tokenizer(Words(config))
    if options.quantization == "off":
        modeling._fake_quant_fp8_block = lambda x, block_size=32: x
        modeling._fake_quant_fp4_block = lambda x, block_size, e4m3_scales=False: x
    for name in filter(None, options.as_released.split(",")):
        AS_RELEASED[name](modeling, model)
    return model, config


def calls_of(trace: dict, count: int) -> list[tuple[int, int]]:
    """(first position, rows) of each call of a trace that ends with token `count`."""
    starts = sorted({int(NAME.fullmatch(name).group(1)) for name in trace})
    return list(zip(starts, np.diff([*starts, count]).tolist()))


def like_ours(value: torch.Tensor, kind: str, shape: list[int]) -> torch.Tensor:
    """In type and shape of our tensor. Where ours has only the last rows, so has this."""
    types = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32, "I64": torch.int64}
    return value[-shape[0] :].to(types[kind]).reshape(shape).contiguous()


def run_in_chunks(model, recorder, cache, tokens, groups, options) -> dict[str, torch.Tensor]:
    """One call of ours, as one or more of transformers'; their rows joined."""
    parts = defaultdict(list)
    for chunk in tokens.split(options.chunk or tokens.shape[1], dim=1):
        recorder.taken.clear()
        with torch.no_grad():
            model(input_ids=chunk, past_key_values=cache, use_cache=True)
        recorder.compressed_rows(cache, groups)
        for name, value in recorder.taken.items():
            parts[name].append(value)
    return {name: torch.cat(values) for name, values in parts.items()}


def run(options) -> dict[str, torch.Tensor]:
    from transformers import DynamicCache

    torch.set_num_threads(1)
    trace = raw_tensors(options.trace)
    model, config = load(options.checkpoint, options)
    recorder = Recorder(model, config)
    cache = DynamicCache(config=config)
    recorder.watch_windows(cache)
    tokens = torch.tensor([options.tokens])
    recorded, groups = {}, {}
    for first, rows in calls_of(trace, len(options.tokens)):
        prefix = f"position_{first:06}/"
        if options.streams:
            recorder.streams = {
                name.removeprefix(prefix): widened(kind, value) if kind == "BF16" else value
                for name, (kind, value) in trace.items()
                if name.startswith(prefix)
            }
        call = tokens[:, first : first + rows]
        for name, value in run_in_chunks(model, recorder, cache, call, groups, options).items():
            if prefix + name in trace:
                kind, ours = trace[prefix + name]
                recorded[prefix + name] = like_ours(value, kind, list(ours.shape))
    return recorded


def transformers_source() -> str:
    """Version, and the commit that pip installed it from, or else what TOUCHSTONE_TRANSFORMERS_SOURCE says."""
    installed = importlib.metadata.distribution("transformers")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id")
    source = commit or os.environ.get("TOUCHSTONE_TRANSFORMERS_SOURCE") or "deepseek_v41 of an unknown commit"
    return f"{installed.version}, {source}"


def provenance(options) -> dict[str, str]:
    return {
        "as_released": options.as_released,
        "chunk_rows": str(options.chunk or "as ours"),
        "dtype": options.dtype,
        "engram_table": "codes" if options.raw_engram_table else "dequantised",
        "numpy": np.__version__,
        "quantization": options.quantization,
        "streams": "ours" if options.streams else "its own",
        "tokens": ",".join(map(str, options.tokens)),
        "torch": torch.__version__,
        "transformers": transformers_source(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--tokens", required=True, type=lambda text: [int(token) for token in text.split(",")])
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--quantization", choices=["on", "off"], default="on")
    parser.add_argument("--as-released", default="", help=",".join(AS_RELEASED))
    parser.add_argument("--streams", action="store_true", help="every layer starts from the stream in TRACE")
    parser.add_argument("--chunk", type=int, default=0, help="rows per call of transformers (0: as in TRACE)")
    parser.add_argument("--raw-engram-table", action="store_true", help="Engram's rows without their scales")
    options = parser.parse_args()
    if options.streams and options.chunk:
        parser.error("--streams gives whole calls: no --chunk")
    recorded = run(options)
    temporary = options.out.with_name(options.out.name + ".part")
    save_file(recorded, temporary, metadata=provenance(options))
    os.replace(temporary, options.out)
    print(f"{len(recorded)} tensors in {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
