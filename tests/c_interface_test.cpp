// The C interface as C sees it: what it gives is what the library gives, and nothing that comes in ends the
// process.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "golden/touchstone.h"
#include "reference/registry/registry.h"

using namespace touchstone;
using nlohmann::json;

namespace {

/// Frees what the library made.
struct Handle {
    touchstone_tensors* tensors = nullptr;
    Handle() = default;
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { touchstone_tensors_free(tensors); }

    std::vector<touchstone_tensor> all() const {
        std::vector<touchstone_tensor> found(static_cast<size_t>(touchstone_tensors_count(tensors)));
        for (size_t i = 0; i < found.size(); ++i)
            REQUIRE(touchstone_tensors_get(tensors, static_cast<int64_t>(i), &found[i]) == touchstone_ok);
        return found;
    }
};

bool same(const touchstone_tensor& tensor, const Tensor& expected) {
    return tensor.type == expected.type &&
           std::vector<int64_t>(tensor.extents, tensor.extents + tensor.rank) == expected.shape &&
           tensor.bytes == expected.bytes.size() &&
           (tensor.bytes == 0 || std::memcmp(tensor.data, expected.bytes.data(), tensor.bytes) == 0);
}

/// The smallest case of an operator, by the bytes of its inputs.
std::string small_case(const OperatorInfo& info) {
    std::string smallest;
    size_t least = SIZE_MAX;
    for (const OperatorCase& one : info.cases) {
        if (!one.profiles.empty()) continue;
        size_t bytes = 0;
        for (const auto& [name, tensor] : make_inputs(info, parse_case(one.text, "").parameters))
            bytes += tensor.bytes.size();
        if (bytes == 0 || bytes >= least) continue;
        least = bytes;
        smallest = one.text;
    }
    return smallest;
}

constexpr std::array<int64_t, 2> norm_shape{2, 4};
constexpr std::array<int64_t, 1> gain_shape{4};

/// Buffers of rms_norm(rows=2,width=4), and what describes them.
struct NormCall {
    std::array<uint16_t, 8> x{0x3F80, 0x4000, 0x4040, 0x4080, 0, 0x8000, 0x3F80, 0xBF80};
    std::array<uint16_t, 4> weight{0x3F80, 0x3F80, 0x4000, 0x3F80};
    std::array<uint16_t, 8> y{};
    std::array<touchstone_tensor, 2> inputs{{{"x", "BF16", 2, norm_shape.data(), x.data(), 16},
                                             {"weight", "BF16", 1, gain_shape.data(), weight.data(), 8}}};
    std::array<touchstone_tensor, 1> outputs{{{"y", "BF16", 2, norm_shape.data(), y.data(), 16}}};
    const char* name = "rms_norm";
    const char* arithmetic = "exact";
    const char* parameters = nullptr;

    NormCall() { y.fill(0xABCD); }
    NormCall(const NormCall&) = delete;
    NormCall& operator=(const NormCall&) = delete;

    touchstone_status run(int64_t input_count = 2, int64_t output_count = 1) {
        return touchstone_run(name, arithmetic, parameters, inputs.data(), input_count, outputs.data(),
                              output_count);
    }
    bool untouched() const {
        for (const uint16_t word : y)
            if (word != 0xABCD) return false;
        return true;
    }
};

/// The last call was refused, and said so.
void check_refused(touchstone_status status, const std::string& fragment) {
    CAPTURE(fragment);
    const std::string error = touchstone_last_error();
    CAPTURE(error);
    CHECK(status == touchstone_bad_argument);
    CHECK_FALSE(error.empty());
    CHECK(error.find(fragment) != std::string::npos);
}

}  // namespace

