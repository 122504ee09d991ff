// Entries of quantize.h: rows to packed records and back.
#include "reference/quantize.h"

#include <algorithm>
#include <cmath>

#include "reference/registry/entry.h"
#include "reference/registry/families.h"

namespace touchstone {

namespace {

/// One of the model's three quantisers and the records it writes.
struct Format {
    const char* suffix;
    Quantizer quantizer;
    KvRecord (*record)(int64_t channels);
    const char* record_bytes;
    const char* channels;
    int64_t block;
    const char* equation;
    const char* records;
};

const Format formats[] = {
    {"q8", Quantizer::q8, fp8_record, "channels + channels / 32", "512", 32,
     "s = 2^ceil(log2(max(amax, 1e-4) * fl32(1/448))); code = e4m3(clamp(x / s, -448, 448))",
     "e4m3 codes, then a e8m0 scale per 32 channels"},
    {"q4i", Quantizer::q4i, fp4_index_key_record, "channels / 2 + channels / 32", "128", 32,
     "s = 2^ceil(log2(max(amax, 6 * 2^-126) * fl32(1/6))); code = e2m1(clamp(x / s, -6, 6))",
     "e2m1 codes, the even channel in the low nibble, then an e8m0 scale per 32 channels"},
    {"q4m", Quantizer::q4m, fp4_main_record, "channels / 2 + channels / 16", "512", 16,
     "s = e4m3(max(amax, 6 * 2^-9) / 6), saturating; code = e2m1(clamp(x / s, -6, 6))",
     "e2m1 codes, the even channel in the low nibble, then an e4m3 scale per 16 channels"},
};

/// A record after the other, each whole.
KvPage records_of(const Format& format, int64_t channels) {
    return {format.record(channels), KvPageLayout::per_token, 1, 1};
}

std::span<std::byte> bytes_of(std::span<uint8_t> values) {
    return std::as_writable_bytes(values);
}

void make_rows(const CaseInputs& in) {
    if (in.fill_is("trap")) return fill_with<Bf16>(in, "x", Filler::trap);
    fill_normal<Bf16>(in, "x");
    if (in.fill_is("limits")) put_limit_rows(in.at<Bf16>("x"), in["channels"]);
    if (in.fill_is("limits") && in["rows"] > 5)
        in.at<Bf16>("x")[static_cast<size_t>(5 * in["channels"])] = {0x7F80};
}

OperatorInfo quantize_entry(const Format& format) {
    const std::string name = std::string("quantize_") + format.suffix;
    OperatorInfo info;
    info.name = name;
    info.purpose = "bf16 rows into packed cache records";
    info.equation = format.equation;
    info.source = "text model 2.2, 2.3";
    info.parameters = {integer("rows", "3", "0", "1048576", "rows, each a record"),
                       integer("channels", format.channels, "32", "65536", "channels of a row", 32),
                       fill_choice({"normal", "trap", "limits"})};
    info.inputs = {{"x", "BF16", "[rows, channels]", "what is quantised"}};
    info.outputs = {
        not_judged({"records", "U8", std::string("[rows, ") + format.record_bytes + "]", format.records}),
        equal({"values", "F32", "[rows, channels]", "what the records hold: code times scale"})};
    info.roundings = {"the scale, upwards or to nearest",
                      "x / s, a true division, to nearest even; exact in bf16 afterwards"};
    info.profiles = one_order;
    info.cases = {
        {name + "(rows=5,fill=normal)", ""},
        {name + "(rows=64,fill=trap)", "ties of every format, both zeros, clamps, subnormals, huge values"},
        {name + "(rows=6,fill=limits)", "zero block, -0, maximum at 448 and 6 times 2^k, NaN, infinity"},
        {name + "(rows=1,channels=32,fill=limits)", "one block of zeros: the scale's floor"},
        {name + "(rows=0)", "no rows"}};
    info.make_inputs = make_rows;
    info.run = [format](Arithmetic, const Call& call) {
        const KvPage page = records_of(format, call["channels"]);
        const std::span<std::byte> records = bytes_of(call.out<uint8_t>("records"));
        quantize_rows(page, format.quantizer, call.in<Bf16>("x"), records, 0);
        dequantize_rows(page, records, 0, call["rows"], call.out<float>("values"));
    };
    info.judge = [format](const truth::Ledger& ledger, const Call& call) {
        const truth::Matrix x = matrix(call, "x", call["rows"]);
        switch (format.quantizer) {
            case Quantizer::q8: return put(call, "values", ledger.q8(x));
            case Quantizer::q4i: return put(call, "values", ledger.q4i(x));
            default: return put(call, "values", ledger.q4m(x));
        }
    };
    return info;
}

/// Code times scale in double, rounded to fp32 once.
void judge_records(const Format& format, const Call& call) {
    const KvRecord record = format.record(call["channels"]);
    const std::span<const uint8_t> records = call.in<uint8_t>("records");
    const std::span<double> values = call.out<double>("values");
    for (size_t i = 0; i < values.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / record.channels,
                   channel = static_cast<int64_t>(i) % record.channels;
        const uint8_t* bytes = records.data() + row * record.record_bytes();
        const uint8_t scale = bytes[record.value_bytes() + channel / record.scale_block];
        const uint8_t pair = bytes[channel / 2];
        const float code = record.element == KvElement::fp8_e4m3 ? to_float(E4m3{bytes[channel]})
                           : channel % 2 == 0                    ? to_float(even_e2m1(pair))
                                                                 : to_float(odd_e2m1(pair));
        const float factor = record.scale == KvScale::e8m0 ? to_float(E8m0{scale}) : to_float(E4m3{scale});
        values[i] =
            static_cast<double>(static_cast<float>(static_cast<double>(code) * static_cast<double>(factor)));
    }
}

OperatorInfo dequantize_entry(const Format& format) {
    const std::string name = std::string("dequantize_") + format.suffix;
    OperatorInfo info;
    info.name = name;
    info.purpose = "packed cache records into fp32 rows";
    info.equation = "value = f32(code) * f32(scale)";
    info.source = "text model 2.1, 2.3";
    info.parameters = {integer("rows", "3", "0", "1048576", "records"),
                       integer("channels", format.channels, "32", "65536", "channels of a row", 32),
                       fill_choice({"normal", "bytes"})};
    info.inputs = {{"records", "U8", std::string("[rows, ") + format.record_bytes + "]", format.records}};
    info.outputs = {
        equal({"values", "F32", "[rows, channels]", "exact in bf16 for what the quantiser wrote"})};
    info.roundings = {"the product, to fp32: exact but for scales beyond the quantiser's"};
    info.profiles = one_order;
    info.cases = {{name + "(rows=5)", ""},
                  {name + "(rows=256,channels=64,fill=bytes)",
                   "every byte as code and scale: NaN scales, NaN codes, scale bytes 0, 254, 255"},
                  {name + "(rows=0)", "no rows"}};
    info.make_inputs = [format](const CaseInputs& in) {
        if (in.fill_is("bytes")) return fill_bytes(in, "records");
        std::vector<Bf16> rows(static_cast<size_t>(in["rows"] * in["channels"]));
        fill<Bf16>(Filler::normal, in.random("records"), rows);
        quantize_rows(records_of(format, in["channels"]), format.quantizer, rows,
                      bytes_of(in.at<uint8_t>("records")), 0);
    };
    info.run = [format](Arithmetic, const Call& call) {
        dequantize_rows(records_of(format, call["channels"]), std::as_bytes(call.in<uint8_t>("records")), 0,
                        call["rows"], call.out<float>("values"));
    };
    info.judge = [format](const truth::Ledger&, const Call& call) { judge_records(format, call); };
    return info;
}

}  // namespace

std::vector<OperatorInfo> quantize_operators() {
    std::vector<OperatorInfo> all;
    for (const Format& format : formats) all.push_back(quantize_entry(format));
    for (const Format& format : formats) all.push_back(dequantize_entry(format));
    return all;
}

}  // namespace touchstone
