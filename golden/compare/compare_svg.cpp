#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "golden/compare/compare_text.h"
#include "golden/compare/printable.h"

namespace touchstone {

namespace {

// Units of the drawing.
constexpr double left = 78, right = 24, width = 840, panel_height = 190, panel_gap = 96, top = 48;
constexpr double most_labels = 12;

/// The powers of ten that a panel shows.
struct Scale {
    int lowest = -8, highest = 0;

    explicit Scale(const std::vector<double>& errors) {
        double smallest = std::numeric_limits<double>::infinity(), largest = 0;
        for (double error : errors) {
            if (!(error > 0) || std::isinf(error)) continue;
            smallest = std::min(smallest, error);
            largest = std::max(largest, error);
        }
        if (largest == 0) return;
        lowest = static_cast<int>(std::floor(std::log10(smallest)));
        highest = std::max(lowest + 1, static_cast<int>(std::ceil(std::log10(largest))));
    }
    /// From 0, the bottom, to 1; what is not finite stands at the top.
    double share(double error) const {
        if (!(error > 0)) return std::isnan(error) ? 1 : 0;
        if (std::isinf(error)) return 1;
        return (std::log10(error) - lowest + 0.02 * (highest - lowest)) / (1.04 * (highest - lowest));
    }
};

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                       escaped(text));
}

std::string grid(const Scale& scale, double y) {
    std::string text;
    const int step = std::max(1, (scale.highest - scale.lowest + 7) / 8);
    for (int power = scale.lowest; power <= scale.highest; power += step) {
        const double at = y + panel_height * (1 - scale.share(std::pow(10.0, power)));
        text += fmt::format("<line class=\"grid\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>\n", left,
                            at, width - right, at);
        text += text_at(left - 8, at + 4, "end", fmt::format("1e{}", power));
    }
    return text + fmt::format("<line class=\"axis\" x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\"/>\n",
                              left, y + panel_height, width - right);
}

/// A bar for each error; `tips` say what it is of, `classes` how it looks.
struct Bars {
    std::vector<double> errors;
    std::vector<std::string> tips, classes;
};

std::string panel(const Bars& bars, const std::string& title, double y) {
    const Scale scale(bars.errors);
    std::string text = text_at(left, y - 14, "start", title) + grid(scale, y);
    const double pitch =
        (width - right - left) / std::max<double>(1, static_cast<double>(bars.errors.size()));
    for (size_t i = 0; i < bars.errors.size(); ++i) {
        const double height = std::max(2.0, panel_height * scale.share(bars.errors[i]));
        const double x = left + pitch * static_cast<double>(i);
        text += fmt::format(
            "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
            "height=\"{:.2f}\"><title>{}</title>"
            "</rect>\n",
            bars.classes[i], x + pitch * 0.1, y + panel_height - height, std::clamp(pitch * 0.8, 0.6, 48.0),
            height, escaped(bars.tips[i]));
    }
    return text;
}

double error_of(const TensorComparison& tensor) {
    if (!tensor.difference) return std::numeric_limits<double>::infinity();
    const bool places = tensor.difference->outside > 0 && tensor.difference->largest_of_rms == 0 &&
                        tensor.difference->zero_signs < tensor.difference->outside;
    return places ? std::numeric_limits<double>::infinity() : tensor.difference->largest_of_rms;
}

std::string tensor_panel(const CompareReport& report) {
    Bars bars;
    for (const TensorComparison& tensor : report.tensors) {
        bars.errors.push_back(error_of(tensor));
        bars.classes.push_back(lower(name_of(tensor.verdict)));
        bars.tips.push_back(fmt::format("{}: {}, {}", name_text(tensor.name), name_of(tensor.verdict),
                                        number_text(bars.errors.back())));
    }
    std::string text = panel(bars, "largest error of each tensor, in units of its row's rms", top);
    const size_t count = report.tensors.size();
    const size_t step =
        std::max<size_t>(1, static_cast<size_t>(std::ceil(static_cast<double>(count) / most_labels)));
    const double pitch = (width - right - left) / std::max<double>(1, static_cast<double>(count));
    for (size_t i = 0; i < count; i += step) {
        const double x = left + pitch * static_cast<double>(i) + std::min(pitch * 0.5, 24.0);
        text += fmt::format(
            "<text class=\"name\" text-anchor=\"end\" transform=\"translate({:.1f} {:.1f}) "
            "rotate(-18)\">{}</text>\n",
            x, top + panel_height + 14, escaped(shortened(name_text(report.tensors[i].name), 16)));
    }
    return text;
}

std::string row_panel(const TensorComparison& worst, double y) {
    Bars bars;
    const int64_t rows = worst.difference->rows, points = std::ssize(worst.row_errors);
    for (int64_t i = 0; i < points; ++i) {
        const int64_t first = (i * rows + points - 1) / points, next = ((i + 1) * rows + points - 1) / points;
        bars.errors.push_back(worst.row_errors[static_cast<size_t>(i)]);
        bars.classes.push_back(lower(name_of(worst.verdict)));
        bars.tips.push_back(
            next - first > 1
                ? fmt::format("rows {} to {}: {}", first, next - 1, number_text(bars.errors.back()))
                : fmt::format("row {}: {}", first, number_text(bars.errors.back())));
    }
    return panel(bars, fmt::format("error of each row of {}", shortened(name_text(worst.name), 60)), y) +
           text_at(left, y + panel_height + 16, "start", "row 0") +
           text_at(width - right, y + panel_height + 16, "end",
                   fmt::format("row {}", std::max<int64_t>(rows - 1, 0)));
}

constexpr std::string_view style =
    "text{font:12px "
    "system-ui,sans-serif;fill:#222}.name{font-size:10.5px}.grid{stroke:#d8d8d8}.axis{stroke:#555}"
    ".equal{fill:#4f8a5b}.passed{fill:#3f7fb5}.tie{fill:#8a6bb0}.mistrusted{fill:#b8860b}.failed{fill:#"
    "c0392b}"
    ".paper{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#3a3d42}.axis{stroke:#999}.paper{fill:#"
    "16181c}"
    ".equal{fill:#6fbf80}.passed{fill:#6ab0e6}.tie{fill:#b79be0}.mistrusted{fill:#e0b040}.failed{fill:#"
    "ef6a5a}}";

}  // namespace

std::string compare_svg(const CompareReport& report) {
    const TensorComparison* worst = report.worst();
    const bool with_rows = worst != nullptr && !worst->row_errors.empty();
    const double second = top + panel_height + panel_gap;
    const double height = (with_rows ? second : top) + panel_height + (with_rows ? 32 : 72);
    std::string text = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
        "aria-label=\"errors by tensor and row\">\n<style>{}</style>\n"
        "<rect class=\"paper\" width=\"{}\" height=\"{}\"/>\n",
        width, height, style, width, height);
    text += tensor_panel(report);
    if (with_rows) text += row_panel(*worst, second);
    return text + "</svg>\n";
}

}  // namespace touchstone