TEST_CASE("c interface: versions, and every operator with what the registry says of it") {
    CHECK(touchstone_api_version() == TOUCHSTONE_API_VERSION);
    CHECK(std::string(touchstone_version()).size() >= 5);
    REQUIRE(touchstone_operator_count() == std::ssize(operators()));
    for (int64_t i = 0; i < touchstone_operator_count(); ++i) {
        const OperatorInfo& info = operators()[static_cast<size_t>(i)];
        CAPTURE(info.name);
        REQUIRE(touchstone_operator_name(i) == info.name);
        const json described = json::parse(touchstone_operator_json(info.name.c_str()));
        CHECK(described["schema"] == "touchstone.operator/1");
        CHECK(described["purpose"] == info.purpose);
        CHECK(described["equation"] == info.equation);
        CHECK(described["roundings"] == info.roundings);
        CHECK(described["profiles"].size() == info.profiles.size());
        CHECK(described["parameters"].size() == info.parameters.size());
        CHECK(described["parameters"][0]["meaning"] == info.parameters[0].meaning);
        REQUIRE(described["inputs"].size() == info.inputs.size());
        REQUIRE(described["outputs"].size() == info.outputs.size());
        for (size_t s = 0; s < info.outputs.size(); ++s) {
            CHECK(described["outputs"][s]["shape"] == info.outputs[s].shape);
            CHECK(described["outputs"][s]["against_truth"] == judged_text(info.outputs[s]));
        }
        CHECK(described["cases"][0]["case"] == info.cases[0].text);
    }
    CHECK(std::string(touchstone_last_error()).empty());
}

TEST_CASE("c interface: a case's inputs and outputs are the library's, in every arithmetic") {
    for (const OperatorInfo& info : operators()) {
        const std::string text = small_case(info);
        CAPTURE(text);
        const Parameters parameters = parse_case(text, "").parameters;
        const TensorMap inputs = make_inputs(info, parameters);
        Handle made;
        REQUIRE(touchstone_make_inputs(text.c_str(), &made.tensors) == touchstone_ok);
        const auto slots = input_slots(info, parameters);
        REQUIRE(made.all().size() == slots.size());
        for (size_t i = 0; i < slots.size(); ++i) {
            CHECK(made.all()[i].name == slots[i]->name);
            CHECK(same(made.all()[i], inputs.at(slots[i]->name)));
        }
        for (const Arithmetic arithmetic : info.profiles) {
            const std::string name(arithmetic_name(arithmetic));
            const TensorMap expected = run_operator(info, arithmetic, parameters, inputs);
            Handle outputs;
            REQUIRE(touchstone_run_case(text.c_str(), name.c_str(), &outputs.tensors) == touchstone_ok);
            REQUIRE(outputs.all().size() == expected.size());
            for (const touchstone_tensor& output : outputs.all())
                CHECK(same(output, expected.at(output.name)));
        }
        Handle truth;
        REQUIRE(touchstone_run_case(text.c_str(), "truth", &truth.tensors) == touchstone_ok);
        for (const touchstone_tensor& output : truth.all()) CHECK(output.type == std::string("F64"));
    }
}

TEST_CASE("c interface: an operator on the caller's buffers fills them and nothing around them") {
    for (const OperatorInfo& info : operators()) {
        const std::string text = small_case(info);
        CAPTURE(text);
        Handle inputs, declared, expected;
        REQUIRE(touchstone_make_inputs(text.c_str(), &inputs.tensors) == touchstone_ok);
        REQUIRE(touchstone_run_case(text.c_str(), "exact", &expected.tensors) == touchstone_ok);
        const std::vector<touchstone_tensor> given = inputs.all();
        REQUIRE(touchstone_declare_outputs(info.name.c_str(), text.c_str(), given.data(), std::ssize(given),
                                           &declared.tensors) == touchstone_ok);
        std::vector<touchstone_tensor> outputs = declared.all();
        // At odd addresses, between guards.
        std::vector<std::vector<unsigned char>> buffers;
        for (touchstone_tensor& output : outputs) {
            buffers.emplace_back(output.bytes + 34, static_cast<unsigned char>(0xA5));
            output.data = buffers.back().data() + 17;
        }
        REQUIRE(touchstone_run(info.name.c_str(), "exact", text.c_str(), given.data(), std::ssize(given),
                               outputs.data(), std::ssize(outputs)) == touchstone_ok);
        for (size_t i = 0; i < outputs.size(); ++i) {
            const touchstone_tensor one = expected.all()[i];
            CHECK(outputs[i].name == std::string(one.name));
            CHECK((one.bytes == 0 || std::memcmp(outputs[i].data, one.data, one.bytes) == 0));
            for (size_t guard = 0; guard < 17; ++guard) {
                CHECK(buffers[i][guard] == 0xA5);
                CHECK(buffers[i][buffers[i].size() - 1 - guard] == 0xA5);
            }
        }
    }
}

