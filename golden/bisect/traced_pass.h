// A forward pass read back from its trace: the calls, and their tensors in the types that the path declares.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "golden/bisect/trace_path.h"
#include "reference/io/safetensors.h"
#include "reference/registry/tensor.h"

namespace touchstone {

/// A call of a traced pass.
struct TracedCall {
    std::string prefix;  ///< of its tensors: "position_000100/", or "" in a trace of one call
    int64_t first_position;
    int64_t rows;

    int64_t end() const { return first_position + rows; }
};

/// Tensors of a trace under the names of trace_path. May be read from any thread.
class TracedPass {
  public:
    /// `tensors` point into memory that outlives this; `where` names them in messages. Throws UserError for a
    /// tensor of the path whose type or shape cannot be that of the configuration: any float type does for
    /// a float, any integer or a double for an integer, and extents after the first may be run together.
    TracedPass(const ModelConfig& config, SafetensorsTensors tensors, std::string where);

    const ModelConfig& config() const { return config_; }
    const std::vector<TracedTensor>& path() const { return path_; }
    /// Ascending by position. Those without any tensor of the path are not there.
    const std::vector<TracedCall>& calls() const { return calls_; }
    /// Names that are none of the path's.
    const std::vector<std::string>& unknown_names() const { return unknown_; }

    /// As the path declares it, [rows, ..]; nullptr where the trace does not have it. Valid until forget().
    const Tensor* tensor(size_t call, int layer, std::string_view name) const;
    bool has(size_t call, int layer, std::string_view name) const;
    /// The first extent; 0 where it is not there.
    int64_t rows(size_t call, int layer, std::string_view name) const;
    /// The stored bytes, for hashes; nullptr where the trace does not have it.
    const TensorView* stored(size_t call, int layer, std::string_view name) const;
    /// Tensors given out so far leave memory: nobody may be reading one.
    void forget() const { converted_.clear(); }

  private:
    const TracedTensor* declared(std::string_view name) const;
    void sort_names();
    void count_rows(TracedCall& call) const;

    ModelConfig config_;
    SafetensorsTensors tensors_;
    std::string where_;
    std::vector<TracedTensor> path_;
    std::map<std::string, size_t, std::less<>> path_index_;
    std::vector<TracedCall> calls_;
    std::vector<std::string> unknown_;
    mutable std::map<std::string, Tensor, std::less<>> converted_;
    std::unique_ptr<std::mutex> converting_ = std::make_unique<std::mutex>();
};

/// Tensors that own their bytes, seen as those of a file.
SafetensorsTensors views_of(const TensorMap& tensors);

}  // namespace touchstone
