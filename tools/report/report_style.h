// The colours and type of the report: one palette for the page and all pictures, light and dark.
//
// Every style is CSS text. Colours are custom properties, given twice: in `:root` or `.pic` for light paper,
// and inside `@media (prefers-color-scheme:dark)` for dark paper; tests/tools/report/report_style_test.cc
// computes the contrast of each pair that inkPairs() lists, in both.
#pragma once

#include <string_view>
#include <vector>

namespace pipeshard {

extern const char* const kPageStyle;
extern const char* const kShardingStyle;  // the classes that renderShardings uses
extern const char* const kPictureStyle;   // the classes of the pictures, in the page and in files

// Which ink stands on which paper, by custom property, and the least contrast that WCAG 2.1 AA asks for: 4.5
// for text (1.4.3), 3 for what must be told apart from its surroundings (1.4.11).
struct InkPair {
  std::string_view ink;
  std::string_view paper;
  double least = 4.5;
};
const std::vector<InkPair>& inkPairs();

}  // namespace pipeshard
