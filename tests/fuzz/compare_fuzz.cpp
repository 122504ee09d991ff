// Two safetensors files, cut from any bytes: tensors of one name, type and shape are compared, and the counts
// add up. The bytes are also read as a tolerance, a layout and a map of names, which are taken or refused.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>

#include "golden/compare/difference.h"
#include "golden/compare/layout_change.h"
#include "golden/compare/name_map.h"
#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"

namespace {

using namespace touchstone;

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "compare_fuzz: %s\n", what);
    std::abort();
}

void compare(std::span<const std::byte> expected_file, std::span<const std::byte> got_file) {
    const SafetensorsTensors expected = parse_safetensors(expected_file, "fuzz");
    const SafetensorsTensors got = parse_safetensors(got_file, "fuzz");
    const Tolerance tolerance = parse_tolerance("ulp=1,rms=0.1", "fuzz");
    for (const auto& [name, e] : expected) {
        const auto g = got.find(name);
        if (g == got.end() || g->second.type != e.type || g->second.shape != e.shape) continue;
        const Difference d = difference(e, g->second, tolerance);
        const int64_t in_bins = std::accumulate(d.ulp_bins.begin(), d.ulp_bins.end(), int64_t{0});
        require(d.elements == e.elements() && d.identical <= d.elements,
                "more identical elements than elements");
        require(in_bins <= d.elements && d.outside <= d.elements - d.identical, "counts beyond the elements");
        require((d.first.index < 0) == d.equal(), "a first difference of equal tensors, or none of others");
    }
}

template <class Call>
void taken_or_refused(Call call) {
    try {
        call();
    } catch (const UserError& error) {
        require(!error.parts().what.empty() && !error.parts().where.empty(),
                "a refusal without reason or place");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
    const std::string text(reinterpret_cast<const char*>(data), size);
    taken_or_refused([&] { compare(bytes, bytes); });
    taken_or_refused([&] { compare(bytes.first(size / 2), bytes.subspan(size / 2)); });
    taken_or_refused([&] {
        const Tolerance tolerance = parse_tolerance(text, "fuzz");
        require(
            tolerance_text(parse_tolerance(tolerance_text(tolerance), "fuzz")) == tolerance_text(tolerance),
            "a tolerance whose text reads otherwise");
    });
    taken_or_refused([&] {
        const Layout layout = parse_layout(text, "fuzz");
        require(parse_layout(layout_text(layout), "fuzz") == layout, "a layout whose text reads otherwise");
        (void)row_major({"U8", {std::ssize(bytes)}, bytes}, layout, "fuzz");
    });
    taken_or_refused([&] {
        const std::vector<NameRule> rules = parse_name_map(text, "fuzz");
        const std::string names[]{"model.layers.3.attn.q", "L03.attn.q"};
        (void)map_names(rules, names);
    });
    return 0;
}
