// Every traced tensor as a step of the forward pass: a chain of operators from tensors that came before and
// from weights. Fed with somebody's own tensors it says whether a mistake was made in the step or came from
// before.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "golden/bisect/traced_pass.h"
#include "reference/model/layer_roles.h"
#include "reference/model/tensor_source.h"
#include "reference/registry/registry.h"

namespace touchstone {

/// What a faulty pass may read in place of what it should: other weights, rows, choices.
struct OtherReading {
    int weight_layers = 0;          ///< added to the layer whose weights are read
    int64_t window_positions = 0;   ///< added to the positions of the window's slots
    bool first_slot_stale = false;  ///< the window's first slot holds the position before it
    std::optional<int> index_key_source = {}, top_k_source = {}, kv_source = {};  ///< not the layer's own
    bool fill_with_masked = false;  ///< masked rows may fill a list that the pool leaves short
};

/// Where a step is run, and what it finds there.
struct StepPlace {
    const TracedPass& theirs;
    const TensorSource& weights;
    const std::vector<LayerRole>& roles;  ///< of the backbone
    size_t call;
    int layer;                     ///< -1 outside layers
    int64_t rows;                  ///< that the step makes: the call's last ones
    int64_t row = -1;              ///< of a step that runs row by row, which of them
    const Tensor* link = nullptr;  ///< what the link before has made
    OtherReading reading = {};     ///< of a hypothesis

    const ModelConfig& config() const { return theirs.config(); }
    const LayerRole& role() const { return roles[static_cast<size_t>(layer)]; }
    int index_key_source() const { return reading.index_key_source.value_or(role().index_key_source); }
    int top_k_source() const { return reading.top_k_source.value_or(role().top_k_source); }
    int kv_source() const { return reading.kv_source.value_or(role().kv_source); }
    const TracedCall& where() const { return theirs.calls()[call]; }
    /// Of the row of a row-by-row step.
    int64_t position() const { return where().end() - rows + row; }
};

/// An input of a link. Nothing where the trace does not have what it is made of.
using Origin = std::function<std::optional<Tensor>(const StepPlace&)>;

/// One operator of the registry: its inputs, the parameters that are no extent of them as "key=value,..", and
/// the output that goes on.
struct Link {
    std::string operator_name;
    std::vector<std::pair<std::string, Origin>> inputs;
    std::function<std::string(const StepPlace&)> parameters;
    std::string output;
};

/// How an output may differ from the reference's where nothing is wrong.
enum class StepJudge : uint8_t {
    values,     ///< as rounding lets the last link's output differ, and what the links before add
    quantised,  ///< a code's step in one percent of the elements
    selection,  ///< equal but for scores that tie, or nearly
};

struct Step {
    std::string tensor;  ///< as in trace_path, without the layer
    std::vector<Link> links;
    bool row_by_row = false;  ///< a run per row, as long as that row sees
    Origin moved = nullptr;   ///< instead of links, where nothing is computed: the tensor itself
    /// Tensors of the same call and layer that the chain makes anew on its way: where one of them is wrong,
    /// so is this one, without a mistake here.
    std::vector<std::string> beside = {};
    StepJudge judge = StepJudge::values;
    /// Where the model has two steps for one tensor, the layers that this one is about; null: all.
    std::function<bool(const ModelConfig&, int layer)> where = nullptr;
};

/// All of them, in the order of trace_path.
const std::vector<Step>& trace_steps();
/// The step that makes a tensor; nullptr for tokens, which nothing makes.
const Step* step_of(const ModelConfig& config, int layer, std::string_view tensor);

// The parts of the table, in trace_steps_*.cpp.
std::vector<Step> stream_steps();
std::vector<Step> engram_steps();
std::vector<Step> compressed_steps();
std::vector<Step> attention_steps();
std::vector<Step> expert_steps();

/// A link as it runs: what the registry needs.
struct LinkRun {
    const OperatorInfo* info;
    Parameters parameters;
    TensorMap inputs;
    TensorMap outputs;
    std::string output;     ///< the one that goes on
    std::string from_link;  ///< the input that the link before has made; "" of the first
};

/// The chain of a step, or of one row of it.
struct ChainRun {
    std::vector<LinkRun> links;
    Tensor result;
};

/// What a step gives with the inputs of `place`: the chain, or of a row-by-row step row place.row's. Nothing
/// where an input is missing or no input at all of the operators (a scale that an arithmetic refuses, an id
/// that there is not): `why` says so.
std::optional<ChainRun> run_chain(const Step& step, const StepPlace& place, Arithmetic arithmetic,
                                  std::string& why);

/// The chain from link `first` on, whose link-made input is `made`.
Tensor run_links_from(const ChainRun& chain, size_t first, const Tensor& made, Arithmetic arithmetic);

/// The whole tensor, of type and shape of theirs: every row, short ones filled up as traces are.
std::optional<Tensor> run_step(const Step& step, const StepPlace& place, Arithmetic arithmetic,
                               std::string& why);

/// Rows of different widths under one another, filled up as traces fill them: -infinity, or -1.
Tensor stacked(const std::vector<Tensor>& rows, const Tensor& as);

}  // namespace touchstone
