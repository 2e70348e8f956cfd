#include "ir/plan/given_options_json.h"

#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace pipeshard {
namespace {

// By type of the field: its form.
Json formOf(const OptimizerSpec& optimizer) { return optimizerToString(optimizer); }
Json formOf(DataType type) { return dataTypeName(type); }
Json formOf(const std::vector<std::string>& texts) { return texts; }
Json formOf(int64_t bytes) { return bytes; }
Json formOf(double number) { return fmt::format("{}", number); }  // as text: JSON has no infinity
Json formOf(OverlapReceives overlap) { return nameOf(overlap); }
Json formOf(ModuleMode mode) { return nameOf(mode); }
Json formOf(Patterns patterns) { return nameOf(patterns); }

void readForm(const JsonReader& json, OptimizerSpec& optimizer) { optimizer = json.parsed(parseOptimizer); }
void readForm(const JsonReader& json, DataType& type) { type = json.dataType(); }
void readForm(const JsonReader& json, std::vector<std::string>& texts) { texts = json.strings(); }
void readForm(const JsonReader& json, int64_t& bytes) { bytes = json.integer(0, INT64_MAX); }
void readForm(const JsonReader& json, double& number) {
  const std::string text = json.string();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= 0))
    json.failExpected("a number that is not negative, as text");
}
template <typename E>
requires std::is_enum_v<E>
void readForm(const JsonReader& json, E& value) {
  const std::span<const std::string_view> names = namesOf(value);
  value = *fromName<E>(json.string({names.begin(), names.end()}));
}

template <typename F>
void forEachAt(OptionPlace place, const F& handle) {
  for (const GivenOption& option : givenOptions()) {
    if (option.place == place) handle(option);
  }
}

}  // namespace

void addGivenOptions(const GivenOptions& options, OptionPlace place, Json& document) {
  forEachAt(place, [&](const GivenOption& option) {
    if (!isWritten(option, options)) return;
    document[option.key] = std::visit([&](auto field) { return formOf(options.*field); }, option.field);
  });
}

void readGivenOptions(const JsonReader& json, OptionPlace place, JsonFaults& faults, GivenOptions& options) {
  forEachAt(place, [&](const GivenOption& option) {
    faults.attemptField(json, option.key, [&](const JsonReader& value) {
      std::visit([&](auto field) { readForm(value, options.*field); }, option.field);
    });
  });
}

void addGivenKeys(OptionPlace place, std::vector<std::string_view>& keys) {
  forEachAt(place, [&](const GivenOption& option) { keys.push_back(option.key); });
}

}  // namespace pipeshard
