// A trace on disk, and choices read back from one.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reference/attention.h"
#include "reference/io/safetensors_writer.h"
#include "reference/model/trace.h"

namespace touchstone {

/// Collects tensors in a spool file beside `path` and writes them as safetensors when finished: memory stays
/// bounded whatever is traced. The spool has no name and disappears with the process.
class TraceFile final : public TraceSink {
  public:
    /// Throws UserError when the folder cannot be written to.
    explicit TraceFile(const std::filesystem::path& path);
    ~TraceFile() override;
    TraceFile(const TraceFile&) = delete;
    TraceFile& operator=(const TraceFile&) = delete;

    /// Throws UserError for a name that has come before, and when the disk is full.
    void add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
             std::span<const std::byte> bytes) override;

    int64_t tensors() const { return std::ssize(declarations_); }
    /// What the file's header says of the pass: "config", "weights_seed", "arithmetic", ..
    void set_metadata(std::map<std::string, std::string> metadata) { metadata_ = std::move(metadata); }
    /// Gives the file its name. Throws UserError when it cannot be written.
    void finish();

  private:
    std::filesystem::path path_, spool_path_;
    std::fstream spool_;
    std::vector<SafetensorsDeclaration> declarations_;
    std::vector<int64_t> offsets_;  ///< in the spool, of each
    std::set<std::string, std::less<>> names_;
    std::map<std::string, std::string> metadata_;
    int64_t spooled_bytes_ = 0;
};

/// The prefix of a call's tensors in a trace: "position_000100/".
std::string call_prefix(int64_t first_position);

/// Experts and selected rows of every traced call: tensors position_P/Lnn.ffn.experts [rows, k] and
/// position_P/Lnn.attn.indexer.selected [rows, topk], -1 where nothing is selected. The last row of a tensor
/// is the call's last position, `rows` may be fewer than the call has (replay). Throws UserError for a file
/// without any, a malformed name, a tensor of another type or shape, and what SafetensorsFile says.
ForcedChoices read_choices(const std::filesystem::path& trace, const ModelConfig& config);

}  // namespace touchstone
