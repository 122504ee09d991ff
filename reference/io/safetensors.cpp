#include "reference/io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

using nlohmann::json;

constexpr size_t length_bytes = 8;
/// The format's own limit on headers.
constexpr uint64_t most_header_bytes = 100'000'000;

struct ElementType {
    std::string_view name;
    int64_t bytes;
};

constexpr ElementType element_types[]{
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},     {"I32", 4},
    {"F32", 4},  {"U64", 8}, {"I64", 8}, {"F64", 8},
};

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& expected) {
    throw UserError({what, where, expected, "fetch or write the file again"});
}

/// The header's text.
std::string_view header_of(std::span<const std::byte> data, const std::string& path) {
    uint64_t length = 0;
    if (data.size() < length_bytes)
        refuse(fmt::format("{} bytes", data.size()), path, "8 bytes of header length");
    for (size_t i = 0; i < length_bytes; ++i) length |= uint64_t{static_cast<uint8_t>(data[i])} << (8 * i);
    if (length > most_header_bytes || length > data.size() - length_bytes)
        refuse(fmt::format("a header of {} bytes", length), path,
               fmt::format("at most {} here",
                           std::min<uint64_t>(most_header_bytes, data.size() - length_bytes)));
    return {reinterpret_cast<const char*>(data.data()) + length_bytes, static_cast<size_t>(length)};
}

/// A list of integers from 0 to 2^53, as JSON carries them exactly.
std::vector<int64_t> integers(const json& entry, const char* key, const std::string& where) {
    const auto list = entry.find(key);
    std::vector<int64_t> result;
    if (list == entry.end() || !list->is_array())
        refuse(fmt::format("no list \"{}\"", key), where, "a list of integers");
    for (const json& item : *list) {
        if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{1} << 53)
            refuse(fmt::format("{} in \"{}\"", item.dump(), key), where, "an integer from 0 to 2^53");
        result.push_back(item.get<int64_t>());
    }
    return result;
}

SafetensorsTensor tensor_of(const json& entry, std::span<const std::byte> payload, const std::string& where) {
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string())
        refuse("no \"dtype\"", where, "an object with dtype, shape and data_offsets");
    SafetensorsTensor tensor{entry["dtype"].get<std::string>(), integers(entry, "shape", where), {}};
    const std::optional<int64_t> element_bytes = safetensors_element_bytes(tensor.type);
    if (!element_bytes)
        refuse(fmt::format("dtype {}", touchstone::quoted(tensor.type)), where, "a known type");
    const std::vector<int64_t> offsets = integers(entry, "data_offsets", where);
    const int64_t size = std::ssize(payload);
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > size)
        refuse(fmt::format("data_offsets [{}]", fmt::join(offsets, ", ")), where,
               fmt::format("begin and end inside the {} bytes of tensors", size));
    // What does not fit into the file counts as one byte too many: the product could leave 64 bits.
    int64_t bytes = *element_bytes;
    for (int64_t extent : tensor.shape)
        bytes = extent != 0 && bytes > size / extent ? size + 1 : bytes * extent;
    if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) bytes = 0;
    if (bytes != offsets[1] - offsets[0])
        refuse(fmt::format("{} bytes for {} [{}]", offsets[1] - offsets[0], tensor.type,
                           fmt::join(tensor.shape, ", ")),
               where, "as many as type and shape need");
    tensor.bytes = payload.subspan(static_cast<size_t>(offsets[0]), static_cast<size_t>(bytes));
    return tensor;
}

/// Reads a header's text once ahead of the parser, which would keep the last of two equal keys and go down
/// any nesting. (Its callbacks see as much, in time that grows with the square of the number of tensors.)
class HeaderGuard : public nlohmann::json_sax<json> {
  public:
    explicit HeaderGuard(std::string path) : path_(std::move(path)) {}

    bool start_object(std::size_t) override {
        keys_of_open_objects_.emplace_back();
        return enter();
    }
    bool start_array(std::size_t) override { return enter(); }
    bool key(std::string& key) override {
        if (!keys_of_open_objects_.back().insert(key).second)
            refuse(fmt::format("{} stands twice in the header", touchstone::quoted(key)), path_,
                   "every name and key once");
        return true;
    }
    bool end_object() override {
        keys_of_open_objects_.pop_back();
        return leave();
    }
    bool end_array() override { return leave(); }
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(json::number_integer_t) override { return true; }
    bool number_unsigned(json::number_unsigned_t) override { return true; }
    bool number_float(json::number_float_t, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(json::binary_t&) override { return true; }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;
    }

