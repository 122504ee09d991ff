// touchstone.h: everything that comes in is checked before it is used, and no exception gets out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>

#include "golden/compare/difference.h"
#include "golden/compare/element_types.h"
#include "golden/store/operator_json.h"
#include "golden/touchstone.h"
#include "reference/io/config_json.h"
#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"
#include "reference/numerics/isa.h"
#include "reference/registry/registry.h"

/// Tensors in the order of the operator's slots.
struct touchstone_tensors {
    std::vector<std::pair<std::string, touchstone::Tensor>> entries;
};

namespace {

using namespace touchstone;

constexpr int64_t most_rank = 8, most_tensors = 1024;

thread_local std::string last_error;

/// Bytes of the UTF-8 character that the text begins with; 0: it begins with none.
size_t character_bytes(std::string_view text) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const uint32_t first = byte(0);
    if (first < 0x80) return 1;
    const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    uint32_t code = first & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return 0;
        code = code << 6 | (byte(i) & 0x3F);
    }
    constexpr std::array<uint32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    return first < 0xC2 || first > 0xF4 || code < least[bytes] || code > 0x10FFFF || is_surrogate ? 0 : bytes;
}

/// U+FFFD for every byte that is no UTF-8: callers decode the message.
std::string in_utf8(std::string_view text) {
    std::string valid;
    while (!text.empty()) {
        const size_t bytes = character_bytes(text);
        valid += bytes > 0 ? text.substr(0, bytes) : "\xEF\xBF\xBD";
        text.remove_prefix(std::max(bytes, size_t{1}));
    }
    return valid;
}

/// Where even the message finds no memory, none is kept.
void keep_error(const char* message) noexcept {
    try {
        last_error = in_utf8(message);
    } catch (...) {
        last_error.clear();
    }
}

/// Runs `work`, which returns a status or throws.
template <class Work>
touchstone_status guarded(const Work& work) noexcept {
    last_error.clear();
    try {
        return work();
    } catch (const UserError& error) {
        keep_error(error.what());
        return touchstone_bad_argument;
    } catch (const std::bad_alloc&) {
        keep_error("there is not enough memory for this");
        return touchstone_bad_argument;
    } catch (const std::exception& error) {
        keep_error(error.what());
    } catch (...) {
        keep_error("an unknown exception");
    }
    return touchstone_internal;
}

std::string text_argument(const char* text, const char* name) {
    if (text == nullptr) throw UserError({fmt::format("{} is null", name), "", "a text", ""});
    return text;
}

void require_address(const void* pointer, const char* name) {
    if (pointer == nullptr) throw UserError({fmt::format("{} is null", name), "", "an address", ""});
}

template <class T>
T& reference_argument(T* pointer, const char* name) {
    require_address(pointer, name);
    return *pointer;
}

std::span<const touchstone_tensor> tensors_argument(const touchstone_tensor* tensors, int64_t count,
                                                    const char* name) {
    if (count < 0 || count > most_tensors)
        throw UserError(
            {fmt::format("{}: {} tensors", name, count), "", fmt::format("0 to {}", most_tensors), ""});
    if (count > 0) require_address(tensors, name);
    return {tensors, static_cast<size_t>(count)};
}

std::vector<int64_t> checked_extents(const touchstone_tensor& tensor, const std::string& where) {
    if (tensor.rank < 0 || tensor.rank > most_rank)
        throw UserError({fmt::format("rank {}", tensor.rank), where, fmt::format("0 to {}", most_rank), ""});
    if (tensor.rank > 0) require_address(tensor.extents, "extents");
    return {tensor.extents, tensor.extents + tensor.rank};
}

/// The caller's bytes under their type and shape, after checking that they are as many.
TensorView view_of(const touchstone_tensor& tensor, const std::string& where) {
    const std::string type = text_argument(tensor.type, "a tensor's type");
    const std::optional<int64_t> element_bytes = safetensors_element_bytes(type);
    if (!element_bytes)
        throw UserError({fmt::format("type {}", quoted(type)), where, "a type of safetensors", ""});
    std::vector<int64_t> shape = checked_extents(tensor, where);
    int64_t bytes = *element_bytes;
    bool fits = true;
    for (const int64_t extent : shape)
        fits = fits && extent >= 0 && !__builtin_mul_overflow(bytes, extent, &bytes);
    if (!fits || static_cast<uint64_t>(bytes) != tensor.bytes)
        throw UserError({fmt::format("{} bytes for {}", tensor.bytes, describe(type, shape)), where,
                         fits ? fmt::format("{}", bytes) : "extents from 0 whose product fits 63 bits", ""});
    if (bytes > 0) require_address(tensor.data, "a tensor's data");
    return {type,
            std::move(shape),
            {static_cast<const std::byte*>(tensor.data), bytes > 0 ? tensor.bytes : size_t{0}}};
}

std::string name_of(const touchstone_tensor& tensor) {
    return text_argument(tensor.name, "a tensor's name");
}

