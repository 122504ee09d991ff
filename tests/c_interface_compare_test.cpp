// Comparison through the C interface, and the messages of what is refused.
#include <doctest/doctest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "c_interface.h"
#include "golden/touchstone.h"

using namespace touchstone::c_interface;
using nlohmann::json;

TEST_CASE("c interface: comparison says what differs, how much, and whether that is within the tolerance") {
    std::array<float, 6> a{1, 2, 3, 4, 5, 6}, b = a;
    const std::array<int64_t, 2> shape{2, 3};
    const touchstone_tensor expected{"a", "F32", 2, shape.data(), a.data(), 24};
    touchstone_tensor got{"b", "F32", 2, shape.data(), b.data(), 24};
    touchstone_comparison found{};
    found.struct_bytes = sizeof(found);
    CHECK(touchstone_compare(&expected, &got, "bit", &found) == touchstone_ok);
    CHECK(found.elements == 6);
    CHECK(found.identical == 6);
    CHECK(found.first == -1);
    CHECK(found.outside == 0);

    b[4] = 5 + 3 * 0x1p-21f;  // 3 units in the last place
    CHECK(touchstone_compare(&expected, &got, "bit", &found) == touchstone_differs);
    CHECK(std::string(touchstone_last_error()).empty());
    CHECK(found.identical == 5);
    CHECK(found.outside == 1);
    CHECK(found.first == 4);
    CHECK(found.worst == 4);
    CHECK(found.largest_ulp == 3);
    CHECK(found.largest_absolute == 3 * 0x1p-21);
    CHECK(found.largest_relative == 3 * 0x1p-21 / 5);
    CHECK(found.cosine > 0);
    CHECK(touchstone_compare(&expected, &got, "ulp=3", &found) == touchstone_ok);
    CHECK(touchstone_compare(&expected, &got, "ulp=2", nullptr) == touchstone_differs);
    CHECK(touchstone_compare(&expected, &got, "fp32_row", nullptr) == touchstone_ok);

    // A header that knew the first two fields alone.
    touchstone_comparison old{};
    std::memset(&old, 0x55, sizeof(old));
    old.struct_bytes = sizeof(size_t) + sizeof(int64_t);
    const int64_t pattern = old.identical;
    CHECK(touchstone_compare(&expected, &got, "bit", &old) == touchstone_differs);
    CHECK(old.elements == 6);
    CHECK(old.identical == pattern);

    // Empty tensors, and one without extents.
    const std::array<int64_t, 2> nothing{0, 3};
    const touchstone_tensor empty{nullptr, "F32", 2, nothing.data(), nullptr, 0};
    CHECK(touchstone_compare(&empty, &empty, "bit", &found) == touchstone_ok);
    CHECK(found.elements == 0);
    const touchstone_tensor scalar{nullptr, "F32", 0, nullptr, a.data(), 4};
    CHECK(touchstone_compare(&scalar, &scalar, "bit", &found) == touchstone_ok);
    CHECK(found.elements == 1);
}

TEST_CASE("c interface: integers are compared bit for bit, whatever the tolerance") {
    const std::array<int64_t, 1> shape{8};
    for (const char* type : {"BOOL", "U8", "I8", "I16", "U32", "I64"}) {
        CAPTURE(type);
        std::array<uint8_t, 64> a{}, b{};
        b[0] = 1;
        const std::string name(type);
        const size_t bytes = name == "I64" ? 64 : name == "U32" ? 32 : name == "I16" ? 16 : 8;
        const touchstone_tensor expected{"a", type, 1, shape.data(), a.data(), bytes};
        const touchstone_tensor got{"b", type, 1, shape.data(), b.data(), bytes};
        touchstone_comparison found{};
        found.struct_bytes = sizeof(found);
        for (const char* tolerance : {"bit", "ulp=1", "abs=10", "fp32_row", "bf16_step"}) {
            CAPTURE(tolerance);
            CHECK(touchstone_compare(&expected, &got, tolerance, &found) == touchstone_differs);
            CHECK(found.outside == 1);
            CHECK(found.largest_ulp == 1);
            CHECK(touchstone_compare(&expected, &expected, tolerance, &found) == touchstone_ok);
        }
        check_refused(touchstone_compare(&expected, &got, "close", nullptr), "close");
    }
}

TEST_CASE("c interface: a message is UTF-8, whatever bytes it is about") {
    const std::string replacement = "\xEF\xBF\xBD";
    struct Bytes {
        std::string given, shown;
    };
    const std::vector<Bytes> all{
        {"\xC3\xA9", "\xC3\xA9"},
        {"\xE2\x82\xAC", "\xE2\x82\xAC"},
        {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
        {"\xFF", replacement},
        {"\x80", replacement},
        {"\xC0\xAF", replacement + replacement},                                      // "/" in two bytes
        {"\xE0\x80\xAF", replacement + replacement + replacement},                    // and in three
        {"\xED\xA0\x80", replacement + replacement + replacement},                    // a surrogate
        {"\xF4\x90\x80\x80", replacement + replacement + replacement + replacement},  // beyond U+10FFFF
        {"\xE2\x82", replacement + replacement},                                      // cut off
    };
    for (const Bytes& bytes : all) {
        CAPTURE(bytes.given);
        Handle inputs;
        const std::string text = "no" + bytes.given + "such(rows=2)";
        CHECK(touchstone_make_inputs(text.c_str(), &inputs.tensors) == touchstone_bad_argument);
        const std::string error = touchstone_last_error();
        CHECK(error.find("no" + bytes.shown + "such") != std::string::npos);
        CHECK(json(error).dump().size() > error.size());  // throws for what is no UTF-8
    }
}

TEST_CASE("c interface: tensors that cannot be compared are refused") {
    std::array<float, 6> a{};
    const std::array<int64_t, 2> shape{2, 3}, turned{3, 2};
    const touchstone_tensor good{"a", "F32", 2, shape.data(), a.data(), 24};
    touchstone_tensor bad = good;
    check_refused(touchstone_compare(nullptr, &good, "bit", nullptr), "expected is null");
    check_refused(touchstone_compare(&good, nullptr, "bit", nullptr), "got is null");
    check_refused(touchstone_compare(&good, &good, nullptr, nullptr), "tolerance is null");
    check_refused(touchstone_compare(&good, &good, "close", nullptr), "close");
    bad.extents = turned.data();
    check_refused(touchstone_compare(&good, &bad, "bit", nullptr), "F32 [3, 2]");
    bad = good;
    bad.type = "I32";
    check_refused(touchstone_compare(&good, &bad, "bit", nullptr), "I32 [2, 3]");
    bad = good;
    bad.bytes = 20;
    check_refused(touchstone_compare(&bad, &good, "bit", nullptr), "20 bytes");
    bad = good;
    bad.data = nullptr;
    check_refused(touchstone_compare(&bad, &good, "bit", nullptr), "data is null");
    touchstone_comparison found{};
    check_refused(touchstone_compare(&good, &good, "bit", &found), "struct_bytes is 0");
    found.struct_bytes = SIZE_MAX;
    check_refused(touchstone_compare(&good, &good, "bit", &found), "struct_bytes");
}
