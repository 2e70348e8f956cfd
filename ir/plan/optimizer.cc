// The text form of an optimizer.
#include "ir/plan/optimizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>
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
constexpr Key kRate = {"lr", &OptimizerSpec::learning_rate, 0, kInfinity};
constexpr Key kDecay = {"weight_decay", &OptimizerSpec::weight_decay, 0, kInfinity};
constexpr Key kEpsilon = {"eps", &OptimizerSpec::epsilon, 0, kInfinity};
constexpr Key kMomentum = {"momentum", &OptimizerSpec::momentum, 0, 1};
constexpr Key kBeta1 = {"beta1", &OptimizerSpec::beta1, 0, 1};
constexpr Key kBeta2 = {"beta2", &OptimizerSpec::beta2, 0, 1};
constexpr Key kSgdKeys[] = {kRate, kMomentum, kDecay};
constexpr Key kAdamKeys[] = {kRate, kBeta1, kBeta2, kEpsilon, kDecay};
constexpr Key kRmsPropKeys[] = {kRate, {"alpha", &OptimizerSpec::alpha, 0, 1}, kEpsilon, kDecay, kMomentum};
constexpr Key kAdagradKeys[] = {
    kRate, {"lr_decay", &OptimizerSpec::rate_decay, 0, kInfinity}, kEpsilon, kDecay};
constexpr Key kLionKeys[] = {kRate, kBeta1, kBeta2, kDecay};
constexpr Key kAdafactorKeys[] = {kRate,
                                  {"beta2_decay", &OptimizerSpec::beta2_decay, -1e3, 0},
                                  {"eps1", &OptimizerSpec::epsilon, 0, kInfinity},
                                  {"eps2", &OptimizerSpec::parameter_epsilon, 0, kInfinity},
                                  {"d", &OptimizerSpec::threshold, 1, kInfinity},
                                  kDecay};
constexpr Key kMuonKeys[] = {kRate,
                             kMomentum,
                             kDecay,
                             kEpsilon,
                             {"ns_steps", &OptimizerSpec::iterations, 1, 21},
                             {"match_rms", &OptimizerSpec::match_rms, 0, 2},
                             {"adamw_lr", &OptimizerSpec::adam_rate, 0, kInfinity},
                             kBeta1,
                             kBeta2};

struct KindFacts {
  std::string_view name;
  OptimizerSpec::Kind kind;
  std::span<const Key> keys;
  double learning_rate, beta2, epsilon, weight_decay;  // by default
};
constexpr KindFacts kOptimizerKinds[] = {
    {"sgd", OptimizerSpec::Kind::kSgd, kSgdKeys, 1e-2, 0.999, 1e-8, 0},
    {"adam", OptimizerSpec::Kind::kAdam, kAdamKeys, 1e-3, 0.999, 1e-8, 0},
    {"adamw", OptimizerSpec::Kind::kAdamW, kAdamKeys, 1e-3, 0.999, 1e-8, 1e-2},
    {"rmsprop", OptimizerSpec::Kind::kRmsProp, kRmsPropKeys, 1e-2, 0.999, 1e-8, 0},
    {"adagrad", OptimizerSpec::Kind::kAdagrad, kAdagradKeys, 1e-2, 0.999, 1e-10, 0},
    {"lion", OptimizerSpec::Kind::kLion, kLionKeys, 1e-4, 0.99, 1e-8, 0},
    {"lamb", OptimizerSpec::Kind::kLamb, kAdamKeys, 1e-3, 0.999, 1e-6, 0},
    {"adafactor", OptimizerSpec::Kind::kAdafactor, kAdafactorKeys, 1e-2, 0.999, 0, 0},
    {"muon", OptimizerSpec::Kind::kMuon, kMuonKeys, 1e-3, 0.999, 1e-7, 0.1},
    {"none", OptimizerSpec::Kind::kNone, {}, 1e-2, 0.999, 1e-8, 0},
};
bool hasNesterov(OptimizerSpec::Kind kind) {
  return kind == OptimizerSpec::Kind::kSgd || kind == OptimizerSpec::Kind::kMuon;
}

