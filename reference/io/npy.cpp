#include "reference/io/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "reference/io/atomic_file.h"
#include "reference/io/config_json.h"
#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr size_t alignment_bytes = 64;
/// Far more than any array's dictionary needs; NumPy itself stops at 10,000.
constexpr size_t most_header_bytes = 65'536;
/// NumPy's own limit.
constexpr size_t most_axes = 64;

struct NpyType {
    std::string_view descr, type;
};

/// NumPy writes '|' where the order of bytes has no meaning; some writers '<'. The first of a type is what is
/// written.
constexpr NpyType npy_types[]{
    {"<f4", "F32"}, {"<f8", "F64"}, {"<f2", "F16"}, {"|i1", "I8"},   {"<i1", "I8"},
    {"<i2", "I16"}, {"<i4", "I32"}, {"<i8", "I64"}, {"|u1", "U8"},   {"<u1", "U8"},
    {"<u2", "U16"}, {"<u4", "U32"}, {"<u8", "U64"}, {"|b1", "BOOL"}, {"<b1", "BOOL"},
};

/// What a type that is refused is called, by the letter behind its byte order.
struct Unusable {
    char letter;
    std::string_view name, remedy;
};

constexpr Unusable unusable_types[]{
    {'O', "Python objects", "save an array of numbers"},
    {'S', "bytes strings", "save an array of numbers"},
    {'U', "text", "save an array of numbers"},
    {'V', "raw bytes without a type (bfloat16 and fp8 of Python packages are saved like this)",
     "save .view(numpy.uint16) or .view(numpy.uint8), or a safetensors file"},
    {'c', "complex numbers", "save real and imaginary parts"},
    {'M', "dates", "save an array of numbers"},
    {'m', "durations", "save an array of numbers"},
};

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& expected,
                         const std::string& remedy = "save the array again with numpy.save") {
    throw UserError({what, where, expected, remedy});
}

/// A reader of the dictionary: as much of Python's literals as NumPy writes.
class Dictionary {
  public:
    Dictionary(std::string_view text, const std::string& where) : text_(text), where_(where) {}

    bool take(char wanted) {
        skip_spaces();
        if (at_ >= text_.size() || text_[at_] != wanted) return false;
        ++at_;
        return true;
    }
    void require(char wanted) {
        if (!take(wanted)) fail(fmt::format("'{}'", wanted));
    }
    char next() {
        skip_spaces();
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    std::string string() {
        const char quote = next();
        if (quote != '\'' && quote != '"') fail("a string");
        const size_t end = text_.find(quote, at_ + 1);
        if (end == std::string_view::npos) fail("the end of a string");
        const std::string value(text_.substr(at_ + 1, end - at_ - 1));
        if (value.find('\\') != std::string::npos) fail("a string without escapes");
        at_ = end + 1;
        return value;
    }
    bool boolean() {
        skip_spaces();
        for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {"False", false}})
            if (text_.substr(at_).starts_with(word)) {
                at_ += word.size();
                return value;
            }
        fail("True or False");
    }
    std::vector<int64_t> tuple() {
        std::vector<int64_t> values;
        require('(');
        while (!take(')')) {
            if (values.size() == most_axes) fail(fmt::format("at most {} axes", most_axes));
            values.push_back(extent());
            if (take(',')) continue;
            require(')');
            break;
        }
        return values;
    }
    [[noreturn]] void fail(const std::string& expected) const {
        refuse(fmt::format("byte {} of the header's dictionary is not understood", at_), where_, expected);
    }

  private:
    void skip_spaces() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    }
    int64_t extent() {
        skip_spaces();
        int64_t value = 0;
        const char* end_of_text = text_.data() + text_.size();
        const auto [end, error] = std::from_chars(text_.data() + at_, end_of_text, value);
        if (error != std::errc{} || value < 0) fail("an extent from 0 to 2^63 - 1");
        at_ = static_cast<size_t>(end - text_.data());
        return value;
    }

    std::string_view text_;
    const std::string& where_;
    size_t at_ = 0;
};

/// The three keys, each once, in any order.
struct Header {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<int64_t>> shape;
};

void parse_entry(Dictionary& dictionary, Header& header, const std::string& where) {
    const std::string key = dictionary.string();
    dictionary.require(':');
    const bool twice = (key == "descr" && header.descr) || (key == "fortran_order" && header.fortran_order) ||
                       (key == "shape" && header.shape);
    if (twice) refuse(fmt::format("{} stands twice", quoted(key)), where, "every key once");
    if (key == "descr") {
        if (dictionary.next() == '[')
            refuse("a structured type", where, "an array of numbers", "save each field as an array");
        header.descr = dictionary.string();
    } else if (key == "fortran_order") {
        header.fortran_order = dictionary.boolean();
    } else if (key == "shape") {
        header.shape = dictionary.tuple();
    } else {
        refuse(fmt::format("key {}", quoted(key)), where, "descr, fortran_order and shape");
    }
}

Header parse_header(std::string_view text, const std::string& where) {
    Dictionary dictionary(text, where);
    Header header;
    dictionary.require('{');
    while (!dictionary.take('}')) {
        parse_entry(dictionary, header, where);
        if (dictionary.take(',')) continue;
        dictionary.require('}');
        break;
    }
    if (dictionary.next() != '\0') dictionary.fail("nothing behind the dictionary");
    if (!header.descr || !header.fortran_order || !header.shape)
        refuse("a key of the header is missing", where, "descr, fortran_order and shape");
    return header;
}

