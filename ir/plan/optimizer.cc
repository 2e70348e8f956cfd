// The text form of an optimizer.
#include "ir/plan/optimizer.h"

#include <charconv>
#include <cmath>
#include <set>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

struct Key {
  std::string_view name;
  double OptimizerSpec::*field;
  double low;
  double high;  // exclusive
};

constexpr double kInfinity = HUGE_VAL;
constexpr Key kSgdKeys[] = {{"lr", &OptimizerSpec::learning_rate, 0, kInfinity},
                            {"momentum", &OptimizerSpec::momentum, 0, 1},
                            {"weight_decay", &OptimizerSpec::weight_decay, 0, kInfinity}};
constexpr Key kAdamKeys[] = {{"lr", &OptimizerSpec::learning_rate, 0, kInfinity},
                             {"beta1", &OptimizerSpec::beta1, 0, 1},
                             {"beta2", &OptimizerSpec::beta2, 0, 1},
                             {"eps", &OptimizerSpec::epsilon, 0, kInfinity},
                             {"weight_decay", &OptimizerSpec::weight_decay, 0, kInfinity}};

constexpr std::string_view kOptimizerForms =
    "sgd:lr=0.01,momentum=0.9,nesterov=1,weight_decay=0, "
    "adam:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0, or adamw with the keys of adam";

std::string_view kindName(OptimizerSpec::Kind kind) {
  switch (kind) {
    case OptimizerSpec::Kind::kSgd: return "sgd";
    case OptimizerSpec::Kind::kAdam: return "adam";
    case OptimizerSpec::Kind::kAdamW: return "adamw";
    case OptimizerSpec::Kind::kNone: return "none";
  }
  return "unknown";
}

OptimizerSpec defaultsOf(std::string_view name) {
  OptimizerSpec spec;
  if (name == "sgd") return spec;
  if (name == "none") {
    spec.kind = OptimizerSpec::Kind::kNone;
    return spec;
  }
  spec.learning_rate = 1e-3;
  if (name == "adam") {
    spec.kind = OptimizerSpec::Kind::kAdam;
    return spec;
  }
  if (name == "adamw") {
    spec.kind = OptimizerSpec::Kind::kAdamW;
    spec.weight_decay = 1e-2;
    return spec;
  }
  fail(ErrorCode::kUsage, "unknown optimizer '{}'; use {}", name, kOptimizerForms);
}

double parseNumber(std::string_view text, std::string_view key) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::kUsage, "optimizer: {}={} is no number", key, text);
  }
  return number;
}

std::span<const Key> keysOf(OptimizerSpec::Kind kind) {
  if (kind == OptimizerSpec::Kind::kNone) return {};
  if (kind == OptimizerSpec::Kind::kSgd) return kSgdKeys;
  return kAdamKeys;
}

void setKey(OptimizerSpec& spec, std::string_view key, std::string_view text) {
  const double number = parseNumber(text, key);
  const bool is_sgd = spec.kind == OptimizerSpec::Kind::kSgd;
  if (is_sgd && key == "nesterov") {
    if (number != 0 && number != 1) fail(ErrorCode::kUsage, "optimizer: nesterov is 0 or 1, found {}", text);
    spec.nesterov = number == 1;
    return;
  }
  std::vector<std::string_view> names;
  for (const Key& known : keysOf(spec.kind)) {
    names.push_back(known.name);
    if (known.name != key) continue;
    if (!(number >= known.low && number < known.high)) {
      fail(ErrorCode::kUsage, "optimizer: {}={} is outside of [{}, {})", key, text, known.low, known.high);
    }
    spec.*known.field = number;
    return;
  }
  if (is_sgd) names.push_back("nesterov");
  fail(ErrorCode::kUsage, "optimizer {} has no key '{}'; its keys are {}", kindName(spec.kind), key,
       fmt::join(names, ", "));
}

}  // namespace

OptimizerSpec parseOptimizer(std::string_view text) {
  const size_t colon = text.find(':');
  OptimizerSpec spec = defaultsOf(text.substr(0, colon));
  std::set<std::string_view> given;
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      fail(ErrorCode::kUsage, "optimizer: '{}' should be key=number; use {}", item, kOptimizerForms);
    if (!given.insert(item.substr(0, equals)).second)
      fail(ErrorCode::kUsage, "optimizer: '{}' is given twice", item.substr(0, equals));
    setKey(spec, item.substr(0, equals), item.substr(equals + 1));
  }
  if (spec.nesterov && spec.momentum == 0)
    fail(ErrorCode::kUsage, "optimizer: nesterov=1 needs a momentum, for example momentum=0.9");
  return spec;
}

std::string optimizerToString(const OptimizerSpec& spec) {
  std::string text(kindName(spec.kind));
  char separator = ':';
  for (const Key& key : keysOf(spec.kind)) {
    text += fmt::format("{}{}={}", separator, key.name, spec.*key.field);
    separator = ',';
  }
  if (spec.kind == OptimizerSpec::Kind::kSgd) text += fmt::format(",nesterov={}", int{spec.nesterov});
  return text;
}

}  // namespace pipeshard
