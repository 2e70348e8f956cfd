#include "ir/plan/schedule_spec.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// "v=3".
std::optional<ScheduleOption> readOption(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  ScheduleOption option{std::string(text.substr(0, equals))};
  const std::string_view number = text.substr(equals + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), option.value);
  if (error != std::errc() || end != number.data() + number.size() || option.value < 0) return std::nullopt;
  return option;
}

}  // namespace

ScheduleSpec ScheduleSpec::with(std::string name, int64_t value) const {
  ScheduleSpec result = *this;
  result.options.push_back({std::move(name), value});
  return result;
}

ScheduleText readScheduleText(std::string_view text) {
  const size_t colon = text.find(':');
  ScheduleText result{{std::string(text.substr(0, colon))}};
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    std::optional<ScheduleOption> option = readOption(part);
    if (!option) {
      result.understood = false;
      result.wrong = part;
      return result;
    }
    result.spec.options.push_back(*std::move(option));
  }
  return result;
}

ScheduleSpec parseScheduleSpec(std::string_view text) {
  ScheduleText read = readScheduleText(text);
  if (read.understood) return std::move(read.spec);
  fail(ErrorCode::kUsage, "--schedule {}: found \"{}\"; expected options as in {}:key=2", text, read.wrong,
       read.spec.family);
}

std::string scheduleSpecToString(const ScheduleSpec& spec) {
  std::string text = spec.family;
  for (const ScheduleOption& option : spec.options) {
    const char* separator = &option == &spec.options.front() ? ":" : ",";
    text += fmt::format("{}{}={}", separator, option.name, option.value);
  }
  return text;
}

std::string scheduleChoiceToString(const ScheduleChoice& choice) {
  if (const auto* file = std::get_if<OrdersFile>(&choice)) return file->path;
  return scheduleSpecToString(std::get<ScheduleSpec>(choice));
}

}  // namespace pipeshard
