// The C interface as C sees it: what it gives is what the library gives, and nothing that comes in ends the
// process.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "c_interface.h"
#include "golden/touchstone.h"
#include "reference/registry/registry.h"

using namespace touchstone;
using namespace touchstone::c_interface;
using nlohmann::json;

namespace {

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
