#include "golden/bisect/trace_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>

#include "reference/io/user_error.h"
#include "reference/registry/entry.h"

namespace touchstone {

namespace {

/// The operators that take their rotary table from the released configuration.
constexpr std::array rotating{"rope", "index_keys", "index_queries"};

bool rotates_as_released(const ModelConfig& config) {
    const ModelConfig& released = released_config();
    return config.rope_theta == released.rope_theta &&
           config.compress_rope_theta == released.compress_rope_theta &&
           config.rope_factor == released.rope_factor && config.beta_fast == released.beta_fast &&
           config.beta_slow == released.beta_slow &&
           config.original_max_position_embeddings == released.original_max_position_embeddings;
}

std::vector<Step> make_table() {
    std::vector<Step> all;
    for (const auto family : {engram_steps, stream_steps, compressed_steps, attention_steps, expert_steps})
        std::ranges::move(family(), std::back_inserter(all));
    return all;
}

/// The inputs of a link; nothing where one is missing.
std::optional<TensorMap> inputs_of(const Link& link, const StepPlace& place, std::string& why) {
    TensorMap inputs;
    for (const auto& [slot, origin] : link.inputs) {
        std::optional<Tensor> tensor = origin(place);
        if (!tensor) {
            why = fmt::format("what {}'s {} is made of is not in the trace", link.operator_name, slot);
            return std::nullopt;
        }
        if (!tensor->type.empty()) inputs.emplace(slot, std::move(*tensor));
    }
    return inputs;
}

std::optional<LinkRun> run_link(const Link& link, const StepPlace& place, Arithmetic arithmetic,
                                std::string& why) {
    const bool rotates = std::ranges::find(rotating, link.operator_name) != rotating.end();
    if (rotates && !rotates_as_released(place.config())) {
        why = fmt::format("{} has the released rotary frequencies, this configuration others",
                          link.operator_name);
        return std::nullopt;
    }
    std::optional<TensorMap> inputs = inputs_of(link, place, why);
    if (!inputs) return std::nullopt;
    const OperatorInfo& info = find_operator(link.operator_name);
    const std::string text = fmt::format("{}({})", info.name, link.parameters(place));
    ParsedCase parsed = parse_tensors(info, *inputs, text.ends_with("()") ? "" : text, "the table of steps");
    TensorMap outputs = run_operator(info, arithmetic, parsed.parameters, *inputs);
    return LinkRun{&info,
                   std::move(parsed.parameters),
                   std::move(*inputs),
                   std::move(outputs),
                   link.output,
                   place.link == nullptr ? "" : link.inputs.front().first};
}

}  // namespace

const std::vector<Step>& trace_steps() {
    static const std::vector<Step> all = make_table();
    return all;
}

const Step* step_of(const ModelConfig& config, int layer, std::string_view tensor) {
    for (const Step& step : trace_steps())
        if (step.tensor == tensor && (step.where == nullptr || step.where(config, layer))) return &step;
    return nullptr;
}

std::optional<ChainRun> run_chain(const Step& step, const StepPlace& place, Arithmetic arithmetic,
                                  std::string& why) {
    ChainRun chain;
    if (step.moved) {
        std::optional<Tensor> moved = step.moved(place);
        if (!moved) {
            why = "what it is a copy of is not in the trace";
            return std::nullopt;
        }
        chain.result = std::move(*moved);
        return chain;
    }
    StepPlace at = place;
    try {
        for (const Link& link : step.links) {
            std::optional<LinkRun> run = run_link(link, at, arithmetic, why);
            if (!run) return std::nullopt;
            chain.links.push_back(std::move(*run));
            const LinkRun& last = chain.links.back();
            chain.result = last.outputs.find(last.output)->second;
            at.link = &chain.result;
        }
    } catch (const UserError& error) {
        why = error.parts().what;
        return std::nullopt;
    }
    return chain;
}

Tensor run_links_from(const ChainRun& chain, size_t first, const Tensor& made, Arithmetic arithmetic) {
    Tensor result = made;
    for (size_t i = first; i < chain.links.size(); ++i) {
        const LinkRun& link = chain.links[i];
        TensorMap inputs = link.inputs;
        Tensor& input = inputs.find(link.from_link)->second;
        input.bytes = std::move(result.bytes);
        TensorMap outputs = run_operator(*link.info, arithmetic, link.parameters, inputs);
        result = std::move(outputs.find(link.output)->second);
    }
    return result;
}

Tensor stacked(const std::vector<Tensor>& rows, const Tensor& as) {
    const std::byte filler{0xFF};  // -1 of integers
    Tensor whole = make_tensor("", as.type, as.shape, filler);
    if (as.type == "F32") std::ranges::fill(whole.view<float>(), -std::numeric_limits<float>::infinity());
    const int64_t width = as.shape.front() == 0 ? 0 : std::ssize(as.bytes) / as.shape.front();
    for (size_t row = 0; row < rows.size(); ++row) {
        const auto count = std::min(std::ssize(rows[row].bytes), width);
        std::copy_n(rows[row].bytes.begin(), count, whole.bytes.begin() + static_cast<int64_t>(row) * width);
    }
    return whole;
}

namespace {

/// The results of all rows of a row-by-row step, in parallel: an operator on one row is too little work.
std::optional<std::vector<Tensor>> run_rows(const Step& step, const StepPlace& place, Arithmetic arithmetic,
                                            std::string& why) {
    std::vector<Tensor> results(static_cast<size_t>(place.rows));
    std::vector<std::string> missing(results.size());
#pragma omp parallel for schedule(dynamic)
    for (int64_t row = 0; row < place.rows; ++row) {
        StepPlace at = place;
        at.row = row;
        const auto i = static_cast<size_t>(row);
        std::optional<ChainRun> chain = run_chain(step, at, arithmetic, missing[i]);
        if (chain) results[i] = std::move(chain->result);
    }
    for (const std::string& one : missing)
        if (!one.empty()) {
            why = one;
            return std::nullopt;
        }
    return results;
}

}  // namespace

std::optional<Tensor> run_step(const Step& step, const StepPlace& place, Arithmetic arithmetic,
                               std::string& why) {
    const Tensor& as = *place.theirs.tensor(place.call, place.layer, step.tensor);
    if (place.rows == 0) return as;  // as replay leaves it: there is nothing that a mistake could be in
    if (step.row_by_row) {
        const std::optional<std::vector<Tensor>> rows = run_rows(step, place, arithmetic, why);
        if (!rows) return std::nullopt;
        const auto widest =
            std::ranges::max_element(*rows, {}, [](const Tensor& row) { return row.bytes.size(); });
        if (widest->bytes.size() > as.bytes.size() / static_cast<size_t>(as.shape.front())) {
            why = fmt::format("the trace has {} of it, the step makes rows of {}",
                              describe(as.type, as.shape), describe(widest->type, widest->shape));
            return std::nullopt;
        }
        return stacked(*rows, as);
    }
    std::optional<ChainRun> chain = run_chain(step, place, arithmetic, why);
    if (!chain) return std::nullopt;
    if (chain->result.bytes.size() != as.bytes.size()) {
        why = fmt::format("the trace has {} of it, the step makes {}", describe(as.type, as.shape),
                          describe(chain->result.type, chain->result.shape));
        return std::nullopt;
    }
    chain->result.shape = as.shape;
    return std::move(chain->result);
}

}  // namespace touchstone