constexpr std::string_view kOptimizerForms =
    "sgd:lr=0.01,momentum=0.9,nesterov=1,weight_decay=0, "
    "adam:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0, adamw with the keys of adam, "
    "rmsprop:lr=0.01,alpha=0.99,eps=1e-8,weight_decay=0,momentum=0, "
    "adagrad:lr=0.01,lr_decay=0,eps=1e-10,weight_decay=0, "
    "lion:lr=1e-4,beta1=0.9,beta2=0.99,weight_decay=0, lamb with the keys of adam, "
    "adafactor:lr=0.01,beta2_decay=-0.8,eps1=0,eps2=0.001,d=1,weight_decay=0, or "
    "muon:lr=0.001,momentum=0.95,nesterov=1,weight_decay=0.1,eps=1e-7,ns_steps=5,match_rms=0,adamw_lr=0.001,"
    "beta1=0.9,beta2=0.999";

// Of the learning rate's schedule.
struct ScheduleKey {
  std::string_view name;
  double LearningRateSchedule::*field;
  double low;
  double high;  // inclusive
  bool whole;   // a number of steps
};
constexpr double kMostSteps = 9e15;  // doubles count them exactly
constexpr ScheduleKey kScheduleKeys[] = {
    {"warmup", &LearningRateSchedule::warmup, 0, kMostSteps, true},
    {"start_factor", &LearningRateSchedule::start_factor, 0, 1, false},
    {"steps", &LearningRateSchedule::steps, 1, kMostSteps, true},
    {"final", &LearningRateSchedule::final_rate, 0, 1e9, false},
    {"step_size", &LearningRateSchedule::step_size, 1, kMostSteps, true},
    {"gamma", &LearningRateSchedule::gamma, 0, 1e9, false},
    {"pct_start", &LearningRateSchedule::pct_start, 0, 1, false},
    {"div_factor", &LearningRateSchedule::div_factor, 1e-9, 1e9, false},
    {"final_div_factor", &LearningRateSchedule::final_div_factor, 1e-9, 1e15, false},
};

const ScheduleKey& scheduleKey(double LearningRateSchedule::*field) {
  return *std::find_if(std::begin(kScheduleKeys), std::end(kScheduleKeys),
                       [&](const ScheduleKey& key) { return key.field == field; });
}

const KindFacts& optimizerFacts(OptimizerSpec::Kind kind) {
  return *std::find_if(std::begin(kOptimizerKinds), std::end(kOptimizerKinds),
                       [&](const KindFacts& facts) { return facts.kind == kind; });
}

