// Words that the table of steps is written in: where the inputs of a link come from.
#pragma once

#include <string>
#include <vector>

#include "golden/bisect/trace_steps.h"

namespace touchstone {

using Widths = std::function<std::vector<int64_t>(const ModelConfig&)>;
using ParameterText = std::function<std::string(const StepPlace&)>;

// Their tensors, of the same call; rows are the last ones, as many as the step makes.
Origin traced(std::string name);
/// Of another layer; -1: none.
Origin traced_of(std::string name, int (*layer)(const StepPlace&));
/// The row of a row-by-row step, without the first extent.
Origin traced_row(std::string name);
/// What the link before has made.
Origin link_before();

/// "layers.6.attn.wq_a.weight".
std::string layer_weight_name(const StepPlace& place, std::string_view name);
/// "attn.wq_a.weight" of the step's layer; "norm.weight" of the model.
Origin layer_weight(std::string name);
Origin model_weight(std::string name);

/// The same elements under other extents after the first.
Origin shaped(Origin origin, Widths widths);
/// All extents after the first run together.
Origin flat(Origin origin);

/// Positions of the rows, I64.
Origin positions();
/// Zeros, U8, one a row: no row is inside an image.
Origin no_images();

ParameterText fixed(std::string text);
/// "eps=..": of the norms.
std::string norm_eps_text(const StepPlace& place);

// Tensors of a plain value type.
template <class T>
Tensor tensor_of(std::vector<int64_t> shape, const std::vector<T>& values);
/// Rows first .. first + count - 1.
Tensor row_range(const Tensor& tensor, int64_t first, int64_t count);
/// Bytes of `part` behind those of `whole`; both have the same row.
void append_rows(Tensor& whole, const Tensor& part);

/// A stored weight by its full name, as the operators take it.
Tensor weight_tensor(const TensorSource& weights, const std::string& name);

/// Rows of a KV source from row `first` on, of this call and the calls before: `name` is attn.compressed_kv
/// or attn.indexer.key. Nothing where the trace does not have row 0 .. count - 1.
std::optional<Tensor> source_rows(const StepPlace& place, int source, std::string_view name, int64_t count);
/// Groups of `ratio` tokens that are closed before the call's own ones.
int64_t first_group(const TracedCall& call, int64_t ratio, int64_t groups);

}  // namespace touchstone
