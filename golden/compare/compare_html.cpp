#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "golden/compare/compare_text.h"
#include "golden/compare/printable.h"
#include "reference/registry/tensor.h"

namespace touchstone {

namespace {

constexpr std::string_view style = R"(
:root{--paper:#fff;--ink:#1d1f23;--soft:#5b616b;--line:#dfe2e6;--card:#f6f7f9;
--equal:#2f7a45;--passed:#1f6aa5;--tie:#7350a5;--mistrusted:#8a6400;--failed:#b3261e}
@media(prefers-color-scheme:dark){:root{--paper:#16181c;--ink:#e4e6ea;--soft:#a0a7b2;--line:#33373d;--card:#1e2126;
--equal:#6fbf80;--passed:#6ab0e6;--tie:#b79be0;--mistrusted:#e0b040;--failed:#ff8a7d}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.35rem;margin:0 0 .25rem}h2{font-size:1.05rem;margin:2rem 0 .5rem}
p{margin:.25rem 0}.soft{color:var(--soft)}code,.number{font-family:ui-monospace,monospace;font-size:.86em}
code{overflow-wrap:anywhere}pre{background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:.75rem;overflow-x:auto;font-size:.86em}
.badge{display:inline-block;border:1px solid currentColor;border-radius:4px;padding:0 .4em;font-size:.8em;
font-weight:600;letter-spacing:.02em}
.equal{color:var(--equal)}.passed{color:var(--passed)}.tie{color:var(--tie)}
.mistrusted{color:var(--mistrusted)}.failed,.incomplete{color:var(--failed)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92em}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}td.number,th.number{text-align:right;white-space:nowrap}
td.reason{min-width:16rem}td.name{overflow-wrap:anywhere;min-width:9rem}
details{border:1px solid var(--line);border-radius:6px;padding:.5rem .75rem;margin:.5rem 0}
summary{cursor:pointer;overflow-wrap:anywhere}
.bins{display:grid;grid-template-columns:max-content max-content 1fr;gap:.15rem .75rem;margin:.5rem 0;
align-items:center}.bins .number{text-align:right}.bar{height:.8rem;background:currentColor;border-radius:2px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .75rem;margin:.5rem 0}
dt{color:var(--soft)}dd{margin:0;min-width:0;overflow-wrap:anywhere}
@media(max-width:34rem){dl{grid-template-columns:1fr}dt{margin-top:.4rem}}
svg{width:100%;height:auto;border:1px solid var(--line);border-radius:6px}
)";

std::string badge(std::string_view verdict) {
    return fmt::format("<span class=\"badge {}\">{}</span>", lower(verdict), verdict);
}

std::string table_row(const TensorComparison& tensor) {
    const bool measured = tensor.difference.has_value();
    return fmt::format(
        "<tr><td>{}</td><td class=\"name\"><code>{}</code></td><td><code>{}</code></td>"
        "<td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>"
        "<td class=\"reason\">{}</td></tr>\n",
        badge(name_of(tensor.verdict)), escaped(name_text(tensor.name)), describe(tensor.type, tensor.shape),
        measured ? fmt::format("{}", tensor.difference->elements - tensor.difference->identical) : "-",
        measured && tensor.minimum.ulp ? fmt::format("{}", *tensor.minimum.ulp) : "-",
        measured && tensor.minimum.rms ? number_text(*tensor.minimum.rms) : "-", escaped(tensor.reason));
}

std::string histogram(const TensorComparison& tensor) {
    const Difference& d = *tensor.difference;
    const int64_t most = std::max<int64_t>(1, *std::ranges::max_element(d.ulp_bins));
    std::string text =
        fmt::format("<div class=\"bins {}\" role=\"img\" aria-label=\"histogram of distances\">\n",
                    lower(name_of(tensor.verdict)));
    for (size_t bin = 0; bin < d.ulp_bins.size(); ++bin) {
        const double share = 100 * static_cast<double>(d.ulp_bins[bin]) / static_cast<double>(most);
        text += fmt::format(
            "<span class=\"number\">{}</span><span class=\"number\">{}</span>"
            "<span class=\"bar\" style=\"width:{:.2f}%\"></span>\n",
            escaped(bin_text(bin)), d.ulp_bins[bin], d.ulp_bins[bin] == 0 ? 0 : std::max(share, 0.5));
    }
    return text + "</div>\n";
}

std::string element(std::string_view label, const ElementPair& pair, const TensorComparison& tensor) {
    if (pair.index < 0) return "";
    return fmt::format(
        "<dt>{} element</dt><dd><code>[{}]</code> expected <code>{} ({})</code>, got "
        "<code>{} ({})</code></dd>\n",
        label, fmt::join(index_tuple(pair.index, tensor.shape), ", "), number_text(pair.expected),
        bits_text(tensor.type, pair.expected_bits), number_text(pair.got),
        bits_text(tensor.type, pair.got_bits));
}

std::string details(const TensorComparison& tensor, bool open, const std::string& allow) {
    const Difference& d = *tensor.difference;
    std::string text =
        fmt::format("<details{}><summary>{} <code>{}</code></summary>\n<dl>\n", open ? " open" : "",
                    badge(name_of(tensor.verdict)), escaped(name_text(tensor.name)));
    text += fmt::format("<dt>tolerance</dt><dd><code>{}</code></dd>\n", tolerance_text(tensor.tolerance));
    text += fmt::format("<dt>identical</dt><dd>{} of {} elements; {} of {} rows differ</dd>\n", d.identical,
                        d.elements, d.differing_rows, d.rows);
    text += element("first", d.first, tensor) + element("worst", d.worst, tensor);
    if (tensor.worst_unrounded)
        text += fmt::format("<dt>before rounding</dt><dd>expected <code>{}</code>{}</dd>\n",
                            number_text(*tensor.worst_unrounded),
                            tensor.rounding_tie ? ", halfway: either is a rounding of it" : "");
    if (is_doubted(tensor) && !allow.empty())
        text += fmt::format("<dt>doubt</dt><dd>{}; to take it as it is: <code>{}</code></dd>\n", tensor.doubt,
                            escaped(allow));
    if (!d.equal()) text += fmt::format("<dt>limits</dt><dd><code>{}</code></dd>\n", minimum_text(tensor));
    text += fmt::format("<dt>sums</dt><dd>{}</dd>\n</dl>\n", sums_text(d));
    return text + "<p class=\"soft\">Elements by distance in units in the last place</p>\n" +
           histogram(tensor) + "</details>\n";
}

std::string counts_text(const CompareReport& report) {
    std::string text;
    for (size_t v = 0; v < verdict_count; ++v)
        if (report.counts[v] > 0)
            text += fmt::format("{} {} ", badge(name_of(static_cast<Verdict>(v))), report.counts[v]);
    return text;
}

std::string all_details(const CompareReport& report, const std::string& allow) {
    const TensorComparison* worst = report.worst();
    std::string text;
    if (worst != nullptr && worst->difference) text += details(*worst, true, allow);
    for (const TensorComparison& tensor : report.tensors)
        if (tensor.verdict != Verdict::equal && tensor.difference && &tensor != worst)
            text += details(tensor, false, "");
    return text.empty() ? text : "<h2>What differs</h2>\n" + text;
}

}  // namespace

std::string compare_html(const CompareReport& report, const CompareCommands& commands) {
    std::string text =
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n<title>touchstone compare</title>\n";
    text += fmt::format("<style>{}</style>\n</head>\n<body>\n", style);
    text += fmt::format(
        "<h1>{} {} tensors</h1>\n<p class=\"soft\">expected <code>{}</code>, got <code>{}</code></p>\n",
        badge(verdict_text(report)), report.tensors.size(), escaped(report.expected_path),
        escaped(report.got_path));
    text += fmt::format("<p>{}</p>\n", counts_text(report));
    for (const std::string& warning : report.warnings)
        text += fmt::format("<p class=\"mistrusted\">warning: {}</p>\n", escaped(warning));
    if (!report.tensors.empty()) text += compare_svg(report);
    text += all_details(report, commands.allow);
    text +=
        "<h2>All tensors</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>verdict</th><th>tensor</th>"
        "<th>type and shape</th><th class=\"number\">differ</th><th class=\"number\">ulp</th>"
        "<th class=\"number\">of rms</th><th>why</th></tr></thead>\n<tbody>\n";
    for (const TensorComparison& tensor : report.tensors) text += table_row(tensor);
    text += "</tbody>\n</table></div>\n";
    if (!commands.reproduce.empty())
        text += fmt::format("<h2>Again</h2>\n<pre>{}</pre>\n", escaped(commands.reproduce));
    return text + "</body>\n</html>\n";
}

}  // namespace touchstone
