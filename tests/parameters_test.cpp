// Parameter counts, weight bytes and per-step traffic: spec/text_model 11, spec/memory 4.7, 5.6 and g21-g23.
#include "simulator/parameters.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "reference/model/model.h"
#include "simulator/step_traffic.h"

using namespace touchstone;

namespace {

const ModelConfig& v41() {
    static const Model model = find_model("deepseek-v4.1-flash");
    return *model.config();
}

}  // namespace

TEST_CASE("parameters: totals of the checkpoint") {
    const WeightTotals totals = weight_totals(v41());
    CHECK(totals.tensors == 96085);
    CHECK(totals.stored_bytes == 510286023000);
    CHECK(totals.backbone_parameters == 551566180464);
    CHECK(totals.parameters == 763205315794);
}

TEST_CASE("parameters: rows of the component table") {
    const WeightTotals totals = weight_totals(v41());
    CHECK(totals.of(WeightComponent::routed_experts).parameters == 543581798400);
    CHECK(totals.of(WeightComponent::shared_experts).parameters == 1415577600);
    CHECK(totals.of(WeightComponent::attention).parameters == 5064696320);
    CHECK(totals.of(WeightComponent::gate).parameters == 78673920);
    CHECK(totals.of(WeightComponent::hyper_connections).parameters == 39323760);
    CHECK(totals.of(WeightComponent::compressor).parameters == 18352128);
    CHECK(totals.of(WeightComponent::indexer).parameters == 43516416);
    CHECK(totals.of(WeightComponent::norms).parameters == 414720);
    CHECK(totals.of(WeightComponent::embedding).parameters + totals.of(WeightComponent::head).parameters ==
          1323827200);
    CHECK(totals.of(WeightComponent::engram_tables).parameters == 196613849600);
    CHECK(totals.of(WeightComponent::engram_projections).parameters == 314654720);
    CHECK(totals.of(WeightComponent::dspark).parameters == 14225362530);
    CHECK(totals.of(WeightComponent::vision).parameters == 485268480);
}

TEST_CASE("parameters: bytes of the Engram tables and of one expert (table 4.7)") {
    CHECK(weight_totals(v41()).of(WeightComponent::engram_tables).stored_bytes == 202758032400);
    CHECK(routed_expert_bytes(v41(), weight_totals(v41())) == 18800640);
}

TEST_CASE("parameters: active per token in decode and prefill") {
    const ActiveParameters active = active_parameters(v41());
    CHECK(active.layer == 377302902);
    CHECK(active.encoder_layers + active.decoder_layers == 15092116080);
    CHECK(active.decode(false, false) == 15153982064);
    CHECK(active.decode(true, false) == 15815895664);
    CHECK(active.decode(true, true) == 16130468464);
    CHECK(active.encoder_layers + active.encoder_csa == 7578203448);
    CHECK(active.prefill(false) == 7580890424);
    CHECK(active.prefill(true) == 7895463224);
    // Layer 20 run whole: its 377,302,902 and its compressor and indexer matrices (2,621,440 + 5,472,256).
    CHECK(active.first_decoder_csa == 8093696);
    CHECK(active.prefill_with_first_decoder_layer(false) == 7578203448 + 377302902 + 8093696);
    CHECK(active.prefill_with_first_decoder_layer(true) ==
          active.prefill_with_first_decoder_layer(false) + active.engram_projections);
}

TEST_CASE("step traffic: residual streams 20d, 14d, 10d (g22)") {
    CHECK(stream_values_per_sublayer(4, StreamForm::original) == 20);
    CHECK(stream_values_per_sublayer(4, StreamForm::two_pass) == 14);
    CHECK(stream_values_per_sublayer(4, StreamForm::single_pass) == 10);
    CHECK(stream_bytes_per_token(v41(), StreamForm::original) == 16384000);
    CHECK(stream_bytes_per_token(v41(), StreamForm::two_pass) == 11468800);
    CHECK(stream_bytes_per_token(v41(), StreamForm::single_pass) == 8192000);
}

TEST_CASE("step traffic: Engram rows (g23)") {
    CHECK(engram_row_bytes(v41()) == 264);
    CHECK(engram_read_bytes_per_token(v41()) == 12672);
}

TEST_CASE("step traffic: expert coverage and weights of a step (g21, table 5.6)") {
    // The published sum for 8 tokens is 42.8; its own parts, 34.2 and 8.52, make 42.7.
    struct Step {
        int64_t tokens;
        double distinct, routed_gb, with_others_gb;
    };
    const std::vector<Step> table{{1, 6.0, 4.5, 13.0},        {2, 11.9, 9.0, 17.5},
                                  {4, 23.4, 17.6, 26.1},      {8, 45.5, 34.2, 42.7},
                                  {16, 85.5, 64.3, 72.8},     {32, 152.0, 114.3, 122.8},
                                  {64, 243.8, 183.4, 191.9},  {128, 332.8, 250.3, 258.8},
                                  {256, 377.2, 283.7, 292.2}, {512, 383.9, 288.7, 297.2}};
    const WeightTotals totals = weight_totals(v41());
    for (const Step& step : table) {
        CAPTURE(step.tokens);
        const StepWeightBytes bytes = step_weight_bytes(v41(), totals, step.tokens);
        CHECK(std::abs(expected_distinct_experts(v41(), step.tokens) - step.distinct) < 0.06);
        CHECK(std::abs(bytes.routed / 1e9 - step.routed_gb) < 0.06);
        CHECK(std::abs((bytes.routed + static_cast<double>(bytes.others)) / 1e9 - step.with_others_gb) <
              0.06);
    }
}