TensorMap copies_of(std::span<const touchstone_tensor> tensors) {
    TensorMap copies;
    for (const touchstone_tensor& tensor : tensors) {
        const std::string name = name_of(tensor);
        const TensorView view = view_of(tensor, quoted(name));
        if (!copies.emplace(name, Tensor{view.type, view.shape, {view.bytes.begin(), view.bytes.end()}})
                 .second)
            throw UserError({fmt::format("two tensors {}", quoted(name)), "inputs", "every name once", ""});
    }
    return copies;
}

/// In the order of the slots.
template <class Slots>
touchstone_tensors* ordered(const Slots& slots, TensorMap tensors) {
    auto result = std::make_unique<touchstone_tensors>();
    for (const auto* slot : slots)
        if (const auto found = tensors.find(slot->name); found != tensors.end())
            result->entries.emplace_back(slot->name, std::move(found->second));
    return result.release();
}

/// A wrong TOUCHSTONE_ISA is refused here, not inside a parallel loop.
void require_isa() {
    active_isa();
}

TensorMap run(const OperatorInfo& info, const std::string& arithmetic, const Parameters& parameters,
              const TensorMap& inputs) {
    require_isa();
    for (const Arithmetic bits : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper})
        if (arithmetic == arithmetic_name(bits)) return run_operator(info, bits, parameters, inputs);
    if (arithmetic == "truth") return judge_operator(info, truth::Ledger::released(), parameters, inputs);
    if (arithmetic == "ideal") return judge_operator(info, truth::Ledger::none(), parameters, inputs);
    throw UserError({fmt::format("unknown arithmetic {}", quoted(arithmetic)), "arithmetic",
                     "exact, hopper, released_hopper, truth, ideal", ""});
}

ParsedCase parse_call(const char* operator_name, const char* parameters, const TensorMap& inputs) {
    const OperatorInfo& info = find_operator(text_argument(operator_name, "operator_name"));
    return parse_tensors(info, inputs, parameters == nullptr ? "" : parameters, "parameters");
}

/// Where a result goes: checked before anything is written.
struct Destination {
    const touchstone_tensor* tensor;
    const Tensor* result;
};

Destination destination_of(const touchstone_tensor& output, const TensorMap& results) {
    const std::string name = name_of(output);
    const TensorView view = view_of(output, quoted(name));
    const auto found = results.find(name);
    if (found == results.end()) {
        std::vector<std::string> names;
        for (const auto& [known, tensor] : results) names.push_back(known);
        throw UserError({fmt::format("no output {}", quoted(name)), "outputs",
                         fmt::format("{}", fmt::join(names, ", ")), ""});
    }
    const Tensor& result = found->second;
    if (view.type != result.type || view.shape != result.shape)
        throw UserError({fmt::format("output {} is {}", quoted(name), describe(view.type, view.shape)),
                         "outputs", describe(result.type, result.shape), ""});
    return {&output, &result};
}

touchstone_comparison comparison_of(const Difference& found) {
    return {sizeof(touchstone_comparison),
            found.elements,
            found.identical,
            found.outside,
            found.first.index,
            found.worst.index,
            found.largest_ulp,
            found.largest_absolute,
            found.largest_relative,
            found.largest_of_rms,
            found.cosine};
}

/// As much of the struct as the caller's header knew.
void write_comparison(const touchstone_comparison& from, touchstone_comparison& to) {
    if (to.struct_bytes < sizeof(size_t) || to.struct_bytes > (size_t{1} << 16))
        throw UserError({fmt::format("comparison: struct_bytes is {}", to.struct_bytes), "",
                         fmt::format("sizeof(touchstone_comparison), {}", sizeof(touchstone_comparison)),
                         "set it before the call"});
    const size_t bytes = std::min(to.struct_bytes, sizeof(touchstone_comparison)) - sizeof(size_t);
    std::memcpy(reinterpret_cast<char*>(&to) + sizeof(size_t),
                reinterpret_cast<const char*>(&from) + sizeof(size_t), bytes);
}

}  // namespace

int32_t touchstone_api_version(void) {
    return TOUCHSTONE_API_VERSION;
}

const char* touchstone_version(void) {
    return TOUCHSTONE_VERSION;
}

const char* touchstone_last_error(void) {
    return last_error.c_str();
}

int64_t touchstone_operator_count(void) {
    int64_t count = 0;
    guarded([&] {
        count = std::ssize(operators());
        return touchstone_ok;
    });
    return count;
}

const char* touchstone_operator_name(int64_t index) {
    const char* name = nullptr;
    guarded([&] {
        if (index < 0 || index >= std::ssize(operators()))
            throw UserError({fmt::format("operator {}", index), "",
                             fmt::format("0 to {}", std::ssize(operators()) - 1), ""});
        name = operators()[static_cast<size_t>(index)].name.c_str();
        return touchstone_ok;
    });
    return name;
}

const char* touchstone_operator_json(const char* name) {
    const char* json = nullptr;
    guarded([&] {
        static const std::map<const OperatorInfo*, std::string> all = [] {
            std::map<const OperatorInfo*, std::string> texts;
            for (const OperatorInfo& info : operators()) texts[&info] = operator_json(info);
            return texts;
        }();
        json = all.find(&find_operator(text_argument(name, "name")))->second.c_str();
        return touchstone_ok;
    });
    return json;
}

