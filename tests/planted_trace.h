// A trace with one mistake in it, and everything behind it as it follows from the mistake.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/traced_model.h"

namespace touchstone::traced {

/// Alters the inputs of one operator of a step's chain, or its parameters.
using Alter = std::function<void(Parameters& parameters, TensorMap& inputs, const StepPlace& place)>;

/// A step as it comes out when link `link` of its chain is run altered; of a row-by-row step, every row.
inline Tensor altered_step(const Step& step, StepPlace place, size_t link, const Alter& alter) {
    const Tensor& as = *place.theirs.tensor(place.call, place.layer, step.tensor);
    const auto one = [&] {
        std::string why;
        const std::optional<ChainRun> chain = run_chain(step, place, Arithmetic::exact, why);
        if (!chain) return Tensor{};
        LinkRun run = chain->links[link];
        alter(run.parameters, run.inputs, place);
        const TensorMap outputs = run_operator(*run.info, Arithmetic::exact, run.parameters, run.inputs);
        return run_links_from(*chain, link + 1, outputs.find(run.output)->second, Arithmetic::exact);
    };
    if (!step.row_by_row) {
        Tensor whole = one();
        whole.shape = as.shape;
        return whole;
    }
    std::vector<Tensor> rows;
    for (place.row = 0; place.row < place.rows; ++place.row) rows.push_back(one());
    return stacked(rows, as);
}

/// A trace whose tensors are replaced one by one.
class PlantedTrace {
  public:
    PlantedTrace(TensorMap trace, const TensorSource& source)
        : tensors_(std::move(trace)),
          source_(source),
          roles_(backbone(source.config())),
          pass_(source.config(), views_of(tensors_), "the planted trace") {}

    const TracedPass& pass() const { return pass_; }
    TensorMap& tensors() { return tensors_; }

    StepPlace place(size_t call, int layer, const std::string& name) const {
        return {pass_, source_, roles_, call, layer, pass_.rows(call, layer, name)};
    }

    /// What the step gives altered takes the tensor's place, and later tensors, of this call and all behind
    /// it, are made anew.
    void plant(size_t call, int layer, const std::string& name, size_t link, const Alter& alter) {
        replace(call, layer, name,
                altered_step(*step_of(pass_.config(), layer, name), place(call, layer, name), link, alter));
    }

    void replace(size_t call, int layer, const std::string& name, const Tensor& wrong) {
        put(call, layer, name, wrong);
        bool behind = false;
        for (size_t c = call; c < pass_.calls().size(); ++c)
            for (const TracedTensor& tensor : pass_.path()) {
                if (behind && tensor.name != "tokens") remake(c, tensor);
                behind = behind || (c == call && tensor.layer == layer && tensor.name == name);
            }
    }

  private:
    void remake(size_t call, const TracedTensor& tensor) {
        if (!pass_.has(call, tensor.layer, tensor.name)) return;
        std::string why;
        const std::optional<Tensor> made =
            run_step(*step_of(pass_.config(), tensor.layer, tensor.name),
                     place(call, tensor.layer, tensor.name), Arithmetic::exact, why);
        if (made) put(call, tensor.layer, tensor.name, *made);
    }

    /// In place: views stay valid.
    void put(size_t call, int layer, const std::string& name, const Tensor& value) {
        Tensor& tensor = tensors_.find(pass_.calls()[call].prefix + traced_name(layer, name))->second;
        std::copy(value.bytes.begin(), value.bytes.end(), tensor.bytes.begin());
        pass_.forget();
    }

    TensorMap tensors_;
    const TensorSource& source_;
    std::vector<LayerRole> roles_;
    TracedPass pass_;
};

}  // namespace touchstone::traced
