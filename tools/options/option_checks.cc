#include "tools/options/option_checks.h"

#include <charconv>

#include <fmt/format.h>

namespace pipeshard {

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

}  // namespace pipeshard
