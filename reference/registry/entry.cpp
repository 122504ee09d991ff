#include "reference/registry/entry.h"

#include <algorithm>
#include <cmath>

#include "reference/model/model.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

Parameter integer(std::string name, std::string initial, std::string low, std::string high,
                  std::string meaning, int64_t multiple_of) {
    return {std::move(name),
            std::move(meaning),
            ParameterKind::integer,
            std::move(initial),
            std::move(low),
            std::move(high),
            multiple_of,
            {}};
}

Parameter real(std::string name, std::string initial, std::string low, std::string high,
               std::string meaning) {
    return {std::move(name),
            std::move(meaning),
            ParameterKind::real,
            std::move(initial),
            std::move(low),
            std::move(high),
            1,
            {}};
}

Parameter choice(std::string name, std::vector<std::string> choices, std::string meaning) {
    const std::string first = choices.front();
    return {std::move(name), std::move(meaning), ParameterKind::choice, first, "", "", 1, std::move(choices)};
}

Parameter fill_choice(std::vector<std::string> choices) {
    return choice("fill", std::move(choices), "values of a case's tensors; given tensors keep theirs");
}

OutputSlot equal(Slot slot) {
    return {std::move(slot), Judged::equal, 0};
}
OutputSlot bounded(Slot slot) {
    return {std::move(slot), Judged::bound, 0};
}
OutputSlot tolerated(double of_largest, Slot slot) {
    return {std::move(slot), Judged::tolerance, of_largest};
}
OutputSlot not_judged(Slot slot) {
    return {std::move(slot), Judged::not_judged, 0};
}

const ModelConfig& released_config() {
    static const Model model = find_model("deepseek-v4.1-flash");
    return *model.config();
}

template <class T>
void fill_with(const CaseInputs& inputs, std::string_view slot, Filler filler) {
    fill<T>(filler, inputs.random(slot), inputs.at<T>(slot));
}
template void fill_with<float>(const CaseInputs&, std::string_view, Filler);
template void fill_with<Bf16>(const CaseInputs&, std::string_view, Filler);
template void fill_with<E4m3>(const CaseInputs&, std::string_view, Filler);

template <>
void fill_normal<float>(const CaseInputs& inputs, std::string_view slot, float factor) {
    fill_with<float>(inputs, slot, Filler::normal);
    for (float& x : inputs.at<float>(slot)) x *= factor;
}
template <>
void fill_normal<Bf16>(const CaseInputs& inputs, std::string_view slot, float factor) {
    const RandomStream random = inputs.random(slot);
    const std::span<Bf16> values = inputs.at<Bf16>(slot);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = bf16_from_float(factor * filled<float>(Filler::normal, random, i));
}

void fill_bytes(const CaseInputs& inputs, std::string_view slot) {
    const RandomStream random = inputs.random(slot);
    const std::span<uint8_t> bytes = inputs.at<uint8_t>(slot);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.word(i) >> 9);
}

void fill_scales(const CaseInputs& inputs, std::string_view slot, uint8_t lowest) {
    const RandomStream random = inputs.random(slot);
    const std::span<E8m0> scales = inputs.at<E8m0>(slot);
    for (size_t i = 0; i < scales.size(); ++i)
        scales[i] = {static_cast<uint8_t>(lowest + random.word(i) % 4)};
}

void fill_fp8_weight(const CaseInputs& inputs, std::string_view codes, std::string_view scales) {
    fill_with<E4m3>(inputs, codes, Filler::normal);
    fill_scales(inputs, scales, 112);
}

void fill_fp4_weight(const CaseInputs& inputs, std::string_view codes, std::string_view scales) {
    fill_bytes(inputs, codes);
    fill_scales(inputs, scales, 118);
}

void put_limit_rows(std::span<Bf16> x, int64_t width) {
    const int64_t rows = width == 0 ? 0 : std::ssize(x) / width;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; ++i) {
            Bf16& value = x[static_cast<size_t>(row * width + i)];
            if (row == 0) value = {0x0000};
            if (row == 1) value = {0x8000};
            if (row == 2 && i % 16 == 0)
                value =
                    bf16_from_float(std::ldexp(i % 64 < 32 ? 448.0f : -6.0f, static_cast<int>(i / 64 % 9)));
            if (row == 3) value = bf16_from_float(std::ldexp(to_float(value), static_cast<int>(i % 17) - 8));
            if (row == 4 && i == width / 2) value = {0x7FC1};
        }
}

Fp8Weight fp8_weight(const Call& call, std::string_view codes, std::string_view scales, int64_t outputs,
                     int64_t inputs) {
    return {codes, outputs, inputs, call.in<E4m3>(codes), call.in<E8m0>(scales)};
}

Fp4Weight fp4_weight(const Call& call, std::string_view codes, std::string_view scales, int64_t outputs,
                     int64_t inputs) {
    return {codes, outputs, inputs, call.in<uint8_t>(codes), call.in<E8m0>(scales)};
}

Bf16Weight bf16_weight(const Call& call, std::string_view name, int64_t outputs, int64_t inputs) {
    return {name, outputs, inputs, call.in<Bf16>(name)};
}

truth::Matrix matrix(const Tensor& tensor, int64_t rows) {
    // Without rows: the columns that there would be, which products need.
    int64_t columns = 1;
    for (size_t i = 1; i < tensor.shape.size(); ++i) columns *= tensor.shape[i];
    truth::Matrix result(rows, rows == 0 ? columns : tensor.elements() / rows);
    for (int64_t i = 0; i < result.size(); ++i) result.data()[i] = element_as_double(tensor, i);
    return result;
}

truth::Matrix matrix(const Call& call, std::string_view name, int64_t rows) {
    return matrix(call.inputs.find(name)->second, rows);
}

truth::Vector vector(const Call& call, std::string_view name) {
    return matrix(call, name, 1).row(0).transpose();
}

void put(const Call& call, std::string_view name, const truth::Matrix& values) {
    const std::span<double> out = call.out<double>(name);
    std::copy_n(values.data(), std::min<size_t>(out.size(), static_cast<size_t>(values.size())), out.data());
}

double bf16_rounding(double value, double error) {
    const double magnitude = std::abs(value) + error;
    const int exponent = magnitude < 0x1p-126 ? -126 : std::ilogb(magnitude);
    return std::isfinite(magnitude) ? std::ldexp(1.0, exponent - 8) : magnitude;
}

}  // namespace touchstone
