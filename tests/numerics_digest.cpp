// numerics_digest [sets]: one line per function and case, "<name> <hash of the outputs>", over fixed inputs.
// The same lines must come from every compiler, optimisation level, instruction set (TOUCHSTONE_ISA), thread
// count and architecture; golden/numerics/digest.txt holds them and tests/same_bits.sh compares. With `sets`
// it prints the instruction sets of this machine instead, one a line.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/linear.h"
#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/fill.h"
#include "reference/numerics/isa.h"
#include "reference/numerics/small_float.h"
#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"
#include "reference/numerics/tensor_core.h"
#include "reference/numerics/tensor_hash.h"
#include "reference/numerics/total_order.h"
#include "reference/quantize.h"
#include "reference/top_k.h"
#include "tests/small_model.h"

using namespace touchstone;

namespace {

/// The hash of a case's outputs, in the order in which they are added.
class Digest {
  public:
    void add(uint32_t bits) { hash_ += element_hash(count_++, bits); }
    void add(float x) { add(float_bits(x)); }
    template <class T>
    void add_all(const T& values) {
        for (const auto& value : values) add(value);
    }
    void print(const std::string& name) const {
        std::printf("%-56s %016llx\n", name.c_str(), static_cast<unsigned long long>(hash_));
    }

  private:
    uint64_t hash_ = 0, count_ = 0;
};

template <class T>
std::vector<T> filled_vector(Filler filler, uint64_t seed, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    fill<T>(filler, {seed}, values);
    return values;
}

/// Every upper half of a float with lower halves that decide roundings: none, sticky, below, at and above a
/// tie.
std::vector<float> floats_around_every_bf16() {
    std::vector<float> values;
    for (uint32_t upper = 0; upper < 65536; ++upper)
        for (const uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
            values.push_back(float_from_bits(upper << 16 | lower));
    return values;
}

void digest_random() {
    Digest words;
    for (uint64_t i = 0; i < 1000; ++i) words.add(RandomStream{1, 2}.word(i));
    words.print("random words");
}

template <class T>
void digest_fillers(const char* type) {
    constexpr std::array<const char*, 3> names{"exact", "normal", "trap"};
    for (const Filler filler : {Filler::exact, Filler::normal, Filler::trap}) {
        Digest digest;
        for (const T x : filled_vector<T>(filler, 5, 4000)) {
            if constexpr (std::is_same_v<T, float>)
                digest.add(x);
            else
                digest.add(uint32_t{x.bits});
        }
        digest.print(std::string("fill ") + names[static_cast<size_t>(filler)] + " " + type);
    }
}

struct Conversion {
    const char* name;
    uint32_t (*convert)(float);
};

void digest_conversions() {
    constexpr Conversion conversions[]{
        {"bf16_from_float", [](float x) { return uint32_t{bf16_from_float(x).bits}; }},
        {"e4m3_from_float_saturating", [](float x) { return uint32_t{e4m3_from_float_saturating(x).bits}; }},
        {"e4m3_from_float_overflow_to_nan",
         [](float x) { return uint32_t{e4m3_from_float_overflow_to_nan(x).bits}; }},
        {"e2m1_from_float_saturating", [](float x) { return uint32_t{e2m1_from_float_saturating(x).bits}; }},
        {"e8m0_from_float_ceil", [](float x) { return uint32_t{e8m0_from_float_ceil(x).bits}; }},
        {"order_mapped", [](float x) { return order_mapped(x); }},
    };
    const std::vector<float> inputs = floats_around_every_bf16();
    for (const Conversion& conversion : conversions) {
        Digest digest;
        for (const float x : inputs) digest.add(conversion.convert(x));
        digest.print(conversion.name);
    }
    Digest decoded;
    for (uint32_t code = 0; code < 65536; ++code) decoded.add(to_float(Bf16{static_cast<uint16_t>(code)}));
    for (uint32_t code = 0; code < 256; ++code) {
        const uint8_t byte = static_cast<uint8_t>(code);
        decoded.add_all(std::array{to_float(E4m3{byte}), to_float(E2m1{byte}), to_float(E8m0{byte})});
    }
    decoded.print("to_float of every code");
}

void digest_elementary() {
    const std::vector<float> inputs = floats_around_every_bf16();
    std::vector<float> outputs(inputs.size());
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        evaluate(info.function, inputs, outputs);
        Digest digest;
        digest.add_all(outputs);
        digest.print(std::string(info.name));
    }
}

/// Rows for sums: numbers, traps, and traps with NaN and infinity.
struct Rows {
    std::vector<float> x, y;
    std::vector<Bf16> bx, by;
};

std::vector<Rows> sum_inputs(int64_t k) {
    std::vector<Rows> inputs;
    for (const Filler filler : {Filler::normal, Filler::trap})
        inputs.push_back({filled_vector<float>(filler, 6, k), filled_vector<float>(filler, 7, k),
                          filled_vector<Bf16>(filler, 8, k), filled_vector<Bf16>(filler, 9, k)});
    Rows special = inputs.back();
    for (size_t i = 0; i < special.x.size(); i += 701) {
        special.x[i] = float_from_bits(i % 2 == 0 ? 0x7F800000 : 0xFFC12345);
        special.bx[i].bits = i % 2 == 0 ? 0xFF80 : 0x7F81;
    }
    inputs.push_back(special);
    return inputs;
}

struct Sum {
    const char* name;
    float (*sum)(Lanes, const Rows&, size_t k);
};

constexpr Sum sums[]{
    {"sum fp32", [](Lanes l, const Rows& r, size_t k) { return sum(l, std::span(r.x).first(k)); }},
    {"sum bf16", [](Lanes l, const Rows& r, size_t k) { return sum(l, std::span(r.bx).first(k)); }},
    {"sum_of_squares fp32",
     [](Lanes l, const Rows& r, size_t k) { return sum_of_squares(l, std::span(r.x).first(k)); }},
    {"sum_of_squares bf16",
     [](Lanes l, const Rows& r, size_t k) { return sum_of_squares(l, std::span(r.bx).first(k)); }},
    {"dot fp32", [](Lanes l, const Rows& r,
                    size_t k) { return dot(l, std::span(r.x).first(k), std::span(r.y).first(k)); }},
    {"dot bf16", [](Lanes l, const Rows& r,
                    size_t k) { return dot(l, std::span(r.bx).first(k), std::span(r.by).first(k)); }},
    {"dot bf16 fp32", [](Lanes l, const Rows& r,
                         size_t k) { return dot(l, std::span(r.bx).first(k), std::span(r.y).first(k)); }},
};

void digest_sums() {
    constexpr size_t lengths[]{0,   1,   7,   8,   9,   63,  64,   65,   127,  128,  129,
                               255, 256, 257, 511, 513, 588, 1023, 1025, 1280, 5120, 20480};
    constexpr Lanes lanes[]{{LaneArrangement::sequential, 1},    {LaneArrangement::interleaved, 2},
                            {LaneArrangement::interleaved, 8},   {LaneArrangement::interleaved, 64},
                            {LaneArrangement::interleaved, 256}, {LaneArrangement::interleaved, 1024},
                            {LaneArrangement::chunked, 16},      {LaneArrangement::chunked, 256}};
    const std::vector<Rows> inputs = sum_inputs(20480);
    for (const Sum& s : sums)
        for (const Lanes l : lanes) {
            Digest digest;
            for (const Rows& rows : inputs)
                for (const size_t k : lengths) digest.add(s.sum(l, rows, k));
            digest.print(std::string(s.name) + ", " + std::string(lane_arrangement_name(l.arrangement)) +
                         " " + std::to_string(l.count));
        }
    Digest maxima;
    for (const Rows& rows : inputs)
        for (const size_t k : lengths) {
            maxima.add(largest(std::span(rows.x).first(k)));
            maxima.add(largest(std::span(rows.bx).first(k)));
        }
    maxima.print("largest");

    // Rows in parallel.
    constexpr int64_t rows = 50, k = 2000;
    const std::vector<Bf16> x = filled_vector<Bf16>(Filler::normal, 10, rows * k);
    std::vector<float> out(static_cast<size_t>(rows));
    sum_rows(RowSum::sum_of_squares, {LaneArrangement::interleaved, 256}, x, {}, k, out);
    Digest digest;
    digest.add_all(out);
    digest.print("sum_rows bf16, 50 rows of 2000");
}

void digest_top_k() {
    constexpr int64_t rows = 40, columns = 1000, k = 100;
    std::vector<float> scores = filled_vector<float>(Filler::trap, 11, rows * columns);
    for (size_t i = 0; i < scores.size(); i += 333) scores[i] = float_from_bits(0xFFC00001);
    std::vector<int32_t> visible(static_cast<size_t>(rows));
    for (size_t row = 0; row < visible.size(); ++row) visible[row] = static_cast<int32_t>(row * 25);
    std::vector<int32_t> indices(static_cast<size_t>(rows * k));
    for (const TopKOutput output : {TopKOutput::ascending, TopKOutput::selection}) {
        top_k(scores, rows, columns, k, {visible, {}}, output, indices);
        Digest digest;
        for (const int32_t index : indices) digest.add(static_cast<uint32_t>(index));
        digest.print(output == TopKOutput::ascending ? "top_k, ascending" : "top_k, selection");
    }
}

/// Finite operands of a tensor core, stored elements one after another: any e4m3 code but NaN, else 2^-8 to
/// 2^7 with every mantissa bit in use.
std::vector<std::byte> operands(OperandFormat format, uint64_t seed, int64_t count) {
    struct Field {
        int exponent_bias, mantissa_bits;
    };
    constexpr std::array<Field, 3> fields{Field{127, 7}, Field{15, 10}, Field{127, 23}};  // bf16, f16, tf32
    const size_t bytes = static_cast<size_t>(operand_bytes(format));
    std::vector<std::byte> stored(static_cast<size_t>(count) * bytes);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        const uint32_t r = RandomStream{seed, 1}.word(i);
        uint32_t bits = filled<E4m3>(Filler::trap, {seed}, i).bits;
        if (format != OperandFormat::e4m3) {
            const Field field = fields[static_cast<size_t>(format)];
            const uint32_t exponent = static_cast<uint32_t>(field.exponent_bias) - 8 + (r >> 27) % 16;
            bits = (r & 1) << (8 * bytes - 1) | exponent << field.mantissa_bits |
                   (r >> 1 & ((1u << field.mantissa_bits) - 1));
        }
        for (size_t byte = 0; byte < bytes; ++byte)
            stored[i * bytes + byte] = static_cast<std::byte>(bits >> (8 * byte));
    }
    return stored;
}

