#include "reference/registry/registry.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"
#include "reference/numerics/sum_order.h"
#include "reference/registry/shape_text.h"

using namespace touchstone;

namespace {

constexpr std::array arithmetics{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

bool runs_in(const OperatorCase& one, Arithmetic arithmetic) {
    return one.profiles.empty() || std::ranges::find(one.profiles, arithmetic) != one.profiles.end();
}

/// The message of the UserError that `run` throws; "" where it throws none.
template <class Run>
std::string refusal(const Run& run) {
    try {
        run();
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

void check_refusal(const std::string& message, const std::vector<std::string>& fragments) {
    CAPTURE(message);
    CHECK_FALSE(message.empty());
    for (const std::string& fragment : fragments) {
        CAPTURE(fragment);
        CHECK(message.find(fragment) != std::string::npos);
    }
}

template <class T>
Tensor tensor_of(std::vector<int64_t> shape, const std::vector<T>& values) {
    Tensor tensor = make_tensor("given", element_type_name<T>, std::move(shape));
    std::ranges::copy(values, tensor.view<T>().begin());
    return tensor;
}

int64_t value(std::string_view expression) {
    return evaluate(expression, [](std::string_view name) -> int64_t {
        if (name == "heads") return 8;
        if (name == "head_dim2") return 130;
        throw UserError({"unknown " + std::string(name), "", "", ""});
    });
}

}  // namespace

TEST_CASE("shape text: products before sums, equals from left to right, quotients round down") {
    CHECK(value("2 + 3 * heads") == 26);
    CHECK(value("(2 + 3) * heads") == 40);
    CHECK(value("100 - 10 - 1") == 89);
    CHECK(value("100 / 10 / 2") == 5);
    CHECK(value("7 / 2 * 2") == 6);
    CHECK(value("2 * 7 / 2") == 7);
    CHECK(value("head_dim2/32") == 4);
    CHECK(value("(head_dim2 + 31) / 32") == 5);
    CHECK(value("13 % 5 + 1") == 4);
    CHECK(value("13 % (5 + 1)") == 1);
    CHECK(value("((7))") == 7);
    CHECK(evaluate_shape("[ heads , head_dim2 / 32, 3 ]", value) == std::vector<int64_t>{8, 4, 3});
    CHECK(evaluate_shape("[]", value).empty());
    CHECK(extents_of("[a, b / 2]") == std::vector<std::string>{"a", "b / 2"});
}

TEST_CASE("shape text: other text is refused") {
    for (const char* text : {"", "2 +", "(2", "2)", "2 3", "2x", "nobody", "1 / 0", "1 % 0", "2 ^ 3", "-1",
                             "4611686018427387904 * 2", "1000000000 * 1000000000 * 1000000000"}) {
        CAPTURE(text);
        CHECK_FALSE(refusal([&] { value(text); }).empty());
    }
    CHECK_FALSE(refusal([] { extents_of("rows, heads"); }).empty());
}

TEST_CASE("registry: every entry says what documentation, checking and tests need") {
    std::set<std::string> names;
    for (const OperatorInfo& info : operators()) {
        CAPTURE(info.name);
        CHECK(names.insert(info.name).second);
        for (const std::string& text : {info.purpose, info.equation, info.source}) CHECK_FALSE(text.empty());
        CHECK_FALSE(info.profiles.empty());
        CHECK(info.profiles.front() == Arithmetic::exact);
        CHECK_FALSE(info.cases.empty());
        std::set<std::string> slots;
        for (const Slot& slot : info.inputs) {
            CAPTURE(slot.name);
            CHECK(slots.insert(slot.name).second);
            CHECK(safetensors_element_bytes(slot.type).has_value());
            CHECK_FALSE(slot.meaning.empty());
        }
        bool bounded = false;
        for (const OutputSlot& slot : info.outputs) {
            CAPTURE(slot.name);
            CHECK(slots.insert(slot.name).second);
            CHECK(safetensors_element_bytes(slot.type).has_value());
            CHECK((slot.judged == Judged::tolerance) == (slot.tolerance > 0));
            bounded = bounded || slot.judged == Judged::bound;
        }
        CHECK(bounded == static_cast<bool>(info.bound));
        for (const Parameter& parameter : info.parameters) CHECK_FALSE(parameter.meaning.empty());
    }
    CHECK(names.size() >= 30);
}

TEST_CASE("registry: a case's text is read back, and its tensors say the same shapes") {
    for (const OperatorInfo& info : operators())
        for (const OperatorCase& one : info.cases) {
            CAPTURE(one.text);
            const ParsedCase parsed = parse_case(one.text, "a default case");
            CHECK(parsed.info == &info);
            const std::string text = case_text(info, parsed.parameters);
            const ParsedCase again = parse_case(text, "printed");
            CHECK(again.parameters.values == parsed.parameters.values);
            CHECK(again.assumed.empty());
            const TensorMap inputs = make_inputs(info, parsed.parameters);
            CHECK(parse_tensors(info, inputs, text, "given").parameters.values == parsed.parameters.values);
        }
}

TEST_CASE("registry: the seed decides a case's inputs, and nothing else does") {
    for (const OperatorInfo& info : operators()) {
        CAPTURE(info.name);
        Parameters parameters = parse_case(info.cases.front().text, "").parameters;
        const TensorMap first = make_inputs(info, parameters);
        CHECK(make_inputs(info, parameters) == first);
        parameters.seed = 8;
        CHECK(make_inputs(info, parameters) != first);
    }
}

namespace {

/// What is found out about one operator by running its cases.
struct Findings {
    std::map<std::string, double> largest_share;             ///< by output
    std::map<Arithmetic, int> cases;                         ///< run in each profile
    std::set<std::pair<Arithmetic, Arithmetic>> told_apart;  ///< profiles that gave different bits
    int limits = 0;
};

TensorMap run_with_threads(const OperatorInfo& info, Arithmetic arithmetic, const Parameters& parameters,
                           const TensorMap& inputs, int threads) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    TensorMap outputs = run_operator(info, arithmetic, parameters, inputs);
    omp_set_num_threads(before);
    return outputs;
}

void check_shapes(const OperatorInfo& info, const Parameters& parameters, const TensorMap& outputs) {
    const std::vector<const OutputSlot*> slots = output_slots(info, parameters);
    CHECK(outputs.size() == slots.size());
    for (const OutputSlot* slot : slots) {
        CAPTURE(slot->name);
        const Tensor& tensor = outputs.at(slot->name);
        CHECK(tensor.type == slot->type);
        CHECK(tensor.shape == shape_of(*slot, parameters));
        CHECK(static_cast<int64_t>(tensor.bytes.size()) ==
              tensor.elements() * safetensors_element_bytes(tensor.type).value());
    }
}

void judge_case(const OperatorInfo& info, const OperatorCase& one, Findings& findings) {
    CAPTURE(one.text);
    const Parameters parameters = parse_case(one.text, "").parameters;
    const TensorMap inputs = make_inputs(info, parameters);
    const TensorMap truth = judge_operator(info, truth::Ledger::released(), parameters, inputs);
    std::map<Arithmetic, TensorMap> results;
    for (const Arithmetic arithmetic : arithmetics) {
        CAPTURE(arithmetic_name(arithmetic));
        if (!runs_in(one, arithmetic)) {
            CHECK_FALSE(refusal([&] { run_operator(info, arithmetic, parameters, inputs); }).empty());
            continue;
        }
        TensorMap& outputs = results[arithmetic] = run_with_threads(info, arithmetic, parameters, inputs, 7);
        const Arithmetic profile = profile_of(info, arithmetic);
        if (profile != arithmetic) {
            CHECK(outputs == results[profile]);
            continue;
        }
        ++findings.cases[profile];
        CHECK(outputs == run_with_threads(info, arithmetic, parameters, inputs, 1));
        check_shapes(info, parameters, outputs);
        for (const Comparison& found :
             compare_with_truth(info, arithmetic, parameters, inputs, outputs, truth)) {
            CAPTURE(found.slot->name);
            CAPTURE(found.index);
            CAPTURE(found.largest_error);
            CHECK(found.share <= 1);
            double& largest = findings.largest_share[found.slot->name];
            largest = std::max(largest, found.share);
        }
    }
    for (const auto& [a, of_a] : results)
        for (const auto& [b, of_b] : results)
            if (a < b && of_a != of_b) findings.told_apart.insert({a, b});
    findings.limits += one.limit.empty() ? 0 : 1;
}

/// A line of the coverage report.
std::string report(const OperatorInfo& info, const Findings& findings) {
    std::string line = fmt::format("{:<20}", info.name);
    for (const Arithmetic arithmetic : arithmetics) {
        const auto found = findings.cases.find(arithmetic);
        line +=
            found == findings.cases.end()
                ? fmt::format(" {:>15}", "= " + std::string(arithmetic_name(profile_of(info, arithmetic))))
                : fmt::format(" {:>15}", found->second);
    }
    line += fmt::format(" {:>7} ", findings.limits);
    for (const OutputSlot& slot : info.outputs) {
        const auto share = findings.largest_share.find(slot.name);
        line += fmt::format(" {} {}", slot.name,
                            slot.judged == Judged::equal            ? "equal"
                            : slot.judged == Judged::not_judged     ? "-"
                            : share == findings.largest_share.end() ? "?"
                                                                    : fmt::format("{:.3g}", share->second));
    }
    return line + "\n";
}

}  // namespace

TEST_CASE(
    "registry: every default case in every profile: deterministic, as declared, within what truth allows") {
    std::string text = fmt::format("{:<20} {:>15} {:>15} {:>15} {:>7}  {}\n", "operator", "exact", "hopper",
                                   "released_hopper", "limits", "largest share of bound or tolerance");
    for (const OperatorInfo& info : operators()) {
        CAPTURE(info.name);
        Findings findings;
        for (const OperatorCase& one : info.cases) judge_case(info, one, findings);
        text += report(info, findings);

        CHECK(findings.limits > 0);
        // Rounding to bf16 may hide the order of a sum from a few thousand outputs.
        const bool shows =
            std::ranges::any_of(info.outputs, [](const OutputSlot& slot) { return slot.type == "F32"; });
        for (const Arithmetic profile : info.profiles) {
            CAPTURE(arithmetic_name(profile));
            CHECK(findings.cases[profile] > 0);
            for (const Arithmetic other : info.profiles) {
                CAPTURE(arithmetic_name(other));
                if (shows && profile < other) CHECK(findings.told_apart.contains({profile, other}));
            }
        }
        for (const OutputSlot& slot : info.outputs) {
            CAPTURE(slot.name);
            if (slot.judged == Judged::bound || slot.judged == Judged::tolerance)
                CHECK(findings.largest_share[slot.name] >= 0.01);
        }
    }
    fmt::print("{}", text);
}

TEST_CASE("registry: an operator tells the profiles apart that its sums tell apart") {
    for (const OperatorInfo& info : operators()) {
        CAPTURE(info.name);
        std::vector<SumOrderRow> rows;
        for (const SumOperator op : info.sums) rows.push_back(sum_order_row(op));
        for (const Parameter& parameter : info.parameters)
            if (parameter.name == "sum")
                for (const std::string& choice : parameter.choices)
                    rows.push_back(*std::ranges::find(sum_order_table, choice, &SumOrderRow::name));
        const auto any = [&](const auto& holds) { return std::ranges::any_of(rows, holds); };
        const auto has = [&](Arithmetic arithmetic) { return profile_of(info, arithmetic) == arithmetic; };
        CHECK(has(Arithmetic::hopper) ==
              any([](const SumOrderRow& row) { return row.chain != TensorCoreChain::none; }));
        CHECK(has(Arithmetic::released_hopper) == any([](const SumOrderRow& row) {
                  return row.arrangement == LaneArrangement::sequential &&
                         row.chain == TensorCoreChain::by_outputs;
              }));
    }
}

TEST_CASE("registry: every sum of the text model belongs to an operator, and a case makes it") {
    std::set<std::string> made;
    for (const OperatorInfo& info : operators()) {
        for (const SumOperator op : info.sums) made.emplace(sum_order_row(op).name);
        for (const OperatorCase& one : info.cases) {
            const Parameters parameters = parse_case(one.text, "").parameters;
            if (parameters.values.contains("sum")) made.insert(parameters.choice("sum"));
        }
        for (const Parameter& parameter : info.parameters)
            if (parameter.name == "sum")
                for (const std::string& choice : parameter.choices) {
                    CAPTURE(choice);
                    CHECK(made.contains(choice));
                }
    }
    // The table's rows after sampling_softmax are the drafter's and the vision tower's.
    for (const SumOrderRow& row : sum_order_table) {
        if (row.op > SumOperator::sampling_softmax) break;
        CAPTURE(row.name);
        CHECK(made.contains(std::string(row.name)));
    }
}

TEST_CASE("registry: ideal rounds nothing, so it is close to truth but not the same") {
    for (const char* text : {"linear_fp8(rows=2,outputs=40,inputs=512)", "quantize_q8(rows=5)",
                             "compressor(rows=7,hidden=512,channels=128)", "routed_expert(rows=3)"}) {
        CAPTURE(text);
        const ParsedCase parsed = parse_case(text, "");
        const TensorMap inputs = make_inputs(*parsed.info, parsed.parameters);
        const TensorMap truth =
            judge_operator(*parsed.info, truth::Ledger::released(), parsed.parameters, inputs);
        const TensorMap ideal =
            judge_operator(*parsed.info, truth::Ledger::none(), parsed.parameters, inputs);
        double distance = 0, size = 0;
        for (const auto& [name, tensor] : truth)
            for (size_t i = 0; i < tensor.view<double>().size(); ++i) {
                const double t = tensor.view<double>()[i], x = ideal.at(name).view<double>()[i];
                distance += (t - x) * (t - x);
                size += t * t;
            }
        CHECK(distance > 0);
        CHECK(distance < 0.01 * size);
    }
}

TEST_CASE("registry: published values (text model 18)") {
    // 18.1: sixteen inputs, one block of 16; in blocks of 32 the rest is zero.
    const std::vector<uint16_t> bits{0x3de1, 0xbf05, 0x3fa6, 0x0000, 0xc02d, 0x3cfe, 0x3f40, 0xbf80,
                                     0x4049, 0xbbe5, 0x3e80, 0x3ff3, 0xbea9, 0x3f1a, 0xc07a, 0x400d};
    std::vector<Bf16> x(32, Bf16{0});
    for (size_t i = 0; i < bits.size(); ++i) x[i] = {bits[i]};
    const auto records = [&](const char* name) {
        const OperatorInfo& info = find_operator(name);
        const TensorMap inputs{{"x", tensor_of<Bf16>({1, 32}, x)}};
        const Parameters parameters = parse_tensors(info, inputs, "", "").parameters;
        const TensorMap outputs = run_operator(info, Arithmetic::exact, parameters, inputs);
        const auto bytes = outputs.at("records").view<uint8_t>();
        return std::vector<uint8_t>(bytes.begin(), bytes.end());
    };
    const std::vector<uint8_t> q8 = records("quantize_q8"), q4i = records("quantize_q4i"),
                               q4m = records("quantize_q4m");
    CHECK(std::vector(q8.begin(), q8.begin() + 16) == std::vector<uint8_t>{0x4e, 0xe0, 0x6a, 0x00, 0xf3, 0x40,
                                                                           0x64, 0xe8, 0x75, 0xae, 0x58, 0x6f,
                                                                           0xdb, 0x62, 0xf8, 0x71});
    CHECK(q8[32] == 121);
    CHECK(std::vector(q4i.begin(), q4i.begin() + 8) ==
          std::vector<uint8_t>{0x90, 0x03, 0x0d, 0xa2, 0x85, 0x40, 0x19, 0x4e});
    CHECK(q4i[16] == 127);
    CHECK(std::vector(q4m.begin(), q4m.begin() + 8) ==
          std::vector<uint8_t>{0xa0, 0x04, 0x0e, 0xb2, 0x87, 0x51, 0x29, 0x6f});
    CHECK(q4m[16] == 0x32);

    // 18.2
    const OperatorInfo& sinkhorn = find_operator("sinkhorn");
    const TensorMap logits{{"a", tensor_of<float>({1, 4, 4}, {0.5f, -1, 0.25f, 0, 1, 2, -0.5f, 0.75f, -2, 0,
                                                              1.5f, 0.25f, 0.125f, -0.25f, 0.5f, 3})}};
    const TensorMap comb =
        run_operator(sinkhorn, Arithmetic::exact, parse_tensors(sinkhorn, logits, "", "").parameters, logits);
    const std::array expected{0.5585634, 0.1004560, 0.2319104, 0.1090693, 0.2808478, 0.6153261,
                              0.0334086, 0.0704165, 0.0361490, 0.2152818, 0.6381562, 0.1104119,
                              0.1244388, 0.0689351, 0.0965238, 0.7101013};
    for (size_t i = 0; i < expected.size(); ++i)
        CHECK(std::abs(static_cast<double>(comb.at("comb").view<float>()[i]) - expected[i]) < 1.5e-7);

    // 18.4, columns 0, 7, 8, 15, 16, 23 of positions 0 and 4
    const std::array<std::array<int64_t, 12>, 2> rows{
        {{5412672, 127351390, 143494632, 247008214, 256353435, 372009279, 7841506, 127974346, 134978181,
          243429729, 271536431, 379584336},
         {6939818, 119840903, 131576092, 243164617, 268363546, 382274687, 3315102, 127296527, 130509870,
          240522805, 260452148, 375629892}}};
    for (size_t layer = 0; layer < 2; ++layer) {
        const ParsedCase parsed = parse_case(
            fmt::format("engram_row_ids(tokens=5,history=0,layer_index={},fill=published)", layer), "");
        const TensorMap outputs = run_operator(*parsed.info, Arithmetic::exact, parsed.parameters,
                                               make_inputs(*parsed.info, parsed.parameters));
        size_t next = 0;
        for (const size_t token : {0u, 4u})
            for (const size_t column : {0u, 7u, 8u, 15u, 16u, 23u})
                CHECK(outputs.at("row_ids").view<int64_t>()[token * 24 + column] == rows[layer][next++]);
    }
}

TEST_CASE("registry: tensors of another name, type or shape are refused before anything runs") {
    const OperatorInfo& info = find_operator("rms_norm");
    const Parameters parameters = parse_case("rms_norm(rows=2,width=64)", "").parameters;
    const TensorMap inputs = make_inputs(info, parameters);
    const auto run = [&](const TensorMap& given) {
        return refusal([&] { run_operator(info, Arithmetic::exact, parameters, given); });
    };
    CHECK(run(inputs).empty());
    TensorMap changed = inputs;
    changed["x"].type = "F16";  // as many bytes
    check_refusal(run(changed),
                  {"tensor \"x\" is F16 [2, 64]", "BF16 [2, 64] = [rows, width]", "store it as BF16"});
    changed = inputs;
    changed["x"].shape = {64, 2};  // as many elements
    check_refusal(run(changed), {"tensor \"x\" is BF16 [64, 2]", "BF16 [2, 64] = [rows, width]"});
    changed = inputs;
    changed.erase("weight");
    check_refusal(run(changed), {"tensor \"weight\" is missing", "BF16 [64]", "rms_norm takes x, weight"});
    changed = inputs;
    changed["weigth"] = changed["weight"];
    check_refusal(run(changed), {"tensor \"weigth\" is no input", "did you mean \"weight\"?"});
    changed = inputs;
    changed["weight"] = make_tensor("weight", "BF16", {65});
    check_refusal(refusal([&] { parse_tensors(info, changed, "", "in.safetensors"); }),
                  {"tensor \"weight\": width is 65", "64, as in \"x\"", "in.safetensors"});
    check_refusal(refusal([&] { parse_tensors(info, inputs, "rms_norm(width=32)", "--case"); }),
                  {"width=32", "64", "--case"});
}

TEST_CASE("registry: indices outside their limits are refused by every arithmetic") {
    const auto check = [](const char* text, const char* slot, int64_t value, const std::string& limits) {
        CAPTURE(text);
        const ParsedCase parsed = parse_case(text, "");
        TensorMap inputs = make_inputs(*parsed.info, parsed.parameters);
        Tensor& tensor = inputs[slot];
        if (tensor.type == "I64")
            tensor.view<int64_t>().back() = value;
        else
            tensor.view<int32_t>().back() = static_cast<int32_t>(value);
        const std::vector<std::string> fragments{
            fmt::format("tensor \"{}\": element {} is {}", slot, tensor.elements() - 1, value), limits};
        check_refusal(
            refusal([&] { run_operator(*parsed.info, Arithmetic::exact, parsed.parameters, inputs); }),
            fragments);
        check_refusal(
            refusal([&] { judge_operator(*parsed.info, truth::Ledger::none(), parsed.parameters, inputs); }),
            fragments);
    };
    check("engram_lookup(ids=3,table_rows=10,head_dim=32)", "row_ids", 10, "0 to 9");
    check("engram_lookup(ids=3,table_rows=10,head_dim=32)", "row_ids", -1, "0 to 9");
    check("engram_row_ids(tokens=3)", "ids", 99092, "-1 to 99091");
    check("engram(tokens=1,streams=1,hidden=32,columns=1,table_rows=5,head_dim=32)", "row_ids", 5, "0 to 4");
    check("experts(rows=1,experts=2,experts_per_token=1,hidden=32,width=32)", "chosen", 2, "0 to 1");
    check("moe_gate(rows=1,experts=8,hidden=16,forced=1)", "forced_experts", 8, "0 to 7");
    check("top_k(rows=1,columns=4,k=2)", "visible", 5, "0 to 4");
    check("rope(rows=1)", "positions", -1, "0 to ");
}

TEST_CASE("registry: extents of 0 are nothing to do, in every arithmetic") {
    for (const OperatorInfo& info : operators())
        for (const Parameter& parameter : info.parameters) {
            if (parameter.kind != ParameterKind::integer || parameter.low != "0") continue;
            Parameters parameters = parse_case(info.cases.front().text, "").parameters;
            parameters.values[parameter.name] = int64_t{0};
            const std::string text = case_text(info, parameters);
            CAPTURE(text);
            const TensorMap inputs = make_inputs(info, parameters);
            const TensorMap truth = judge_operator(info, truth::Ledger::released(), parameters, inputs);
            for (const Arithmetic arithmetic : info.profiles) {
                const TensorMap outputs = run_operator(info, arithmetic, parameters, inputs);
                check_shapes(info, parameters, outputs);
                for (const Comparison& found :
                     compare_with_truth(info, arithmetic, parameters, inputs, outputs, truth))
                    CHECK(found.share <= 1);
            }
        }
}

TEST_CASE("registry: cases with unknown names or values outside their limits are refused") {
    const auto parse = [](const char* text) { return refusal([&] { parse_case(text, "--case"); }); };
    check_refusal(parse("rms_nrom(rows=2)"), {"unknown operator \"rms_nrom\"", "did you mean \"rms_norm\"?"});
    check_refusal(parse("rms_norm(row=2)"), {"\"row\"", "--case"});
    check_refusal(parse("rms_norm(width=0)"), {"width is 0", "from 1 to"});
    check_refusal(parse("rms_norm(eps=two)"), {"eps=two"});
    check_refusal(parse("rms_norm(fill=random)"), {"fill=random", "normal, limits"});
    check_refusal(parse("linear_fp8(inputs=48)"), {"inputs is 48", "a multiple of 32"});
    check_refusal(parse("index_scores(keys=4,visible=5)"), {"visible is 5", "from 0 to 4"});
    check_refusal(refusal([] {
                      const ParsedCase parsed = parse_case("linear_fp8(rows=1048576,outputs=1048576)", "");
                      run_operator(*parsed.info, Arithmetic::exact, parsed.parameters, {{"x", {}}});
                  }),
                  {"tensor \"x\""});
    check_refusal(refusal([] {
                      make_tensor("y", "F32", {int64_t{1} << 40, int64_t{1} << 40});
                  }),
                  {"\"y\"", "64 GiB"});
}

TEST_CASE("registry: a comparison sees NaN, infinities and one element off") {
    const OperatorInfo& info = find_operator("top_k");
    const ParsedCase parsed = parse_case("top_k(rows=1,columns=4,k=2)", "");
    const TensorMap inputs = make_inputs(info, parsed.parameters);
    TensorMap outputs = run_operator(info, Arithmetic::exact, parsed.parameters, inputs);
    const TensorMap truth = judge_operator(info, truth::Ledger::released(), parsed.parameters, inputs);
    const auto share = [&](const TensorMap& judged) {
        return compare_with_truth(info, Arithmetic::exact, parsed.parameters, inputs, outputs, judged)
            .front()
            .share;
    };
    CHECK(share(truth) == 0);
    TensorMap changed = truth;
    changed["indices"].view<double>()[1] = std::nan("");
    CHECK(std::isinf(share(changed)));
    outputs["indices"].view<int32_t>()[0] += 1;
    CHECK(std::isinf(share(truth)));
}
