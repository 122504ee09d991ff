// touchstone gpu cublas: kernels that nobody here wrote, predicted bit for bit.
#include <fmt/format.h>

#include <optional>

#include "cli/commands.h"
#include "cli/gpu.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cuda/numerics/cublas_check.h"
#include "golden/device/matmul_case.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

/// M, N, K of the model's own products and of one slice of its head.
constexpr cuda::CublasShape shapes[] = {
    {128, 32768, 1280}, {128, 1280, 5120}, {512, 2304, 5120}, {64, 5120, 8192},  {64, 512, 5120},
    {64, 384, 5120},    {1, 1280, 5120},   {16, 5120, 2304},  {128, 5120, 2304}, {256, 1024, 4096},
    {8, 8080, 5120},    {64, 2560, 1024},  {128, 256, 5120},
};

struct Row {
    MatmulCase one_chain;  ///< the case with piece_k = k
    bool split_k_allowed;
    cuda::CublasResult result;
    int64_t differing = 0;                ///< from one chain
    std::optional<MatmulCase> explained;  ///< the split that gives all outputs
    CaseHashes hashes;
};

Row compare(const cuda::CublasLt& cublas, const MatmulCase& c, const MatmulInputs& inputs,
            const std::vector<uint32_t>& chain, bool split_k_allowed) {
    Row row{.one_chain = c,
            .split_k_allowed = split_k_allowed,
            .result = cublas.matmul({c.m, c.n, c.k}, inputs.x, inputs.w, split_k_allowed),
            .explained = std::nullopt,
            .hashes = {}};
    const std::vector<uint32_t>& outputs = row.result.outputs;
    for (size_t i = 0; i < chain.size(); ++i) row.differing += outputs[i] != chain[i];
    row.explained = row.differing == 0 ? c : explain_by_split(c, inputs, outputs);
    row.hashes = {input_hash(inputs), hash_of(std::span<const uint32_t>(outputs)), std::ssize(outputs)};
    return row;
}

std::vector<Row> compare_all(const cuda::CublasLt& cublas) {
    std::vector<Row> rows;
    for (const cuda::CublasShape& shape : shapes) {
        const MatmulCase c{shape.m, shape.n, shape.k, shape.k, 1};
        const MatmulInputs inputs = inputs_of(c);
        const std::vector<uint32_t> chain = outputs_on_cpu(c, inputs);
        for (const bool split_k_allowed : {false, true})
            rows.push_back(
                with_case_named(c, [&] { return compare(cublas, c, inputs, chain, split_k_allowed); }));
    }
    return rows;
}

/// A product of one row may be a matrix-vector kernel, which sums on ordinary cores.
bool on_ordinary_cores(const Row& row) {
    return row.result.kernels.find("gemv") != std::string::npos;
}

std::string explanation(const Row& row) {
    if (on_ordinary_cores(row)) return "no matrix instruction";
    if (!row.explained) return "none found";
    if (row.explained->pieces() == 1) return "one chain";
    return fmt::format("{} pieces of {}", row.explained->pieces(), row.explained->piece_k);
}

/// A table in Markdown, as cuda/README.md shows it.
std::string markdown(const std::vector<Row>& rows) {
    std::string text =
        "| M, N, K | split-K | kernel | algorithm's split | outputs | differ from one chain | sum of K |\n"
        "|---|---|---|---|---|---|---|\n";
    for (const Row& row : rows)
        text += fmt::format("| {}, {}, {} | {} | {} | {}, reduction {} | {} | {} | {} |\n", row.one_chain.m,
                            row.one_chain.n, row.one_chain.k, row.split_k_allowed ? "allowed" : "excluded",
                            row.result.kernels, row.result.split_k, row.result.reduction_scheme,
                            grouped(row.hashes.outputs), grouped(row.differing), explanation(row));
    return text;
}

json to_json(const Row& row) {
    json object = {{"m", row.one_chain.m},
                   {"n", row.one_chain.n},
                   {"k", row.one_chain.k},
                   {"seed", row.one_chain.seed},
                   {"split_k_allowed", row.split_k_allowed},
                   {"algorithm", row.result.algorithm},
                   {"split_k", row.result.split_k},
                   {"reduction_scheme", row.result.reduction_scheme},
                   {"kernels", row.result.kernels},
                   {"on_ordinary_cores", on_ordinary_cores(row)},
                   {"outputs", row.hashes.outputs},
                   {"differing_from_one_chain", row.differing}};
    if (row.explained) object["piece_k"] = row.explained->piece_k;
    return object;
}

/// Without split-K one chain has to give every bit of a kernel for matrix instructions; a split that no
/// candidate explains is reported, not failed: how a library cuts K is its own affair.
bool agrees(const Row& row) {
    return row.differing == 0 || row.split_k_allowed || on_ordinary_cores(row);
}

int report(const GpuCublasOptions& options, const std::string& version, const std::vector<Row>& rows) {
    const bool agree = std::ranges::all_of(rows, agrees);
    std::vector<DeviceReceipt> receipts;
    for (const Row& row : rows)
        if (row.explained) receipts.push_back(receipt_of(*row.explained, row.hashes));
    save_receipts(options.receipts, receipts);
    if (options.json) {
        json object = {{"schema", "touchstone.gpu_cublas/1"},
                       {"provenance", provenance_json()},
                       {"cublaslt", version},
                       {"products", json::array()},
                       {"agree", agree},
                       {"assumptions", json::array()}};
        for (const Row& row : rows) object["products"].push_back(to_json(row));
        write_result(to_text(object));
    } else {
        write_result(
            fmt::format("cuBLASLt {}, bf16 in, fp32 out, against the chain of hopper.wgmma.bf16\n{}\n{}",
                        version, provenance_text(), markdown(rows)));
    }
    return agree ? exit_agree : exit_differ;
}

}  // namespace

int run_gpu_cublas(const GpuCublasOptions& options) {
    if (!have_gpu()) return exit_nothing_compared;
    std::optional<cuda::CublasLt> cublas;
    try {
        cublas.emplace();
    } catch (const std::runtime_error& error) {
        return nothing_compared(error.what(), "install cuBLAS of the toolkit that this was built with");
    }
    return report(options, cublas->version(), compare_all(*cublas));
}

}  // namespace touchstone::cli
