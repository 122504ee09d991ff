#include "golden/device/device_case.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "golden/device/tensor_core_probe.h"
#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/small_float.h"

using namespace touchstone;

namespace {

const std::string mma_case =
    "tensor_core(instruction=hopper.mma.bf16,variant=registers,inputs=wide,steps=2,tiles=64,seed=7)";

TensorCoreCase tensor_core_case(const std::string& text) {
    return std::get<TensorCoreCase>(parse_device_case(text, "test"));
}

/// What is wrong with a case, as the user reads it; "" when nothing is.
std::string refusal(const std::string& text) {
    try {
        parse_device_case(text, "line 3");
    } catch (const UserError& error) {
        CHECK(error.parts().where == "line 3");
        CHECK_FALSE(error.parts().expected.empty());
        return error.parts().what;
    }
    return "";
}

std::string with(const std::string& from, const std::string& to) {
    std::string text = mma_case;
    return text.replace(text.find(from), from.size(), to);
}

/// A device that computes as the CPU does.
std::vector<uint32_t> obedient(const TensorCoreCase& c, const TensorCoreInputs& inputs) {
    return outputs_on_cpu(c, inputs);
}

template <class T>
std::vector<T> operands(const std::vector<std::byte>& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

}  // namespace

TEST_CASE("device case: text and value are the same thing (every kind)") {
    std::vector<std::string> texts{
        mma_case,
        "tensor_core(instruction=hopper.wgmma.e4m3,variant=shared,inputs=nans,steps=8,tiles=131072,seed=0)",
        "conversion(name=e4m3_saturating)",
        "elementary(function=sqrt_softplus)",
        "sums(what=dot,operands=bf16_f32,arrangement=chunked,lanes=256,rows=3,k=20480,inputs=trap,seed=9)",
        "matmul(m=1,n=1280,k=5120,piece_k=640,seed=1)"};
    for (const UnaryCase& c : unary_cases()) texts.push_back(to_text(c));
    for (const SumsCase& c : sums_cases()) texts.push_back(to_text(c));
    for (const TensorCoreCase& c : probe_cases(1 << 20)) texts.push_back(to_text(c));
    for (const std::string& text : texts) {
        CAPTURE(text);
        CHECK(to_text(parse_device_case(text, "test")) == text);
    }
    CHECK(to_text(parse_device_case("matmul(seed=1,piece_k=32,k=64,n=3,m=2)", "test")) ==
          "matmul(m=2,n=3,k=64,piece_k=32,seed=1)");
}

TEST_CASE("device case: what no device could have run is refused, with what is wrong") {
    CHECK(refusal("tensor_core").find("has no (...)") != std::string::npos);
    CHECK(refusal("tensor_core(").find("has no (...)") != std::string::npos);
    CHECK(refusal("(a=1)").find("\"\" is no name") != std::string::npos);
    CHECK(refusal("frobnicate(a=1)").find("unknown kind \"frobnicate\"") != std::string::npos);
    CHECK(refusal(with("seed=7", "seed=7,")).find("ends with a comma") != std::string::npos);
    CHECK(refusal(with("seed=7", "seed=")).find("\"seed=\" is no key=value") != std::string::npos);
    CHECK(refusal(with("seed=7", "seed=7,seed=7")).find("\"seed\" is given twice") != std::string::npos);
    CHECK(refusal(with(",seed=7", "")).find("\"seed\" is missing") != std::string::npos);
    CHECK(refusal(with("seed=7", "seed=7,colour=red")).find("unknown parameter \"colour\"") !=
          std::string::npos);
    CHECK(refusal(with("steps=2", "steps=9")).find("steps=9") != std::string::npos);
    CHECK(refusal(with("steps=2", "steps=0")).find("steps=0") != std::string::npos);
    CHECK(refusal(with("seed=7", "seed=-7")).find("seed=-7") != std::string::npos);
    CHECK(refusal(with("seed=7", "seed=7x")).find("seed=7x") != std::string::npos);
    CHECK(refusal(with("seed=7", "seed=99999999999999999999")).find("seed=999") != std::string::npos);
    CHECK(refusal(with("bf16", "bf17")).find("unknown instruction") != std::string::npos);
    CHECK(refusal(with("registers", "shared")).find("unknown variant \"shared\"") != std::string::npos);
    CHECK(refusal(with("wide", "wrap")).find("unknown inputs \"wrap\"") != std::string::npos);
    CHECK(refusal("conversion(name=fp5)").find("unknown conversion \"fp5\"") != std::string::npos);
    CHECK(refusal("elementary(function=bf16)").find("unknown elementary") != std::string::npos);
    CHECK(refusal("matmul(m=1,n=1,k=32,piece_k=24,seed=1)").find("piece_k=24") != std::string::npos);
    CHECK(refusal("matmul(m=1,n=1,k=32,piece_k=48,seed=1)").find("piece_k=48") != std::string::npos);
    const std::string sums = "sums(what=sum,operands=f32,arrangement=interleaved,lanes=";
    CHECK(refusal(sums + "3,rows=1,k=1,inputs=normal,seed=1)").find("lanes=3") != std::string::npos);
    CHECK(refusal(sums + "4,rows=1,k=1,inputs=normal,seed=1)").empty());
}

TEST_CASE("device case: a tile is the same whatever stands beside it (every kind of inputs)") {
    for (const MatrixInstruction& shape : matrix_instructions)
        for (const TensorCoreInputKind& kind : tensor_core_input_kinds()) {
            if (!kind.applies(shape)) continue;
            INFO(shape.name << ", " << kind.name);
            const TensorCoreInputs few = make_tensor_core_inputs(shape, kind.name, 2, 3, 11);
            const TensorCoreInputs many = make_tensor_core_inputs(shape, kind.name, 2, 40, 11);
            CHECK(std::equal(few.a.begin(), few.a.end(), many.a.begin()));
            CHECK(std::equal(few.b.begin(), few.b.end(), many.b.begin()));
            CHECK(std::equal(few.c.begin(), few.c.end(), many.c.begin()));
            const TensorCoreInputs other = make_tensor_core_inputs(shape, kind.name, 2, 3, 12);
            CHECK(other.b != few.b);
        }
}

TEST_CASE("device case: directed inputs reach what they are for (results of the CPU)") {
    const auto results = [](const std::string& instruction, const std::string& inputs) {
        const TensorCoreCase c{instruction, "registers", inputs, 1, 256, 3};
        return outputs_on_cpu(c, inputs_of(c));
    };
    const auto share = [](const std::vector<uint32_t>& bits, auto is) {
        return static_cast<double>(std::ranges::count_if(bits, is)) / static_cast<double>(bits.size());
    };
    const auto nan = [](uint32_t x) { return x == canonical_nan_bits; };
    const auto infinite = [](uint32_t x) { return (x & 0x7FFFFFFF) == 0x7F800000; };
    const auto subnormal = [](uint32_t x) { return (x & 0x7F800000) == 0 && (x & 0x7FFFFF) != 0; };
    const auto negative_zero = [](uint32_t x) { return x == 0x80000000; };
    for (const std::string instruction : {"hopper.mma.bf16", "hopper.mma.f16", "hopper.mma.tf32"}) {
        CAPTURE(instruction);
        CHECK(share(results(instruction, "nans"), nan) > 0.1);
        CHECK(share(results(instruction, "infinities"), infinite) > 0.05);
        CHECK(share(results(instruction, "infinities"), nan) == 0);
        CHECK(share(results(instruction, "subnormal_results"), subnormal) > 0.05);
        CHECK(share(results(instruction, "negative_zero"), negative_zero) == 0);
        CHECK(share(results(instruction, "negative_zero"), [](uint32_t x) { return x == 0; }) > 0.5);
    }
    CHECK(share(results("hopper.mma.bf16", "tiny_products"), subnormal) > 0.1);
    CHECK(share(results("hopper.mma.bf16", "overflow"), infinite) > 0.05);
    CHECK(share(results("hopper.mma.bf16", "overflow"), infinite) < 0.9);
}

TEST_CASE("device case: int8 sums wrap like int32 (known answers)") {
    const TensorCoreCase c = tensor_core_case(
        "tensor_core(instruction=hopper.mma.s8,variant=registers,inputs=wrap,steps=2,tiles=8,seed=1)");
    const TensorCoreInputs inputs = inputs_of(c);
    const std::vector<uint32_t> outputs = outputs_on_cpu(c, inputs);
    const std::vector<int8_t> a = operands<int8_t>(inputs.a), b = operands<int8_t>(inputs.b);
    int64_t wrapped = 0, differing = 0;
    for (int64_t i = 0; i < std::ssize(outputs); ++i) {
        const int64_t row = i / 8, column = i / 128 * 8 + i % 8;
        int64_t sum = static_cast<int32_t>(inputs.c[size_t(i)]);
        for (int64_t k = 0; k < 64; ++k) sum += a[size_t(row * 64 + k)] * b[size_t(column * 64 + k)];
        wrapped += sum != static_cast<int32_t>(sum);
        differing += outputs[size_t(i)] != static_cast<uint32_t>(sum);
    }
    CHECK(differing == 0);
    CHECK(wrapped > 0);
}

TEST_CASE("device case: tf32 ignores its low 13 bits, and the inputs for that have some") {
    const TensorCoreCase c{"hopper.mma.tf32", "registers", "ignored_bits", 1, 32, 3};
    TensorCoreInputs inputs = inputs_of(c);
    const std::vector<uint32_t> expected = outputs_on_cpu(c, inputs);
    std::vector<uint32_t> a = operands<uint32_t>(inputs.a);
    CHECK(std::ranges::any_of(a, [](uint32_t x) { return (x & 0x1FFF) != 0; }));
    for (uint32_t& x : a) x &= ~0x1FFFu;
    std::memcpy(inputs.a.data(), a.data(), inputs.a.size());
    CHECK(outputs_on_cpu(c, inputs) == expected);
}

TEST_CASE("probe: covers what it promises, and a device that agrees is found to agree") {
    constexpr int64_t steps = 1 << 15;
    std::map<std::pair<std::string, std::string>, int64_t> covered;
    for (const TensorCoreCase& c : probe_cases(steps)) {
        const MatrixInstruction& shape = instruction_of(c);
        covered[{c.instruction, c.variant}] += c.tiles * c.steps * shape.m * shape.n;
        if (c.steps == 1) continue;  // as chains of 3
        CAPTURE(to_text(c));
        const TensorCoreComparison result = compare_with_device(c, obedient);
        CHECK(result.steps == c.tiles * c.steps * shape.m * shape.n);
        CHECK(result.differing == 0);
        CHECK_FALSE(result.first.has_value());
    }
    CHECK(covered.size() == 13);
    for (const auto& entry : covered) {
        INFO(entry.first.first << ", " << entry.first.second);
        CHECK(entry.second >= steps);
    }
}

TEST_CASE("probe: one wrong bit is found where it is (tile, row, column, operands)") {
    const TensorCoreCase c = tensor_core_case(mma_case);
    constexpr size_t wrong = 41 * 128 + 9 * 8 + 5;
    const auto faulty = [&](const TensorCoreCase& which, const TensorCoreInputs& inputs) {
        std::vector<uint32_t> bits = outputs_on_cpu(which, inputs);
        bits[wrong] ^= 1;
        return bits;
    };
    const TensorCoreComparison result = compare_with_device(c, faulty);
    CHECK(result.outputs == 64 * 128);
    CHECK(result.steps == 2 * 64 * 128);
    REQUIRE(result.differing == 1);
    const TensorCoreDifference& first = result.first.value();
    CHECK(first.tile == 41);
    CHECK(first.m == 9);
    CHECK(first.n == 5);
    CHECK((first.cpu ^ first.device) == 1);
    const TensorCoreInputs inputs = inputs_of(c);
    const std::vector<uint16_t> a = operands<uint16_t>(inputs.a), b = operands<uint16_t>(inputs.b);
    CHECK(std::equal(first.a.begin(), first.a.end(), a.begin() + (41 * 16 + 9) * 32));
    CHECK(std::equal(first.b.begin(), first.b.end(), b.begin() + (41 * 8 + 5) * 32));
    CHECK(first.c == inputs.c[wrong]);
    const std::string text = describe(c, first);
    CHECK(text.find("--case '" + mma_case + "'") != std::string::npos);
    CHECK(text.find("tile=41 m=9 n=5") != std::string::npos);
    CHECK(text.find(fmt::format("GPU {:08x}", first.device)) != std::string::npos);
    CHECK_THROWS(compare_with_device(
        c, [](const TensorCoreCase&, const TensorCoreInputs&) { return std::vector<uint32_t>(3); }));
}

TEST_CASE("probe: a chip of another kind is told apart (Ampere's grid), and so is every wrong model") {
    const auto ampere = [](const TensorCoreCase& c, const TensorCoreInputs& inputs) {
        const MatrixInstruction& shape = instruction_of(c);
        std::vector<uint32_t> bits(inputs.c.size());
        std::vector<float> d(size_t(shape.m * shape.n)), addends(d.size());
        const int64_t k = c.steps * shape.k;
        for (int64_t t = 0; t < c.tiles; ++t) {
            std::memcpy(addends.data(), inputs.c.data() + t * std::ssize(d), d.size() * 4);
            tensor_core_gemm(tensor_core_instruction("ampere.mma.bf16"),
                             {inputs.a.data() + t * shape.m * k * 2, shape.m, k},
                             {inputs.b.data() + t * shape.n * k * 2, shape.n, k}, addends, d);
            std::memcpy(bits.data() + t * std::ssize(d), d.data(), d.size() * 4);
        }
        return bits;
    };
    CHECK(compare_with_device(tensor_core_case(mma_case), ampere).differing > 0);
    const MatrixInstruction& shape = *find_matrix_instruction("hopper.mma.bf16");
    for (const AlternativeComparison& result : compare_alternatives(shape, 4096, obedient)) {
        INFO(result.alternative);
        CHECK(result.outputs >= 4096);
        CHECK((result.differing == 0) == (result.alternative == table_model_name));
    }
    CHECK(compare_alternatives(shape, 4096, ampere).front().differing > 0);
}

TEST_CASE("probe: wgmma and mma.sync are given the same inputs (bf16 equal, emulated fp8 not)") {
    const std::vector<PairComparison> results = compare_pairs(20000, obedient);
    CHECK(results.size() == 8);
    for (const PairComparison& result : results) {
        INFO(result.left << " and " << result.right);
        CHECK(result.outputs > 10000);
        CHECK((result.differing == 0) == result.expected_equal);
    }
}

TEST_CASE("matmul case: a split of K is recognised by its results (pieces, or none)") {
    const MatmulCase one{5, 300, 1280, 1280, 4};
    const MatmulInputs inputs = inputs_of(one);
    for (const int64_t piece_k : {1280, 640, 448, 320, 96}) {
        MatmulCase split = one;
        split.piece_k = piece_k;
        const auto found = explain_by_split(one, inputs, outputs_on_cpu(split, inputs));
        CAPTURE(piece_k);
        REQUIRE(found.has_value());
        CHECK(found->piece_k == piece_k);
    }
    std::vector<uint32_t> outputs = outputs_on_cpu(one, inputs);
    outputs.back() ^= 1;
    CHECK_FALSE(explain_by_split(one, inputs, outputs).has_value());
}

TEST_CASE("unary case: parts are the whole, and outputs are those of the functions (conversion, exp2)") {
    for (const UnaryCase& c : {UnaryCase{"conversion", "e4m3_saturating"}, UnaryCase{"elementary", "exp2"}}) {
        CAPTURE(to_text(c));
        constexpr int part = 1017;  // around 1
        const std::vector<uint32_t> bits = part_outputs_on_cpu(c, part);
        REQUIRE(std::ssize(bits) == part_inputs);
        int64_t differing = 0;
        for (uint32_t i = 0; i < part_inputs; ++i) {
            const float x = float_from_bits(uint32_t(part * part_inputs) + i);
            const uint32_t expected = c.kind == "conversion"
                                          ? e4m3_from_float_saturating(x).bits
                                          : float_bits(evaluate(ElementaryFunction::exp2, x));
            differing += bits[i] != expected;
        }
        CHECK(differing == 0);
    }
    CHECK(whole_hash({1, 2, ~uint64_t{0}}) == 2);
}
