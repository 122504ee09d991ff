// Device receipts: one line per case that a GPU has run (numerics contract, section 8). golden/device/*.txt
// holds them; any CPU can recompute their hashes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "golden/device/device_case.h"

namespace touchstone {

/// What a device answered, and which one. Written only by the command that ran the kernel.
struct DeviceReceipt {
    DeviceCase device_case;
    CaseHashes hashes;  ///< of the inputs as uploaded, and of the device's outputs
    std::string device, driver, toolkit;
    std::string revision;  ///< of the sources, "unknown" outside a git checkout

    friend bool operator==(const DeviceReceipt&, const DeviceReceipt&) = default;
};

/// Eight fields between tabs: case, input hash, output hash (16 hexadecimal digits each), outputs, device,
/// driver, toolkit, revision. Without a newline.
std::string to_line(const DeviceReceipt& receipt);

/// Throws UserError naming `where` and the field that cannot be read.
DeviceReceipt parse_device_receipt(std::string_view line, const std::string& where);

/// The receipts of a file in order. Empty lines and lines that start with # are skipped. Throws UserError for
/// a file that cannot be read, for a line that is no receipt (file and line are named), and for a case that
/// stands twice with different hashes.
std::vector<DeviceReceipt> read_device_receipts(const std::filesystem::path& file);

/// Replaces `file` as a whole (temporary name, then rename). Throws UserError when it cannot be written.
void write_device_receipts(const std::filesystem::path& file, const std::vector<DeviceReceipt>& receipts);

}  // namespace touchstone