TEST_CASE("c interface: only outputs that are asked for are filled") {
    NormCall call;
    CHECK(call.run() == touchstone_ok);
    CHECK_FALSE(call.untouched());
    CHECK(call.y[4] == 0);
    CHECK(call.y[5] == 0x8000);
    CHECK(std::string(touchstone_last_error()).empty());
}

TEST_CASE(
    "c interface: null, unknown names, other types, shapes and sizes are refused, with nothing written") {
    struct Hostile {
        const char* what;
        void (*change)(NormCall& call);
    };
    static constexpr std::array<int64_t, 2> negative{-1, 4}, huge{int64_t{1} << 40, int64_t{1} << 40},
        other{4, 2}, wide{2, 5};
    const Hostile all[]{
        {"operator_name is null", [](NormCall& c) { c.name = nullptr; }},
        {"did you mean \"rms_norm\"", [](NormCall& c) { c.name = "rms_nrom"; }},
        {"arithmetic is null", [](NormCall& c) { c.arithmetic = nullptr; }},
        {"unknown arithmetic", [](NormCall& c) { c.arithmetic = "exactly"; }},
        {"another operator", [](NormCall& c) { c.parameters = "rope(rows=2)"; }},
        {"parameters", [](NormCall& c) { c.parameters = "rms_norm(rows=3)"; }},
        {"parameters", [](NormCall& c) { c.parameters = "rms_norm("; }},
        {"name is null", [](NormCall& c) { c.inputs[0].name = nullptr; }},
        {"\"x\" is missing", [](NormCall& c) { c.inputs[0].name = "gain"; }},
        {"\"weight\"", [](NormCall& c) { c.inputs[0] = c.inputs[1]; }},
        {"type is null", [](NormCall& c) { c.inputs[0].type = nullptr; }},
        {"type \"bfloat16\"", [](NormCall& c) { c.inputs[0].type = "bfloat16"; }},
        {"store it as BF16", [](NormCall& c) { c.inputs[0].type = "F16"; }},
        {"rank -1", [](NormCall& c) { c.inputs[0].rank = -1; }},
        {"rank 4611686018427387904", [](NormCall& c) { c.inputs[0].rank = int64_t{1} << 62; }},
        {"extents is null", [](NormCall& c) { c.inputs[0].extents = nullptr; }},
        {"63 bits", [](NormCall& c) { c.inputs[0].extents = negative.data(); }},
        {"63 bits", [](NormCall& c) { c.inputs[0].extents = huge.data(); }},
        {"width is 4", [](NormCall& c) { c.inputs[0].extents = other.data(); }},
        {"16 bytes for BF16 [2, 5]", [](NormCall& c) { c.inputs[0].extents = wide.data(); }},
        {"15 bytes", [](NormCall& c) { c.inputs[0].bytes = 15; }},
        {"18446744073709551615 bytes", [](NormCall& c) { c.inputs[0].bytes = SIZE_MAX; }},
        {"data is null", [](NormCall& c) { c.inputs[0].data = nullptr; }},
        {"no output \"z\"", [](NormCall& c) { c.outputs[0].name = "z"; }},
        {"output \"y\" is F16", [](NormCall& c) { c.outputs[0].type = "F16"; }},
        {"output \"y\" is BF16 [4, 2]", [](NormCall& c) { c.outputs[0].extents = other.data(); }},
        {"14 bytes", [](NormCall& c) { c.outputs[0].bytes = 14; }},
        {"data is null", [](NormCall& c) { c.outputs[0].data = nullptr; }}};
    for (const Hostile& hostile : all) {
        NormCall call;
        hostile.change(call);
        check_refused(call.run(), hostile.what);
        CHECK(call.untouched());
    }
    for (const auto& counts : std::vector<std::pair<int64_t, int64_t>>{
             {-1, 1}, {1, 1}, {0, 1}, {2, 0}, {2, -1}, {INT64_MAX, 1}, {2, INT64_MAX}}) {
        const int64_t inputs = counts.first, outputs = counts.second;
        NormCall call;
        CAPTURE(inputs);
        CAPTURE(outputs);
        check_refused(call.run(inputs, outputs), "");
        CHECK(call.untouched());
    }
    NormCall call;
    check_refused(touchstone_run("rms_norm", "exact", nullptr, nullptr, 2, call.outputs.data(), 1), "inputs");
    check_refused(touchstone_run("rms_norm", "exact", nullptr, call.inputs.data(), 2, nullptr, 1), "outputs");
}

