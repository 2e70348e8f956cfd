// Options that people give and a plan keeps as they were given. Request, plan, costs and emission hold the
// struct whole, so that nobody copies an option by name.
//
// To add one:
//   1. a field of GivenOptions;
//   2. its row in the table of given_options.cc: from there plan.json, `plan --diff`, --help, the
//      command line and the report's command have it;
//   3. the code that does what it says.
// A field of a type that no other has needs its texts in given_options.cc and its form in
// given_options_json.cc besides.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/plan/optimizer.h"

namespace pipeshard {

inline constexpr int64_t kDefaultBucketBytes = int64_t{4} << 20;
inline constexpr double kFirstLossScale = 65536;
inline constexpr double kLossScaleSteps = 2000;

// Whose messages come while the receiving rank computes.
enum class OverlapReceives : uint8_t { kOff, kBetweenNodes, kOn };
// What batch normalisations and dropouts do (onnx_import/exporter/module_mode.h).
enum class ModuleMode : uint8_t { kAsExported, kTraining };
// Whether groups of nodes become functions before gradients are made (onnx_import/patterns/patterns.h).
enum class Patterns : uint8_t { kOn, kOff };

// The names of an enumeration's values, by value: "off", "between-nodes", "on".
std::span<const std::string_view> namesOf(OverlapReceives);
std::span<const std::string_view> namesOf(ModuleMode);
std::span<const std::string_view> namesOf(Patterns);
template <typename E>
std::string_view nameOf(E value) {
  return namesOf(value)[static_cast<size_t>(value)];
}
template <typename E>
std::optional<E> fromName(std::string_view name) {
  const std::span<const std::string_view> names = namesOf(E());
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<E>(found - names.begin());
}

// GivenOptions{}: what a plan.json means that leaves them out.
struct GivenOptions {
  OptimizerSpec optimizer;
  DataType precision = DataType::kFloat32;
  std::vector<std::string> keep_float32;  // regular expressions: operators that stay float32 beside halves
  std::vector<std::string> train;   // regular expressions: weights that are trained, whatever the model says
  std::vector<std::string> freeze;  // weights that are not
  // Parameters with other hyperparameters (ParameterGroup); where several mean one, the later goes over.
  std::vector<std::string> groups;
  // Gradients of all parameters together have at most this norm, else they are scaled down to it; infinity:
  // the norm is taken, nothing is scaled; 0: neither.
  double clip_norm = 0;
  // --precision float16: with what the first step multiplies the gradient of the loss, and behind how many
  // steps without an overflow it doubles; 0: kFirstLossScale, kLossScaleSteps.
  double loss_scale = 0;
  double loss_scale_steps = 0;
  double clip_value = 0;  // gradients are clipped to [-clip_value, clip_value], element by element; 0: not
  double ema = 0;  // a moving average of every trained parameter is kept, which decays by this; 0: none
  // Where weights come from in place of the model's file: safetensors files, or "random[:REGEX]"
  // (planning/model/given_weights.h).
  std::vector<std::string> weights;
  ModuleMode mode = ModuleMode::kAsExported;
  Patterns patterns = Patterns::kOn;
  // Gradients are synchronised in buckets of at least so many bytes while the last backward pass goes on; 0:
  // all behind it.
  int64_t bucket_bytes = kDefaultBucketBytes;
  // Messages between stages come while the receiving rank computes (Instruction::background), into at most
  // one buffer more per sender.
  OverlapReceives overlap_receives = OverlapReceives::kOff;
  friend bool operator==(const GivenOptions&, const GivenOptions&) = default;
};

// Of a request in which nobody says anything.
GivenOptions defaultOptions();

// Where an option stands in plan.json, in --help and in the report's command: together with those of its
// place, in the table's order.
enum class OptionPlace : uint8_t {
  kTraining,   // beside the loss; plan.json always has them, and others where they say something
  kTrain,      // which weights are trained
  kFreeze,     // apart from kTrain: plan.json has it behind, the command before
  kExecution,  // beside the schedule
};

// Which field, and by its type how it is written. An int64_t is a number of bytes, 0 is "off", also of a
// double, which is not negative.
using OptionField =
    std::variant<OptimizerSpec GivenOptions::*, DataType GivenOptions::*,
                 std::vector<std::string> GivenOptions::*, int64_t GivenOptions::*, double GivenOptions::*,
                 OverlapReceives GivenOptions::*, ModuleMode GivenOptions::*, Patterns GivenOptions::*>;

struct GivenOption {
  const char* key;   // in plan.json
  const char* flag;  // of the command
  OptionField field;
  OptionPlace place;
  const char* part;          // of `plan --diff`
  const char* default_text;  // as the command takes it; nullptr: as in GivenOptions{}
  const char* values;        // what --help calls them; nullptr: texts
  const char* help;
};
std::span<const GivenOption> givenOptions();

// It may be given several times, a text each.
bool isRepeated(const GivenOption& option);
// The only texts that it may have; none: no such list.
std::vector<std::string> allowedTexts(const GivenOption& option);
// plan.json, and the command that makes such a plan, have it.
bool isWritten(const GivenOption& option, const GivenOptions& options);
// Its values as texts behind the flag, which stands once before each.
std::vector<std::string> textsOf(const GivenOption& option, const GivenOptions& options);
// The reverse. Error(kUsage) naming the flag.
void setFromTexts(const GivenOption& option, const std::vector<std::string>& texts, GivenOptions& options);

}  // namespace pipeshard
