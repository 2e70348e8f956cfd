// WCAG 2.1, success criteria 1.4.3 and 1.4.11, computed from the colours of the style itself.

#include "tools/report/report_style.h"

#include <cmath>
#include <map>
#include <regex>
#include <string>

#include <gtest/gtest.h>

namespace pipeshard {
namespace {

using Colours = std::map<std::string, std::string>;

void addColours(const std::string& css, Colours& colours) {
  static const std::regex colour("--([a-z0-9-]+):(#[0-9a-f]{6})");
  for (std::sregex_iterator it(css.begin(), css.end(), colour), end; it != end; ++it)
    colours[(*it)[1]] = (*it)[2];
}

// The custom properties for light paper, and as dark paper changes them.
std::pair<Colours, Colours> schemes() {
  Colours light, dark;
  for (std::string css : {kPictureStyle, kPageStyle}) {
    const size_t begin = css.find("@media (prefers-color-scheme:dark)");
    const size_t end = css.find("}}", begin);
    EXPECT_NE(begin, std::string::npos);
    addColours(css.substr(begin, end - begin), dark);
    addColours(css.substr(0, begin) + css.substr(end), light);
  }
  for (const auto& [name, colour] : light) dark.emplace(name, colour);
  return {light, dark};
}

// Relative luminance, as WCAG defines it.
double luminance(const std::string& colour) {
  double sum = 0;
  const double weights[] = {0.2126, 0.7152, 0.0722};
  for (size_t i = 0; i < 3; ++i) {
    const double value = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += weights[i] * (value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4));
  }
  return sum;
}

double contrast(const std::string& a, const std::string& b) {
  const double first = luminance(a), second = luminance(b);
  return (std::max(first, second) + 0.05) / (std::min(first, second) + 0.05);
}

TEST(Contrast, IsAsTheStandardDefinesIt) {
  EXPECT_NEAR(contrast("#000000", "#ffffff"), 21, 1e-9);
  EXPECT_NEAR(contrast("#777777", "#ffffff"), 4.478, 1e-3);  // the well-known grey that just fails
}

TEST(ReportStyle, HasContrastAAInLightAndDark) {
  const auto [light, dark] = schemes();
  EXPECT_GE(inkPairs().size(), 40u);
  for (const InkPair& pair : inkPairs()) {
    for (const Colours& colours : {light, dark}) {
      ASSERT_TRUE(colours.contains(std::string(pair.ink))) << pair.ink;
      ASSERT_TRUE(colours.contains(std::string(pair.paper))) << pair.paper;
      EXPECT_GE(contrast(colours.at(std::string(pair.ink)), colours.at(std::string(pair.paper))), pair.least)
          << pair.ink << " on " << pair.paper << (&colours == &light ? ", light" : ", dark");
    }
  }
}

TEST(ReportStyle, GivesEveryColourOfTheDarkSchemeALightOne) {
  const auto [light, dark] = schemes();
  EXPECT_EQ(light.size(), dark.size());
}

}  // namespace
}  // namespace pipeshard
