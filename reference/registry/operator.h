// What the registry knows of an operator, as data: documentation, checking, allocation, cases and tests all
// read the same fields.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reference/linear.h"
#include "reference/numerics/fill.h"
#include "reference/registry/tensor.h"
#include "reference/truth/ledger.h"

namespace touchstone {

enum class ParameterKind : uint8_t { integer, real, choice };

/// A parameter. Texts are expressions of shape_text.h over the parameters before it; those of a real number
/// are decimal numbers; a choice has its first value by default.
struct Parameter {
    std::string name, meaning;
    ParameterKind kind = ParameterKind::integer;
    std::string initial;                    ///< the default
    std::string low, high;                  ///< limits, both allowed
    int64_t multiple_of = 1;                ///< of an integer
    std::vector<std::string> choices = {};  ///< of a choice
};

/// The values of all parameters of an operator, and the seed of its inputs.
class Parameters {
  public:
    int64_t operator[](std::string_view name) const;  ///< of an integer
    float real(std::string_view name) const;
    const std::string& choice(std::string_view name) const;

    std::map<std::string, std::variant<int64_t, double, std::string>, std::less<>> values;
    uint64_t seed = 7;
};

/// A tensor that goes in or out.
struct Slot {
    std::string name;
    std::string type;   ///< of its elements, as safetensors writes it
    std::string shape;  ///< shape_text.h over the parameters
    std::string meaning;
    std::string when = "1";  ///< the slot exists where this expression is not 0
    /// Limits of every element of an input that holds indices, both allowed; empty: none.
    std::string low = "", high = "";
};

/// How an output is held against `truth`.
enum class Judged : uint8_t {
    equal,      ///< every element is the same number
    bound,      ///< within the operator's derived bound, element by element
    tolerance,  ///< within `tolerance` times the largest magnitude of the tensor
    not_judged  ///< bytes whose values another output holds
};

struct OutputSlot : Slot {
    Judged judged = Judged::equal;
    double tolerance = 0;
};

/// Parameters and tensors of one run. Output tensors stand there already, of the declared type and shape,
/// every byte 0xFF: whoever runs fills all of them.
struct Call {
    const Parameters& parameters;
    const TensorMap& inputs;
    TensorMap& outputs;

    int64_t operator[](std::string_view parameter) const { return parameters[parameter]; }
    float real(std::string_view parameter) const { return parameters.real(parameter); }
    template <class T>
    std::span<const T> in(std::string_view name) const {
        return inputs.find(name)->second.view<T>();
    }
    template <class T>
    std::span<T> out(std::string_view name) const {
        return outputs.find(name)->second.view<T>();
    }
    bool has_input(std::string_view name) const { return inputs.contains(name); }
    bool has_output(std::string_view name) const { return outputs.contains(name); }
};

/// The inputs of a case, being made: element i of a tensor is a function of the seed, of the tensor's place
/// among the slots and of i.
struct CaseInputs {
    const Parameters& parameters;
    TensorMap& tensors;
    std::map<std::string, uint64_t, std::less<>> streams;  ///< of the slots

    int64_t operator[](std::string_view parameter) const { return parameters[parameter]; }
    /// Whether the parameter `fill` has this value.
    bool fill_is(std::string_view value) const { return parameters.choice("fill") == value; }
    template <class T>
    std::span<T> at(std::string_view slot) const {
        return tensors.find(slot)->second.view<T>();
    }
    RandomStream random(std::string_view slot) const { return {parameters.seed, streams.find(slot)->second}; }
};

/// A case of the default tests, and why it is there.
struct OperatorCase {
    std::string text;   ///< `name(key=value,..)`; parameters that are left out have their defaults
    std::string limit;  ///< the fault or edge that it trips; empty for an ordinary case
    std::vector<Arithmetic> profiles = {};  ///< that it runs in, the others refuse it; empty: all
};

struct OperatorInfo {
    std::string name, purpose, equation, source;
    std::vector<Parameter> parameters;
    std::vector<Slot> inputs;
    std::vector<OutputSlot> outputs;
    std::vector<std::string> roundings;  ///< where a value becomes bf16, fp8 or fp4, in order
    /// Rows of the split and lane table whose sums it makes, beside one that a parameter `sum` names.
    std::vector<SumOperator> sums;
    /// Arithmetics that give different bits; `exact` alone: one order in every profile.
    std::vector<Arithmetic> profiles;
    std::vector<OperatorCase> cases;

    std::function<void(const CaseInputs& inputs)> make_inputs;
    std::function<void(Arithmetic arithmetic, const Call& call)> run;
    /// The same in double, into F64 tensors of all outputs that are judged: `truth` with the released ledger,
    /// `ideal` without. Values that the slot's own type rounds are given before that rounding.
    std::function<void(const truth::Ledger& ledger, const Call& call)> judge;
    /// How far each element of the outputs judged by `bound` may be from `truth`: into F64 tensors. `truth`
    /// holds what judge gave.
    std::function<void(Arithmetic arithmetic, const Call& call, const TensorMap& truth)> bound;
};

}  // namespace touchstone
