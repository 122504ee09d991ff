#include "reference/io/safetensors.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "reference/io/atomic_file.h"
#include "reference/io/safetensors_writer.h"
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

TEST_CASE("safetensors: an empty tensor has no elements, whatever its other extents") {
    const ScratchFile file(one_tensor(
        R"({"dtype":"F32","shape":[9007199254740992,9007199254740992,0],"data_offsets":[0,0]})", ""));
    CHECK(SafetensorsFile(file.path()).tensor("a").elements() == 0);
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
    CHECK(refusal(one_tensor(R"({"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,2]})", "12")) ==
          "\"shape\" stands twice in the header");
    CHECK(refusal(one_tensor(R"({"dtype":"U8","shape":[[2]],"data_offsets":[0,2]})", "12")) ==
          "values nested deeper than 3");
    CHECK(refusal(one_tensor("[[[[[[[]]]]]]]", "")) == "values nested deeper than 3");
    CHECK(refusal(one_tensor(R"({"dtype":"U8","shape":[2],"data_offsets":[-16,0]})", "12")) ==
          "-16 in \"data_offsets\"");
    CHECK(refusal(one_tensor(R"({"dtype":"F6","shape":[1],"data_offsets":[0,1]})", "1")) == "dtype \"F6\"");
}

TEST_CASE("safetensors: a file that is not there is named") {
    CHECK_THROWS_WITH_AS(SafetensorsFile("/no/such/file.safetensors"),
                         doctest::Contains("/no/such/file.safetensors"), UserError);
}

namespace {

/// A folder of the test's own, removed with the scope.
class ScratchFolder {
  public:
    ScratchFolder()
        : path_(fs::temp_directory_path() / ("touchstone_safetensors_folder_" + std::to_string(getpid()))) {
        fs::remove_all(path_);
        fs::create_directories(path_);
    }
    ~ScratchFolder() { fs::remove_all(path_); }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    const fs::path& path() const { return path_; }
    std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const fs::directory_entry& entry : fs::directory_iterator(path_))
            names.push_back(entry.path().filename().string());
        return names;
    }

  private:
    fs::path path_;
};

std::string refusal_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const UserError& error) {
        return error.parts().what;
    }
    return "";
}

std::string file_text(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

/// One tensor of every type, three elements each, and odd ones; declared from narrow to wide.
std::vector<SafetensorsDeclaration> every_type() {
    std::vector<SafetensorsDeclaration> tensors;
    for (const char* type : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "U16", "I16", "F16", "BF16",
                             "U32", "I32", "F32", "U64", "I64", "F64"})
        tensors.push_back({std::string("of ") + type, type, {1, 3}});
    tensors.push_back({"scalar", "F32", {}});
    tensors.push_back({"none", "F64", {0, 5}});
    tensors.push_back({"quoted \"\\ \u00e9", "U8", {1}});
    return tensors;
}

std::string content_of(const SafetensorsDeclaration& tensor) {
    std::string content;
    for (int64_t i = 0; i < tensor.bytes(); ++i)
        content += static_cast<char>(tensor.name.size() * 31 + static_cast<size_t>(i) * 7 + tensor.type[0]);
    return content;
}

void write_all(SafetensorsWriter& writer, size_t piece) {
    for (const SafetensorsDeclaration& tensor : writer.tensors()) {
        const std::string content = content_of(tensor);
        for (size_t at = 0; at < content.size(); at += piece)
            writer.write(tensor.name, bytes_of(content).subspan(at, std::min(piece, content.size() - at)));
    }
}

}  // namespace

