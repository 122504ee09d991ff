// The checkpoint that the released code was recorded with: it passes, and ours has its magnitudes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include "reference/model/checkpoint.h"
#include "reference/model/synthetic_checkpoint.h"

using namespace touchstone;
namespace fs = std::filesystem;

namespace {

constexpr int skipped = 77;

/// "layers.N.ffn.experts.N.w1.weight": tensors of one kind.
std::string kind_of(const std::string& name) {
    static const std::regex number("\\.[0-9]+\\.");
    return std::regex_replace(name, number, ".N.");
}

struct Moments {
    double sum = 0, sum_of_squares = 0, count = 0;
    double mean() const { return sum / count; }
    double rms() const { return std::sqrt(sum_of_squares / count); }
};

std::map<std::string, Moments> moments(const Checkpoint& checkpoint) {
    std::map<std::string, Moments> of_kind;
    for_each_tensor(checkpoint.config(), [&](const TensorSpec& spec) {
        if (spec.type == TensorType::f8_e8m0) return;  // part of its weight's
        Moments& m = of_kind[kind_of(spec.name)];
        for (const float value : checkpoint.dequantised(spec.name, 0, spec.elements())) {
            m.sum += value;
            m.sum_of_squares += double{value} * value;
            m.count += 1;
        }
    });
    return of_kind;
}

/// The recorded checkpoint; the run ends as skipped where it is absent.
const Checkpoint& recorded() {
    static const fs::path folder = [] {
        const char* variable = std::getenv("TOUCHSTONE_PARITY");
        fs::path official = fs::path(variable != nullptr ? variable : TOUCHSTONE_PARITY) / "official_tiny";
        if (!fs::exists(official / "model.safetensors")) {
            std::printf("no %s: skipped; set TOUCHSTONE_PARITY\n", (official / "model.safetensors").c_str());
            std::exit(skipped);
        }
        return official;
    }();
    static const Checkpoint checkpoint(folder);
    return checkpoint;
}

}  // namespace

TEST_CASE("checkpoint: the recorded checkpoint is complete and finite") {
    const CheckpointReport report = recorded().verify({.values = true});
    CHECK(report.problem_count == 0);
    CHECK(report.sound_tensors == 990);
    CHECK(report.sound_bytes == 11723858);
}

TEST_CASE("checkpoint: every kind of synthetic tensor has the mean and rms of the recorded one") {
    const fs::path folder =
        fs::temp_directory_path() / ("touchstone_checkpoint_parity_" + std::to_string(getpid()));
    write_synthetic_checkpoint(recorded().config(), folder, {.seed = 1});
    const std::map<std::string, Moments> ours = moments(Checkpoint(folder)), theirs = moments(recorded());
    fs::remove_all(folder);
    REQUIRE(ours.size() == theirs.size());
    for (const auto& [kind, m] : theirs) {
        CAPTURE(kind);
        // Kinds of few elements (sinks, biases) scatter by themselves.
        const double tolerance = 0.15 + 3 / std::sqrt(m.count);
        CHECK(ours.at(kind).rms() == doctest::Approx(m.rms()).epsilon(tolerance));
        CHECK(std::abs(ours.at(kind).mean() - m.mean()) < tolerance * m.rms());
    }
}