OptimizerSpec defaultsOf(std::string_view name) {
  for (const KindFacts& facts : kOptimizerKinds) {
    if (facts.name != name) continue;
    OptimizerSpec spec;
    spec.kind = facts.kind;
    spec.learning_rate = facts.learning_rate;
    spec.beta2 = facts.beta2;
    spec.epsilon = facts.epsilon;
    spec.weight_decay = facts.weight_decay;
    if (spec.kind == OptimizerSpec::Kind::kMuon) {
      spec.momentum = 0.95;
      spec.nesterov = true;
    }
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

void refuseRange(std::string_view key, std::string_view text, double low, double high, char bracket) {
  fail(ErrorCode::kUsage, "optimizer: {}={} is outside of [{}, {}{}", key, text, low, high, bracket);
}

LearningRateSchedule::Kind parseSchedule(std::string_view text) {
  const auto found = std::find(kScheduleNames.begin(), kScheduleNames.end(), text);
  if (found == kScheduleNames.end())
    fail(ErrorCode::kUsage, "optimizer: schedule={} is none of {}", text, fmt::join(kScheduleNames, ", "));
  return static_cast<LearningRateSchedule::Kind>(found - kScheduleNames.begin());
}

bool setScheduleKey(LearningRateSchedule& schedule, std::string_view name, std::string_view text) {
  for (double LearningRateSchedule::*field : numbersOf(schedule.kind)) {
    const ScheduleKey& key = scheduleKey(field);
    if (key.name != name) continue;
    const double number = parseNumber(text, name);
    if (!(number >= key.low && number <= key.high)) refuseRange(name, text, key.low, key.high, ']');
    if (key.whole && number != std::floor(number))
      fail(ErrorCode::kUsage, "optimizer: {}={} is no whole number of steps", name, text);
    schedule.*field = number;
    return true;
  }
  return false;
}

// Of an optimizer, or of its schedule.
void setKey(OptimizerSpec& spec, std::string_view key, std::string_view text) {
  if (hasNesterov(spec.kind) && key == "nesterov") {
    const double number = parseNumber(text, key);
    if (number != 0 && number != 1) fail(ErrorCode::kUsage, "optimizer: nesterov is 0 or 1, found {}", text);
    spec.nesterov = number == 1;
    return;
  }
  std::vector<std::string_view> names;
  for (const Key& known : optimizerFacts(spec.kind).keys) {
    names.push_back(known.name);
    if (known.name != key) continue;
    const double number = parseNumber(text, key);
    if (!(number >= known.low && number < known.high)) refuseRange(key, text, known.low, known.high, ')');
    const bool whole = known.field == &OptimizerSpec::iterations || known.field == &OptimizerSpec::match_rms;
    if (whole && number != std::floor(number))
      fail(ErrorCode::kUsage, "optimizer: {}={} is no whole number", key, text);
    spec.*known.field = number;
    return;
  }
  if (names.empty())
    fail(ErrorCode::kUsage, "optimizer {} has no keys, found '{}'", optimizerFacts(spec.kind).name, key);
  if (setScheduleKey(spec.schedule, key, text)) return;
  if (hasNesterov(spec.kind)) names.push_back("nesterov");
  std::vector<std::string_view> of_schedule;
  for (double LearningRateSchedule::*field : numbersOf(spec.schedule.kind))
    of_schedule.push_back(scheduleKey(field).name);
  fail(ErrorCode::kUsage, "optimizer {} has no key '{}'; its keys are {}; schedule={} (of {}) adds {}",
       optimizerFacts(spec.kind).name, key, fmt::join(names, ", "), nameOf(spec.schedule.kind),
       fmt::join(kScheduleNames, ", "), fmt::join(of_schedule, ", "));
}

// Numbers that do not go together.
void checkSchedule(const OptimizerSpec& spec) {
  using Kind = LearningRateSchedule::Kind;
  const LearningRateSchedule& schedule = spec.schedule;
  const std::string_view name = nameOf(schedule.kind);
  const auto need = [&](double number, const char* key) {
    if (number == 0) fail(ErrorCode::kUsage, "optimizer: schedule={} needs {}=N", name, key);
  };
  switch (schedule.kind) {
    case Kind::kConstant: break;
    case Kind::kStep: need(schedule.step_size, "step_size"); break;
    case Kind::kLinear:
    case Kind::kCosine:
      need(schedule.steps, "steps");
      if (schedule.steps <= schedule.warmup) {
        fail(ErrorCode::kUsage,
             "optimizer: steps={} has the warm-up in it, so it must be more than warmup={}", schedule.steps,
             schedule.warmup);
      }
      if (schedule.final_rate > 0 && spec.learning_rate == 0)
        fail(ErrorCode::kUsage, "optimizer: final={} needs a learning rate above 0", schedule.final_rate);
      break;
    case Kind::kOneCycle:
      need(schedule.steps, "steps");
      if (!(schedule.pct_start * schedule.steps > 1 && schedule.pct_start < 1)) {
        fail(ErrorCode::kUsage,
             "optimizer: pct_start={} of steps={} is the step of the highest rate; it must come behind the "
             "first "
             "step and before the last",
             schedule.pct_start, schedule.steps);
      }
  }
}

// "key=value,key=value", each key once.
std::vector<std::pair<std::string_view, std::string_view>> parseItems(std::string_view text,
                                                                      std::string_view what,
                                                                      std::string_view forms) {
  std::vector<std::pair<std::string_view, std::string_view>> items;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      fail(ErrorCode::kUsage, "{}: '{}' should be key=value; use {}", what, item, forms);
    const std::string_view key = item.substr(0, equals);
    if (std::any_of(items.begin(), items.end(), [&](const auto& other) { return other.first == key; }))
      fail(ErrorCode::kUsage, "{}: '{}' is given twice", what, key);
    items.emplace_back(key, item.substr(equals + 1));
  }
  return items;
}

constexpr std::string_view kGroupForm =
    "REGEX:weight_decay=0, with the keys lr, lr_scale, weight_decay and (with the optimizer muon) muon";

}  // namespace