std::string type_of(const std::string& descr, const std::string& where) {
    for (const NpyType& known : npy_types)
        if (known.descr == descr) return std::string(known.type);
    const std::string what = fmt::format("type {}", quoted(descr));
    constexpr std::string_view expected = "float16, 32, 64, an integer or bool, little-endian";
    const char letter = descr.size() > 1 ? descr[1] : '\0';
    for (const Unusable& type : unusable_types)
        if (type.letter == letter)
            refuse(fmt::format("{}: {}", what, type.name), where, std::string(expected),
                   std::string(type.remedy));
    if (descr.starts_with('>'))
        refuse(what + ": big-endian", where, std::string(expected),
               "save .astype(array.dtype.newbyteorder('<'))");
    refuse(what, where, std::string(expected));
}

/// Bytes of header and what stands before it; the header's text in `text`.
size_t read_preamble(std::span<const std::byte> file, const std::string& name, std::string_view& text) {
    const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
    if (!is_npy(file)) refuse("this is no npy file", name, "\\x93NUMPY at its beginning");
    const size_t version_at = magic.size();
    if (bytes.size() < version_at + 2) refuse("the file ends in its version", name, "a whole file");
    const uint8_t major = static_cast<uint8_t>(bytes[version_at]);
    const uint8_t minor = static_cast<uint8_t>(bytes[version_at + 1]);
    if (major < 1 || major > 3 || minor != 0)
        refuse(fmt::format("version {}.{}", major, minor), name, "version 1.0, 2.0 or 3.0");
    const size_t length_bytes = major == 1 ? 2 : 4;
    const size_t begin = version_at + 2 + length_bytes;
    if (bytes.size() < begin) refuse("the file ends in the length of its header", name, "a whole file");
    size_t length = 0;
    for (size_t i = 0; i < length_bytes; ++i)
        length |= size_t{static_cast<uint8_t>(bytes[version_at + 2 + i])} << (8 * i);
    if (length > most_header_bytes || length > bytes.size() - begin)
        refuse(fmt::format("a header of {} bytes", length), name,
               fmt::format("at most {} here", std::min(most_header_bytes, bytes.size() - begin)));
    text = bytes.substr(begin, length);
    return begin + length;
}

/// Bytes of the elements, or none where the extents that are not 0 would leave 62 bits: whoever multiplies
/// them, in whatever order, is safe.
std::optional<int64_t> payload_bytes(int64_t element_bytes, const std::vector<int64_t>& shape) {
    constexpr int64_t most = int64_t{1} << 62;
    int64_t bytes = element_bytes;
    for (int64_t extent : shape) {
        if (extent != 0 && bytes > most / extent) return std::nullopt;
        bytes *= std::max<int64_t>(extent, 1);
    }
    return std::ranges::find(shape, 0) != shape.end() ? 0 : bytes;
}

}  // namespace

std::vector<int64_t> NpyArray::shape() const {
    std::vector<int64_t> extents = stored.shape;
    if (fortran_order) std::ranges::reverse(extents);
    return extents;
}

bool is_npy(std::span<const std::byte> file) {
    const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
    return bytes.starts_with(magic);
}

NpyArray parse_npy(std::span<const std::byte> file, const std::string& name) {
    std::string_view text;
    const size_t begin = read_preamble(file, name, text);
    const Header header = parse_header(text, name);
    NpyArray array{{type_of(*header.descr, name), *header.shape, file.subspan(begin)}, *header.fortran_order};
    const int64_t there = std::ssize(array.stored.bytes);
    const int64_t width = *safetensors_element_bytes(array.stored.type);
    if (payload_bytes(width, array.stored.shape) != there)
        refuse(fmt::format("{} bytes for {} [{}]", there, array.stored.type, fmt::join(*header.shape, ", ")),
               name, "as many as type and shape need");
    if (array.fortran_order) std::ranges::reverse(array.stored.shape);
    return array;
}

NpyFile::NpyFile(const std::filesystem::path& path)
    : file_(path, "a readable npy file"), array_(parse_npy(file_.bytes(), path.string())) {}

void write_npy(const std::filesystem::path& path, const TensorView& array) {
    const auto* known = std::ranges::find(npy_types, array.type, &NpyType::type);
    if (known == std::end(npy_types))
        refuse(fmt::format("type {}", array.type), path.string(), "a type that npy files have",
               "write it as U8 or U16, or a safetensors file");
    std::string shape;
    for (int64_t extent : array.shape) shape += fmt::format("{}, ", extent);
    if (array.shape.size() > 1) shape.resize(shape.size() - 2);
    if (array.shape.size() == 1) shape.resize(shape.size() - 1);
    std::string header =
        fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", known->descr, shape);
    const size_t preamble = magic.size() + 4;
    const size_t unpadded = preamble + header.size() + 1;
    header.append((alignment_bytes - unpadded % alignment_bytes) % alignment_bytes, ' ');
    header += '\n';
    std::string start(magic);
    start += {'\1', '\0', static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
    start += header;
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(start)));
    file.write(array.bytes);
    file.finish();
}

}  // namespace touchstone
