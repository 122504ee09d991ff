// Entries of sampling.h.
#include "reference/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/top_k.h"

namespace touchstone {

namespace {

const Parameter vocabulary = integer("vocabulary", "129280", "1", "1073741824", "tokens");
const Parameter temperature = real("temperature", "1", "0", "1000", "0: the largest logit");

void make_logits(const CaseInputs& in) {
    fill_normal<float>(in, "logits", 4);
    const std::span<float> logits = in.at<float>("logits");
    // Equal largest logits far apart, and what may not win: NaN, -infinity.
    for (size_t i = 0; i < logits.size() && in.fill_is("ties"); ++i) {
        if (i % 1000 == 500) logits[i] = 31.5f;
        if (i % 1000 == 3) logits[i] = float_from_bits(0x7FC00001);
    }
    for (size_t i = 0; i < logits.size() && in.fill_is("far"); ++i)
        logits[i] = i % 7 == 0 ? -HUGE_VALF : logits[i] * 40;
}

truth::Vector probabilities(const Call& call) {
    const truth::Vector logits =
        vector(call, "logits") / static_cast<double>(std::max(call.real("temperature"), 1e-5f));
    const truth::Vector e = (logits.array() - logits.maxCoeff()).exp();
    return e / e.sum();
}

OperatorInfo greedy_entry() {
    OperatorInfo info;
    info.name = "greedy_token";
    info.purpose = "the token of the largest logit";
    info.equation = "token = argmax(logits); ties to the lower id, NaN below everything";
    info.source = "text model 10.1";
    info.parameters = {vocabulary, fill_choice({"normal", "ties"})};
    info.inputs = {{"logits", "F32", "[vocabulary]", "of each token"}};
    info.outputs = {equal({"token", "I32", "[1]", "its id"})};
    info.profiles = one_order;
    info.cases = {{"greedy_token(vocabulary=129280)", ""},
                  {"greedy_token(vocabulary=4001,fill=ties)", "equal largest logits; NaN"},
                  {"greedy_token(vocabulary=1)", "one token"}};
    info.make_inputs = make_logits;
    info.run = [](Arithmetic, const Call& call) {
        call.out<int32_t>("token")[0] = greedy_token(call.in<float>("logits"));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        call.out<double>("token")[0] = static_cast<double>(truth::top_k(vector(call, "logits"), 1).front());
    };
    return info;
}

OperatorInfo probabilities_entry() {
    OperatorInfo info;
    info.name = "token_probabilities";
    info.purpose = "the softmax that a token is drawn from";
    info.equation = "softmax(logits / max(temperature, 1e-5))";
    info.source = "text model 10.1";
    info.parameters = {vocabulary, temperature, fill_choice({"normal", "far"})};
    info.inputs = {{"logits", "F32", "[vocabulary]", "of each token"}};
    info.outputs = {tolerated(2e-6, {"probabilities", "F32", "[vocabulary]", "they sum to about 1"})};
    info.sums = {SumOperator::sampling_softmax};
    info.profiles = one_order;
    info.cases = {{"token_probabilities(vocabulary=129280)", ""},
                  {"token_probabilities(vocabulary=1023,temperature=0.7,fill=far)",
                   "-infinity, exponentials that underflow; a lane that stays empty"},
                  {"token_probabilities(vocabulary=1025,temperature=0)", "the least temperature"},
                  {"token_probabilities(vocabulary=1)", "one token: exactly 1"}};
    info.make_inputs = make_logits;
    info.run = [](Arithmetic, const Call& call) {
        token_probabilities(call.in<float>("logits"), call.real("temperature"),
                            call.out<float>("probabilities"));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        put(call, "probabilities", probabilities(call).transpose());
    };
    return info;
}

/// -ln(1 - v), v as sampling draws it.
double exponential(uint32_t word) {
    const float v = static_cast<float>(word) * 0x1p-32f + 0x1p-33f;
    return -std::log1p(-static_cast<double>(std::min(v, 1.0f - 0x1p-24f)));
}

OperatorInfo sample_entry() {
    OperatorInfo info;
    info.name = "sample_token";
    info.purpose = "a token drawn with its probability";
    info.equation = "token = argmax(probability / e), e an exponential number of each token's own";
    info.source = "text model 10.1";
    info.parameters = {vocabulary, temperature,
                       integer("random_seed", "1", "0", "4611686018427387904", "key of the random numbers"),
                       integer("first", "0", "0", "4611686018427387904", "counter of token 0"),
                       fill_choice({"normal", "far"})};
    info.inputs = {{"logits", "F32", "[vocabulary]", "of each token"}};
    info.outputs = {equal({"token", "I32", "[1]", "its id"})};
    info.sums = {SumOperator::sampling_softmax};
    info.profiles = one_order;
    info.cases = {
        {"sample_token(vocabulary=129280)", ""},
        {"sample_token(vocabulary=5003,first=129281,random_seed=9)", "a counter inside a block of four"},
        {"sample_token(vocabulary=1000,temperature=0.3,fill=far)", "-infinity is never drawn"},
        {"sample_token(vocabulary=1000,temperature=0)", "temperature 0: greedy_token"}};
    info.make_inputs = make_logits;
    info.run = [](Arithmetic, const Call& call) {
        call.out<int32_t>("token")[0] =
            sample_token(call.in<float>("logits"), call.real("temperature"),
                         {static_cast<uint64_t>(call["random_seed"])}, static_cast<uint64_t>(call["first"]));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        truth::Vector values = vector(call, "logits");
        const RandomStream random{static_cast<uint64_t>(call["random_seed"])};
        if (call.real("temperature") > 0) {
            values = probabilities(call);
            for (int64_t i = 0; i < values.size(); ++i)
                values[i] /= exponential(random.word(static_cast<uint64_t>(call["first"] + i)));
        }
        call.out<double>("token")[0] = static_cast<double>(truth::top_k(values, 1).front());
    };
    return info;
}

}  // namespace

std::vector<OperatorInfo> sampling_operators() {
    return {greedy_entry(), probabilities_entry(), sample_entry()};
}

}  // namespace touchstone
