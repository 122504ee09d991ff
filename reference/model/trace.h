// Where intermediate values of a forward pass go, by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/numerics/small_float.h"

namespace touchstone {

/// Takes tensors as they are made; bytes are little-endian elements, row-major, of a safetensors type.
class TraceSink {
  public:
    virtual ~TraceSink() = default;
    virtual void add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
                     std::span<const std::byte> bytes) = 0;
};

/// A sink, or none, with a prefix for names. Rows are those of the call.
class Trace {
  public:
    Trace() = default;
    explicit Trace(TraceSink* sink, std::string prefix = "") : sink_(sink), prefix_(std::move(prefix)) {}

    bool active() const { return sink_ != nullptr; }
    Trace at(const std::string& part) const { return Trace(sink_, prefix_ + part); }

    void operator()(std::string_view name, const std::vector<int64_t>& shape, std::span<const Bf16> x) const {
        add(name, "BF16", shape, std::as_bytes(x));
    }
    void operator()(std::string_view name, const std::vector<int64_t>& shape,
                    std::span<const float> x) const {
        add(name, "F32", shape, std::as_bytes(x));
    }
    void operator()(std::string_view name, const std::vector<int64_t>& shape,
                    std::span<const int32_t> x) const {
        add(name, "I32", shape, std::as_bytes(x));
    }
    void operator()(std::string_view name, const std::vector<int64_t>& shape,
                    std::span<const int64_t> x) const {
        add(name, "I64", shape, std::as_bytes(x));
    }
    void operator()(std::string_view name, const std::vector<int64_t>& shape,
                    std::span<const uint8_t> x) const {
        add(name, "U8", shape, std::as_bytes(x));
    }

  private:
    void add(std::string_view name, std::string_view type, const std::vector<int64_t>& shape,
             std::span<const std::byte> bytes) const {
        if (sink_ != nullptr) sink_->add(prefix_ + std::string(name), type, shape, bytes);
    }

    TraceSink* sink_ = nullptr;
    std::string prefix_;
};

}  // namespace touchstone