  private:
    static constexpr int deepest = 3;  ///< the header, a tensor, its lists

    bool enter() {
        if (++depth_ > deepest)
            refuse(fmt::format("values nested deeper than {}", deepest), path_,
                   "tensors with shape and data_offsets");
        return true;
    }
    bool leave() {
        --depth_;
        return true;
    }

    std::string path_;
    int depth_ = 0;
    std::vector<std::set<std::string>> keys_of_open_objects_;
};

json parse_header(std::string_view text, const std::string& path) {
    HeaderGuard guard(path);
    json header;
    if (json::sax_parse(text, &guard)) header = json::parse(text, nullptr, false);
    if (!header.is_object())
        refuse("the header is no JSON object", path, "tensor names with dtype, shape, data_offsets");
    return header;
}

/// Every byte of the payload belongs to one tensor.
void require_adjacent(const SafetensorsTensors& tensors, std::span<const std::byte> payload,
                      const std::string& path) {
    std::vector<std::pair<const std::byte*, size_t>> order;
    for (const auto& [name, tensor] : tensors)
        if (!tensor.bytes.empty()) order.emplace_back(tensor.bytes.data(), tensor.bytes.size());
    std::sort(order.begin(), order.end());
    const std::byte* next = payload.data();
    for (const auto& [start, size] : order) {
        if (start != next)
            refuse(fmt::format("a tensor at byte {}", start - payload.data()), path,
                   fmt::format("byte {}: tensors neither overlap nor leave gaps", next - payload.data()));
        next = start + size;
    }
    if (next != payload.data() + payload.size())
        refuse(fmt::format("{} bytes behind the last tensor", payload.data() + payload.size() - next), path,
               "none");
}

}  // namespace

int64_t TensorView::elements() const {
    // The other extents of an empty tensor may be of any size.
    if (std::ranges::find(shape, 0) != shape.end()) return 0;
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
}

std::optional<int64_t> safetensors_element_bytes(std::string_view name) {
    for (const ElementType& type : element_types)
        if (type.name == name) return type.bytes;
    return std::nullopt;
}

SafetensorsTensors parse_safetensors(std::span<const std::byte> file, const std::string& path) {
    const std::string_view text = header_of(file, path);
    const json header = parse_header(text, path);
    const std::span<const std::byte> payload = file.subspan(length_bytes + text.size());
    SafetensorsTensors tensors;
    for (const auto& [name, entry] : header.items())
        if (name != "__metadata__")
            tensors.emplace(name,
                            tensor_of(entry, payload, fmt::format("{}: {}", path, touchstone::quoted(name))));
    require_adjacent(tensors, payload, path);
    return tensors;
}

std::map<std::string, std::string> parse_safetensors_metadata(std::span<const std::byte> file,
                                                              const std::string& path) {
    const json header = parse_header(header_of(file, path), path);
    std::map<std::string, std::string> metadata;
    const auto found = header.find("__metadata__");
    if (found == header.end()) return metadata;
    for (const auto& [key, value] : found->items()) {
        if (!value.is_string())
            refuse(fmt::format("metadatum {} is no text", touchstone::quoted(key)), path, "texts alone");
        metadata.emplace(key, value.get<std::string>());
    }
    return metadata;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path),
      file_(path, "a readable safetensors file"),
      tensors_(parse_safetensors(file_.bytes(), path_.string())) {}

const SafetensorsTensor& SafetensorsFile::tensor(std::string_view name) const {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) {
        file_.require_not_shortened();
        return found->second;
    }
    std::vector<std::string> names;
    for (const auto& [known, tensor] : tensors_) names.push_back(known);
    const std::string near = did_you_mean(std::string(name), names);
    throw UserError({fmt::format("no tensor {}", touchstone::quoted(std::string(name))), path_.string(),
                     fmt::format("one of its {} tensors", names.size()),
                     near.empty() ? "" : fmt::format("did you mean \"{}\"?", near)});
}

const SafetensorsTensor& SafetensorsFile::checked(std::string_view name, std::string_view type,
                                                  size_t element_bytes) const {
    const SafetensorsTensor& found = tensor(name);
    if (found.type != type || safetensors_element_bytes(type) != static_cast<int64_t>(element_bytes))
        throw UserError({fmt::format("{} is {}", name, found.type), path_.string(),
                         fmt::format("{} in elements of {} bytes", type, element_bytes), ""});
    return found;
}

void SafetensorsFile::copy_bytes(std::string_view name, void* to) const {
    const std::span<const std::byte> bytes = tensor(name).bytes;
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

}  // namespace touchstone
