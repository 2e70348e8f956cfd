#include "tools/validation/validation_text.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

constexpr size_t kMostFailures = 20;   // that are listed
constexpr size_t kMostOfRounding = 3;  // where they decide nothing

nlohmann::ordered_json toJson(const ValidationReport& report) {
  nlohmann::ordered_json json;
  json["passed"] = report.passed();
  if (report.in_float64) {
    json["float64"] = {{"passed", report.in_float64->passed},
                       {"error", report.in_float64->worst.error},
                       {"bound", report.in_float64->worst.bound}};
    if (const auto& own = report.in_float64->own)
      json["float64"]["own_rounding"] = {
          {"name", own->name}, {"error", own->error}, {"one_device", own->own}};
  }
  json["ranks"] = report.ranks;
  for (const RankResult& rank : report.planned.ranks) {
    json["memory"].push_back({{"allocated_bytes", rank.arena_bytes + rank.constant_bytes},
                              {"peak_resident_bytes", rank.peak_resident_bytes}});
  }
  for (const StepComparison& step : report.steps) {
    json["steps"].push_back({{"loss", step.loss}, {"reference_loss", step.reference_loss}});
    if (step.update >= 0) json["steps"].back().update({{"step", step.step}, {"update", step.update}});
  }
  for (const TensorComparison& tensor : report.tensors) {
    nlohmann::ordered_json entry = {{"kind", comparedKindName(tensor.kind)},
                                    {"name", tensor.name},
                                    {"step", tensor.step},
                                    {"error", tensor.error},
                                    {"largest_difference", tensor.largest_difference},
                                    {"passed", tensor.passed()}};
    if (!tensor.state.empty()) entry["state"] = tensor.state;
    if (tensor.update >= 0) entry["update"] = tensor.update;
    if (tensor.microbatch >= 0) entry["microbatch"] = tensor.microbatch;
    if (std::isfinite(tensor.bound)) entry["bound"] = tensor.bound;
    if (tensor.not_a_number) entry["not_a_number"] = true;
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

std::string boundText(double bound) {
  return std::isfinite(bound) ? fmt::format("{:.0e}", bound) : "(not decisive)";
}

// "2", or of an update in a window "2, update 3" (numbers from 1 on).
std::string stepText(int step, int update) {
  return update < 0 ? std::to_string(step) : fmt::format("{}, update {}", step, update + 1);
}

std::string nameOf(const TensorComparison& tensor) {
  return fmt::format("{} {}{} in step {}", comparedKindName(tensor.kind), tensor.name,
                     tensor.state.empty() ? "" : " " + tensor.state, stepText(tensor.step, tensor.update));
}

std::string describe(const TensorComparison& tensor) {
  return fmt::format("{}: error {:.2e}, bound {:.0e}, largest difference {:.2e}", nameOf(tensor),
                     tensor.error, tensor.bound, tensor.largest_difference);
}

// For each kind the worst tensor, and every tensor that failed, up to `most` of them.
std::string worstTable(const ValidationReport& report, size_t most) {
  std::vector<std::vector<std::string>> rows = {
      {"compared", "tensors", "worst error", "bound", "verdict", "largest |difference|", "worst tensor"}};
  for (ComparedKind kind :
       {ComparedKind::kLoss, ComparedKind::kGradient, ComparedKind::kParameter, ComparedKind::kOptimizerState,
        ComparedKind::kForwardState, ComparedKind::kOutput, ComparedKind::kMeasure,
        ComparedKind::kUpdatedParameter, ComparedKind::kUpdatedState, ComparedKind::kImportedGradient}) {
    const TensorComparison* worst = nullptr;
    size_t count = 0;
    double largest_difference = 0;
    for (const TensorComparison& tensor : report.tensors) {
      if (tensor.kind != kind) continue;
      ++count;
      largest_difference = std::max(largest_difference, tensor.largest_difference);
      if (worst == nullptr || tensor.error > worst->error) worst = &tensor;
    }
    if (worst == nullptr) continue;
    rows.push_back({std::string(comparedKindName(kind)), std::to_string(count),
                    fmt::format("{:.2e}", worst->error), boundText(worst->bound),
                    !std::isfinite(worst->bound) ? "-"
                    : worst->passed()            ? "ok"
                    : worst->not_a_number        ? "no number"
                                                 : "DIFFERS",
                    fmt::format("{:.2e}", largest_difference),
                    fmt::format("{}{} step {}", worst->name, worst->state.empty() ? "" : " " + worst->state,
                                stepText(worst->step, worst->update))});
  }
  std::string text = formatTable(rows);
  size_t failed = 0;
  for (const TensorComparison& tensor : report.tensors) {
    if (tensor.passed() || failed++ >= most) continue;
    text += tensor.not_a_number ? fmt::format("no number on one device either: {}\n", nameOf(tensor))
                                : fmt::format("DIFFERS: {}\n", describe(tensor));
  }
  if (failed > most) text += fmt::format("... and {} more (--json lists all)\n", failed - most);
  return text;
}

std::string ownRoundingText(const OwnRounding& own, std::string_view type) {
  const std::string far =
      fmt::format("in {} one device itself is up to {:.1e} from what it computes in float64", type, own.own);
  return own.explains() ? fmt::format("{} differs by {:.1e}, and {}.\n", own.name, own.error, far)
                        : fmt::format(
                              "So the cut is right; but {} differs by {:.1e}, and {}:\n"
                              "that is more than rounding. Please report it.\n",
                              own.name, own.error, far);
}

constexpr const char* kWhyRounding =
    "Devices that share rows or operators round their sums apart, and a Relu near zero makes more of it";

}  // namespace

std::string validationTables(const ValidationReport& report) {
  std::string text;
  std::vector<std::vector<std::string>> rows = {{"step", "loss", "loss on one device", "difference"}};
  for (const StepComparison& step : report.steps) {
    rows.push_back({stepText(step.step, step.update), fmt::format("{:.9g}", step.loss),
                    fmt::format("{:.9g}", step.reference_loss),
                    fmt::format("{:.1e}", std::abs(step.loss - step.reference_loss))});
  }
  if (!report.steps.empty()) text += formatTable(rows) + "\n";
  if (!report.left_out.empty()) {
    text += fmt::format(
        "left out on both sides, as gradients are not finite with this scale of the loss: step {}; --steps N "
        "shows more, --loss-scale X begins with a smaller one\n",
        fmt::join(report.left_out, ", "));
  }
  return text + worstTable(report, report.passed() ? kMostOfRounding : kMostFailures) + "\n";
}

void refuseNotANumber(const ValidationReport& report) {
  const TensorComparison* first = report.firstNotANumber();
  if (first == nullptr) return;
  fail(ErrorCode::kNotANumber,
       "{} is not a number (NaN or infinite) on one device either, at the same places: nothing tells whether "
       "the plan is right. `pipeshard run --on-nan find` names the first value that is not a number",
       nameOf(*first));
}

std::string validationVerdict(const Plan& plan, const ValidationReport& report,
                              const std::string& otherwise) {
  const std::string_view type = dataTypeName(plan.given.precision);
  const std::string mixed =
      isHalf(plan.given.precision) ? fmt::format(", in {}, by the bounds above", type) : "";
  const std::string verdict = fmt::format(
      "{}: {} on {} {} one device{}\n", report.passed() ? "PASS" : "FAIL",
      std::filesystem::path(plan.model_path).filename().string(), counted(report.ranks, "worker"),
      report.passed() ? "equals" : "differs from",
      report.in_float64 && report.passed() ? fmt::format(", but for {}'s rounding", type) : mixed);
  if (report.withinBounds()) return verdict;
  if (report.in_float64 && report.in_float64->passed) {
    const auto beyond = std::count_if(report.tensors.begin(), report.tensors.end(),
                                      [](const TensorComparison& tensor) { return !tensor.passed(); });
    const auto& [passed, compared, worst, own] = *report.in_float64;
    const std::string rounding = fmt::format(
        "In {} {} {} by {:.1e} at most. The same plan in float64 equals one device: {} within {:.0e},\n"
        "the worst {:.1e}. ",
        type, counted(beyond, "tensor"), beyond == 1 ? "differs" : "differ", report.tensors.front().error,
        counted(compared, "tensor"), worst.bound, worst.error);
    return rounding + (own ? ownRoundingText(*own, type) : fmt::format("{}.\n", kWhyRounding)) + verdict;
  }
  if (report.in_float64) {
    return fmt::format("In float64 as well: {}. So this is no rounding: please report it.\n{}",
                       describe(report.in_float64->worst), verdict);
  }
  if (plan.given.precision == DataType::kFloat64) return verdict;
  const std::string unseen =
      otherwise.empty() ? "" : fmt::format("Not looked at in float64: {}\n", otherwise);
  return fmt::format("{}{}:\n--precision float64 tells whether the cut is right (docs/precision.md)\n{}",
                     unseen, kWhyRounding, verdict);
}

std::string validationJson(const ValidationReport& report) { return toJson(report).dump(1) + "\n"; }

}  // namespace pipeshard
