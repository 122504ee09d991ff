// A trace kept in memory, as numbers.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "reference/model/trace.h"

namespace touchstone {

/// Tensors by name; a name that comes again replaces what was there.
class TraceMap final : public TraceSink {
  public:
    struct Tensor {
        std::string type;
        std::vector<int64_t> shape;
        std::vector<std::byte> bytes;
        std::vector<double> numbers;  ///< widened, exactly
        friend bool operator==(const Tensor& a, const Tensor& b) {
            return a.type == b.type && a.shape == b.shape && a.bytes == b.bytes;
        }
    };

    void add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
             std::span<const std::byte> bytes) override {
        Tensor tensor{std::string(type), shape, {bytes.begin(), bytes.end()}, {}};
        if (type == "BF16")
            widen<Bf16>(tensor, [](Bf16 x) { return to_float(x); });
        else if (type == "F32")
            widen<float>(tensor, [](float x) { return x; });
        else if (type == "I32")
            widen<int32_t>(tensor, [](int32_t x) { return x; });
        else if (type == "I64")
            widen<int64_t>(tensor, [](int64_t x) { return x; });
        else
            widen<uint8_t>(tensor, [](uint8_t x) { return x; });
        tensors_[name] = std::move(tensor);
    }

    const Tensor* find(const std::string& name) const {
        const auto found = tensors_.find(name);
        return found == tensors_.end() ? nullptr : &found->second;
    }
    const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  private:
    template <class T, class Widen>
    static void widen(Tensor& tensor, const Widen& to_number) {
        for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(T)) {
            T value;
            std::memcpy(&value, tensor.bytes.data() + at, sizeof value);
            tensor.numbers.push_back(static_cast<double>(to_number(value)));
        }
    }

    std::map<std::string, Tensor> tensors_;
};

}  // namespace touchstone