TEST_CASE("safetensors: what is written reads back, every type, aligned, in pieces of any size") {
    const ScratchFolder folder;
    std::string first;
    for (const size_t piece : {1000, 5, 1}) {
        CAPTURE(piece);
        const fs::path path = folder.path() / "every.safetensors";
        SafetensorsWriter writer(path, every_type(), {{"format", "pt"}});
        write_all(writer, piece);
        writer.finish();
        const SafetensorsFile read(path);
        CHECK(read.tensors().size() == every_type().size());
        for (const SafetensorsDeclaration& tensor : every_type()) {
            CAPTURE(tensor.name);
            const SafetensorsTensor& found = read.tensor(tensor.name);
            CHECK(found.type == tensor.type);
            CHECK(found.shape == tensor.shape);
            const std::string content = content_of(tensor);
            REQUIRE(found.bytes.size() == content.size());
            CHECK(std::equal(found.bytes.begin(), found.bytes.end(), bytes_of(content).begin()));
            CHECK(reinterpret_cast<uintptr_t>(found.bytes.data()) %
                      static_cast<size_t>(*safetensors_element_bytes(tensor.type)) ==
                  0);
        }
        CHECK(read.view<double>("of F64", "F64").has_value());
        CHECK(read.view<float>("scalar", "F32")->size() == 1);
        if (first.empty()) first = file_text(path);
        CHECK(file_text(path) == first);
        CHECK(folder.files() == std::vector<std::string>{"every.safetensors"});
    }
    const uint64_t header_bytes = static_cast<uint8_t>(first[0]) + 256u * static_cast<uint8_t>(first[1]);
    CHECK(header_bytes % 8 == 0);
}

TEST_CASE("safetensors: wrong declarations and wrong counts of bytes are refused, and no file is left") {
    const ScratchFolder folder;
    const fs::path path = folder.path() / "a.safetensors";
    const auto declared = [&](std::vector<SafetensorsDeclaration> tensors) {
        return refusal_of([&] { SafetensorsWriter(path, std::move(tensors)); });
    };
    CHECK(declared({{"a", "U8", {1}}, {"a", "U8", {1}}}) == "\"a\" cannot be written");
    CHECK(declared({{"__metadata__", "U8", {1}}}) == "\"__metadata__\" cannot be written");
    CHECK(declared({{"a", "F4", {1}}}) == "type \"F4\"");
    CHECK(declared({{"a", "U8", {2, -1}}}) == "shape [2, -1]");
    CHECK(declared({{"a", "F64", {int64_t{1} << 31, int64_t{1} << 30}}}) == "shape [2147483648, 1073741824]");
    CHECK(declared({{"\xff", "U8", {1}}}).find("no UTF-8") != std::string::npos);
    const std::string three = "123";
    const auto written = [&](const std::function<void(SafetensorsWriter&)>& steps) {
        return refusal_of([&] {
            SafetensorsWriter writer(path, {{"a", "U8", {2}}, {"b", "F32", {1}}});
            steps(writer);  // b lies first
        });
    };
    CHECK(written([&](SafetensorsWriter& w) { w.write("a", bytes_of(three)); }) == "3 bytes out of turn");
    CHECK(written([&](SafetensorsWriter& w) { w.write("c", bytes_of(three)); }) == "3 bytes out of turn");
    CHECK(written([&](SafetensorsWriter& w) {
              w.write("b", bytes_of(three));
              w.write("b", bytes_of(three));
          }) == "3 bytes");
    CHECK(written([&](SafetensorsWriter& w) {
              w.write("b", bytes_of("1234"));
              w.write("a", bytes_of("1"));
              w.finish();
          }) == "the file is not complete");
    CHECK(written([&](SafetensorsWriter& w) {
              w.write("b", bytes_of("1234"));
              w.write("a", bytes_of("12"));
              w.write("a", bytes_of("1"));
          }) == "1 bytes behind the last tensor");
    CHECK(folder.files().empty());
    CHECK(refusal_of([&] {
              SafetensorsWriter(folder.path() / "no" / "a.safetensors", {});
          }).starts_with("the file cannot be written"));
}

