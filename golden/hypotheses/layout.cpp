// Faults of layout: the right numbers at another place, or read from one.
#include <algorithm>

#include "golden/hypotheses/hypothesis.h"
#include "golden/hypotheses/output_places.h"

namespace touchstone {

namespace {

const std::vector<std::string> packing{"quantize_q8", "quantize_q4i", "quantize_q4m"};
const std::vector<std::string> unpacking{"dequantize_q8", "dequantize_q4i", "dequantize_q4m"};
const std::vector<std::string> tiled{"linear_fp8", "grouped_linear"};
const std::vector<std::string> with_weight{"linear_fp8", "linear_bf16", "lm_head", "grouped_linear"};

bool bf16_bytes_swapped(TensorMap& tensors) {
    bool any = false;
    for (auto& [name, tensor] : tensors)
        if (tensor.type == "BF16")
            for (Bf16& x : tensor.view<Bf16>()) {
                x.bits = static_cast<uint16_t>(x.bits << 8 | x.bits >> 8);
                any = true;
            }
    return any;
}

/// Outputs [rows, columns] that are 0 beyond the last whole tile of columns.
Outputs columns_missing(int64_t tile) {
    return with_outputs([tile](TensorMap& outputs, const OperatorRun&) {
        bool any = false;
        for (auto& [name, tensor] : outputs) {
            const int64_t width = (tensor.shape.empty() ? 1 : tensor.shape.back()),
                          whole = width / tile * tile;
            const size_t bytes = element_bytes(tensor);
            if (whole == 0 || whole == width) continue;
            for (int64_t i = 0; i < tensor.elements(); ++i)
                if (i % width >= whole)
                    std::fill_n(tensor.bytes.begin() + i * static_cast<int64_t>(bytes), bytes, std::byte{0});
            any = true;
        }
        return any;
    });
}

/// Rows beyond the last whole tile of rows are 0.
Outputs rows_missing(int64_t tile) {
    return with_outputs([tile](TensorMap& outputs, const OperatorRun&) {
        bool any = false;
        for (auto& [name, tensor] : outputs) {
            if (tensor.shape.size() < 2) continue;
            const int64_t rows = tensor.shape.front(), whole = rows / tile * tile;
            if (whole == 0 || whole == rows) continue;
            std::fill(tensor.bytes.begin() + std::ssize(tensor.bytes) / rows * whole, tensor.bytes.end(),
                      std::byte{0});
            any = true;
        }
        return any;
    });
}

// Packed bytes.

void swap_nibbles(std::span<std::byte> bytes) {
    for (std::byte& pair : bytes) pair = pair << 4 | pair >> 4;
}

/// A record's bytes of values and of scales.
struct RecordSizes {
    int64_t rows, values, scales;
    int64_t bytes() const { return values + scales; }
};

RecordSizes record_sizes(const OperatorRun& run, const Tensor& records) {
    const int64_t channels = run.parameters["channels"], bytes = records.shape[1];
    const int64_t values = run.info.name.ends_with("q8") ? channels : channels / 2;
    return {records.shape[0], values, bytes - values};
}

using ChangeRecords = bool (*)(Tensor& records, const RecordSizes& sizes);

bool nibbles_swapped(Tensor& records, const RecordSizes& sizes) {
    for (int64_t row = 0; row < sizes.rows; ++row)
        swap_nibbles(
            std::span(records.bytes)
                .subspan(static_cast<size_t>(row * sizes.bytes()), static_cast<size_t>(sizes.values)));
    return true;
}

/// All values, then all scales.
bool made_planar(Tensor& records, const RecordSizes& s) {
    const int64_t all_values = s.rows * s.values;
    gather(records, [&](int64_t i) {
        if (i < all_values) return i / s.values * s.bytes() + i % s.values;
        const int64_t scale = i - all_values;
        return scale / s.scales * s.bytes() + s.values + scale % s.scales;
    });
    return s.rows > 1;
}

/// What a planar reader takes for each record's bytes.
bool read_planar(Tensor& records, const RecordSizes& s) {
    const int64_t all_values = s.rows * s.values;
    gather(records, [&](int64_t i) {
        const int64_t row = i / s.bytes(), at = i % s.bytes();
        return at < s.values ? row * s.values + at : all_values + row * s.scales + at - s.values;
    });
    return s.rows > 1;
}

bool scales_first(Tensor& records, const RecordSizes& s) {
    gather(records, [&](int64_t i) {
        const int64_t at = i % s.bytes();
        return i - at + (at < s.scales ? s.values + at : at - s.scales);
    });
    return true;
}

bool read_scales_first(Tensor& records, const RecordSizes& s) {
    gather(records, [&](int64_t i) { return i - i % s.bytes() + (i % s.bytes() + s.scales) % s.bytes(); });
    return true;
}

Outputs written(ChangeRecords change) {
    return with_outputs([change](TensorMap& outputs, const OperatorRun& run) {
        Tensor& records = outputs.find("records")->second;
        return records.elements() > 0 && change(records, record_sizes(run, records));
    });
}

Outputs read(ChangeRecords change) {
    return with_inputs([change](TensorMap& inputs, const OperatorRun& run) {
        const auto records = inputs.find("records");
        return records != inputs.end() && records->second.elements() > 0 &&
               change(records->second, record_sizes(run, records->second));
    });
}

// Weights, keys, scales.

using ChangeTensor = bool (*)(Tensor& tensor);

/// One input altered.
Outputs input(const char* slot, ChangeTensor change) {
    return with_inputs([slot, change](TensorMap& inputs, const OperatorRun&) {
        const auto found = inputs.find(slot);
        return found != inputs.end() && found->second.elements() > 0 && change(found->second);
    });
}

bool read_column_major(Tensor& tensor) {
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    gather(tensor, [&](int64_t i) { return i % columns * rows + i / columns; });
    return rows > 1 && columns > 1;
}

bool packed_swapped(Tensor& tensor) {
    swap_nibbles(tensor.bytes);
    return true;
}

/// scales'[i][j] is scale source(i, j); a source beyond the tensor makes no sense.
template <class Source>
bool tiles_from(Tensor& scales, const Source& source) {
    const int64_t columns = scales.shape[1];
    gather(scales, [&](int64_t i) { return source(i / columns, i % columns, scales.shape[0], columns); });
    return true;
}

bool tiles_of_128(Tensor& scales) {
    return tiles_from(scales,
                      [](int64_t i, int64_t j, int64_t, int64_t columns) { return i / 4 * columns + j / 4; });
}
bool tiles_of_128_packed(Tensor& scales) {
    return tiles_from(scales, [](int64_t i, int64_t j, int64_t, int64_t columns) {
        return i / 4 * ((columns + 3) / 4) + j / 4;
    });
}
bool first_tile_of_128(Tensor& scales) {
    return tiles_from(scales, [](int64_t i, int64_t j, int64_t, int64_t columns) {
        return i / 4 * 4 * columns + j / 4 * 4;
    });
}
bool tile_row_after(Tensor& scales) {
    return tiles_from(scales, [](int64_t i, int64_t j, int64_t rows, int64_t columns) {
        return std::min(i + 1, rows - 1) * columns + j;
    });
}
bool tile_row_first(Tensor& scales) {
    return tiles_from(scales, [](int64_t, int64_t j, int64_t, int64_t) { return j; });
}
bool scale_of_32_rows(Tensor& scales) {
    return tiles_from(
        scales, [](int64_t i, int64_t j, int64_t, int64_t columns) { return i / 32 * 32 * columns + j; });
}

bool all_packed_weights_swapped(TensorMap& inputs, const OperatorRun&) {
    for (auto& [name, tensor] : inputs)
        if (tensor.type == "I8") swap_nibbles(tensor.bytes);
    return true;
}

/// Keys of a page: all codes then all scales in memory, read as codes and scales of one key after another,
/// or the other way round.
bool key_page(TensorMap& inputs, bool planar_in_memory) {
    Tensor &codes = inputs.find("key_codes")->second, &scales = inputs.find("key_scales")->second;
    Tensor page{"U8", {std::ssize(codes.bytes) + std::ssize(scales.bytes)}, codes.bytes};
    page.bytes.insert(page.bytes.end(), scales.bytes.begin(), scales.bytes.end());
    const RecordSizes sizes{codes.shape[0], codes.shape[1], scales.shape[1]};
    // made_planar is also what a reader of keys makes of a planar page, read_planar what a planar one of
    // keys.
    planar_in_memory ? made_planar(page, sizes) : read_planar(page, sizes);
    std::copy_n(page.bytes.begin(), codes.bytes.size(), codes.bytes.begin());
    std::copy(page.bytes.begin() + std::ssize(codes.bytes), page.bytes.end(), scales.bytes.begin());
    return sizes.rows > 1;
}

}  // namespace

std::vector<Hypothesis> layout_hypotheses() {
    const Cause fault = Cause::fault;
    std::vector<Hypothesis> all = output_place_hypotheses();
    const std::vector<Hypothesis> others = {
        {"output_bytes_swapped",
         "K16",
         "the bytes of each bf16 result are swapped",
         fault,
         {},
         with_outputs([](TensorMap& outputs, const OperatorRun&) { return bf16_bytes_swapped(outputs); })},
        {"columns_beyond_tiles_of_64",
         "K17",
         "outputs beyond the last whole tile of 64 are 0",
         fault,
         {},
         columns_missing(64)},
        {"columns_beyond_tiles_of_128",
         "K17",
         "outputs beyond the last whole tile of 128 are 0",
         fault,
         {},
         columns_missing(128)},
        {"rows_beyond_tiles_of_64",
         "K17",
         "rows beyond the last whole tile of 64 are 0",
         fault,
         {},
         rows_missing(64)},
        {"nibbles_written_swapped",
         "K16",
         "the even element is written to the high nibble",
         fault,
         {"quantize_q4i", "quantize_q4m"},
         written(nibbles_swapped)},
        {"records_written_planar", "K16", "all rows' values are written first, then all rows' scales", fault,
         packing, written(made_planar)},
        {"records_written_scales_first", "K16", "a record's scales are written before its values", fault,
         packing, written(scales_first)},
        {"records_read_planar", "K16", "records are read as all values, then all scales", fault, unpacking,
         read(read_planar)},
        {"records_read_scales_first", "K16", "a record's scales are read before its values", fault, unpacking,
         read(read_scales_first)},
        {"codes_written_swapped",
         "K16",
         "the even element is written to the high nibble",
         fault,
         {"index_queries"},
         with_outputs([](TensorMap& outputs, const OperatorRun&) {
             return packed_swapped(outputs.find("codes")->second);
         })},
        {"nibbles_of_the_query_swapped",
         "K16",
         "the query's even element is read from the high nibble",
         fault,
         {"index_scores"},
         input("codes", packed_swapped)},
        {"nibbles_of_the_keys_swapped",
         "K16",
         "the keys' even element is read from the high nibble",
         fault,
         {"index_scores"},
         input("key_codes", packed_swapped)},
        {"nibbles_of_expert_weights_swapped",
         "K16",
         "the weights' even element is read from the high nibble",
         fault,
         {"routed_expert", "experts"},
         with_inputs(all_packed_weights_swapped)},
        {"key_page_planar_read_by_key",
         "K16",
         "a page of all codes, then all scales is read as codes and scales of one key after the other",
         fault,
         {"index_scores"},
         with_inputs([](TensorMap& inputs, const OperatorRun&) { return key_page(inputs, true); })},
        {"key_page_by_key_read_planar",
         "K16",
         "a page of codes and scales of one key after the other is read as all codes, then all scales",
         fault,
         {"index_scores"},
         with_inputs([](TensorMap& inputs, const OperatorRun&) { return key_page(inputs, false); })},
        {"key_scales_column_major",
         "K16",
         "the keys' scales are read in the other order of axes",
         fault,
         {"index_scores"},
         input("key_scales", read_column_major)},
        {"weight_column_major", "K16", "the weight is read in the other order of axes", fault, with_weight,
         input("weight", read_column_major)},
        {"scales_column_major",
         "K16",
         "the weight's scales are read in the other order of axes",
         fault,
         {"linear_fp8", "linear_fp4", "grouped_linear"},
         input("scale", read_column_major)},
        {"tiles_of_128", "K16", "a scale is taken to be of 128 x 128: index output / 128, input / 128", fault,
         tiled, input("scale", tiles_of_128)},
        {"tiles_of_128_packed", "K16", "scales are taken to be of 128 x 128, a quarter of them to a row",
         fault, tiled, input("scale", tiles_of_128_packed)},
        {"first_tile_of_128", "K16", "the first scale of 128 x 128 serves all of it", fault, tiled,
         input("scale", first_tile_of_128)},
        {"scale_of_the_tile_row_after", "K16", "outputs get the scales of the tiles after theirs", fault,
         tiled, input("scale", tile_row_after)},
        {"scale_of_the_first_tile_row", "K16", "all outputs get the scales of the first tiles", fault, tiled,
         input("scale", tile_row_first)},
        {"scale_of_the_output_after",
         "K16",
         "outputs get the scales of the output after theirs",
         fault,
         {"linear_fp4"},
         input("scale", tile_row_after)},
        {"scale_of_32_outputs",
         "K16",
         "32 outputs share the scales of the first, as tiles do",
         fault,
         {"linear_fp4"},
         input("scale", scale_of_32_rows)},
    };
    all.insert(all.end(), others.begin(), others.end());
    return all;
}

}  // namespace touchstone
