#include "reference/model/trace_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr std::string_view experts_name = "ffn.experts";
constexpr std::string_view selected_name = "attn.indexer.selected";
constexpr std::string_view prefix_word = "position_";

/// "position_000100/L06.ffn.experts" in parts.
struct TracedName {
    int64_t first_position;
    int layer;
    std::string_view tensor;
};

std::optional<TracedName> parse_name(std::string_view name) {
    TracedName parts{};
    const auto take = [&](std::string_view word, auto& number) {
        if (!name.starts_with(word)) return false;
        name.remove_prefix(word.size());
        const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
        const size_t digits = static_cast<size_t>(end - name.data());
        name.remove_prefix(error == std::errc{} ? digits : 0);
        return error == std::errc{} && number >= 0 && number < (int64_t{1} << 40);
    };
    if (!take(prefix_word, parts.first_position) || !take("/L", parts.layer) || !name.starts_with('.'))
        return std::nullopt;
    parts.tensor = name.substr(1);
    return parts;
}

/// Rows of every traced call by its first position: layer 0 runs on all of them.
std::map<int64_t, int64_t> rows_of_calls(const SafetensorsFile& file) {
    std::map<int64_t, int64_t> rows;
    for (const auto& [name, tensor] : file.tensors())
        if (const auto parts = parse_name(name);
            parts && parts->tensor == experts_name && tensor.shape.size() == 2) {
            int64_t& most = rows[parts->first_position];
            most = std::max(most, tensor.shape.front());
        }
    return rows;
}

}  // namespace

TraceFile::TraceFile(const std::filesystem::path& path)
    : path_(path), spool_path_(path.string() + fmt::format(".{}.spool", ::getpid())) {
    spool_.open(spool_path_, std::ios::binary | std::ios::in | std::ios::out | std::ios::trunc);
    if (!spool_)
        throw UserError({"the trace cannot be written", path.string(), "a folder that can be written to",
                         "check the path"});
    std::error_code ignored;
    std::filesystem::remove(spool_path_, ignored);  // goes with the process, however that ends
}

TraceFile::~TraceFile() {}

void TraceFile::add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
                    std::span<const std::byte> bytes) {
    if (!names_.insert(name).second)
        throw UserError(
            {fmt::format("tensor {} is traced twice", name), path_.string(), "a name per tensor", ""});
    spool_.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    if (!spool_)
        throw UserError({"the trace cannot be written to its end", path_.string(), "room on the disk", ""});
    declarations_.push_back({name, std::string(type), shape});
    offsets_.push_back(spooled_bytes_);
    spooled_bytes_ += std::ssize(bytes);
}

void TraceFile::finish() {
    std::map<std::string_view, size_t> index;
    for (size_t i = 0; i < declarations_.size(); ++i) index.emplace(declarations_[i].name, i);
    SafetensorsWriter writer(path_, declarations_, metadata_);
    std::vector<std::byte> buffer(1 << 20);
    for (const SafetensorsDeclaration& next : std::vector(writer.tensors())) {
        const size_t i = index.at(next.name);
        spool_.seekg(offsets_[i]);
        for (int64_t left = declarations_[i].bytes(); left > 0;) {
            const int64_t count = std::min(left, std::ssize(buffer));
            if (!spool_.read(reinterpret_cast<char*>(buffer.data()), count))
                throw UserError({"the trace's spool cannot be read back", spool_path_.string(), "", ""});
            writer.write(next.name, std::span(buffer).first(static_cast<size_t>(count)));
            left -= count;
        }
    }
    writer.finish();
}

std::string call_prefix(int64_t first_position) {
    return fmt::format("{}{:06}/", prefix_word, first_position);
}

ForcedChoices read_choices(const std::filesystem::path& trace, const ModelConfig& config) {
    const SafetensorsFile file(trace);
    const std::map<int64_t, int64_t> rows_of_call = rows_of_calls(file);
    ForcedChoices choices;
    for (const auto& entry : file.tensors()) {
        const std::string& name = entry.first;
        const SafetensorsTensor& tensor = entry.second;
        const auto parts = parse_name(name);
        if (!parts || (parts->tensor != experts_name && parts->tensor != selected_name)) continue;
        const bool experts = parts->tensor == experts_name;
        const int64_t width = experts ? config.num_experts_per_tok : config.index_topk;
        const int64_t limit = experts ? config.n_routed_experts : config.max_position_embeddings;
        const auto refuse = [&](const std::string& what) {
            throw UserError({fmt::format("{}: {}", name, what), trace.string(),
                             fmt::format("I32 [rows, {}], values -1 to {}", width, limit - 1),
                             "take a trace of the same model"});
        };
        if (tensor.type != "I32" || tensor.shape.size() != 2 || tensor.shape[1] != width)
            refuse("another type or shape");
        const auto call = rows_of_call.find(parts->first_position);
        if (call == rows_of_call.end()) refuse("its call has no experts");
        const std::vector<int32_t> values = file.values<int32_t>(name, "I32");
        const int64_t first = parts->first_position + call->second - tensor.shape[0];
        for (int64_t row = 0; row < tensor.shape[0]; ++row) {
            std::vector<int32_t> list(values.begin() + row * width, values.begin() + (row + 1) * width);
            std::erase(list, -1);
            for (const int32_t value : list)
                if (value < 0 || value >= limit) refuse(fmt::format("value {} in row {}", value, row));
            auto& by_layer = experts ? choices.experts : choices.selected;
            by_layer[parts->layer][first + row] = std::move(list);
        }
    }
    if (choices.experts.empty() && choices.selected.empty())
        throw UserError({"no choices in this file", trace.string(),
                         fmt::format("{} or {} of a trace", experts_name, selected_name),
                         "write one with `touchstone run --trace`"});
    return choices;
}

}  // namespace touchstone
