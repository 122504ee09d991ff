#include "reference/io/npy.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "reference/io/user_error.h"

using namespace touchstone;
namespace fs = std::filesystem;

namespace {

std::string npy(const std::string& header, const std::string& payload, int major = 1) {
    std::string bytes = "\x93NUMPY";
    bytes += static_cast<char>(major);
    bytes += '\0';
    for (int i = 0; i < (major == 1 ? 2 : 4); ++i)
        bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
    return bytes + header + payload;
}

std::string dictionary(const std::string& descr, const std::string& shape, bool fortran = false) {
    return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}      \n", descr,
                       fortran ? "True" : "False", shape);
}

NpyArray parse(const std::string& bytes) {
    return parse_npy(std::as_bytes(std::span(bytes)), "x.npy");
}

/// What the reader says; "" when it takes the file.
std::string refusal(const std::string& bytes) {
    try {
        parse(bytes);
    } catch (const UserError& error) {
        CHECK(error.parts().where == "x.npy");
        CHECK_FALSE(error.parts().expected.empty());
        return error.parts().what;
    }
    return "";
}

struct Scratch {
    fs::path path = fs::temp_directory_path() / fmt::format("touchstone_npy_{}", getpid());
    ~Scratch() { fs::remove(path); }
};

}  // namespace

TEST_CASE("npy: the versions, quotes and orders of keys that writers use") {
    const std::string payload(24, 'p');
    for (int version : {1, 2, 3}) {
        CAPTURE(version);
        const std::string file = npy(dictionary("<f4", "(2, 3)"), payload, version);
        const NpyArray array = parse(file);
        CHECK(array.stored.type == "F32");
        CHECK(array.stored.shape == std::vector<int64_t>{2, 3});
        CHECK_FALSE(array.fortran_order);
        CHECK(array.stored.bytes.size() == 24);
        CHECK(reinterpret_cast<const char*>(array.stored.bytes.data()) == file.data() + file.size() - 24);
    }
    const std::string swapped = npy("{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}", payload);
    CHECK(parse(swapped).stored.shape == std::vector<int64_t>{2, 3});
}

TEST_CASE("npy: shapes of no, one and empty extents") {
    CHECK(parse(npy(dictionary("<f8", "()"), std::string(8, 'p'))).stored.shape.empty());
    CHECK(parse(npy(dictionary("<i8", "(2,)"), std::string(16, 'p'))).stored.shape ==
          std::vector<int64_t>{2});
    CHECK(parse(npy(dictionary("<i8", "(0, 9000000, 7)"), "")).stored.elements() == 0);
}

TEST_CASE("npy: every type by its name") {
    const std::pair<const char*, const char*> types[]{
        {"<f2", "F16"}, {"<f4", "F32"}, {"<f8", "F64"}, {"|i1", "I8"},  {"<i2", "I16"}, {"<i4", "I32"},
        {"<i8", "I64"}, {"|u1", "U8"},  {"<u2", "U16"}, {"<u4", "U32"}, {"<u8", "U64"}, {"|b1", "BOOL"}};
    for (const auto& entry : types) {
        const auto& descr = entry.first;
        const auto& type = entry.second;
        CAPTURE(descr);
        const std::string payload(static_cast<size_t>(descr[2] - '0'), 'p');
        CHECK(parse(npy(dictionary(descr, "(1,)"), payload)).stored.type == type);
    }
}

TEST_CASE("npy: Fortran's order is the array stored transposed") {
    const NpyArray array = parse(npy(dictionary("|u1", "(2, 3, 4)", true), std::string(24, 'p')));
    CHECK(array.fortran_order);
    CHECK(array.stored.shape == std::vector<int64_t>{4, 3, 2});
    CHECK(array.shape() == std::vector<int64_t>{2, 3, 4});
}

TEST_CASE("npy: types that cannot be compared are refused by name") {
    const std::pair<const char*, const char*> cases[]{
        {">f4", "big-endian"}, {"|O", "Python objects"}, {"|S5", "strings"},
        {"<U3", "text"},       {"<V2", "bfloat16"},      {"<c8", "complex"},
        {"<M8[s]", "dates"},   {"<f16", "<f16"},         {"", "type"}};
    for (const auto& entry : cases) {
        const auto& descr = entry.first;
        const auto& words = entry.second;
        CAPTURE(descr);
        CHECK(refusal(npy(dictionary(descr, "(1,)"), "12345678")).find(words) != std::string::npos);
    }
    const std::string structured = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }";
    CHECK(refusal(npy(structured, "1234")).find("structured") != std::string::npos);
}

TEST_CASE("npy: files that are no npy file, or not whole, are refused") {
    const std::string good = npy(dictionary("<f4", "(2, 3)"), std::string(24, 'p'));
    REQUIRE(refusal(good) == "");
    for (size_t cut = 0; cut < good.size(); ++cut) {
        CAPTURE(cut);
        REQUIRE(refusal(good.substr(0, cut)) != "");
    }
    CHECK(refusal(good + "x").find("25 bytes") != std::string::npos);
    std::string version = good;
    version[6] = 4;
    CHECK(refusal(version).find("version 4.0") != std::string::npos);
    CHECK(refusal(npy(std::string(70000, ' '), "", 2)).find("70000") != std::string::npos);
}

TEST_CASE("npy: hostile headers are refused") {
    const std::string hostile[]{
        "",
        "{",
        "{}",
        "[]",
        "{'descr': '<f4'}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967297, 4294967297)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (0, 9223372036854775807, 7)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, , 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} __import__('os')",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}",
    };
    for (const std::string& header : hostile) {
        CAPTURE(header);
        CHECK(refusal(npy(header, "1234")) != "");
    }
    std::string axes;
    for (int i = 0; i < 65; ++i) axes += "1,";
    CHECK(refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + axes + ")}", "1234")) != "");
}

TEST_CASE("npy: what is written reads back, aligned") {
    const Scratch scratch;
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {5}, {2, 3}, {0, 4}, {1, 2, 3, 4}}) {
        CAPTURE(shape.size());
        std::vector<float> values(static_cast<size_t>(TensorView{"F32", shape, {}}.elements()));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
        write_npy(scratch.path, {"F32", shape, std::as_bytes(std::span(values))});
        const NpyFile file(scratch.path);
        CHECK(file.array().shape() == shape);
        CHECK(file.array().stored.type == "F32");
        REQUIRE(file.array().stored.bytes.size() == 4 * values.size());
        if (!values.empty())
            CHECK(std::memcmp(file.array().stored.bytes.data(), values.data(), 4 * values.size()) == 0);
        CHECK((file.file().bytes().size() - 4 * values.size()) % 64 == 0);
    }
    CHECK_THROWS_AS(write_npy(scratch.path, {"BF16", {0}, {}}), UserError);
    CHECK_THROWS_AS(NpyFile("/nonexistent/x.npy"), UserError);
}

TEST_CASE("npy: the writer's header is the one that NumPy writes") {
    const Scratch scratch;
    const std::vector<uint8_t> values{1, 2, 3};
    write_npy(scratch.path, {"U8", {3}, std::as_bytes(std::span(values))});
    std::ifstream file(scratch.path, std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    const std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }";
    CHECK(bytes.str() == npy(header + std::string(128 - 10 - header.size() - 1, ' ') + "\n", "\1\2\3"));
}
