// What kernels that collapse and expand the residual streams have got wrong.
#include <algorithm>

#include "golden/hypotheses/component_words.h"

namespace touchstone {

namespace {

const std::vector<std::string> on_collapse{"collapse"}, on_expand{"expand"}, on_streams{"collapse", "expand"};

float half(float x) {
    return x / 2;
}

bool comb_transposed_in(TensorMap& inputs, const OperatorRun& run) {
    const auto n = static_cast<size_t>(run.parameters["streams"]);
    const std::span<float> comb = inputs.find("comb")->second.view<float>();
    for (size_t first = 0; first < comb.size(); first += n * n)
        for (size_t j = 0; j < n; ++j)
            for (size_t k = 0; k < j; ++k) std::swap(comb[first + j * n + k], comb[first + k * n + j]);
    return n > 1;
}

bool comb_of_ones_diagonal(TensorMap& inputs, const OperatorRun& run) {
    const auto n = static_cast<size_t>(run.parameters["streams"]);
    const std::span<float> comb = inputs.find("comb")->second.view<float>();
    for (size_t i = 0; i < comb.size(); ++i) comb[i] = i % (n * n) / n == i % n ? 1.0f : 0.0f;
    return true;
}

bool post_for_first_alone(TensorMap& inputs, const OperatorRun& run) {
    const auto n = static_cast<size_t>(run.parameters["streams"]);
    const std::span<float> post = inputs.find("post")->second.view<float>();
    for (size_t i = 0; i < post.size(); ++i)
        if (i % n != 0) post[i] = 0;
    return n > 1;
}

bool mean_of_streams(TensorMap& inputs, const OperatorRun& run) {
    std::ranges::fill(inputs.find("pre")->second.view<float>(),
                      1 / static_cast<float>(run.parameters["streams"]));
    return true;
}

bool first_stream(TensorMap& inputs, const OperatorRun& run) {
    const auto n = static_cast<size_t>(run.parameters["streams"]);
    const std::span<float> pre = inputs.find("pre")->second.view<float>();
    for (size_t i = 0; i < pre.size(); ++i) pre[i] = i % n == 0 ? 1.0f : 0.0f;
    return true;
}

bool pre_normalised(TensorMap& inputs, const OperatorRun& run) {
    const auto n = static_cast<size_t>(run.parameters["streams"]);
    const std::span<float> pre = inputs.find("pre")->second.view<float>();
    for (size_t first = 0; first < pre.size(); first += n) {
        float sum = 0;
        for (size_t c = 0; c < n; ++c) sum += pre[first + c];
        for (size_t c = 0; c < n; ++c) pre[first + c] /= sum;
    }
    return true;
}

bool streams_reversed(TensorMap& inputs, const OperatorRun& run) {
    const auto hidden = run.parameters["hidden"], row = run.parameters["streams"] * hidden;
    const std::span<Bf16> h = inputs.find("h")->second.view<Bf16>();
    const std::vector<Bf16> before(h.begin(), h.end());
    for (int64_t i = 0; i < std::ssize(h); ++i) {
        const int64_t stream = i % row / hidden, opposite = row / hidden - 1 - stream;
        h[static_cast<size_t>(i)] = before[static_cast<size_t>(i + (opposite - stream) * hidden)];
    }
    return run.parameters["streams"] > 1;
}

/// Channel d of stream c is read at d * streams + c.
bool streams_interleaved(TensorMap& inputs, const OperatorRun& run) {
    const int64_t n = run.parameters["streams"], hidden = run.parameters["hidden"], row = n * hidden;
    const std::span<Bf16> h = inputs.find("h")->second.view<Bf16>();
    const std::vector<Bf16> before(h.begin(), h.end());
    for (int64_t i = 0; i < std::ssize(h); ++i)
        h[static_cast<size_t>(i)] =
            before[static_cast<size_t>(i / row * row + i % hidden * n + i % row / hidden)];
    return n > 1 && hidden > 1;
}

}  // namespace

std::vector<Hypothesis> residual_stream_hypotheses() {
    const Cause fault = Cause::fault;
    return {
        {"collapse_by_mean", "K20", "the mean of the streams stands for their weighted sum", fault,
         on_collapse, with_inputs(mean_of_streams)},
        {"collapse_by_sum", "K20", "the streams are added without pre", fault, on_collapse,
         with_each({"pre"}, to_one)},
        {"collapse_takes_first_stream", "K20", "the first stream stands for all", fault, on_collapse,
         with_inputs(first_stream)},
        {"collapse_with_normalised_pre", "K20", "pre is divided by its sum", fault, on_collapse,
         with_inputs(pre_normalised)},
        {"expand_comb_transposed", "K20", "comb is summed over its second index", fault, on_expand,
         with_inputs(comb_transposed_in)},
        {"expand_without_residual", "K20", "the streams themselves are left out", fault, on_expand,
         with_each({"comb"}, to_zero)},
        {"expand_without_output", "K20", "the sublayer's output is left out", fault, on_expand,
         with_each({"post"}, to_zero)},
        {"expand_without_post", "K20", "the sublayer's output is added without post", fault, on_expand,
         with_each({"post"}, to_one)},
        {"expand_with_half_post", "K20", "post lacks its factor 2", fault, on_expand,
         with_each({"post"}, half)},
        {"expand_without_mixing", "K20", "streams are carried on alone: comb is taken as the identity", fault,
         on_expand, with_inputs(comb_of_ones_diagonal)},
        {"expand_into_first_stream", "K20", "the sublayer's output goes into the first stream alone", fault,
         on_expand, with_inputs(post_for_first_alone)},
        {"streams_reversed", "K20", "the streams are taken in reverse", fault, on_streams,
         with_inputs(streams_reversed)},
        {"streams_interleaved", "K20", "streams are read as the inner extent, channels as the outer", fault,
         on_streams, with_inputs(streams_interleaved)},
        {"coefficients_in_bf16", "K20", "pre, post and comb are rounded to bf16", fault, on_streams,
         with_each({"pre", "post", "comb"}, rounded_to_bf16)},
    };
}

}  // namespace touchstone
