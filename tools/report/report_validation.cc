#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/ids_format.h"
#include "runtime/validation/validate.h"
#include "tools/report/report_html.h"
#include "tools/report/report_sections.h"

namespace pipeshard {
namespace {

constexpr size_t kMostComparisonsShown = 15;
constexpr size_t kMostStepsShown = 50;

std::string errorText(double error) {
  return std::isfinite(error) ? fmt::format("{:.2e}", error) : "not finite";
}

std::string boundText(double bound) {
  return std::isfinite(bound) ? fmt::format("{:.0e}", bound) : "shown only";
}

std::string tensorName(const TensorComparison& tensor) {
  return tensor.state.empty() ? tensor.name : tensor.name + " " + tensor.state;
}

HtmlCell verdictCell(const TensorComparison& tensor) {
  if (!std::isfinite(tensor.bound)) return textCell("shown only");
  return {tensor.passed() ? "<span class=\"ok\">pass</span>" : "<span class=\"bad\">FAIL</span>", false};
}

struct KindSummary {
  int64_t compared = 0;
  int64_t failed = 0;
  double worst = 0;
  double bound = 0;
};

}  // namespace

std::string renderVerdict(const ReportInput& input) {
  if (input.validation == nullptr) {
    return "<div class=\"verdict\"><p><b>Planned, not validated yet</b></p><p><code>pipeshard "
           "validate</code> runs the plan and compares it with one device.</p></div>\n";
  }
  const ValidationReport& validation = *input.validation;
  const bool passed = validation.passed();
  const auto failed = std::count_if(validation.tensors.begin(), validation.tensors.end(),
                                    [](const auto& tensor) { return !tensor.passed(); });
  std::string html = passed ? "<div class=\"verdict pass\"><p><b>PASS: equals one device</b></p>"
                            : "<div class=\"verdict fail\"><p><b>FAIL: differs from one device</b></p>";
  html += fmt::format("<p>{} on {}; {} compared, {} over {} bound.</p>",
                      counted(std::ssize(validation.steps), "step"), counted(validation.ranks, "rank"),
                      counted(std::ssize(validation.tensors), "tensor"),
                      failed == 0 ? "none" : fmt::format("{}", failed), failed > 1 ? "their" : "its");
  if (!validation.tensors.empty()) {
    const TensorComparison& worst = validation.tensors.front();
    html += fmt::format(
        "<p>Worst: {}{} in step {}, error {} (bound {}).</p>", escapeHtml(comparedKindName(worst.kind)),
        worst.kind == ComparedKind::kLoss ? "" : " <code>" + breakable(tensorName(worst)) + "</code>",
        worst.step, errorText(worst.error), boundText(worst.bound));
  }
  if (validation.in_float64) {
    html += fmt::format("<p>The same plan in float64: {} compared, {} (worst error {}, bound {}).</p>",
                        counted(validation.in_float64->compared, "tensor"),
                        validation.in_float64->passed ? "equal to one device, so that what is beyond the "
                                                        "bounds is rounding"
                                                      : "which differ as well",
                        errorText(validation.in_float64->worst.error),
                        boundText(validation.in_float64->worst.bound));
  }
  return html + "</div>\n";
}

std::string renderComparison(const ValidationReport& validation) {
  std::map<ComparedKind, KindSummary> kinds;
  for (const TensorComparison& tensor : validation.tensors) {
    KindSummary& kind = kinds[tensor.kind];
    ++kind.compared;
    kind.failed += tensor.passed() ? 0 : 1;
    kind.worst = std::max(kind.worst, std::isnan(tensor.error) ? INFINITY : tensor.error);
    kind.bound = std::max(kind.bound, tensor.bound);
  }
  HtmlTable summary{"Comparison by kind",
                    {textCell("Compared"), numberCell("Tensors"), numberCell("Worst error"),
                     numberCell("Bound"), numberCell("Over bound")},
                    {}};
  for (const auto& [kind, sum] : kinds) {
    summary.rows.push_back({textCell(comparedKindName(kind)), numberCell(fmt::format("{}", sum.compared)),
                            numberCell(errorText(sum.worst)), numberCell(boundText(sum.bound)),
                            numberCell(fmt::format("{}", sum.failed))});
  }
  HtmlTable worst{"Worst tensors",
                  {textCell("Kind"), textCell("Tensor"), numberCell("Step"), numberCell("Error"),
                   numberCell("Bound"), numberCell("Largest difference"), textCell("Verdict")},
                  {}};
  const size_t shown = std::min(validation.tensors.size(), kMostComparisonsShown);
  for (size_t t = 0; t < shown; ++t) {
    const TensorComparison& tensor = validation.tensors[t];
    worst.rows.push_back({textCell(comparedKindName(tensor.kind)), codeCell(tensorName(tensor)),
                          numberCell(fmt::format("{}", tensor.step)), numberCell(errorText(tensor.error)),
                          numberCell(boundText(tensor.bound)),
                          numberCell(errorText(tensor.largest_difference)), verdictCell(tensor)});
  }
  return section(
      "comparison", "Against one device",
      renderTable(summary) +
          paragraph(fmt::format("The {} nearest to their bound, or furthest over it:",
                                counted(std::ssize(worst.rows), "tensor"))) +
          renderTable(worst) +
          paragraph("Error: the 2-norm of the difference over the 2-norm of the one-device tensor, which has "
                    "a floor, so that a gradient that is zero up to rounding does not decide. Updates on "
                    "identical gradients are compared element by element."));
}

std::string renderLosses(const ValidationReport& validation) {
  HtmlTable table{
      "Losses",
      {numberCell("Step"), numberCell("Planned"), numberCell("One device"), numberCell("Difference")},
      {}};
  for (size_t s = 0; s < std::min(validation.steps.size(), kMostStepsShown); ++s) {
    const StepComparison& step = validation.steps[s];
    table.rows.push_back({numberCell(fmt::format("{}", s + 1)), numberCell(fmt::format("{:.9g}", step.loss)),
                          numberCell(fmt::format("{:.9g}", step.reference_loss)),
                          numberCell(fmt::format("{:.1e}", step.loss - step.reference_loss))});
  }
  std::string html = renderTable(table);
  if (validation.steps.size() > kMostStepsShown)
    html += paragraph(fmt::format("The first {} of {} steps.", kMostStepsShown, validation.steps.size()));
  return section("losses", "Loss of each step", html);
}

// The last step: earlier ones touch memory for the first time.
std::string renderTimes(const ValidationReport& validation) {
  const StepResult& step = validation.planned.steps.back();
  HtmlTable table{"Time of the last step",
                  {numberCell("Rank"), numberCell("Computing"), numberCell("Transfers and waiting")},
                  {}};
  for (RankId rank : idsBelow<RankId>(std::min(step.compute_seconds.size(), step.transfer_seconds.size()))) {
    table.rows.push_back({numberCell(fmt::format("{}", rank)),
                          numberCell(fmt::format("{:.4f} s", step.compute_seconds[rank])),
                          numberCell(fmt::format("{:.4f} s", step.transfer_seconds[rank]))});
  }
  return section(
      "times", "Time of the last step",
      paragraph(fmt::format("Step {} took {:.4f} s on the slowest rank.", step.step, step.seconds)) +
          renderTable(table));
}

}  // namespace pipeshard