TEST_CASE("c interface: a refused output among good ones leaves all of them as they were") {
    NormCall call;
    std::array<touchstone_tensor, 2> outputs{call.outputs[0], call.outputs[0]};
    outputs[1].name = "z";
    check_refused(touchstone_run("rms_norm", "exact", nullptr, call.inputs.data(), 2, outputs.data(), 2),
                  "\"z\"");
    CHECK(call.untouched());
}

TEST_CASE("c interface: cases and handles that are none are refused") {
    touchstone_tensors* tensors = reinterpret_cast<touchstone_tensors*>(&tensors);
    check_refused(touchstone_make_inputs(nullptr, &tensors), "case_text is null");
    CHECK(tensors == nullptr);
    tensors = reinterpret_cast<touchstone_tensors*>(&tensors);
    check_refused(touchstone_run_case("rms_norm(rows=2", "exact", &tensors), "rms_norm(rows=2");
    CHECK(tensors == nullptr);
    check_refused(touchstone_make_inputs("rms_norm(rows=2)", nullptr), "inputs is null");
    check_refused(touchstone_run_case("rms_norm(rows=2)", "exact", nullptr), "outputs is null");
    check_refused(touchstone_run_case("rms_norm(rows=2)", nullptr, &tensors), "arithmetic is null");
    // hopper refuses scales that are no bf16.
    check_refused(touchstone_run_case("linear_fp8(rows=2,outputs=40,inputs=128,fill=extreme_scales)",
                                      "hopper", &tensors),
                  "bf16");
    CHECK(tensors == nullptr);
    check_refused(touchstone_declare_outputs("rms_norm", nullptr, nullptr, 0, nullptr), "outputs is null");

    CHECK(touchstone_tensors_count(nullptr) == 0);
    touchstone_tensors_free(nullptr);
    touchstone_tensor tensor{};
    check_refused(touchstone_tensors_get(nullptr, 0, &tensor), "tensors is null");
    Handle made;
    REQUIRE(touchstone_make_inputs("rms_norm(rows=2,width=4)", &made.tensors) == touchstone_ok);
    check_refused(touchstone_tensors_get(made.tensors, -1, &tensor), "tensor -1");
    check_refused(touchstone_tensors_get(made.tensors, 2, &tensor), "tensor 2");
    check_refused(touchstone_tensors_get(made.tensors, 0, nullptr), "tensor is null");

    CHECK(touchstone_operator_name(-1) == nullptr);
    CHECK(touchstone_operator_name(touchstone_operator_count()) == nullptr);
    CHECK(touchstone_operator_json(nullptr) == nullptr);
    CHECK(touchstone_operator_json("rms_nrom") == nullptr);
    CHECK(std::string(touchstone_last_error()).find("did you mean") != std::string::npos);
}

