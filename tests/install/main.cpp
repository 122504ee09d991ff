// A program outside the tree: asks the installed libraries what a token of the real model costs, packs two
// rows of its main KV cache into a page and says where each byte lies.
#include <fmt/format.h>

#include <vector>

#include "reference/layout/kv_page.h"
#include "reference/model/model.h"
#include "reference/quantize.h"
#include "simulator/kv_accounting.h"

int main() {
    using namespace touchstone;
    const Model model = find_model("deepseek-v4.1-flash");
    const KvAccount account(model, "fp4");
    fmt::print("{}: {} bytes per token\n", model.name, account.bytes_per_token().decimal());

    KvPage page;
    page.record = account.layout().format.main;  // 512 e2m1 /16 e4m3
    page.layout = KvPageLayout::planar;
    page.records = 2;
    std::vector<Bf16> rows;
    for (int i = 0; i < 2 * 512; ++i) rows.push_back(bf16_from_float(0.25f * static_cast<float>(i % 16)));
    std::vector<std::byte> bytes(static_cast<size_t>(page.page_bytes()));
    quantize_rows(page, Quantizer::q4m, rows, bytes, 0);

    const char* sections[] = {"values", "tail", "scales", "record padding", "page padding"};
    for (const KvSpan& span : page_map(page)) {
        fmt::print("row {} {:<6} at {:>3}, {:>3} bytes:", span.slot, sections[static_cast<int>(span.section)],
                   span.offset_bytes, span.size_bytes);
        for (int64_t i = 0; i < 8; ++i)
            fmt::print(" {:02x}", std::to_integer<int>(bytes[static_cast<size_t>(span.offset_bytes + i)]));
        fmt::print(" ..\n");
    }
}
