// touchstone bisect --svg: how the error grows from layer to layer. A step is a bug, a slope is noise.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "cli/bisect.h"
#include "golden/compare/printable.h"

namespace touchstone::cli {

namespace {

constexpr double left = 70, top = 40, width = 620, height = 300;
/// Powers of ten of the axis.
constexpr double lowest = -8, highest = 1;
constexpr std::array colours{"#1b6ca8", "#c8553d", "#3a7d44", "#7d5ba6", "#b8860b", "#4a4a4a"};

double y_of(double error) {
    const double power = error > 0 ? std::clamp(std::log10(error), lowest, highest) : lowest;
    return top + height * (highest - power) / (highest - lowest);
}

double x_of(int layer, int layers) {
    return left + width * layer / std::max(layers - 1, 1);
}

std::string label(double x, double y, const char* anchor, const std::string& text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                       escaped(text));
}

std::string axes(int layers) {
    std::string text;
    for (double power = lowest; power <= highest; ++power) {
        const double y = y_of(std::pow(10, power));
        text += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", left,
                            y, left + width, y);
        text += label(left - 8, y + 4, "end", power == lowest ? "0" : fmt::format("1e{}", power));
    }
    for (int layer = 0; layer < layers; layer += std::max(layers / 10, 1))
        text += label(x_of(layer, layers), top + height + 18, "middle", fmt::format("{}", layer));
    return text + label(left + width / 2, top + height + 36, "middle", "layer");
}

}  // namespace

std::string growth_svg(const TraceQuestion& question, const BisectResult& result) {
    std::map<size_t, std::map<int, double>> lines;
    int layers = 0;
    for (const TensorReport& report : result.tensors) {
        layers = std::max(layers, report.layer + 1);
        if (report.name != "x_out") continue;
        if (const auto error = relative_error(report)) lines[report.call][report.layer] = *error;
    }
    std::string text = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        left + width + 30, top + height + 70);
    text += label(left, 22, "start",
                  fmt::format("x_out of {}: rms error over the reference's rms", question.theirs));
    text += axes(layers);
    if (lines.empty())
        text += label(left + width / 2, top + height / 2, "middle", "no x_out to hold against a reference");
    for (const auto& [call, errors] : lines) {
        const char* colour = colours[call % colours.size()];
        std::string points;
        for (const auto& [layer, error] : errors)
            points += fmt::format("{:.1f},{:.1f} ", x_of(layer, layers), y_of(error));
        text += fmt::format(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"><title>call at "
            "position {}</title></polyline>\n",
            points, colour, question.calls[call].first_position);
    }
    if (!result.made_here.empty() && result.tensors[result.made_here.front()].layer >= 0) {
        const TensorReport& fault = result.tensors[result.made_here.front()];
        const double x = x_of(fault.layer, layers);
        text += fmt::format(
            "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#c00\" "
            "stroke-dasharray=\"4 3\"/>\n",
            x, top, top + height);
        text += label(left, top + height + 56, "start", "made here: " + full_name(question.calls, fault));
    }
    return text + "</svg>\n";
}

}  // namespace touchstone::cli