TEST_CASE("c interface: comparison says what differs, how much, and whether that is within the tolerance") {
    std::array<float, 6> a{1, 2, 3, 4, 5, 6}, b = a;
    const std::array<int64_t, 2> shape{2, 3};
    const touchstone_tensor expected{"a", "F32", 2, shape.data(), a.data(), 24};
    touchstone_tensor got{"b", "F32", 2, shape.data(), b.data(), 24};
    touchstone_comparison found{};
    found.struct_bytes = sizeof(found);
    CHECK(touchstone_compare(&expected, &got, "bit", &found) == touchstone_ok);
    CHECK(found.elements == 6);
    CHECK(found.identical == 6);
    CHECK(found.first == -1);
    CHECK(found.outside == 0);

    b[4] = 5 + 3 * 0x1p-21f;  // 3 units in the last place
    CHECK(touchstone_compare(&expected, &got, "bit", &found) == touchstone_differs);
    CHECK(std::string(touchstone_last_error()).empty());
    CHECK(found.identical == 5);
    CHECK(found.outside == 1);
    CHECK(found.first == 4);
    CHECK(found.worst == 4);
    CHECK(found.largest_ulp == 3);
    CHECK(found.largest_absolute == 3 * 0x1p-21);
    CHECK(found.largest_relative == 3 * 0x1p-21 / 5);
    CHECK(found.cosine > 0);
    CHECK(touchstone_compare(&expected, &got, "ulp=3", &found) == touchstone_ok);
    CHECK(touchstone_compare(&expected, &got, "ulp=2", nullptr) == touchstone_differs);
    CHECK(touchstone_compare(&expected, &got, "fp32_row", nullptr) == touchstone_ok);

    // A header that knew the first two fields alone.
    touchstone_comparison old{};
    std::memset(&old, 0x55, sizeof(old));
    old.struct_bytes = sizeof(size_t) + sizeof(int64_t);
    const int64_t pattern = old.identical;
    CHECK(touchstone_compare(&expected, &got, "bit", &old) == touchstone_differs);
    CHECK(old.elements == 6);
    CHECK(old.identical == pattern);

    // Empty tensors, and one without extents.
    const std::array<int64_t, 2> nothing{0, 3};
    const touchstone_tensor empty{nullptr, "F32", 2, nothing.data(), nullptr, 0};
    CHECK(touchstone_compare(&empty, &empty, "bit", &found) == touchstone_ok);
    CHECK(found.elements == 0);
    const touchstone_tensor scalar{nullptr, "F32", 0, nullptr, a.data(), 4};
    CHECK(touchstone_compare(&scalar, &scalar, "bit", &found) == touchstone_ok);
    CHECK(found.elements == 1);
}

TEST_CASE("c interface: integers are compared bit for bit, whatever the tolerance") {
    const std::array<int64_t, 1> shape{8};
    for (const char* type : {"BOOL", "U8", "I8", "I16", "U32", "I64"}) {
        CAPTURE(type);
        std::array<uint8_t, 64> a{}, b{};
        b[0] = 1;
        const std::string name(type);
        const size_t bytes = name == "I64" ? 64 : name == "U32" ? 32 : name == "I16" ? 16 : 8;
        const touchstone_tensor expected{"a", type, 1, shape.data(), a.data(), bytes};
        const touchstone_tensor got{"b", type, 1, shape.data(), b.data(), bytes};
        touchstone_comparison found{};
        found.struct_bytes = sizeof(found);
        for (const char* tolerance : {"bit", "ulp=1", "abs=10", "fp32_row", "bf16_step"}) {
            CAPTURE(tolerance);
            CHECK(touchstone_compare(&expected, &got, tolerance, &found) == touchstone_differs);
            CHECK(found.outside == 1);
            CHECK(found.largest_ulp == 1);
            CHECK(touchstone_compare(&expected, &expected, tolerance, &found) == touchstone_ok);
        }
        check_refused(touchstone_compare(&expected, &got, "close", nullptr), "close");
    }
}

