// What the tests of golden/compare share: tensors, files of them, and their comparison.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "golden/compare/compare.h"
#include "reference/io/safetensors_writer.h"
#include "reference/io/user_error.h"
#include "reference/numerics/small_float.h"
#include "reference/registry/tensor.h"

namespace touchstone::compared_tensors {

namespace fs = std::filesystem;

/// A folder of this process that is removed at exit.
inline const fs::path& scratch() {
    static const struct Folder {
        fs::path path = fs::temp_directory_path() / fmt::format("touchstone_compare_test_{}", getpid());
        Folder() { fs::create_directories(path); }
        ~Folder() { fs::remove_all(path); }
    } folder;
    return folder.path;
}

using Tensors = std::map<std::string, Tensor>;

template <class T>
inline Tensor tensor(const std::string& type, std::vector<int64_t> shape, const std::vector<T>& values) {
    Tensor result{type, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(result.bytes.data(), values.data(), result.bytes.size());
    return result;
}

inline Tensor f32(std::vector<int64_t> shape, const std::vector<float>& values) {
    return tensor("F32", std::move(shape), values);
}

inline Tensor bf16(std::vector<int64_t> shape, const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (float value : values) bits.push_back(bf16_from_float(value).bits);
    return tensor("BF16", std::move(shape), bits);
}

inline Tensor i32(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
    return tensor("I32", std::move(shape), values);
}

inline fs::path write(const std::string& name, const Tensors& tensors,
                      const std::map<std::string, std::string>& metadata = {}) {
    const fs::path path = scratch() / name;
    std::vector<SafetensorsDeclaration> declarations;
    for (const auto& [key, value] : tensors) declarations.push_back({key, value.type, value.shape});
    SafetensorsWriter writer(path, declarations, metadata);
    for (const SafetensorsDeclaration& declaration : writer.tensors())
        writer.write(declaration.name, tensors.at(declaration.name).bytes);
    writer.finish();
    return path;
}

inline CompareReport compare(const Tensors& expected, const Tensors& got,
                             const CompareOptions& options = {}) {
    const TensorFile a(write("a.safetensors", expected)), b(write("b.safetensors", got));
    return compare_files(a, b, options);
}

inline TensorComparison compare_one(const Tensor& expected, const Tensor& got,
                                    const std::string& tolerance = "bit") {
    CompareOptions options;
    options.tolerances = {{"", parse_tolerance(tolerance, "test")}};
    return compare({{"x", expected}}, {{"x", got}}, options).tensors.at(0);
}

template <class Call>
std::string refusal(Call call) {
    try {
        call();
    } catch (const UserError& error) {
        return fmt::format("{} | {} | {} | {}", error.parts().what, error.parts().where,
                           error.parts().expected, error.parts().remedy);
    }
    return "";
}

inline bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

}  // namespace touchstone::compared_tensors