void digest_tensor_cores() {
    constexpr int64_t rows = 5, columns = 40;
    const std::vector<float> c = filled_vector<float>(Filler::normal, 15, rows * columns);
    for (const TensorCoreInstruction& instruction : tensor_core_instructions()) {
        const int64_t k = 4 * instruction.k();
        const std::vector<std::byte> a = operands(instruction.format, 13, rows * k),
                                     b = operands(instruction.format, 14, columns * k);
        std::vector<float> d(c.size());
        tensor_core_gemm(instruction, {a.data(), rows, k}, {b.data(), columns, k}, c, d);
        Digest digest;
        digest.add_all(d);
        digest.print(std::string(instruction.name));
    }
}

void digest_linear_layers() {
    constexpr int64_t rows = 3, k = 1280, n = 70;
    const std::vector<Bf16> x = filled_vector<Bf16>(Filler::normal, 16, rows * k);
    const std::vector<E4m3> fp8 = filled_vector<E4m3>(Filler::normal, 17, n * k);
    const std::vector<E8m0> fp8_scales = filled_vector<E8m0>(Filler::normal, 18, (n + 31) / 32 * k / 32);
    const std::vector<E8m0> fp4_scales = filled_vector<E8m0>(Filler::normal, 19, n * k / 32);
    const std::vector<Bf16> bf16 = filled_vector<Bf16>(Filler::normal, 20, n * k);
    std::vector<uint8_t> fp4(static_cast<size_t>(n * k / 2));
    for (size_t i = 0; i < fp4.size(); ++i) fp4[i] = static_cast<uint8_t>(RandomStream{21}.word(i));
    std::vector<float> y(static_cast<size_t>(rows * n));
    const auto print = [&](const char* name, Arithmetic arithmetic) {
        Digest digest;
        digest.add_all(y);
        digest.print(std::string(name) + ", " + std::string(arithmetic_name(arithmetic)));
    };
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper}) {
        linear_fp8(arithmetic, SumOperator::wkv, x, rows, {"fp8", n, k, fp8, fp8_scales}, y);
        print("linear_fp8", arithmetic);
        linear_fp4(arithmetic, SumOperator::expert_w2, x, rows, {"fp4", n, k, fp4, fp4_scales}, y);
        print("linear_fp4", arithmetic);
        linear_bf16(arithmetic, SumOperator::moe_gate, x, rows, {"bf16", n, k, bf16}, y);
        print("linear_bf16", arithmetic);
    }
}

