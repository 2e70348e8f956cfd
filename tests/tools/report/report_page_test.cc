// Pages of the report as a reader of HTML sees them, and as a browser lays them out: at the size of a laptop
// and of a phone, light and dark. The browser is Chromium, headless; where there is none, those tests are
// skipped.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.h"
#include "tests/tools/report/report_samples.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

using Pages = std::vector<std::pair<std::string, std::string>>;

const Pages& pages() {
  static const auto all = samplePages();
  return all;
}

std::string readText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// What is wrong with the nesting of the tags; "" if nothing.
std::string nestingFault(const std::string& html) {
  static const std::set<std::string> kVoid = {"meta", "wbr", "br"};
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    if (html.compare(at, 9, "<!DOCTYPE") == 0) continue;
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "a tag does not end: " + html.substr(at, 40);
    const std::string tag = html.substr(at + 1, end - at - 1);
    const bool closing = tag[0] == '/';
    const std::string name = tag.substr(closing ? 1 : 0, tag.find_first_of(" /", 1) - (closing ? 1 : 0));
    if (closing) {
      if (open.empty() || open.back() != name)
        return fmt::format("</{}> closes <{}>", name, open.empty() ? "" : open.back());
      open.pop_back();
    } else if (tag.back() != '/' && !kVoid.contains(name)) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "never closed: <" + open.back() + ">";
}

std::vector<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    found.push_back((*it)[1]);
  return found;
}

TEST(ReportPage, IsWellFormed) {
  EXPECT_EQ(nestingFault("<p>a<b>c</p></b>"), "</p> closes <b>");
  EXPECT_EQ(nestingFault("<p>a"), "never closed: <p>");
  for (const auto& [name, html] : pages()) {
    EXPECT_EQ(nestingFault(html), "") << name;
    const std::vector<std::string> all = matches(html, " id=\"([^\"]*)\"");
    const std::set<std::string> ids(all.begin(), all.end());
    EXPECT_EQ(ids.size(), all.size()) << name << ": an id twice";
    for (const char* reference :
         {"href=\"#([^\"]*)\"", "aria-labelledby=\"([^\"]*)\"", "url\\(#([^)]*)\\)"}) {
      for (const std::string& id : matches(html, reference))
        EXPECT_TRUE(ids.contains(id)) << name << ": " << id;
    }
    EXPECT_EQ(html.find("nan"), std::string::npos) << name;
    EXPECT_EQ(html.find("width:-"), std::string::npos) << name;
  }
}

TEST(ReportPage, StaysLightForManyRanksAndMicrobatches) {
  for (const auto& [name, html] : pages()) EXPECT_LT(html.size(), 1'500'000u) << name;
  // no boxes of their own
  EXPECT_EQ(pages().back().second.find("<g><title>"), std::string::npos);
  // but the orders as text
  EXPECT_NE(pages().back().second.find("15: 15F0 15I0 15F1 15I1"), std::string::npos);
}

TEST(ReportPage, IsTheSameForTheSameInput) { EXPECT_EQ(samplePages(), pages()); }

std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    if (std::system(fmt::format("command -v {} >/dev/null 2>&1", name).c_str()) == 0) return name;
  }
  return "";
}

// A page that shows all pages, each in a frame of this size, and gathers what report_page_check.js finds in
// them.
void writeHost(const Pages& pages, const fs::path& folder, const std::string& size) {
  const std::string width = size.substr(0, size.find('x')), height = size.substr(size.find('x') + 1);
  const std::string check =
      readText(fs::path(PIPESHARD_SOURCE_DIR) / "tests/tools/report/report_page_check.js");
  ASSERT_FALSE(check.empty());
  std::string frames;
  for (const auto& [name, html] : pages) {
    std::string page = html;
    const std::string policy = "style-src 'unsafe-inline'";
    page.replace(page.find(policy), policy.size(), policy + "; script-src 'unsafe-inline'");
    page.replace(page.find("</head>"), 0, "<script>" + check + "</script>");
    std::ofstream(folder / (name + ".html"), std::ios::binary) << page;
    frames += fmt::format("<iframe src=\"{}.html\"></iframe>", name);
  }
  std::ofstream(folder / "host.html") << "<!DOCTYPE html><style>iframe{display:block;border:0;width:" << width
                                      << "px;height:" << height << "px}"
                                      << "</style><pre id=\"found\"></pre><script>const "
                                         "all=[];addEventListener('message',e=>{all.push(e.data);document."
                                         "getElementById('found').textContent=JSON.stringify(all)});</script>"
                                      << frames;
}

