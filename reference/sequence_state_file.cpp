#include "reference/sequence_state_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reference/engram.h"
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
            const int64_t rows = source.main.rows();
            all.push_back(tensor(source_name(layer, "rows"), "I64", std::span<const int64_t>(&rows, 1)));
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
        // What a part says of its bytes, with the name of their tensor.
        const auto restored = [&](const std::string& name, const auto& restore_part) {
            try {
                restore_part(file.values<std::byte>(name, "U8"));
            } catch (const UserError& error) {
                if (error.parts().where == path) throw;  // it names the tensor already
                refuse(name, error.parts().expected);
            }
        };
        const ModelConfig& config = state.config_;
        const int64_t tokens = numbers("tokens", 1)[0];
        if (tokens < 0 || tokens > config.max_position_embeddings)
            refuse("tokens", fmt::format("0 to {}", config.max_position_embeddings));
        state.tokens_ = tokens;

        // More than is looked back on is there for taking drafts back.
        state.engram_history_ = file.values<int32_t>("engram_history", "I32");
        const int64_t known = std::ssize(state.engram_history_);
        if (known < std::min(state.engram_look_back_, tokens) || known > (config.engram ? tokens : 0))
            refuse("engram_history",
                   fmt::format("the last {} of {} tokens", state.engram_look_back_, tokens));
        for (const int32_t id : state.engram_history_)
            if (id != engram_dead && (id < 0 || id >= config.engram->compressed_vocab_size))
                refuse("engram_history", fmt::format("ids below {}", config.engram->compressed_vocab_size));

        for (int layer = 0; layer < state.layers(); ++layer) {
            const std::string name = window_name(layer), name_of_positions = name + ".positions";
            const std::vector<int64_t> positions = numbers(name_of_positions, 2);
            const int64_t first = positions[0], end = positions[1];
            if (first < 0 || first > end || end > tokens || end - first > config.sliding_window)
                refuse(name_of_positions, fmt::format("at most {} positions, ascending, up to {}",
                                                      config.sliding_window, tokens));
            restored(name, [&](const auto& bytes) { state.window(layer).restore(first, end, bytes); });
        }
        for (auto& entry : state.sources_) {
            const int layer = entry.first;
            SourceState& source = entry.second;
            const int64_t rows = tokens / source.ratio;
            if (numbers(source_name(layer, "rows"), 1)[0] != rows)
                refuse(source_name(layer, "rows"), fmt::format("{}: those of {} tokens", rows, tokens));
            restored(source_name(layer, "main"),
                     [&](const auto& bytes) { source.main.restore(rows, bytes); });
            restored(source_name(layer, "keys"),
                     [&](const auto& bytes) { source.keys.restore(rows, bytes); });
            const int64_t open = tokens % source.ratio * config.head_dim;
            const auto waiting = [&](const std::string& name) {
                std::vector<float> values = file.values<float>(name, "F32");
                if (std::ssize(values) != open) refuse(name, fmt::format("{} numbers", open));
                return values;
            };
            source.open = {waiting(source_name(layer, "open_kv")), waiting(source_name(layer, "open_score"))};
            source.recent = source.open;
        }
    }
};

void save_state(const SequenceState& state, const ModelConfig& config, const std::filesystem::path& path) {
    state.require_usable();
    if (state.config() != config)
        throw UserError({"the state belongs to another configuration", path.string(),
                         "the configuration that it was made with", ""});
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
