#include "golden/device/device_receipt.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <map>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr const char* columns[] = {"case",   "input hash", "output hash", "outputs",
                                   "device", "driver",     "toolkit",     "revision"};
constexpr size_t column_count = std::size(columns);

[[noreturn]] void refuse(const std::string& where, size_t column, std::string_view text,
                         const std::string& expected) {
    throw UserError({fmt::format("receipt: {} is \"{}\"", columns[column], text), where, expected,
                     "write receipts with touchstone gpu ... --receipts FILE, not by hand"});
}

std::vector<std::string> split_fields(std::string_view line, const std::string& where) {
    std::vector<std::string> fields;
    for (size_t start = 0; start <= line.size();) {
        const size_t tab = std::min(line.find('\t', start), line.size());
        fields.emplace_back(line.substr(start, tab - start));
        start = tab + 1;
    }
    if (fields.size() != column_count)
        throw UserError({fmt::format("receipt: {} fields between tabs", fields.size()), where,
                         fmt::format("{}: case, input hash, output hash, outputs, device, driver, toolkit, "
                                     "revision",
                                     column_count),
                         ""});
    for (size_t i = 0; i < column_count; ++i)
        if (fields[i].empty()) refuse(where, i, fields[i], "text");
    return fields;
}

uint64_t parse_hash(const std::vector<std::string>& fields, size_t column, const std::string& where) {
    const std::string& text = fields[column];
    uint64_t hash = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
    if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
        refuse(where, column, text, "16 hexadecimal digits");
    return hash;
}

int64_t parse_count(const std::vector<std::string>& fields, size_t column, const std::string& where) {
    const std::string& text = fields[column];
    int64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc() || end != text.data() + text.size() || count < 1)
        refuse(where, column, text, "a whole number above 0");
    return count;
}

}  // namespace

std::string to_line(const DeviceReceipt& receipt) {
    return fmt::format("{}\t{:016x}\t{:016x}\t{}\t{}\t{}\t{}\t{}", to_text(receipt.device_case),
                       receipt.hashes.input, receipt.hashes.output, receipt.hashes.outputs, receipt.device,
                       receipt.driver, receipt.toolkit, receipt.revision);
}

DeviceReceipt parse_device_receipt(std::string_view line, const std::string& where) {
    const std::vector<std::string> fields = split_fields(line, where);
    return {.device_case = parse_device_case(fields[0], where),
            .hashes = {.input = parse_hash(fields, 1, where),
                       .output = parse_hash(fields, 2, where),
                       .outputs = parse_count(fields, 3, where)},
            .device = fields[4],
            .driver = fields[5],
            .toolkit = fields[6],
            .revision = fields[7]};
}

std::vector<DeviceReceipt> read_device_receipts(const std::filesystem::path& file) {
    std::ifstream stream(file);
    if (!stream) throw UserError({"cannot read the receipts", file.string(), "a readable text file", ""});
    std::vector<DeviceReceipt> receipts;
    std::map<std::string, std::pair<CaseHashes, int>> seen;
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
        if (line.empty() || line[0] == '#') continue;
        const std::string where = fmt::format("{}:{}", file.string(), number);
        receipts.push_back(parse_device_receipt(line, where));
        const CaseHashes& hashes = receipts.back().hashes;
        const auto [at, is_new] = seen.try_emplace(to_text(receipts.back().device_case), hashes, number);
        if (!is_new && at->second.first != hashes)
            throw UserError({fmt::format("receipt: case \"{}\" stands on line {} with other hashes",
                                         at->first, at->second.second),
                             where, "one answer to a case in a file", "keep devices that differ apart"});
    }
    return receipts;
}

void write_device_receipts(const std::filesystem::path& file, const std::vector<DeviceReceipt>& receipts) {
    const std::filesystem::path temporary = file.string() + ".tmp";
    std::ofstream stream(temporary);
    stream << "# case, input hash, output hash, outputs, device, driver, toolkit, revision (tabs between)\n";
    for (const DeviceReceipt& receipt : receipts) stream << to_line(receipt) << '\n';
    stream.close();
    std::error_code error;
    if (stream) std::filesystem::rename(temporary, file, error);
    if (stream && !error) return;
    std::filesystem::remove(temporary, error);
    throw UserError(
        {"cannot write the receipts", file.string(), "a file in a folder that can be written", ""});
}

}  // namespace touchstone