struct CachePage {
    const char* name;
    Quantizer quantizer;
    KvPage page;
};

void digest_pages() {
    const CachePage pages[]{
        {"q8 window", Quantizer::q8, {fp8_record(512), KvPageLayout::planar, 16, 512}},
        {"q4m main", Quantizer::q4m, {fp4_main_record(512), KvPageLayout::per_token, 16, 1}},
        {"q4i index key", Quantizer::q4i, {fp4_index_key_record(128), KvPageLayout::planar, 16, 1}},
        {"vllm-v4", Quantizer::vllm_v4, {v4_record(512, 64), KvPageLayout::planar, 16, 576}},
        {"flashmla-v32", Quantizer::flashmla_v32, {v32_record(512, 64), KvPageLayout::per_token, 16, 1}},
        {"deepgemm-index-key",
         Quantizer::deepgemm_index_key,
         {fp8_index_key_record(128), KvPageLayout::planar, 16, 1}},
    };
    for (const CachePage& c : pages) {
        const int64_t width = c.page.record.channels + c.page.record.tail_channels, rows = 80;
        const std::vector<Bf16> x = filled_vector<Bf16>(Filler::trap, 12, rows * width);
        std::vector<std::byte> bytes(static_cast<size_t>(6 * c.page.page_bytes()), std::byte{0xFF});
        quantize_rows(c.page, c.quantizer, x, bytes, 3);
        Digest packed;
        for (const std::byte byte : bytes) packed.add(static_cast<uint32_t>(byte));
        packed.print(std::string("pages of ") + c.name);

        std::vector<float> values(static_cast<size_t>(rows * width));
        dequantize_rows(c.page, bytes, 3, rows, values);
        Digest unpacked;
        unpacked.add_all(values);
        unpacked.print(std::string("values of ") + c.name);
    }
}

