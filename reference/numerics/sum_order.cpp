#include "reference/numerics/sum_order.h"

#include <fmt/format.h>

namespace touchstone {

std::string_view lane_arrangement_name(LaneArrangement arrangement) {
    constexpr std::array<std::string_view, 3> names{"interleaved", "chunked", "sequential"};
    return names.at(static_cast<size_t>(arrangement));
}

namespace {

/// "1", "-" where there is no chain, or the pieces with their bounds, e.g. "2 of 0 256 512".
std::string chain_text(const SumOrderRow& row, const SumOrder& order, int64_t k) {
    if (row.chain == TensorCoreChain::none) return "-";
    std::string text = fmt::format("{}", order.pieces);
    if (order.pieces == 1) return text;
    text += " of 0";
    for (int i = 0; i < order.pieces; ++i) text += fmt::format(" {}", piece(order, k, i).last);
    return text;
}

std::string line(const SumOrderRow& row, int64_t k, int64_t n) {
    const SumOrder order = sum_order(row.op, k, n);
    return fmt::format("{:<28} {:>6} {:>6}  {:<11} {:>4}  {}\n", row.name, k, n,
                       lane_arrangement_name(order.lanes.arrangement), order.lanes.count,
                       chain_text(row, order, k));
}

}  // namespace

std::string sum_order_text() {
    std::string text = fmt::format("sum order, version {}\n\n{:<28} {:>6} {:>6}  {:<11} {:>4}  {}\n",
                                   sum_order_version, "operator", "K", "N", "lanes", "L", "pieces");
    for (const SumOrderRow& row : sum_order_table) text += line(row, row.k, row.n);

    text += "\nwhat is summed\n";
    for (const SumOrderRow& row : sum_order_table) text += fmt::format("{:<28} {}\n", row.name, row.terms);

    text += "\nwhere the rules change\n";
    const SumOrderRow& gate = sum_order_row(SumOperator::moe_gate);
    for (const int64_t n : {1, 512, 513, 1280, 1281}) text += line(gate, 5120, n);
    for (const int64_t k : {0, 1, 16, 240, 256, 496, 512, 1008, 1024, 1040, 5112, 5119, 5121, 15360})
        text += line(gate, k, 384);
    for (const SumOperator op : {SumOperator::rms_norm, SumOperator::mhc_mix, SumOperator::engram_gate,
                                 SumOperator::attention_scores, SumOperator::index_head_sum})
        for (const int64_t k : {0, 1, 2, 3, 8, 9, 64, 65, 128, 255, 257, 1024, 2047, 2048, 4095, 4096, 20480})
            text += line(sum_order_row(op), k, 1);
    return text;
}

}  // namespace touchstone