std::string unescaped(std::string text) {
  for (const auto& [entity, plain] :
       std::vector<std::pair<std::string, std::string>>{{"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}}) {
    for (size_t at = text.find(entity); at != std::string::npos; at = text.find(entity, at + 1))
      text.replace(at, entity.size(), plain);
  }
  return text;
}

struct Seen {
  nlohmann::json reports;  // of report_page_check.js
  std::string log;
};

Seen look(const Pages& pages, const std::string& size, bool dark) {
  const TemporaryFolder folder;
  writeHost(pages, folder.path(), size);
  const std::string place = folder.path().string();
  const std::string command = fmt::format(
      "timeout 60 {} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars "
      "--force-device-scale-factor=1 "
      "--user-data-dir='{}/profile' --enable-logging=stderr --allow-file-access-from-files "
      "--blink-settings=preferredColorScheme={} --window-size=1500,1000 --virtual-time-budget=20000 "
      "--dump-dom 'file://{}/host.html' >'{}/dom.html' 2>'{}/log'",
      browser(), place, dark ? 0 : 1, place, place, place);
  Seen seen;
  const int status = std::system(command.c_str());
  seen.log = readText(folder.path() / "log");
  EXPECT_EQ(status, 0) << seen.log;
  const std::string dom = readText(folder.path() / "dom.html");
  const std::vector<std::string> found = matches(dom, "<pre id=\"found\">([^<]*)</pre>");
  EXPECT_EQ(found.size(), 1u) << dom.substr(0, 2000);
  if (found.size() == 1) seen.reports = nlohmann::json::parse(unescaped(found[0]));
  return seen;
}

class ReportInBrowser : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(ReportInBrowser, FitsAndIsReadAndReached) {
  if (browser().empty()) GTEST_SKIP() << "no chromium, chromium-browser or google-chrome on this machine";
  const auto [size, dark] = GetParam();
  const Seen seen = look(pages(), size, dark);
  EXPECT_EQ(seen.reports.size(), pages().size());
  for (const nlohmann::json& report : seen.reports) {
    EXPECT_EQ(report.at("size"), size);
    EXPECT_EQ(report.at("dark"), dark);
    EXPECT_GT(report.at("texts"), 10);
    for (const nlohmann::json& finding : report.at("findings"))
      ADD_FAILURE() << report.at("page") << ": " << finding;
  }
  EXPECT_EQ(seen.log.find("CONSOLE"), std::string::npos) << seen.log;
}

// What looks at the pages does find what is wrong.
TEST(ReportPageCheck, FindsFaults) {
  if (browser().empty()) GTEST_SKIP() << "no chromium, chromium-browser or google-chrome on this machine";
  const Pages broken = {
      {"broken",
       "<!DOCTYPE html><html><head><meta name=\"style-src "
       "'unsafe-inline'\"><title>broken</title></head><body><main><section><div "
       "style=\"width:3000px\">wide</div><p style=\"color:#999;background:#fff\">pale</p><div "
       "style=\"overflow-x:auto;width:50px\"><div style=\"width:90px\">x</div></div><svg width=\"90\" "
       "height=\"30\"><text x=\"5\" y=\"15\">first</text><text x=\"9\" "
       "y=\"15\">second</text></svg></section><section style=\"margin-top:-30px\"><p>over "
       "it</p></section></main><script>console.error('something')</script></body></html>"}};
  const Seen seen = look(broken, "390x844", false);
  const std::string found = seen.reports.dump();
  for (const char* fault :
       {"the page scrolls sideways", "contrast is 2.85", "scrolls, but not with the keyboard",
        "text lies over", "lies over its neighbour"})
    EXPECT_THAT(found, ::testing::HasSubstr(fault));
  EXPECT_THAT(seen.log, ::testing::HasSubstr("CONSOLE"));
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ReportInBrowser,
    ::testing::Combine(::testing::Values(std::string("1440x900"), std::string("390x844")), ::testing::Bool()),
    [](const auto& info) {
      return fmt::format("{}{}", std::get<0>(info.param) == "390x844" ? "Phone" : "Laptop",
                         std::get<1>(info.param) ? "Dark" : "Light");
    });

}  // namespace
}  // namespace pipeshard
