#include "golden/bisect/traced_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr std::string_view call_word = "position_";

/// A tensor's name in its file.
struct FileName {
    std::string_view prefix, rest;
    int64_t first_position;
};

/// "position_000100/L06.attn.qr"; without a call, the one at position 0.
std::optional<FileName> parse_name(std::string_view name) {
    if (!name.starts_with(call_word)) return FileName{"", name, 0};
    int64_t position = 0;
    const char* const digits = name.data() + call_word.size();
    const auto [end, error] = std::from_chars(digits, name.data() + name.size(), position);
    const auto length = static_cast<size_t>(end - name.data());
    if (error != std::errc{} || position < 0 || position >= int64_t{1} << 40 || length >= name.size() ||
        name[length] != '/')
        return std::nullopt;
    return FileName{name.substr(0, length + 1), name.substr(length + 1), position};
}

bool is_float(std::string_view type) {
    return type == "BF16" || type == "F32" || type == "F64";
}

bool is_integer(std::string_view type) {
    return type == "I32" || type == "I64";
}

/// Floats for floats; integers, or integers in a double, for integers.
bool convertible(std::string_view from, std::string_view to) {
    if (is_float(to)) return is_float(from);
    return is_integer(from) || from == "F64";
}

int64_t product(const std::vector<int64_t>& extents, size_t first = 0) {
    int64_t count = 1;
    for (size_t i = first; i < extents.size(); ++i) count *= extents[i];
    return count;
}

std::string expected_text(const TracedTensor& declared) {
    std::string text = declared.type + " [rows";
    for (const int64_t extent : declared.row_shape)
        text += extent == visible_width ? ", visible" : fmt::format(", {}", extent);
    return text + "]";
}

/// The declared shape with the stored first extent, or the second behind a batch of 1; none where they do not
/// fit.
std::optional<std::vector<int64_t>> shape_as_declared(const TracedTensor& declared,
                                                      const std::vector<int64_t>& stored) {
    for (size_t batch = 0; batch < std::min<size_t>(stored.size(), 2); ++batch) {
        if (batch == 1 && stored.front() != 1) break;
        std::vector<int64_t> shape{stored[batch]};
        const int64_t width = product(stored, batch + 1);
        for (const int64_t extent : declared.row_shape)
            shape.push_back(extent == visible_width ? width : extent);
        if (product(shape, 1) == width) return shape;
    }
    if (stored.empty() || product(stored) != 0) return std::nullopt;
    std::vector<int64_t> nothing{0};
    for (const int64_t extent : declared.row_shape) nothing.push_back(std::max<int64_t>(extent, 0));
    return nothing;
}

int64_t rows_in(const TensorView& stored, const TracedTensor& declared) {
    return shape_as_declared(declared, stored.shape)->front();
}

template <class To>
void store(Tensor& to, const Tensor& from, To (*convert)(double)) {
    const auto out = to.view<To>();
    for (size_t i = 0; i < out.size(); ++i)
        out[i] = convert(element_as_double(from, static_cast<int64_t>(i)));
}

/// Integers beyond the type stay far outside every range that indices are checked against.
template <class Integer>
Integer integer_from(double x) {
    const double limit = std::is_same_v<Integer, int32_t> ? 2147483647.0 : 9007199254740992.0;
    return static_cast<Integer>(std::isnan(x) ? -2 : std::clamp(x, -limit, limit));
}

Tensor converted(const TensorView& stored, const TracedTensor& declared, std::vector<int64_t> shape) {
    Tensor from{stored.type, shape, {stored.bytes.begin(), stored.bytes.end()}};
    if (stored.type == declared.type) return from;
    Tensor to = make_tensor(declared.name, declared.type, std::move(shape));
    if (declared.type == "BF16")
        store<Bf16>(to, from, [](double x) { return bf16_from_float(static_cast<float>(x)); });
    else if (declared.type == "F32")
        store<float>(to, from, [](double x) { return static_cast<float>(x); });
    else if (declared.type == "I64")
        store<int64_t>(to, from, integer_from<int64_t>);
    else
        store<int32_t>(to, from, integer_from<int32_t>);
    return to;
}

}  // namespace

TracedPass::TracedPass(const ModelConfig& config, SafetensorsTensors tensors, std::string where)
    : config_(config), tensors_(std::move(tensors)), where_(std::move(where)), path_(trace_path(config)) {
    for (size_t i = 0; i < path_.size(); ++i)
        path_index_.emplace(traced_name(path_[i].layer, path_[i].name), i);
    sort_names();
    for (TracedCall& call : calls_) count_rows(call);
}

void TracedPass::sort_names() {
    std::map<std::string, int64_t, std::less<>> prefixes;
    for (const auto& [name, tensor] : tensors_) {
        const auto parsed = parse_name(name);
        const TracedTensor* known = parsed ? declared(parsed->rest) : nullptr;
        if (known == nullptr) {
            unknown_.push_back(name);
            continue;
        }
        if (!convertible(tensor.type, known->type) || !shape_as_declared(*known, tensor.shape))
            throw UserError({fmt::format("{} is {}", name, describe(tensor.type, tensor.shape)), where_,
                             expected_text(*known),
                             "is this trace of the configuration that --config says?"});
        prefixes.emplace(parsed->prefix, parsed->first_position);
    }
    for (const auto& [prefix, first] : prefixes) calls_.push_back({prefix, first, 0});
    std::ranges::stable_sort(calls_, {}, &TracedCall::first_position);
}

/// Of its tokens, or of the tensor with the most rows of them.
void TracedPass::count_rows(TracedCall& call) const {
    const auto tokens = tensors_.find(call.prefix + "tokens");
    if (tokens != tensors_.end()) {
        call.rows = rows_in(tokens->second, *declared("tokens"));
        return;
    }
    for (const TracedTensor& one : path_) {
        const auto found = tensors_.find(call.prefix + traced_name(one.layer, one.name));
        if (one.rows != TracedRows::groups && found != tensors_.end())
            call.rows = std::max(call.rows, rows_in(found->second, one));
    }
}

const TracedTensor* TracedPass::declared(std::string_view name) const {
    const auto found = path_index_.find(name);
    return found == path_index_.end() ? nullptr : &path_[found->second];
}

const TensorView* TracedPass::stored(size_t call, int layer, std::string_view name) const {
    const auto found = tensors_.find(calls_[call].prefix + traced_name(layer, name));
    return found == tensors_.end() ? nullptr : &found->second;
}

bool TracedPass::has(size_t call, int layer, std::string_view name) const {
    return stored(call, layer, name) != nullptr;
}

int64_t TracedPass::rows(size_t call, int layer, std::string_view name) const {
    const TensorView* found = stored(call, layer, name);
    return found == nullptr ? 0 : rows_in(*found, *declared(traced_name(layer, name)));
}

const Tensor* TracedPass::tensor(size_t call, int layer, std::string_view name) const {
    const TensorView* found = stored(call, layer, name);
    if (found == nullptr) return nullptr;
    const std::string full = calls_[call].prefix + traced_name(layer, name);
    const std::lock_guard lock(*converting_);
    if (const auto known = converted_.find(full); known != converted_.end()) return &known->second;
    const TracedTensor& as = *declared(traced_name(layer, name));
    return &converted_.emplace(full, converted(*found, as, *shape_as_declared(as, found->shape)))
                .first->second;
}

SafetensorsTensors views_of(const TensorMap& tensors) {
    SafetensorsTensors views;
    for (const auto& [name, tensor] : tensors)
        views.emplace(name, TensorView{tensor.type, tensor.shape, tensor.bytes});
    return views;
}

}  // namespace touchstone
