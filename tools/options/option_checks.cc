#include "tools/options/option_checks.h"

#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

std::optional<int32_t> wholeNumber(std::string_view text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

CLI::Validator positiveWhole(int64_t high) {
  const auto check = [high](const std::string& text) -> std::string {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size() && number >= 1 && number <= high) return "";
    return fmt::format("expected a whole number from 1 to {}, found {}", high, text);
  };
  return CLI::Validator(check, "");
}

CLI::Validator numberFrom(double low, double high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size() && number >= low && number <= high)
      return "";
    return fmt::format("expected a number from {:g} to {:g}, found {}", low, high, text);
  };
  return CLI::Validator(check, "");
}

void refuseBlankValues(CLI::App& app) {
  for (CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    const auto check = [wanted = option->get_type_name()](std::string& text) -> std::string {
      if (text.find_first_not_of(" \t\r\n\v\f") != std::string::npos) return "";
      return fmt::format(
          "expected {}, found an empty value (an unset variable of the shell?); give one, or leave it out",
          wanted.empty() ? "a value" : wanted);
    };
    option->transform(CLI::Validator(check, ""));  // before all other checks
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) refuseBlankValues(*command);
}

void refuseInVain(const CLI::App& command, const std::vector<std::string>& options, const std::string& what) {
  for (const std::string& option : options) {
    if (command.get_option(option)->count() > 0) fail(ErrorCode::kUsage, "{} goes with {}", option, what);
  }
}

void refuseGroupInVain(const CLI::App& command, const std::string& group, const std::string& what) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group() == group) refuseInVain(command, {option->get_name()}, what);
  }
}

std::vector<RankId> parseRanks(const std::string& option, const std::string& text) {
  constexpr size_t kMost = 1024;
  std::vector<RankId> ranks;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const std::string_view view = item;
    const size_t dash = view.find('-');
    const auto first = wholeNumber(view.substr(0, dash));
    const auto last = dash == view.npos ? first : wholeNumber(view.substr(dash + 1));
    if (!first || !last || *last < *first)
      fail(ErrorCode::kUsage, "{}: expected ranks, such as 17,500-503; found '{}'", option, item);
    if (ranks.size() + static_cast<size_t>(*last - *first) >= kMost)
      fail(ErrorCode::kUsage, "{}: '{}' are more than {} ranks", option, text, kMost);
    for (int32_t rank = *first; rank <= *last; ++rank) ranks.emplace_back(rank);
  }
  return ranks;
}

std::pair<int, int> parsePorts(const std::string& option, const std::string& text) {
  const std::string_view view = text;
  const size_t dash = view.find('-');
  const auto first = wholeNumber(view.substr(0, dash));
  const auto last = dash == view.npos ? first : wholeNumber(view.substr(dash + 1));
  if (!first || !last || *first < 1 || *last < *first || *last > UINT16_MAX) {
    fail(ErrorCode::kUsage, "{} {}: expected ports from 1 to 65535, the lower one first, as 29600-29699",
         option, text);
  }
  return {*first, *last};
}

}  // namespace pipeshard
