#include "golden/hypotheses/output_places.h"

namespace touchstone {

namespace {

// Of an output: which element of the right one stands at i.

using Place = int64_t (*)(int64_t i, const std::vector<int64_t>& shape, int64_t elements);

int64_t row_elements(const std::vector<int64_t>& shape, int64_t elements) {
    return elements / shape.front();
}

int64_t row_before(int64_t i, const std::vector<int64_t>& shape, int64_t elements) {
    const int64_t row = row_elements(shape, elements);
    return i < row ? i : i - row;
}
int64_t row_after(int64_t i, const std::vector<int64_t>& shape, int64_t elements) {
    const int64_t row = row_elements(shape, elements);
    return i + row < elements ? i + row : i;
}
int64_t rows_rotated(int64_t i, const std::vector<int64_t>& shape, int64_t elements) {
    return (i + row_elements(shape, elements)) % elements;
}
int64_t first_row(int64_t i, const std::vector<int64_t>& shape, int64_t elements) {
    return i % row_elements(shape, elements);
}
int64_t rows_reversed(int64_t i, const std::vector<int64_t>& shape, int64_t elements) {
    const int64_t row = row_elements(shape, elements);
    return elements - row - i / row * row + i % row;
}
/// The memory holds [columns][rows].
int64_t column_major(int64_t i, const std::vector<int64_t>& shape, int64_t) {
    const int64_t rows = shape[shape.size() - 2], columns = shape.back(), matrix = rows * columns;
    const int64_t at = i % matrix;
    return i / matrix * matrix + at % rows * columns + at / rows;
}
/// The memory holds [middle][first] of the leading extents.
int64_t leading_swapped(int64_t i, const std::vector<int64_t>& shape, int64_t elements) {
    if (shape.size() < 3) return i;
    const int64_t first = shape[0], middle = shape[1], rest = elements / (first * middle), at = i / rest;
    return (at % first * middle + at / first) * rest + i % rest;
}
int64_t channel_halves_swapped(int64_t i, const std::vector<int64_t>& shape, int64_t) {
    const int64_t width = shape.back(), half = width / 2, c = i % width;
    return width % 2 != 0 ? i : i - c + (c + half) % width;
}
int64_t head_halves_swapped(int64_t i, const std::vector<int64_t>& shape, int64_t) {
    if (shape.size() < 3 || shape[1] % 2 != 0) return i;
    const int64_t width = shape.back(), heads = shape[1], head = i / width % heads;
    return i + ((head + heads / 2) % heads - head) * width;
}
int64_t neighbours_swapped(int64_t i, const std::vector<int64_t>& shape, int64_t) {
    return shape.back() % 2 != 0 ? i : i ^ 1;
}
/// Channels 0, 2, 4, .. first, then 1, 3, ..
int64_t channels_deinterleaved(int64_t i, const std::vector<int64_t>& shape, int64_t) {
    const int64_t width = shape.back(), half = width / 2, c = i % width;
    return width % 2 != 0 ? i : i - c + (c < half ? 2 * c : 2 * (c - half) + 1);
}
int64_t channels_interleaved(int64_t i, const std::vector<int64_t>& shape, int64_t) {
    const int64_t width = shape.back(), half = width / 2, c = i % width;
    return width % 2 != 0 ? i : i - c + c / 2 + (c % 2) * half;
}
int64_t channel_after(int64_t i, const std::vector<int64_t>& shape, int64_t) {
    const int64_t width = shape.back(), c = i % width;
    return i - c + (c + 1) % width;
}
template <int64_t elements_of_the_offset>
int64_t wrapped(int64_t i, const std::vector<int64_t>&, int64_t) {
    return i % elements_of_the_offset;
}

/// Every output that has at least two extents.
Outputs placed(Place place) {
    return with_outputs([place](TensorMap& outputs, const OperatorRun&) {
        bool any = false;
        for (auto& [name, tensor] : outputs) {
            if (tensor.shape.size() < 2 || tensor.elements() == 0) continue;
            const std::vector<int64_t> shape = tensor.shape;
            const int64_t elements = tensor.elements();
            gather(tensor, [&](int64_t i) { return place(i, shape, elements); });
            any = true;
        }
        return any;
    });
}

struct OutputPlace {
    const char *name, *kind, *cause;
    Place place;
};

const OutputPlace output_places[] = {
    {"output_of_the_row_before", "K16", "a row holds the result of the row before it", row_before},
    {"output_of_the_row_after", "K16", "a row holds the result of the row after it", row_after},
    {"output_rows_rotated", "K16", "rows are one place on, the first stands last", rows_rotated},
    {"output_of_the_first_row", "K16", "every row holds the result of the first", first_row},
    {"output_rows_reversed", "K16", "rows stand in reversed order", rows_reversed},
    {"output_column_major", "K16", "the result is written column after column", column_major},
    {"output_leading_axes_swapped", "K16", "the first two axes are written in the other order",
     leading_swapped},
    {"output_channel_halves_swapped", "K16", "the halves of each row are swapped", channel_halves_swapped},
    {"output_head_halves_swapped", "K16", "the first and the second half of the heads are swapped",
     head_halves_swapped},
    {"output_neighbours_swapped", "K16", "channels 2 i and 2 i + 1 are swapped", neighbours_swapped},
    {"output_channels_deinterleaved", "K16", "even channels are written first, then the odd ones",
     channels_deinterleaved},
    {"output_channels_interleaved", "K16", "the halves of each row are written in turns",
     channels_interleaved},
    {"output_of_the_channel_after", "K16", "a channel holds the result of the next one", channel_after},
    {"offset_wraps_at_32768", "K17", "element offsets wrap at 2^15", wrapped<(int64_t{1} << 15)>},
    {"offset_wraps_at_65536", "K17", "element offsets wrap at 2^16", wrapped<(int64_t{1} << 16)>},
};

}  // namespace

std::vector<Hypothesis> output_place_hypotheses() {
    std::vector<Hypothesis> all;
    for (const OutputPlace& one : output_places)
        all.push_back({one.name, one.kind, one.cause, Cause::fault, {}, placed(one.place)});
    return all;
}

}  // namespace touchstone
