// The registry: every operator of the text model once. The command line, the golden store, tests, benchmarks
// and other implementations read it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/registry/operator.h"

namespace touchstone {

/// All operators, families in the order of the model.
std::span<const OperatorInfo> operators();
/// Throws UserError, with the nearest name, when there is none.
const OperatorInfo& find_operator(std::string_view name);

/// A case: an operator and its parameters.
struct ParsedCase {
    const OperatorInfo* info;
    Parameters parameters;
    std::vector<std::string> assumed;  ///< parameters that the text left out, as key=value
};

/// Reads `name(key=value,..,seed=7)`; what is left out has its default. Throws UserError naming `where` for
/// an unknown operator or key and for a value outside its limits.
ParsedCase parse_case(std::string_view text, const std::string& where);
/// The text that parse_case reads: every parameter in its order, then the seed.
std::string case_text(const OperatorInfo& info, const Parameters& parameters);

/// The parameters of given tensors: extents that are a parameter's name alone give it, `text` (a case of this
/// operator, or empty) gives others, the rest have their defaults. Throws UserError when two tensors, or a
/// tensor and the text, say different things.
ParsedCase parse_tensors(const OperatorInfo& info, const TensorMap& tensors, std::string_view text,
                         const std::string& where);

/// The slots that exist with these parameters.
std::vector<const Slot*> input_slots(const OperatorInfo& info, const Parameters& parameters);
std::vector<const OutputSlot*> output_slots(const OperatorInfo& info, const Parameters& parameters);
std::vector<int64_t> shape_of(const Slot& slot, const Parameters& parameters);

/// Inputs of the parameters' case.
TensorMap make_inputs(const OperatorInfo& info, const Parameters& parameters);

/// Checks names, types and shapes, then runs. An input without elements may be missing. Throws UserError,
/// with tensor, found, expected and remedy, when they do not match, and as the operator does.
TensorMap run_operator(const OperatorInfo& info, Arithmetic arithmetic, const Parameters& parameters,
                       const TensorMap& inputs);
/// In double, checked alike: F64 tensors of the outputs that are judged.
TensorMap judge_operator(const OperatorInfo& info, const truth::Ledger& ledger, const Parameters& parameters,
                         const TensorMap& inputs);

/// An output against `truth`. Two NaN, or two equal infinities, differ by 0; a NaN or infinity on one side by
/// infinity.
struct Comparison {
    const OutputSlot* slot;
    double largest_error = 0;
    int64_t index = 0;  ///< of the element with the largest share
    double share = 0;   ///< of what is allowed, the largest: above 1 is a failure
};
std::vector<Comparison> compare_with_truth(const OperatorInfo& info, Arithmetic arithmetic,
                                           const Parameters& parameters, const TensorMap& inputs,
                                           const TensorMap& outputs, const TensorMap& truth);

/// The profile whose bits `arithmetic` gives: released_hopper is hopper, and hopper exact, where the operator
/// does not tell them apart.
Arithmetic profile_of(const OperatorInfo& info, Arithmetic arithmetic);

/// "exact"; "bound", "1e-06 of the largest", ..
std::string judged_text(const OutputSlot& slot);

}  // namespace touchstone
