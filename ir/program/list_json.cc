#include "ir/program/list_json.h"

#include <limits>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace pipeshard {
ListText::ListText(std::string_view key, std::string& text) : text_(text) {
  text_ += fmt::format(",\n  \"{}\": [", key);
}

void ListText::add(std::string_view element) {
  text_ += empty_ ? "\n    " : ",\n    ";
  text_ += element;
  empty_ = false;
}

void ListText::end() { text_ += empty_ ? "]" : "\n  ]"; }

std::string loopText(const Loop& loop, const std::vector<std::string>& body, const NumberedList& list) {
  Json steps = Json::array();
  for (size_t item = loop.first; item < loop.first + loop.period; ++item)
    steps.push_back(stepsOf(list, loop, item));
  return fmt::format("{{\"repeat\":{},\"steps\":{},\"body\":[\n      {}\n    ]}}", loop.count,
                     dumpJsonLine(steps), fmt::join(body, ",\n      "));
}

std::vector<int64_t> stepsFromJson(const JsonReader& json, const std::vector<int64_t>& numbers,
                                   const std::vector<int64_t>& limits, int64_t iterations) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> steps = json.integers(-kMost, kMost);
  if (steps.size() != numbers.size())
    json.failExpected(fmt::format("{} numbers, as many as the item has that may grow", numbers.size()));
  for (size_t i = 0; i < steps.size(); ++i) {
    // In between it is between these two.
    const __int128 last = numbers[i] + static_cast<__int128>(steps[i]) * (iterations - 1);
    if (last < 0 || last > limits[i])
      json.failExpected(fmt::format("steps with which {} stays within 0 and {} in {} iterations", numbers[i],
                                    limits[i], iterations));
  }
  return steps;
}

}  // namespace pipeshard