OptimizerSpec parseOptimizer(std::string_view text) {
  const size_t colon = text.find(':');
  OptimizerSpec spec = defaultsOf(text.substr(0, colon));
  const auto items = parseItems(colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1),
                                "optimizer", kOptimizerForms);
  const bool trains = spec.kind != OptimizerSpec::Kind::kNone;
  for (const auto& [key, value] : items) {  // which says what other keys there are
    if (trains && key == "schedule") spec.schedule.kind = parseSchedule(value);
  }
  for (const auto& [key, value] : items) {
    if (!trains || key != "schedule") setKey(spec, key, value);
  }
  if (spec.nesterov && spec.momentum == 0)
    fail(ErrorCode::kUsage, "optimizer: nesterov=1 needs a momentum, for example momentum=0.9");
  checkSchedule(spec);
  return spec;
}

std::string optimizerToString(const OptimizerSpec& spec) {
  const KindFacts& facts = optimizerFacts(spec.kind);
  std::string text(facts.name);
  char separator = ':';
  for (const Key& key : facts.keys) {
    text += fmt::format("{}{}={}", separator, key.name, spec.*key.field);
    separator = ',';
  }
  if (hasNesterov(spec.kind)) text += fmt::format(",nesterov={}", int{spec.nesterov});
  if (spec.schedule.isFlat()) return text;
  text += fmt::format(",schedule={}", nameOf(spec.schedule.kind));
  for (double LearningRateSchedule::*field : numbersOf(spec.schedule.kind)) {
    text += fmt::format(",{}={}", scheduleKey(field).name, spec.schedule.*field);
  }
  return text;
}

ParameterGroup parseParameterGroup(std::string_view text) {
  const size_t colon = text.rfind(':');
  const std::string_view settings = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon == std::string_view::npos || colon == 0 || settings.empty())
    fail(ErrorCode::kUsage, "--group '{}': use {}", text, kGroupForm);
  ParameterGroup group;
  group.pattern = text.substr(0, colon);
  for (const auto& [key, value] : parseItems(settings, fmt::format("--group '{}'", text), kGroupForm)) {
    std::optional<double>* field = key == "lr"             ? &group.learning_rate
                                   : key == "lr_scale"     ? &group.rate_scale
                                   : key == "weight_decay" ? &group.weight_decay
                                   : key == "muon"         ? &group.muon
                                                           : nullptr;
    if (field == nullptr) fail(ErrorCode::kUsage, "--group '{}': no key '{}'; use {}", text, key, kGroupForm);
    *field = parseNumber(value, key);
    if (!(**field >= 0 && **field < kInfinity)) refuseRange(key, value, 0, kInfinity, ')');
    if (key == "muon" && **field != 0)
      fail(ErrorCode::kUsage, "--group '{}': muon=0 leaves parameters to AdamW; found muon={}", text, value);
  }
  return group;
}

std::string groupSettings(const ParameterGroup& group) {
  std::vector<std::string> settings;
  if (group.learning_rate) settings.push_back(fmt::format("lr={}", *group.learning_rate));
  if (group.rate_scale) settings.push_back(fmt::format("lr_scale={}", *group.rate_scale));
  if (group.weight_decay) settings.push_back(fmt::format("weight_decay={}", *group.weight_decay));
  if (group.muon) settings.push_back(fmt::format("muon={}", *group.muon));
  return fmt::format("{}", fmt::join(settings, ", "));
}

void addGroup(const ParameterGroup& later, ParameterGroup& group) {
  if (later.learning_rate) {
    group.learning_rate = later.learning_rate;
    group.rate_scale.reset();
  }
  if (later.rate_scale) group.rate_scale = later.rate_scale;
  if (later.weight_decay) group.weight_decay = later.weight_decay;
  if (!later.muon) return;
  group.muon = later.muon;
  group.pattern = later.pattern;
}

void applyGroup(const ParameterGroup& group, OptimizerSpec& spec) {
  const auto rateOf = [&](double rate) {
    return group.learning_rate.value_or(rate) * group.rate_scale.value_or(1);
  };
  const double rate = rateOf(spec.learning_rate);
  if (spec.kind == OptimizerSpec::Kind::kMuon) spec.adam_rate = rateOf(spec.adam_rate);
  if (spec.learning_rate > 0) spec.schedule.final_rate *= rate / spec.learning_rate;
  spec.learning_rate = rate;
  spec.weight_decay = group.weight_decay.value_or(spec.weight_decay);
  if (!group.muon) return;
  if (spec.kind != OptimizerSpec::Kind::kMuon)
    fail(ErrorCode::kUsage, "--group '{}': muon=0 goes with --optimizer muon", group.pattern);
  spec.iterations = 0;
}

}  // namespace pipeshard
