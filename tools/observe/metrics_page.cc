#include "tools/observe/metrics_page.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

// The format's own words for what is no finite number.
std::string numberText(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "+Inf" : "-Inf";
  return fmt::format("{:.17g}", number);
}

class Page {
 public:
  void add(std::string_view name, std::string_view type, std::string_view help, double number) {
    head(name, type, help);
    text_ += fmt::format("pipeshard_{} {}\n", name, numberText(number));
  }
  void add(std::string_view name, std::string_view type, std::string_view help,
           const std::optional<double>& number) {
    if (number) add(name, type, help, *number);
  }
  void add(std::string_view name, std::string_view help, const IdVector<RankId, double>& by_rank) {
    if (by_rank.empty()) return;
    head(name, "gauge", help);
    for (const RankId rank : by_rank.ids())
      text_ += fmt::format("pipeshard_{}{{rank=\"{}\"}} {}\n", name, rank, numberText(by_rank[rank]));
  }
  std::string take() { return std::move(text_); }

 private:
  void head(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP pipeshard_{} {}\n# TYPE pipeshard_{} {}\n", name, help, name, type);
  }
  std::string text_;
};

std::optional<double> ifPositive(double number) { return number > 0 ? std::optional(number) : std::nullopt; }
std::optional<double> ifKnown(int64_t step) {
  return step >= 0 ? std::optional(static_cast<double>(step)) : std::nullopt;
}

}  // namespace

MetricsPage::MetricsPage(const RunFacts& facts)
    : facts_(facts),
      start_(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()) {}

void MetricsPage::take(const JobProgress& event, const RunFigures& figures) {
  using Kind = JobProgress::Kind;
  if (event.kind == Kind::kCheckpoint) checkpoint_step_ = event.step;
  if (event.kind == Kind::kEvaluated) evaluation_step_ = event.step;
  if (event.kind == Kind::kRestarted) ++restarts_;
  if (event.kind == Kind::kStep) {
    ++steps_done_;
    if (event.result != nullptr) {
      compute_seconds_ = event.result->compute_seconds;
      transfer_seconds_ = event.result->transfer_seconds;
    }
  }
  figures_ = figures;
}

std::string MetricsPage::text() const {
  Page page;
  page.add("start_time_seconds", "gauge", "When the run was started, in seconds since 1970.", start_);
  page.add("steps", "gauge", "Steps that the run is to do in all.", static_cast<double>(facts_.steps));
  page.add("steps_done_total", "counter", "Steps done by this process, with those that were done again.",
           static_cast<double>(steps_done_));
  page.add("restarts_total", "counter", "How often the job was started again after a loss.",
           static_cast<double>(restarts_));
  if (steps_done_ > 0) {
    page.add("step", "gauge", "The newest step that is done.", static_cast<double>(figures_.step));
    page.add("step_seconds", "gauge", "Duration of the newest step, on the slowest rank.", figures_.seconds);
    page.add("steps_per_second", "gauge", "Steps a second over about ten seconds.",
             figures_.steps_per_second);
    page.add("seconds_left", "gauge", "Estimated time until the last step is done.", figures_.seconds_left);
  }
  page.add("loss", "gauge", "Loss of the newest step.", figures_.loss);
  page.add("evaluation_loss", "gauge", "Loss of the held-out data.", figures_.evaluation_loss);
  page.add("evaluation_step", "gauge", "The step after which they were evaluated.",
           ifKnown(evaluation_step_));
  page.add("learning_rate", "gauge", "Learning rate of the newest step.", figures_.learning_rate);
  page.add("gradient_norm", "gauge", "Norm of all gradients of the newest step.", figures_.gradient_norm);
  page.add("loss_scale", "gauge", "What the loss of the newest step was scaled with (float16).",
           figures_.loss_scale);
  page.add("examples_per_second", "gauge", "Examples a second over about ten seconds.",
           ifPositive(figures_.examples_per_second));
  page.add("tokens_per_second", "gauge", "Tokens a second over about ten seconds.",
           ifPositive(figures_.tokens_per_second));
  page.add("largest_worker_bytes", "gauge", "Resident memory of the worker that holds most.",
           ifPositive(static_cast<double>(figures_.resident_bytes)));
  page.add("checkpoint_step", "gauge", "The step of the newest checkpoint.", ifKnown(checkpoint_step_));
  page.add("rank_compute_seconds", "What a rank has computed in the newest step.", compute_seconds_);
  page.add("rank_transfer_seconds", "What a rank has spent on transfers in it, waiting included.",
           transfer_seconds_);
  return page.take();
}

}  // namespace pipeshard
