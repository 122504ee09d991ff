#include "golden/bisect/traced_file.h"

#include <fstream>
#include <optional>
#include <sstream>

#include "golden/compare/layout_change.h"
#include "golden/compare/name_map.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

std::vector<NameRule> read_rules(const std::string& path) {
    if (path.empty()) return {};
    const std::ifstream file(path, std::ios::binary);
    if (!file) throw UserError({"the name map cannot be read", path, "a file of rules", "check --map"});
    std::stringstream text;
    text << file.rdbuf();
    return parse_name_map(text.str(), path);
}

/// What has to be done to a stored tensor, if anything.
std::optional<Layout> layout_of(const StoredTensor& stored, const std::optional<Layout>& mapped) {
    if (mapped && mapped->kind != LayoutKind::row_major) return mapped;
    if (stored.fortran_order) return Layout{.kind = LayoutKind::transpose};
    return std::nullopt;
}

/// npy has no bf16: its bits stand there as 16-bit integers.
TensorView with_type(TensorView view, const StoredTensor& stored) {
    if (stored.of_npy && (view.type == "U16" || view.type == "I16")) view.type = "BF16";
    return view;
}

}  // namespace

TracedFile::TracedFile(const std::filesystem::path& path, const std::string& map) : file_(path) {
    std::vector<std::string> theirs;
    for (const auto& [name, tensor] : file_.tensors()) theirs.push_back(name);
    const std::vector<NameRule> rules = read_rules(map);
    const MappedNames mapped = map_names(rules, theirs);
    unused_rules_ = mapped.unused_rules;
    for (const auto& [name, stored] : file_.tensors()) {
        const MappedName& ours = mapped.by_their_name.find(name)->second;
        TensorView view = with_type(stored.view, stored);
        if (const std::optional<Layout> layout = layout_of(stored, ours.layout)) {
            const Tensor& copy =
                copies_.emplace(ours.ours, row_major(view, *layout, file_.where(stored) + ": " + name))
                    .first->second;
            view = {copy.type, copy.shape, copy.bytes};
        }
        tensors_.emplace(ours.ours, view);
    }
}

}  // namespace touchstone
