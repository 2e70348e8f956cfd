#include "ir/plan/given_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <type_traits>

#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::array<std::string_view, 3> kOverlapNames = {"off", "between-nodes", "on"};
constexpr std::array<std::string_view, 2> kModeNames = {"as-exported", "training"};
constexpr std::array<std::string_view, 2> kPatternsNames = {"on", "off"};

constexpr GivenOption kOptions[] = {
    {.key = "optimizer",
     .flag = "--optimizer",
     .field = &GivenOptions::optimizer,
     .place = OptionPlace::kTraining,
     .part = "training",
     .default_text = "sgd:lr=0.01",
     .values = nullptr,
     .help = "sgd:lr=0.1,momentum=0.9 | adam:lr=1e-3 | adamw:lr=1e-3,weight_decay=0.01 | rmsprop | adagrad | "
             "lion | lamb |\nadafactor | muon; each with a learning rate that changes: "
             "schedule=constant|linear|cosine|one-cycle|step,\nas in "
             "adamw:lr=3e-4,schedule=cosine,warmup=100,steps=1000,final=3e-5 (docs/optimizers.md)"},
    {.key = "precision",
     .flag = "--precision",
     .field = &GivenOptions::precision,
     .place = OptionPlace::kTraining,
     .part = "training",
     .default_text = "float32",
     .values = nullptr,
     .help =
         "float32; float64 to validate with tight bounds; or bfloat16 or float16: activations and products\n"
         "in it, parameters, statistics, losses and the optimizer in float32; float16 scales the loss\n"
         "(docs/precision.md)"},
    {.key = "keep_float32",
     .flag = "--keep-float32",
     .field = &GivenOptions::keep_float32,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "REGEX",
     .help = "With --precision bfloat16 or float16: operators in whose type (::Gelu$), name or output's name "
             "the regular "
             "expression\nis found compute in float32; repeat for several. `inspect --precision bfloat16` "
             "says which compute in what"},
    {.key = "train",
     .flag = "--train",
     .field = &GivenOptions::train,
     .place = OptionPlace::kTrain,
     .part = "training",
     .default_text = nullptr,
     .values = "REGEX",
     .help = "Train these weights, whatever the model says and also if --freeze has them;\n--freeze . "
             "--train ^head trains the head alone. Where the file tells the module's\nparameters, an "
             "expression found in some of their names means these alone: \".\" no buffer,\nand no constant "
             "of the exporter's (its own name, as val_60, trains it, with a note)"},
    {.key = "freeze",
     .flag = "--freeze",
     .field = &GivenOptions::freeze,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "REGEX",
     .help = "Do not train weights in whose names this regular expression is found; repeat for several"},
    {.key = "groups",
     .flag = "--group",
     .field = &GivenOptions::groups,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "REGEX:KEY=N",
     .help = "Parameters in whose names the regular expression is found have another lr, lr_scale or "
             "weight_decay,\nor muon=0: 'bias|norm:weight_decay=0'; repeat for several"},
    {.key = "clip_norm",
     .flag = "--clip-norm",
     .field = &GivenOptions::clip_norm,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "X",
     .help =
         "All gradients together are scaled down to this norm where they have a larger one; inf: the norm "
         "is taken,\nnothing is scaled. A step whose norm is not finite changes nothing (run --on-nan)"},
    {.key = "loss_scale",
     .flag = "--loss-scale",
     .field = &GivenOptions::loss_scale,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "X",
     .help =
         "With --precision float16: what the gradient of the loss is multiplied with in the first step, a "
         "power of two;\nit halves where a gradient is not finite, and such a step changes nothing "
         "(default: 65536)"},
    {.key = "loss_scale_steps",
     .flag = "--loss-scale-steps",
     .field = &GivenOptions::loss_scale_steps,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "N",
     .help = "With --precision float16: the scale doubles behind so many finite steps in a row, up to 2^24\n"
             "(default: 2000)"},
    {.key = "clip_value",
     .flag = "--clip-value",
     .field = &GivenOptions::clip_value,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "X",
     .help = "Every element of a gradient is clipped to [-X, X]"},
    {.key = "ema",
     .flag = "--ema",
     .field = &GivenOptions::ema,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "DECAY",
     .help = "Keep a moving average of every trained parameter, which decays by this in every update: 0.999; "
             "it is in\ncheckpoints, and `export --ema` takes it"},
    {.key = "weights",
     .flag = "--weights",
     .field = &GivenOptions::weights,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "FILE",
     .help =
         "Weights by the module's names from a .safetensors file; repeat for several. random: those that no "
         "file has\nare drawn, by `--seed` of run and validate; random:REGEX: these inputs are such weights"},
    {.key = "mode",
     .flag = "--mode",
     .field = &GivenOptions::mode,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "MODE",
     .help = "training: batch normalisations take the batch's statistics and dropouts drop, also where the "
             "exporter has\nwritten inference mode; as-exported: as the file has them (with --schedule "
             "forward-only: in evaluation mode)"},
    {.key = "patterns",
     .flag = "--patterns",
     .field = &GivenOptions::patterns,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "WHETHER",
     .help =
         "Groups of nodes that mean one thing (attention, an activation) become one, with one kernel and\n"
         "one gradient (`inspect` counts them); off: the graph stays as it is, also --no-patterns\n"
         "(default: on)"},
    {.key = "bucket_bytes",
     .flag = "--bucket",
     .field = &GivenOptions::bucket_bytes,
     .place = OptionPlace::kExecution,
     .part = "training",
     .default_text = nullptr,
     .values = "BYTES",
     .help =
         "Gradients are synchronised in buckets of at least so many bytes while the last backward pass goes "
         "on; off: behind it\n"
         "(default: 4MiB)"},
    {.key = "overlap_receives",
     .flag = "--overlap-receives",
     .field = &GivenOptions::overlap_receives,
     .place = OptionPlace::kExecution,
     .part = "schedule",
     .default_text = "between-nodes",
     .values = "WHICH",
     .help =
         "Messages between stages come while the receiving worker computes, into one buffer more for each "
         "sender:\non|between-nodes|off"},
};

