#include "reference/sequence_state_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reference/io/safetensors.h"
#include "reference/io/safetensors_writer.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

/// A tensor to be written; owns its bytes.
struct StateTensor {
    SafetensorsDeclaration declaration;
    std::vector<std::byte> bytes;
};

template <class T>
StateTensor tensor(std::string name, std::string type, std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    return {{std::move(name), std::move(type), {std::ssize(values)}}, {bytes.begin(), bytes.end()}};
}

std::string window_name(int layer) {
    return fmt::format("window.{}", layer);
}

std::string source_name(int layer, std::string_view part) {
    return fmt::format("source.{}.{}", layer, part);
}

}  // namespace

/// Reads and writes the private parts.
struct SequenceStateFile {
    static std::vector<StateTensor> tensors(const SequenceState& state, const ModelConfig& config) {
        const std::string dump = dump_config(config);
        std::vector<StateTensor> all;
        all.push_back(tensor("config", "U8", std::span<const char>(dump)));
        all.push_back(tensor("tokens", "I64", std::span<const int64_t>(&state.tokens_, 1)));
        all.push_back(tensor("engram_history", "I32", std::span<const int32_t>(state.engram_history_)));
        for (int layer = 0; layer < state.layers(); ++layer) {
            const WindowCache& window = state.window(layer);
            const int64_t positions[]{window.first(), window.end()};
            all.push_back(tensor(window_name(layer), "U8", std::span<const std::byte>(window.saved())));
            all.push_back(
                tensor(window_name(layer) + ".positions", "I64", std::span<const int64_t>(positions)));
        }
        for (const auto& [layer, source] : state.sources_) {
            all.push_back(tensor(source_name(layer, "main"), "U8", source.main.pages()));
            all.push_back(tensor(source_name(layer, "keys"), "U8", source.keys.pages()));
            all.push_back(
                tensor(source_name(layer, "open_kv"), "F32", std::span<const float>(source.open.kv)));
            all.push_back(
                tensor(source_name(layer, "open_score"), "F32", std::span<const float>(source.open.score)));
        }
        return all;
    }

    static void restore(SequenceState& state, const SafetensorsFile& file, const std::string& path) {
        const auto refuse = [&](const std::string& name, const std::string& expected) {
            throw UserError(
                {fmt::format("tensor {} does not fit", name), path, expected, "save the state again"});
        };
        const auto numbers = [&](const std::string& name, size_t count) {
            const auto values = file.values<int64_t>(name, "I64");
            if (values.size() != count) refuse(name, fmt::format("{} numbers", count));
            return values;
        };
        state.tokens_ = numbers("tokens", 1)[0];
        if (state.tokens_ < 0) refuse("tokens", "a number not below 0");
        state.engram_history_ = file.values<int32_t>("engram_history", "I32");
        for (int layer = 0; layer < state.layers(); ++layer) {
            const std::vector<int64_t> positions = numbers(window_name(layer) + ".positions", 2);
            state.window(layer).restore(positions[0], positions[1],
                                        file.values<std::byte>(window_name(layer), "U8"));
            if (positions[1] > state.tokens_)
                refuse(window_name(layer), fmt::format("positions up to {}", state.tokens_));
        }
        for (auto& [layer, source] : state.sources_) {
            const int64_t rows = state.tokens_ / source.ratio;
            source.main.restore(rows, file.values<std::byte>(source_name(layer, "main"), "U8"));
            source.keys.restore(rows, file.values<std::byte>(source_name(layer, "keys"), "U8"));
            source.open = {file.values<float>(source_name(layer, "open_kv"), "F32"),
                           file.values<float>(source_name(layer, "open_score"), "F32")};
            const int64_t open = state.tokens_ % source.ratio * state.head_dim_;
            for (const std::vector<float>* part : {&source.open.kv, &source.open.score})
                if (std::ssize(*part) != open)
                    refuse(source_name(layer, "open_kv"), fmt::format("{} numbers", open));
            source.recent = source.open;
        }
    }
};

void save_state(const SequenceState& state, const ModelConfig& config, const std::filesystem::path& path) {
    const std::vector<StateTensor> tensors = SequenceStateFile::tensors(state, config);
    std::vector<SafetensorsDeclaration> declarations;
    for (const StateTensor& one : tensors) declarations.push_back(one.declaration);
    SafetensorsWriter writer(path, declarations);
    for (const SafetensorsDeclaration& next : std::vector(writer.tensors()))
        for (const StateTensor& one : tensors)
            if (one.declaration.name == next.name) writer.write(next.name, one.bytes);
    writer.finish();
}

SequenceState load_state(const ModelConfig& config, const std::filesystem::path& path,
                         int64_t rollback_tokens) {
    const SafetensorsFile file(path);
    const auto saved_config = file.values<char>("config", "U8");
    const std::string dump = dump_config(config);
    if (!std::ranges::equal(saved_config, dump))
        throw UserError({"the state belongs to another configuration", path.string(),
                         "a state that this model has saved", "load it with the model it was made with"});
    SequenceState state(config, rollback_tokens);
    std::set<std::string, std::less<>> known;
    for (const StateTensor& one : SequenceStateFile::tensors(state, config))
        known.insert(one.declaration.name);
    for (const auto& [name, stored] : file.tensors())
        if (!known.contains(name))
            throw UserError({fmt::format("unknown tensor {}", name), path.string(),
                             "the tensors of a state: windows, sources, Engram history",
                             "save the state again"});
    SequenceStateFile::restore(state, file, path.string());
    return state;
}

}  // namespace touchstone