void digest_sum_order() {
    Digest digest;
    for (const char letter : sum_order_text()) digest.add(static_cast<uint32_t>(letter));
    digest.print("sum_order_text");
}

/// Everything that a sequence keeps.
Digest state_digest(const SequenceState& state) {
    Digest digest;
    const auto add_bytes = [&](std::span<const std::byte> bytes) {
        for (const std::byte byte : bytes) digest.add(static_cast<uint32_t>(byte));
    };
    for (int layer = 0; layer < state.layers(); ++layer) add_bytes(state.window(layer).saved());
    for (const auto& [layer, source] : state.sources()) {
        add_bytes(source.main.pages());
        add_bytes(source.keys.pages());
        digest.add_all(source.open.kv);
        digest.add_all(source.open.score);
    }
    for (const int32_t id : state.engram_history()) digest.add(static_cast<uint32_t>(id));
    return digest;
}

/// Ten layers of every mode: a prefill past window, top-k and pool, a chunk, five steps.
void digest_text_model() {
    const std::vector<int32_t> tokens = small::tokens(22, 41);
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper}) {
        const TextModel model = small::model(arithmetic);
        SequenceState state(model.config());
        Digest logits;
        for (const size_t chunk : {27, 9, 1, 1, 1, 1, 1}) {
            const Request request{&state,
                                  std::span(tokens).subspan(static_cast<size_t>(state.tokens()), chunk)};
            ForwardOptions options;
            options.all_logits = true;
            logits.add_all(model.forward({&request, 1}, options).front());
        }
        const std::string name(arithmetic_name(arithmetic));
        logits.print("text model, logits, " + name);
        state_digest(state).print("text model, state, " + name);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::string_view(argv[1]) == "sets") {
        for (const Isa isa : compiled_isas())
            if (isa_supported(isa)) std::printf("%s\n", std::string(isa_name(isa)).c_str());
        return 0;
    }
    digest_random();
    digest_fillers<float>("fp32");
    digest_fillers<Bf16>("bf16");
    digest_fillers<E4m3>("e4m3");
    digest_fillers<E2m1>("e2m1");
    digest_fillers<E8m0>("e8m0");
    digest_conversions();
    digest_elementary();
    digest_sum_order();
    digest_sums();
    digest_tensor_cores();
    digest_linear_layers();
    digest_top_k();
    digest_pages();
    digest_text_model();
}