touchstone_status touchstone_make_inputs(const char* case_text, touchstone_tensors** inputs) {
    return guarded([&] {
        reference_argument(inputs, "inputs") = nullptr;
        require_isa();
        const ParsedCase parsed = parse_case(text_argument(case_text, "case_text"), "case_text");
        *inputs = ordered(input_slots(*parsed.info, parsed.parameters),
                          make_inputs(*parsed.info, parsed.parameters));
        return touchstone_ok;
    });
}

touchstone_status touchstone_run_case(const char* case_text, const char* arithmetic,
                                      touchstone_tensors** outputs) {
    return guarded([&] {
        reference_argument(outputs, "outputs") = nullptr;
        const ParsedCase parsed = parse_case(text_argument(case_text, "case_text"), "case_text");
        const std::string name = text_argument(arithmetic, "arithmetic");
        require_isa();
        const TensorMap inputs = make_inputs(*parsed.info, parsed.parameters);
        *outputs = ordered(output_slots(*parsed.info, parsed.parameters),
                           run(*parsed.info, name, parsed.parameters, inputs));
        return touchstone_ok;
    });
}

touchstone_status touchstone_run(const char* operator_name, const char* arithmetic, const char* parameters,
                                 const touchstone_tensor* inputs, int64_t input_count,
                                 const touchstone_tensor* outputs, int64_t output_count) {
    return guarded([&] {
        const TensorMap given = copies_of(tensors_argument(inputs, input_count, "inputs"));
        const auto wanted = tensors_argument(outputs, output_count, "outputs");
        if (wanted.empty()) throw UserError({"no output", "outputs", "at least one tensor to fill", ""});
        const ParsedCase parsed = parse_call(operator_name, parameters, given);
        const TensorMap results =
            run(*parsed.info, text_argument(arithmetic, "arithmetic"), parsed.parameters, given);
        std::vector<Destination> destinations;
        for (const touchstone_tensor& output : wanted)
            destinations.push_back(destination_of(output, results));
        for (const Destination& to : destinations)
            if (to.tensor->bytes > 0) std::memcpy(to.tensor->data, to.result->bytes.data(), to.tensor->bytes);
        return touchstone_ok;
    });
}

touchstone_status touchstone_declare_outputs(const char* operator_name, const char* parameters,
                                             const touchstone_tensor* inputs, int64_t input_count,
                                             touchstone_tensors** outputs) {
    return guarded([&] {
        reference_argument(outputs, "outputs") = nullptr;
        const ParsedCase parsed =
            parse_call(operator_name, parameters, copies_of(tensors_argument(inputs, input_count, "inputs")));
        const auto slots = output_slots(*parsed.info, parsed.parameters);
        TensorMap declared;
        for (const OutputSlot* slot : slots)
            declared[slot->name] =
                make_tensor(slot->name, slot->type, shape_of(*slot, parsed.parameters), std::byte{0xFF});
        *outputs = ordered(slots, std::move(declared));
        return touchstone_ok;
    });
}

int64_t touchstone_tensors_count(const touchstone_tensors* tensors) {
    return tensors == nullptr ? 0 : std::ssize(tensors->entries);
}

touchstone_status touchstone_tensors_get(const touchstone_tensors* tensors, int64_t index,
                                         touchstone_tensor* tensor) {
    return guarded([&] {
        const auto& entries = reference_argument(tensors, "tensors").entries;
        if (index < 0 || index >= std::ssize(entries))
            throw UserError(
                {fmt::format("tensor {}", index), "", fmt::format("0 to {}", std::ssize(entries) - 1), ""});
        const auto& [name, found] = entries[static_cast<size_t>(index)];
        // The tensors are the caller's until they are freed, their data too.
        reference_argument(tensor, "tensor") = {name.c_str(),
                                                found.type.c_str(),
                                                std::ssize(found.shape),
                                                found.shape.data(),
                                                const_cast<std::byte*>(found.bytes.data()),
                                                found.bytes.size()};
        return touchstone_ok;
    });
}

void touchstone_tensors_free(touchstone_tensors* tensors) {
    delete tensors;
}

touchstone_status touchstone_compare(const touchstone_tensor* expected, const touchstone_tensor* got,
                                     const char* tolerance, touchstone_comparison* comparison) {
    return guarded([&] {
        const TensorView left = view_of(reference_argument(expected, "expected"), "expected");
        const TensorView right = view_of(reference_argument(got, "got"), "got");
        if (left.type != right.type || left.shape != right.shape)
            throw UserError({fmt::format("got is {}", describe(right.type, right.shape)), "",
                             fmt::format("{}, as expected is", describe(left.type, left.shape)), ""});
        Tolerance limits = parse_tolerance(text_argument(tolerance, "tolerance"), "tolerance");
        // A neighbouring id or code is another one, not a near one.
        if (!is_float_type(left.type)) limits = {};
        const Difference found = difference(left, right, limits);
        if (comparison != nullptr) write_comparison(comparison_of(found), *comparison);
        return within(found, limits) ? touchstone_ok : touchstone_differs;
    });
}
