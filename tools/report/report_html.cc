#include "tools/report/report_html.h"

#include <fmt/format.h>

namespace pipeshard {

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
  return fmt::format(
      "<section id=\"{}\" aria-labelledby=\"{}-title\">\n<h2 id=\"{}-title\">{}</h2>\n{}</section>\n", id, id,
      id, title, content);
}

std::string paragraph(std::string_view text) { return fmt::format("<p>{}</p>\n", escapeHtml(text)); }

HtmlCell textCell(std::string_view text) { return {escapeHtml(text), false}; }
HtmlCell codeCell(std::string_view text) { return {fmt::format("<code>{}</code>", breakable(text)), false}; }
HtmlCell numberCell(std::string_view text) { return {escapeHtml(text), true}; }

std::string scrollBox(std::string_view name, std::string_view html) {
  return fmt::format("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">{}</div>\n",
                     escapeHtml(name), html);
}

std::string renderTable(const HtmlTable& table) {
  std::string html = fmt::format("<table{}>\n<thead><tr>", table.cards ? " class=\"cards\"" : "");
  for (const HtmlCell& cell : table.head)
    html += fmt::format("<th scope=\"col\"{}>{}</th>", cell.number ? " class=\"num\"" : "", cell.html);
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string label =
          table.cards && c < table.head.size() ? fmt::format(" data-label=\"{}\"", table.head[c].html) : "";
      html += fmt::format("<td{}{}>{}</td>", row[c].number ? " class=\"num\"" : "", label, row[c].html);
    }
    html += "</tr>\n";
  }
  return scrollBox(table.name, html + "</tbody></table>");
}

}  // namespace pipeshard
