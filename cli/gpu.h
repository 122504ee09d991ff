// What the gpu commands share: the device at hand and the receipts they leave.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/device_buffer.h"
#include "golden/device/device_receipt.h"
#include "reference/io/user_error.h"

namespace touchstone::cli {

inline constexpr int exit_agree = 0, exit_differ = 1, exit_nothing_compared = 3;

/// Whether device 0 runs our kernels; where not, stderr says why.
bool have_gpu();

/// Prints why nothing was compared; returns exit_nothing_compared.
int nothing_compared(const std::string& why, const std::string& remedy);

/// A receipt of device 0.
DeviceReceipt receipt_of(DeviceCase device_case, const CaseHashes& hashes);

/// Writes the file unless its name is empty; a case that was run twice stands there once.
void save_receipts(const std::string& file, const std::vector<DeviceReceipt>& receipts);

/// What `run` returns; a failure of the device gets the case that it happened in.
template <class Case, class Run>
auto with_case_named(const Case& device_case, Run run) {
    try {
        return run();
    } catch (const UserError&) {
        throw;
    } catch (const std::runtime_error& error) {
        throw std::runtime_error(std::string(error.what()) + "\n  in case " + to_text(device_case));
    }
}

/// "NVIDIA H200, sm_90; driver 580.82.07, CUDA 13.0; toolkit 13.0.88; revision abc"
std::string provenance_text();
nlohmann::json provenance_json();

}  // namespace touchstone::cli
