#include "golden/compare/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace fs = std::filesystem;

namespace {

/// The tensor files of a folder, sorted, so that messages and reports do not depend on the file system.
std::vector<fs::path> files_of(const fs::path& folder) {
    std::vector<fs::path> paths;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
        const fs::path suffix = entry.path().extension();
        if (suffix == ".safetensors" || suffix == ".npy") paths.push_back(entry.path());
    }
    if (error)
        throw UserError({fmt::format("the folder cannot be read: {}", error.message()), folder.string(),
                         "a folder of safetensors or npy files", "check the path"});
    if (paths.empty())
        throw UserError(
            {"a folder without tensors", folder.string(), "*.safetensors or *.npy files in it", ""});
    std::ranges::sort(paths);
    return paths;
}

}  // namespace

TensorFile::TensorFile(const fs::path& path) : path_(path) {
    std::error_code ignored;  // what cannot be asked about cannot be opened either
    if (!fs::is_directory(path, ignored)) {
        open(path);
        single_array_ = is_npy(files_[0].mapped->bytes());
        return;
    }
    for (const fs::path& file : files_of(path)) open(file);
}

void TensorFile::open(const fs::path& path) {
    files_.push_back(
        {path.string(), std::make_unique<MappedFile>(path, "a readable safetensors or npy file")});
    const size_t file = files_.size() - 1;
    const std::span<const std::byte> bytes = files_[file].mapped->bytes();
    if (is_npy(bytes)) {
        const NpyArray array = parse_npy(bytes, path.string());
        add(path.stem().string(), {array.stored, array.fortran_order, true, file});
        return;
    }
    for (const auto& [name, tensor] : parse_safetensors(bytes, path.string()))
        add(name, {tensor, false, false, file});
    metadata_.merge(parse_safetensors_metadata(bytes, path.string()));
}

void TensorFile::add(const std::string& name, StoredTensor tensor) {
    const auto [place, added] = tensors_.emplace(name, std::move(tensor));
    if (!added)
        throw UserError({fmt::format("tensor {} stands in two files", quoted(name)),
                         fmt::format("{} and {}", where(place->second), files_.back().path),
                         "every name once", "compare the files one by one"});
}

const StoredTensor& TensorFile::tensor(std::string_view name) const {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [known, tensor] : tensors_) names.push_back(known);
    const std::string near = did_you_mean(name, names);
    throw UserError({fmt::format("no tensor {}", quoted(std::string(name))), path_.string(),
                     fmt::format("one of its {} tensors", names.size()),
                     near.empty() ? "" : fmt::format("did you mean {}?", quoted(near))});
}

void TensorFile::release(const StoredTensor& tensor, std::span<const std::byte> part) const {
    files_[tensor.file].mapped->release(part);
}

void TensorFile::require_not_shortened(const StoredTensor& tensor) const {
    files_[tensor.file].mapped->require_not_shortened();
}

}  // namespace touchstone
