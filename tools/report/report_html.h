// What the sections of the report page are written with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

// Text or attribute value; control characters become U+FFFD.
std::string escapeHtml(std::string_view text);

// Escaped, and a line may break after the punctuation of names and options.
std::string breakable(std::string_view text);

// A section of the page, with its title as heading; `content` is already escaped HTML. And a paragraph, which
// escapes.
std::string section(std::string_view id, std::string_view title, const std::string& content);
std::string paragraph(std::string_view text);

// A cell of already escaped HTML.
struct HtmlCell {
  std::string html;
  bool number = false;  // right-aligned, equal digit widths
};
HtmlCell textCell(std::string_view text);  // escapes
HtmlCell codeCell(std::string_view text);  // escapes; breakable
HtmlCell numberCell(std::string_view text);

struct HtmlTable {
  std::string name;  // for screen readers
  std::vector<HtmlCell> head;
  std::vector<std::vector<HtmlCell>> rows;
  // on narrow screens a row becomes a card: the cells below each other, each with its heading (plain text)
  bool cards = false;
};
// The table in a container of its own that scrolls, also with the keyboard.
std::string renderTable(const HtmlTable& table);

// A container that scrolls sideways, also with the keyboard, around already escaped HTML.
std::string scrollBox(std::string_view name, std::string_view html);

}  // namespace pipeshard
