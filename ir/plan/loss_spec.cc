#include "ir/plan/loss_spec.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using Kind = LossTerm::Kind;

constexpr std::pair<Kind, std::string_view> kKinds[] = {
    {Kind::kCrossEntropy, "cross-entropy"}, {Kind::kNegativeLogLikelihood, "nll"},
    {Kind::kBinaryCrossEntropy, "bce"},     {Kind::kBinaryCrossEntropyWithLogits, "bce-with-logits"},
    {Kind::kMeanSquaredError, "mse"},       {Kind::kL1, "l1"},
    {Kind::kSmoothL1, "smooth-l1"},
};
constexpr std::string_view kNone = "none";
constexpr std::string_view kSmoothing = "smoothing=";
constexpr std::string_view kAxis = "axis=";

[[noreturn]] void failLossForm(std::string_view text) {
  fail(ErrorCode::kUsage,
       "--loss '{}' is not understood; use --loss NAME (a scalar output of the model), --loss "
       "cross-entropy:LOGITS,LABELS[,smoothing=0.1][,axis=1], --loss nll:LOGARITHMS,LABELS[,axis=1], --loss "
       "KIND:PREDICTION,TARGET with {}, or a sum of these: --loss A+0.5*B",
       text, fmt::join(lossKinds(), ", "));
}

template <typename Number = double>
std::optional<Number> numberIn(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t start = 0;;) {
    const size_t end = text.find(separator, start);
    parts.push_back(text.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::optional<Kind> kindOf(std::string_view text) {
  for (const auto& [kind, name] : kKinds) {
    if (text == name) return kind;
  }
  return std::nullopt;
}

// "smoothing=0.1", "axis=1"; each once, of a kind that has it.
void parseTermOption(std::string_view whole, std::string_view text, LossTerm& term) {
  const bool has_classes = term.kind == Kind::kCrossEntropy || term.kind == Kind::kNegativeLogLikelihood;
  if (text.starts_with(kAxis) && has_classes && !term.class_axis) {
    term.class_axis = numberIn<int>(text.substr(kAxis.size()));
    if (!term.class_axis) failLossForm(whole);
    return;
  }
  const double smoothing =
      text.starts_with(kSmoothing) ? numberIn(text.substr(kSmoothing.size())).value_or(-1) : -1;
  const bool has_smoothing = term.kind == Kind::kCrossEntropy && term.label_smoothing == 0;
  if (!has_smoothing || !(smoothing >= 0 && smoothing <= 1)) failLossForm(whole);
  term.label_smoothing = smoothing;
}

LossTerm parseTerm(std::string_view whole, std::string_view text) {
  LossTerm term;
  const size_t star = text.find('*');
  if (star != std::string_view::npos) {
    const std::optional<double> weight = numberIn(text.substr(0, star));
    if (!weight) failLossForm(whole);
    term.weight = *weight;
    text = text.substr(star + 1);
  }
  const size_t colon = text.find(':');
  const std::optional<Kind> kind =
      colon == std::string_view::npos ? std::nullopt : kindOf(text.substr(0, colon));
  if (!kind) {
    // A name may hold a colon ("loss:0") or be that of a kind ("mse"), but not look like a form.
    if (text.find(',') != std::string_view::npos) failLossForm(whole);
    term.prediction = text;
    return term;
  }
  term.kind = *kind;
  const std::vector<std::string_view> parts = split(text.substr(colon + 1), ',');
  if (parts.size() < 2 || parts[0].empty() || parts[1].empty()) failLossForm(whole);
  term.prediction = parts[0];
  term.target = parts[1];
  for (size_t i = 2; i < parts.size(); ++i) parseTermOption(whole, parts[i], term);
  return term;
}

}  // namespace

bool LossSpec::readsModelOutput() const {
  return std::any_of(terms.begin(), terms.end(),
                     [](const LossTerm& term) { return term.kind == Kind::kModelOutput; });
}

std::vector<std::string> LossSpec::valuesRead() const {
  std::vector<std::string> names;
  for (const LossTerm& term : terms) {
    if (term.kind != Kind::kModelOutput) names.insert(names.end(), {term.prediction, term.target});
  }
  return names;
}

std::vector<std::string> lossKinds() {
  std::vector<std::string> names;
  for (const auto& [kind, name] : kKinds) names.emplace_back(name);
  return names;
}

LossSpec parseLoss(std::string_view text) {
  LossSpec spec;
  spec.terms.clear();
  if (text == kNone) return spec;
  for (const std::string_view term : split(text, '+')) {
    spec.terms.push_back(parseTerm(text, term));
    if (term.empty() && !text.empty()) failLossForm(text);
  }
  return spec;
}

std::string lossToString(const LossTerm& term) {
  std::string text = term.weight == 1 ? "" : fmt::format("{}*", term.weight);
  for (const auto& [kind, name] : kKinds) {
    if (kind == term.kind) text += fmt::format("{}:", name);
  }
  text += term.prediction;
  if (term.kind != Kind::kModelOutput) text += "," + term.target;
  if (term.label_smoothing != 0) text += fmt::format(",{}{}", kSmoothing, term.label_smoothing);
  if (term.class_axis) text += fmt::format(",{}{}", kAxis, *term.class_axis);
  return text;
}

std::string lossToString(const LossSpec& spec) {
  if (spec.isNone()) return std::string(kNone);
  std::vector<std::string> terms;
  for (const LossTerm& term : spec.terms) terms.push_back(lossToString(term));
  return fmt::format("{}", fmt::join(terms, "+"));
}

}  // namespace pipeshard
