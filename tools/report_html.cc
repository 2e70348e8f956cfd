#include "tools/report_html.h"

#include <fmt/format.h>

namespace pipeshard {

const char* const kScheduleStyle = R"css(.sched{--line:#c3cad3;--track:#eef1f4;--ink:#1a2129;--dim:#566170;--paper:#fff}
@media (prefers-color-scheme:dark){.sched{--line:#414b57;--track:#232a32;--ink:#e8ecf0;--dim:#a3afbc;--paper:#14181d}}
.sched text{font:12px system-ui,sans-serif;fill:var(--ink)}
.sched .dim{font-size:11px;fill:var(--dim)}
.sched .paper{fill:var(--paper)}
.sched .track{fill:var(--track)}
.sched .grid{stroke:var(--line);stroke-width:1}
.sched .f{fill:#a9d4f7}.sched .b{fill:#1d5f9e}.sched .i{fill:#1d5f9e}.sched .w{fill:#7d4a93}
.sched text.n{font-size:11px;text-anchor:middle}
.sched text.f{fill:#0b2239}.sched text.b,.sched text.i,.sched text.w{fill:#fff}
)css";

const char* const kPageStyle =
    R"css(:root{color-scheme:light dark;--paper:#fff;--panel:#f5f7f9;--ink:#1a2129;--dim:#566170;--line:#d5dae1;--link:#0b5cad;
--pass:#0f6b3c;--pass-paper:#e4f5eb;--fail:#a5201d;--fail-paper:#fdeaea;--forward:#a9d4f7;--backward:#1d5f9e}
@media (prefers-color-scheme:dark){:root{--paper:#14181d;--panel:#1c222a;--ink:#e8ecf0;--dim:#a3afbc;--line:#36404b;--link:#7cb8f5;
--pass:#7fdca6;--pass-paper:#12301f;--fail:#ff9d97;--fail-paper:#3d1717;--backward:#3f83c4}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main,header,nav{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:28px}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:40px 0 8px}
h3{font-size:.85rem;margin:0 0 6px;color:var(--dim);font-weight:600}
p{margin:8px 0;max-width:75ch}
a{color:var(--link)}
nav ul{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:16px 0 0;padding:10px 0;border-bottom:1px solid var(--line)}
code,pre{font:.86em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{overflow-wrap:anywhere}
pre{margin:0;padding:12px 14px;white-space:pre}
.dim{color:var(--dim)}
.verdict{margin:16px 0 0;padding:12px 16px;border-left:5px solid var(--dim);background:var(--panel);border-radius:4px}
.verdict p{margin:2px 0}
.verdict b{font-size:1.1rem}
.pass{border-color:var(--pass);background:var(--pass-paper)}
.fail{border-color:var(--fail);background:var(--fail-paper)}
.pass b,td .ok{color:var(--pass)}
.fail b,td .bad{color:var(--fail)}
td .bad{font-weight:700}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px;margin:10px 0}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{padding:7px 12px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tbody tr:last-child td{border-bottom:0}
th{background:var(--panel);font-weight:600;white-space:nowrap}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td code{display:inline-block;min-width:12rem;max-width:26rem}
td code+code{border-top:1px dotted var(--line)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px 24px;margin:20px 0 0}
.facts div{min-width:0}
.facts .wide{grid-column:span 2}
.facts dt{color:var(--dim);font-size:.85rem}
.facts dd{margin:0;font-weight:600;overflow-wrap:anywhere}
.bar{display:flex;width:120px;height:12px;margin:6px 0 2px;background:var(--panel);border:1px solid var(--line);border-radius:3px;overflow:hidden}
.bar i{display:block;height:100%}
.bar .f{background:var(--forward)}.bar .b{background:var(--backward)}
.nodes{display:flex;flex-wrap:wrap;gap:12px}
.node{border:1px solid var(--line);border-radius:6px;padding:10px 12px;background:var(--panel)}
.node ul{display:flex;flex-wrap:wrap;gap:8px;list-style:none;margin:0;padding:0}
.node li{min-width:92px;padding:6px 10px;border:1px solid var(--line);border-radius:4px;background:var(--paper);font-size:.85rem;color:var(--dim)}
.node li b{display:block;color:var(--ink);font-size:.95rem}
.node .idle{border-style:dashed;background:none}
svg{display:block}
.chart{padding:6px 2px}
details{margin:10px 0}
summary{cursor:pointer}
footer{max-width:1120px;margin:40px auto 0;padding:14px 20px 40px;color:var(--dim);font-size:.85rem;overflow-wrap:anywhere}
@media (max-width:600px){main,header,nav,footer{padding-left:14px;padding-right:14px}h1{font-size:1.35rem}.facts{grid-template-columns:1fr 1fr}}
@media print{nav{display:none}.scroll{overflow:visible}}
)css";

// Colours of specs: light paper with dark ink, so that the text is read in both schemes.
const char* const kShardingStyle =
    R"css(.spec{display:inline-block;padding:1px 9px;border-radius:9px;color:#0b1b2b;white-space:nowrap;font-variant-numeric:tabular-nums}
.c0{background:#a9d4f7}.c1{background:#bfe6b8}.c2{background:#f9d59b}.c3{background:#e3c4f2}.c4{background:#f6bcb8}.c5{background:#a8e4df}.c6{background:#e6e19a}.c7{background:#cdd3f5}
.whole{background:none;color:var(--dim);border:1px solid var(--line)}
.specs{display:flex;flex-wrap:wrap;gap:6px 14px;list-style:none;margin:8px 0;padding:0}
)css";

std::string escapeHtml(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default:
        if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
          escaped += "\xEF\xBF\xBD";
        } else {
          escaped += c;
        }
    }
  }
  return escaped;
}

std::string breakable(std::string_view text) {
  std::string html;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (std::string_view("/._,:=").find(text[i]) == std::string_view::npos) continue;
    html += escapeHtml(text.substr(begin, i + 1 - begin)) + "<wbr>";
    begin = i + 1;
  }
  return html + escapeHtml(text.substr(begin));
}

std::string section(std::string_view id, std::string_view title, const std::string& content) {
  return fmt::format("<section id=\"{}\" aria-labelledby=\"{}-title\">\n<h2 id=\"{}-title\">{}</h2>\n{}</section>\n", id, id, id, title,
                     content);
}

std::string paragraph(std::string_view text) { return fmt::format("<p>{}</p>\n", escapeHtml(text)); }

HtmlCell textCell(std::string_view text) { return {escapeHtml(text), false}; }
HtmlCell codeCell(std::string_view text) { return {fmt::format("<code>{}</code>", breakable(text)), false}; }
HtmlCell numberCell(std::string_view text) { return {escapeHtml(text), true}; }

std::string scrollBox(std::string_view name, std::string_view html) {
  return fmt::format("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">{}</div>\n", escapeHtml(name), html);
}

std::string renderTable(const HtmlTable& table) {
  std::string html = "<table>\n<thead><tr>";
  for (const HtmlCell& cell : table.head)
    html += fmt::format("<th scope=\"col\"{}>{}</th>", cell.number ? " class=\"num\"" : "", cell.html);
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const HtmlCell& cell : row) html += fmt::format("<td{}>{}</td>", cell.number ? " class=\"num\"" : "", cell.html);
    html += "</tr>\n";
  }
  return scrollBox(table.name, html + "</tbody></table>");
}

}  // namespace pipeshard
