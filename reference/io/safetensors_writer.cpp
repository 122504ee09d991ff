#include "reference/io/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "reference/io/config_json.h"
#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

using nlohmann::json;

constexpr size_t alignment_bytes = 8;
constexpr size_t most_header_bytes = 100'000'000;

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& expected) {
    throw UserError({what, where, expected, ""});
}

void check(const SafetensorsDeclaration& tensor, const std::string& where) {
    const std::optional<int64_t> element_bytes = safetensors_element_bytes(tensor.type);
    if (!element_bytes)
        refuse(fmt::format("type {}", touchstone::quoted(tensor.type)), where, "a type of the format");
    int64_t most = std::numeric_limits<int64_t>::max() / *element_bytes;
    for (const int64_t extent : tensor.shape) {
        if (extent < 0 || extent > most)
            refuse(fmt::format("shape [{}]", fmt::join(tensor.shape, ", ")), where,
                   "a size below 2^63 bytes");
        if (extent > 0) most /= extent;
    }
}

std::vector<SafetensorsDeclaration> checked_and_sorted(std::vector<SafetensorsDeclaration> tensors,
                                                       const std::string& path) {
    std::set<std::string_view> names;
    for (const SafetensorsDeclaration& tensor : tensors) {
        const std::string where = fmt::format("{}: {}", path, touchstone::quoted(tensor.name));
        if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
            refuse(fmt::format("{} cannot be written", touchstone::quoted(tensor.name)), where,
                   "every name once");
        check(tensor, where);
    }
    names.clear();  // sorting moves what they point to
    std::ranges::stable_sort(tensors, std::greater{}, [](const SafetensorsDeclaration& tensor) {
        return *safetensors_element_bytes(tensor.type);
    });
    return tensors;
}

/// Length and header, padded so that the tensors begin at a multiple of 8.
std::string header_of(const std::vector<SafetensorsDeclaration>& tensors,
                      const std::map<std::string, std::string>& metadata, const std::string& path) {
    std::string text = "{";
    if (!metadata.empty()) text += fmt::format("\"__metadata__\":{}", json(metadata).dump());
    int64_t offset = 0;
    for (const SafetensorsDeclaration& tensor : tensors) {
        const json entry = {{"dtype", tensor.type},
                            {"shape", tensor.shape},
                            {"data_offsets", {offset, offset + tensor.bytes()}}};
        if (text.size() > 1) text += ',';
        try {
            text += json(tensor.name).dump() + ':' + entry.dump();
        } catch (const json::type_error&) {
            refuse(fmt::format("the name {} is no UTF-8", touchstone::quoted(tensor.name)), path,
                   "a name in UTF-8");
        }
        offset += tensor.bytes();
    }
    text += '}';
    text.resize((text.size() + alignment_bytes - 1) / alignment_bytes * alignment_bytes, ' ');
    if (text.size() > most_header_bytes)
        refuse(fmt::format("a header of {} bytes", text.size()), path,
               fmt::format("at most {}", most_header_bytes));
    std::string length;
    for (size_t i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xFF);
    return length + text;
}

}  // namespace

int64_t SafetensorsDeclaration::bytes() const {
    int64_t count = safetensors_element_bytes(type).value_or(0);
    for (const int64_t extent : shape) count *= extent;
    return count;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<SafetensorsDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path.string()), tensors_(checked_and_sorted(std::move(tensors), path_)), file_(path) {
    const std::string header = header_of(tensors_, metadata, path_);
    file_.write(std::as_bytes(std::span(header)));
    skip_complete();
}

/// Moves on to the next tensor that still needs bytes; empty ones never do.
void SafetensorsWriter::skip_complete() {
    while (current_ < tensors_.size() && current_written_ == tensors_[current_].bytes()) {
        ++current_;
        current_written_ = 0;
    }
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    const std::string where = fmt::format("{}: {}", path_, touchstone::quoted(std::string(name)));
    if (current_ == tensors_.size())
        refuse(fmt::format("{} bytes behind the last tensor", bytes.size()), where, "none");
    const SafetensorsDeclaration& tensor = tensors_[current_];
    const int64_t missing = tensor.bytes() - current_written_;
    if (tensor.name != name)
        refuse(fmt::format("{} bytes out of turn", bytes.size()), where,
               fmt::format("the {} bytes that {} still needs", missing, touchstone::quoted(tensor.name)));
    if (std::ssize(bytes) > missing)
        refuse(fmt::format("{} bytes", bytes.size()), where, fmt::format("at most {} more", missing));
    file_.write(bytes);
    current_written_ += std::ssize(bytes);
    skip_complete();
}

void SafetensorsWriter::finish() {
    if (current_ < tensors_.size())
        refuse("the file is not complete", path_,
               fmt::format("{} more bytes of {}", tensors_[current_].bytes() - current_written_,
                           touchstone::quoted(tensors_[current_].name)));
    file_.finish();
}

}  // namespace touchstone