TEST_CASE("safetensors: a process that is killed while writing leaves no file, or the one that was there") {
    const ScratchFolder folder;
    const fs::path path = folder.path() / "a.safetensors";
    for (const bool file_was_there : {false, true}) {
        CAPTURE(file_was_there);
        if (file_was_there) std::ofstream(path) << "before";
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            SafetensorsWriter writer(path, {{"a", "U8", {1 << 20}}});
            writer.write("a", bytes_of(std::string(1 << 19, 'x')));
            raise(SIGKILL);
        }
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        CHECK(fs::exists(path) == file_was_there);
        if (file_was_there) CHECK(file_text(path) == "before");
        // What is left says what it is, and is in nobody's way.
        size_t partial = 0;
        for (const std::string& name : folder.files()) partial += name.ends_with(".partial");
        CHECK(partial == folder.files().size() - (file_was_there ? 1 : 0));
        CHECK(partial > 0);
    }
    SafetensorsWriter writer(path, {{"a", "U8", {2}}});
    writer.write("a", bytes_of("ab"));
    CHECK(file_text(path) == "before");
    writer.finish();
    CHECK(SafetensorsFile(path).values<char>("a", "U8") == std::vector<char>{'a', 'b'});
}

TEST_CASE("safetensors: a file that an exception interrupts is removed") {
    const ScratchFolder folder;
    const fs::path path = folder.path() / "a.txt";
    try {
        AtomicFile file(path);
        file.write(bytes_of("half"));
        throw std::runtime_error("interrupted");
    } catch (const std::runtime_error&) {
    }
    CHECK(folder.files().empty());
    write_file_atomically(path, "whole");
    CHECK(file_text(path) == "whole");
    write_file_atomically(path, "replaced");
    CHECK(file_text(path) == "replaced");
    CHECK(folder.files() == std::vector<std::string>{"a.txt"});
    CHECK(refusal_of([&] {
              write_file_atomically("/proc/touchstone", "x");
          }).starts_with("the file cannot be"));
}

TEST_CASE("safetensors: folders and pipes are refused; a file that became shorter is noticed") {
    const ScratchFolder folder;
    CHECK(refusal_of([&] { SafetensorsFile{folder.path()}; }) == "this is not a regular file");
    const fs::path pipe = folder.path() / "pipe";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(refusal_of([&] { SafetensorsFile{pipe}; }) == "this is not a regular file");
    const fs::path path = folder.path() / "a.safetensors";
    SafetensorsWriter writer(path, {{"a", "U8", {20000}}});
    writer.write("a", bytes_of(std::string(20000, 'x')));
    writer.finish();
    const SafetensorsFile read(path);
    CHECK(read.view<char>("a", "U8")->back() == 'x');
    read.release(read.tensor("a"));
    CHECK(read.view<char>("a", "U8")->back() == 'x');
    fs::resize_file(path, 4096);
    CHECK(refusal_of([&] { read.tensor("a"); }) == "the file has 4096 bytes, fewer than when it was opened");
    CHECK(refusal_of([&] { read.view<char>("a", "U8"); }).find("fewer") != std::string::npos);
}

TEST_CASE("safetensors: opening reads the header alone, whatever the size of the file") {
    const ScratchFolder folder;
    const fs::path path = folder.path() / "large.safetensors";
    const int64_t size = int64_t{1} << 36;  // 64 GiB of nothing: a sparse file
    std::string header = R"({"a":{"dtype":"U8","shape":[68719476736],"data_offsets":[0,68719476736]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::ofstream(path, std::ios::binary) << with_length(header, "");
    std::error_code error;
    fs::resize_file(path, 8 + header.size() + static_cast<uintmax_t>(size), error);
    REQUIRE_MESSAGE(!error, error.message());
    const SafetensorsFile read(path);
    const std::span<const std::byte> bytes = read.tensor("a").bytes;
    CHECK(std::ssize(bytes) == size);
    CHECK(bytes[static_cast<size_t>(size) - 1] == std::byte{0});
}

TEST_CASE("safetensors: a header of 200,000 tensors is read in seconds") {
    std::string header = "{";
    for (int i = 0; i < 200'000; ++i) {
        if (i > 0) header += ',';
        header += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
    }
    const std::string file = with_length(header + "}", "");
    CHECK(parse_safetensors(bytes_of(file), "large").size() == 200'000);
}
