#include "reference/io/safetensors.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "reference/io/user_error.h"

using namespace touchstone;
namespace fs = std::filesystem;

namespace {

/// A file of the test's own, removed with the scope.
class ScratchFile {
  public:
    explicit ScratchFile(const std::string& bytes)
        : path_(fs::temp_directory_path() / ("touchstone_safetensors_" + std::to_string(getpid()))) {
        std::ofstream(path_, std::ios::binary) << bytes;
    }
    ~ScratchFile() { fs::remove(path_); }
    ScratchFile(const ScratchFile&) = delete;
    ScratchFile& operator=(const ScratchFile&) = delete;
    const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

std::string with_length(const std::string& header, const std::string& payload) {
    std::string bytes;
    for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
    return bytes + header + payload;
}

/// What the reader says of a file; "" when it takes it.
std::string refusal(const std::string& bytes) {
    const ScratchFile file(bytes);
    try {
        const SafetensorsFile read(file.path());
    } catch (const UserError& error) {
        CHECK(error.parts().where.starts_with(file.path().string()));
        return error.parts().what;
    }
    return "";
}

std::string one_tensor(const std::string& entry, const std::string& payload) {
    return with_length("{\"a\":" + entry + "}", payload);
}

}  // namespace

TEST_CASE("safetensors: tensors come back with type, shape and elements, also where they are not aligned") {
    const ScratchFile file(with_length(
        R"({"__metadata__":{"format":"pt"},"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
        R"("wide":{"dtype":"F32","shape":[2,1],"data_offsets":[1,9]},"none":{"dtype":"BF16","shape":[0,7],"data_offsets":[9,9]}})",
        std::string("\x07\x00\x00\x80\x3f\x00\x00\x00\xc0", 9)));
    const SafetensorsFile read(file.path());
    CHECK(read.tensors().size() == 3);
    CHECK(read.tensor("wide").shape == std::vector<int64_t>{2, 1});
    CHECK(read.values<float>("wide", "F32") == std::vector<float>{1.0f, -2.0f});
    CHECK(read.values<uint8_t>("byte", "U8") == std::vector<uint8_t>{7});
    CHECK(read.values<uint16_t>("none", "BF16").empty());
    CHECK_THROWS_WITH_AS(read.tensor("wyde"), doctest::Contains("did you mean \"wide\"?"), UserError);
    CHECK_THROWS_WITH_AS(read.values<float>("byte", "F32"), doctest::Contains("byte is U8"), UserError);
    CHECK_THROWS_AS(read.values<double>("wide", "F32"), UserError);
}

TEST_CASE("safetensors: files that are not well formed are refused with the reason") {
    CHECK(refusal("") == "0 bytes");
    CHECK(refusal("1234567") == "7 bytes");
    CHECK(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)) ==
          "a header of 18446744073709551615 bytes");
    CHECK(refusal(with_length("{}", "").substr(0, 9)) == "a header of 2 bytes");
    CHECK(refusal(with_length("[1]", "")) == "the header is no JSON object");
    CHECK(refusal(with_length("{\"a\"", "")) == "the header is no JSON object");
    CHECK(refusal(one_tensor("7", "")) == "no \"dtype\"");
    CHECK(refusal(one_tensor(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})", "1234")) ==
          "dtype \"F31\"");
    CHECK(refusal(one_tensor(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "1234")) ==
          "-1 in \"shape\"");
    CHECK(refusal(one_tensor(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", "1234")) ==
          "1.5 in \"shape\"");
    CHECK(refusal(one_tensor(R"({"dtype":"F32","data_offsets":[0,4]})", "1234")) == "no list \"shape\"");
    CHECK(refusal(one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,5]})", "1234")) ==
          "data_offsets [0, 5]");
    CHECK(refusal(one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", "1234")) ==
          "data_offsets [4, 0]");
    CHECK(refusal(one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "1234")) ==
          "4 bytes for F32 [2]");
    // A product of extents that leaves 64 bits must not come round to the right size.
    CHECK(refusal(one_tensor(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", "")) ==
          "0 bytes for U8 [4294967296, 4294967296]");
    CHECK(refusal(one_tensor(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", "12")) ==
          "1 bytes behind the last tensor");
    const std::string tensor = R"({"dtype":"U8","shape":[2],"data_offsets":[)";
    CHECK(refusal(with_length("{\"a\":" + tensor + "0,2]},\"b\":" + tensor + "1,3]}}", "123")) ==
          "a tensor at byte 1");
    CHECK(refusal(with_length("{\"a\":" + tensor + "0,2]},\"b\":" + tensor + "3,5]}}", "12345")) ==
          "a tensor at byte 3");
    CHECK(refusal(with_length("{\"a\":" + tensor + "0,2]},\"a\":" + tensor + "0,2]}}", "12")) ==
          "\"a\" stands twice in the header");
}

TEST_CASE("safetensors: a file that is not there is named") {
    CHECK_THROWS_WITH_AS(SafetensorsFile("/no/such/file.safetensors"),
                         doctest::Contains("/no/such/file.safetensors"), UserError);
}
