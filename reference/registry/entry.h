// Words that the entries of the registry share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reference/model/config.h"
#include "reference/registry/operator.h"
#include "reference/truth/linear.h"

namespace touchstone {

Parameter integer(std::string name, std::string initial, std::string low, std::string high,
                  std::string meaning, int64_t multiple_of = 1);
Parameter real(std::string name, std::string initial, std::string low, std::string high, std::string meaning);
Parameter choice(std::string name, std::vector<std::string> choices, std::string meaning);
/// Which values a case's tensors get; of no meaning for given tensors.
Parameter fill_choice(std::vector<std::string> choices);

OutputSlot equal(Slot slot);
OutputSlot bounded(Slot slot);
OutputSlot tolerated(double of_largest, Slot slot);
OutputSlot not_judged(Slot slot);

inline const std::vector<Arithmetic> one_order{Arithmetic::exact};
inline const std::vector<Arithmetic> two_orders{Arithmetic::exact, Arithmetic::hopper};
inline const std::vector<Arithmetic> three_orders{Arithmetic::exact, Arithmetic::hopper,
                                                  Arithmetic::released_hopper};

/// The released model, whose constants some operators take.
const ModelConfig& released_config();

// Inputs.

/// factor * normal, rounded to T.
template <class T>
void fill_normal(const CaseInputs& inputs, std::string_view slot, float factor = 1);
/// Any filler of fill.h.
template <class T>
void fill_with(const CaseInputs& inputs, std::string_view slot, Filler filler);
/// Every byte of any value.
void fill_bytes(const CaseInputs& inputs, std::string_view slot);
/// Scales 2^(lowest - 127) and three octaves up.
void fill_scales(const CaseInputs& inputs, std::string_view slot, uint8_t lowest);
/// A block-scaled weight, codes and scales, of about 2^-6 per element.
void fill_fp8_weight(const CaseInputs& inputs, std::string_view codes, std::string_view scales);
void fill_fp4_weight(const CaseInputs& inputs, std::string_view codes, std::string_view scales);
/// What activations must bear, row after row: a row of zeros, one of -0, one whose blocks end at 448 and 6
/// times a power of two, one of widely spread magnitudes, one with a NaN; further rows stay.
void put_limit_rows(std::span<Bf16> x, int64_t width);

// Weights of an operator's inputs.
Fp8Weight fp8_weight(const Call& call, std::string_view codes, std::string_view scales, int64_t outputs,
                     int64_t inputs);
Fp4Weight fp4_weight(const Call& call, std::string_view codes, std::string_view scales, int64_t outputs,
                     int64_t inputs);
Bf16Weight bf16_weight(const Call& call, std::string_view name, int64_t outputs, int64_t inputs);

// In double.

/// A tensor of numbers as a matrix of `rows` rows.
truth::Matrix matrix(const Tensor& tensor, int64_t rows);
truth::Matrix matrix(const Call& call, std::string_view name, int64_t rows);
truth::Vector vector(const Call& call, std::string_view name);
/// Writes a judged output.
void put(const Call& call, std::string_view name, const truth::Matrix& values);
/// What a value may lose when it is rounded to bf16 and was itself off by `error`.
double bf16_rounding(double value, double error);
inline constexpr double u = 0x1p-24;       ///< half a unit of fp32, relative
inline constexpr double least = 0x1p-140;  ///< what fp32 subnormals lose, generously

}  // namespace touchstone
