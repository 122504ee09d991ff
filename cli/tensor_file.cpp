#include "cli/tensor_file.h"

#include <utility>
#include <vector>

#include "reference/io/safetensors.h"
#include "reference/io/safetensors_writer.h"

namespace touchstone::cli {

TensorMap read_tensors(const std::string& path) {
    const SafetensorsFile file(path);
    TensorMap tensors;
    for (const auto& [name, tensor] : file.tensors())
        tensors[name] = {tensor.type, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}};
    return tensors;
}

void write_tensors(const std::string& path, const TensorMap& tensors, const std::string& case_line) {
    std::vector<SafetensorsDeclaration> declarations;
    for (const auto& [name, tensor] : tensors) declarations.push_back({name, tensor.type, tensor.shape});
    SafetensorsWriter writer(path, std::move(declarations), {{"case", case_line}});
    for (const SafetensorsDeclaration& declaration : writer.tensors())
        writer.write(declaration.name, tensors.find(declaration.name)->second.bytes);
    writer.finish();
}

}  // namespace touchstone::cli