TEST_CASE("c interface: a message is UTF-8, whatever bytes it is about") {
    const std::string replacement = "\xEF\xBF\xBD";
    struct Bytes {
        std::string given, shown;
    };
    const std::vector<Bytes> all{
        {"\xC3\xA9", "\xC3\xA9"},
        {"\xE2\x82\xAC", "\xE2\x82\xAC"},
        {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
        {"\xFF", replacement},
        {"\x80", replacement},
        {"\xC0\xAF", replacement + replacement},                                      // "/" in two bytes
        {"\xE0\x80\xAF", replacement + replacement + replacement},                    // and in three
        {"\xED\xA0\x80", replacement + replacement + replacement},                    // a surrogate
        {"\xF4\x90\x80\x80", replacement + replacement + replacement + replacement},  // beyond U+10FFFF
        {"\xE2\x82", replacement + replacement},                                      // cut off
    };
    for (const Bytes& bytes : all) {
        CAPTURE(bytes.given);
        Handle inputs;
        const std::string text = "no" + bytes.given + "such(rows=2)";
        CHECK(touchstone_make_inputs(text.c_str(), &inputs.tensors) == touchstone_bad_argument);
        const std::string error = touchstone_last_error();
        CHECK(error.find("no" + bytes.shown + "such") != std::string::npos);
        CHECK(json(error).dump().size() > error.size());  // throws for what is no UTF-8
    }
}

TEST_CASE("c interface: tensors that cannot be compared are refused") {
    std::array<float, 6> a{};
    const std::array<int64_t, 2> shape{2, 3}, turned{3, 2};
    const touchstone_tensor good{"a", "F32", 2, shape.data(), a.data(), 24};
    touchstone_tensor bad = good;
    check_refused(touchstone_compare(nullptr, &good, "bit", nullptr), "expected is null");
    check_refused(touchstone_compare(&good, nullptr, "bit", nullptr), "got is null");
    check_refused(touchstone_compare(&good, &good, nullptr, nullptr), "tolerance is null");
    check_refused(touchstone_compare(&good, &good, "close", nullptr), "close");
    bad.extents = turned.data();
    check_refused(touchstone_compare(&good, &bad, "bit", nullptr), "F32 [3, 2]");
    bad = good;
    bad.type = "I32";
    check_refused(touchstone_compare(&good, &bad, "bit", nullptr), "I32 [2, 3]");
    bad = good;
    bad.bytes = 20;
    check_refused(touchstone_compare(&bad, &good, "bit", nullptr), "20 bytes");
    bad = good;
    bad.data = nullptr;
    check_refused(touchstone_compare(&bad, &good, "bit", nullptr), "data is null");
    touchstone_comparison found{};
    check_refused(touchstone_compare(&good, &good, "bit", &found), "struct_bytes is 0");
    found.struct_bytes = SIZE_MAX;
    check_refused(touchstone_compare(&good, &good, "bit", &found), "struct_bytes");
}

TEST_CASE("c interface: threads run at the same time and have errors of their own") {
    constexpr const char* text = "linear_fp8(rows=3,outputs=33,inputs=64)";
    Handle expected;
    REQUIRE(touchstone_run_case(text, "hopper", &expected.tensors) == touchstone_ok);
    const touchstone_tensor y = expected.all().front();
    std::array<int, 4> good{};
    std::array<std::string, 4> errors;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < good.size(); ++i)
        threads.emplace_back([&, i] {
            const std::string unknown = "nobody" + std::to_string(i) + "()";
            for (int turn = 0; turn < 20; ++turn) {
                Handle outputs;
                touchstone_tensor got{};
                if (touchstone_run_case(text, "hopper", &outputs.tensors) == touchstone_ok &&
                    touchstone_tensors_get(outputs.tensors, 0, &got) == touchstone_ok &&
                    touchstone_compare(&y, &got, "bit", nullptr) == touchstone_ok)
                    good[i] += 1;
                touchstone_tensors* none = nullptr;
                touchstone_make_inputs(unknown.c_str(), &none);
                errors[i] = touchstone_last_error();
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < good.size(); ++i) {
        CHECK(good[i] == 20);
        CHECK(errors[i].find("\"nobody" + std::to_string(i) + "\"") != std::string::npos);
    }
}