// By type of the field: its texts.
using Texts = std::vector<std::string>;

Texts textsOfValue(const OptimizerSpec& optimizer) { return {optimizerToString(optimizer)}; }
Texts textsOfValue(DataType type) { return {std::string(dataTypeName(type))}; }
template <typename E>
requires std::is_enum_v<E> Texts textsOfValue(E value) { return {std::string(nameOf(value))}; }
Texts textsOfValue(const Texts& texts) { return texts; }
Texts textsOfValue(int64_t bytes) { return {bytes == 0 ? "off" : std::to_string(bytes)}; }
Texts textsOfValue(double number) { return {number == 0 ? "off" : fmt::format("{}", number)}; }

void setValue(std::string_view, const Texts& texts, OptimizerSpec& optimizer) {
  optimizer = parseOptimizer(texts.at(0));
}
void setValue(std::string_view flag, const Texts& texts, DataType& type) {
  constexpr std::array kPrecisions = {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16,
                                      DataType::kFloat16};
  const DataType named = dataTypeFromName(texts.at(0));
  if (std::find(kPrecisions.begin(), kPrecisions.end(), named) == kPrecisions.end())
    fail(ErrorCode::kUsage, "{} {}: expected float32, float64, bfloat16 or float16", flag, texts[0]);
  type = named;
}
template <typename E>
requires std::is_enum_v<E>
void setValue(std::string_view flag, const Texts& texts, E& value) {
  const std::optional<E> named = fromName<E>(texts.at(0));
  if (!named) {
    fail(ErrorCode::kUsage, "{} {}: expected one of {}", flag, texts[0], fmt::join(namesOf(value), ", "));
  }
  value = *named;
}
void setValue(std::string_view, const Texts& texts, Texts& field) { field = texts; }
void setValue(std::string_view flag, const Texts& texts, int64_t& bytes) {
  bytes = texts.at(0) == "off" ? 0 : parseBytes(std::string(flag), texts[0]);
}
void setValue(std::string_view flag, const Texts& texts, double& number) {
  number = 0;
  if (texts.at(0) == "off") return;
  const std::string& text = texts[0];
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number > 0))
    fail(ErrorCode::kUsage, "{} {}: expected a number above 0, or off", flag, text);
}

}  // namespace

std::span<const std::string_view> namesOf(OverlapReceives) { return kOverlapNames; }
std::span<const std::string_view> namesOf(ModuleMode) { return kModeNames; }
std::span<const std::string_view> namesOf(Patterns) { return kPatternsNames; }

std::span<const GivenOption> givenOptions() { return kOptions; }

GivenOptions defaultOptions() {
  GivenOptions options;
  for (const GivenOption& option : kOptions) {
    if (option.default_text != nullptr) setFromTexts(option, {option.default_text}, options);
  }
  return options;
}

bool isRepeated(const GivenOption& option) {
  return std::holds_alternative<Texts GivenOptions::*>(option.field);
}

// The last one, which does most, first.
std::vector<std::string> allowedTexts(const GivenOption& option) {
  return std::visit(
      [](auto field) -> std::vector<std::string> {
        using Field = std::remove_cvref_t<decltype(GivenOptions().*field)>;
        if constexpr (std::is_enum_v<Field> && !std::is_same_v<Field, DataType>) {
          const std::span<const std::string_view> names = namesOf(Field());
          return {names.rbegin(), names.rend()};
        }
        return {};
      },
      option.field);
}

bool isWritten(const GivenOption& option, const GivenOptions& options) {
  const auto differs = [&](auto field) { return options.*field != GivenOptions().*field; };
  return option.place == OptionPlace::kTraining || std::visit(differs, option.field);
}

std::vector<std::string> textsOf(const GivenOption& option, const GivenOptions& options) {
  return std::visit([&](auto field) { return textsOfValue(options.*field); }, option.field);
}

void setFromTexts(const GivenOption& option, const std::vector<std::string>& texts, GivenOptions& options) {
  std::visit([&](auto field) { setValue(option.flag, texts, options.*field); }, option.field);
}

}  // namespace pipeshard
