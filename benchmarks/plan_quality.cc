// How good plans are, and how true: Alpa's suites on p3.16xlarge, predicted beside what its authors measured.
//
//   plan_quality --models DIR [--only REGEX] [--compare | --fit] [--plans]
//
// DIR has the suites' graphs without weights; those that are missing are exported where PIPESHARD_EXPORT_VENV
// names PyTorch's environment, else their rows are skipped. Clusters are the presets that `plan --cluster`
// has. --fit prints what a V100's efficiency should be there by the rows of one GPU alone: that of
// contractions by GPT and MoE, that of convolutions by Wide-ResNet. --compare ends with 1 where another way
// to plan is faster than the search.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <regex>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "benchmarks/alpa_ablation.h"
#include "benchmarks/alpa_suite.h"
#include "benchmarks/suite_fit.h"
#include "benchmarks/suite_models.h"
#include "benchmarks/suite_plans.h"
#include "ir/base/amounts.h"
#include "ir/base/error.h"

namespace pipeshard {
namespace {

// A table whose rows are printed as they come.
class GrowingTable {
 public:
  explicit GrowingTable(std::vector<std::pair<std::string, int>> columns, const std::string& before = "")
      : columns_(std::move(columns)) {
    fmt::print("{}", before);
    std::vector<std::string> heads;
    for (const auto& [head, width] : columns_) heads.push_back(head);
    add(heads);
  }
  void add(const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i)
      line += fmt::format("{:<{}}  ", cells[i], columns_.at(i).second);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

 private:
  std::vector<std::pair<std::string, int>> columns_;  // with their widths
};

// The tables.
class Quality {
 public:
  Quality(std::string folder, const std::string& only, bool plans, int threads)
      : models_(std::move(folder)), only_(only), plans_(plans), threads_(threads) {}

  // What presets should say, by all rows of one GPU: end to end, and inside one node.
  void fit() {
    std::vector<MeasuredStep> contractions, convolutions;
    for (const char* family : {"gpt", "moe", "wrn"}) {
      std::vector<MeasuredStep>& steps = family == std::string("wrn") ? convolutions : contractions;
      for (const std::optional<MeasuredStep>& step : {single(family), singleOfAblation(family)}) {
        if (step) steps.push_back(*step);
      }
    }
    printFit(contractions, convolutions);
  }

  // Our search beside other ways to plan, in the same simulator: how many times slower they are. False: one
  // is faster.
  bool compare() {
    const std::vector<std::string> ways = {"auto",          "stored",        "uniform stages",
                                           "megatron grid", "data parallel", "ZeRO-3"};
    std::vector<std::pair<std::string, int>> columns = {{"model", 9}, {"GPUs", 4}};
    for (const std::string& way : ways) columns.emplace_back(way, 14);
    GrowingTable table(columns, "\n");
    std::string slower;
    for (const SuiteRow& row : alpaSuite()) {
      if (!isAsked(row.model) || !models_.has(row.model)) continue;
      RowSearch search(row, models_, threads_);
      const Prediction stored =
          predictStored(row, models_.step(row, row.microbatches), suiteCluster(row.gpus));
      const std::vector<Planned> found = {search.best(),
                                          {stored.fits ? stored.step_ns : 0, "Alpa's"},
                                          search.uniform({ShardingKind::kAuto}),
                                          search.uniform({ShardingKind::kMegatron}),
                                          search.only({ShardingKind::kDataParallel}, 1),
                                          search.only({ShardingKind::kZero3}, 1)};
      const int64_t ours = found[0].step_ns;
      std::vector<std::string> cells = {
          row.model.name(), fmt::format("{}", row.gpus),
          ours == 0 ? "out of memory" : fmt::format("{:.2f} s", static_cast<double>(ours) / 1e9)};
      for (size_t way = 0; way < ways.size(); ++way) {
        if (way > 0) cells.push_back(found[way].text(ours));
        const bool faster = found[way].step_ns > 0 && (ours == 0 || found[way].step_ns < ours);
        if (faster)
          slower += fmt::format("slower than {}: {} on {}\n", ways[way], row.model.name(), row.gpus);
      }
      table.add(cells);
      for (size_t way = 0; way < ways.size() && plans_; ++way)
        fmt::print("  {}: {}\n", ways[way], found[way].step_ns == 0 ? "none fits" : found[way].plan);
      std::fflush(stdout);
    }
    fmt::print("{}", slower.empty() ? "no other way to plan is faster in any row\n" : slower);
    return slower.empty();
  }

  // Its authors' stored plans.
  void stored() {
    GrowingTable table({{"model", 9},
                        {"GPUs", 4},
                        {"microbatches", 12},
                        {"stages", 6},
                        {"step", 8},
                        {"memory", 18},
                        {"TFLOP/s", 7},
                        {"measured", 8},
                        {"ratio", 0}});
    int close = 0;
    int fitting = 0;
    int judged = 0;
    for (const SuiteRow& row : alpaSuite()) {
      if (!isAsked(row.model)) continue;
      std::vector<std::string> cells = {row.model.name(), fmt::format("{}", row.gpus),
                                        fmt::format("{}", row.microbatches),
                                        fmt::format("{}", row.stages.size())};
      if (!models_.has(row.model)) {
        cells.emplace_back("skipped: no PIPESHARD_EXPORT_VENV to export it");
        table.add(cells);
        continue;
      }
      const Step& step = models_.step(row, row.microbatches);
      const Prediction prediction = predictStored(row, step, suiteCluster(row.gpus));
      const double tflops = step.flops / static_cast<double>(prediction.step_ns) / 1e3 / row.gpus;
      cells.insert(cells.end(), {fmt::format("{:.2f} s", static_cast<double>(prediction.step_ns) / 1e9),
                                 formatBytes(prediction.memory) + (prediction.fits ? "" : ": too much"),
                                 fmt::format("{:.1f}", tflops), fmt::format("{:.1f}", row.measured),
                                 fmt::format("{:.2f}", tflops / row.measured)});
      table.add(cells);
      if (plans_) fmt::print("  {}\n", prediction.parts);
      if (row.gpus == 1) continue;
      ++judged;
      close += std::abs(tflops / row.measured - 1) <= 0.2;
      fitting += prediction.fits;
    }
    fmt::print(
        "{} of {} rows of several GPUs within 20 % of what was measured; {} of {} are said to fit into "
        "memory, as all did\n",
        close, judged, fitting, judged);
  }

  // Inside one node.
  void ablation() {
    if (std::none_of(alpaAblation().begin(), alpaAblation().end(),
                     [&](const AblationRow& row) { return isAsked(row.model); }))
      return;
    fmt::print("\nInside one node: no pipeline, one microbatch\n");
    GrowingTable table({{"model", 12},
                        {"GPUs", 4},
                        {"way", 6},
                        {"memory", 18},
                        {"published", 13},
                        {"TFLOP/s", 7},
                        {"published", 13},
                        {"ratio", 0}});
    int agreeing = 0;
    int close = 0;
    int judged = 0;
    int rows = 0;
    for (const AblationRow& row : alpaAblation()) {
      if (!isAsked(row.model) || !models_.has(row.model)) continue;
      const Prediction prediction = predict(row, suiteCluster(row.gpus));
      const bool fitted = row.tflops > 0;
      const double ratio = row.seconds / (static_cast<double>(prediction.step_ns) / 1e9);
      table.add({row.model.name(), fmt::format("{}", row.gpus), row.way,
                 formatBytes(prediction.memory) + (prediction.fits ? "" : ": too much"),
                 fitted ? fmt::format("{:.2f} GiB", row.memory_gib) : "out of memory",
                 fitted ? fmt::format("{:.1f}", row.tflops * ratio) : "",
                 fitted ? fmt::format("{:.1f}", row.tflops) : "out of memory",
                 fitted ? fmt::format("{:.2f}", ratio) : ""});
      if (plans_) fmt::print("  {}\n", prediction.parts);
      ++rows;
      agreeing += fitted == prediction.fits;
      if (row.gpus == 1 || !fitted) continue;
      ++judged;
      close += std::abs(ratio - 1) <= 0.2;
    }
    fmt::print(
        "{} of {} rows fit or not as published; {} of {} rows of several GPUs within 20 % of what was "
        "measured\n",
        agreeing, rows, close, judged);
  }

  // End to end, what was published as out of memory.
  void shortages() {
    GrowingTable table({{"model", 8},
                        {"GPUs", 4},
                        {"published as out of memory", 30},
                        {"predicted", 13},
                        {"least memory", 12},
                        {"", 0}},
                       "\n");
    for (const ShortageRow& way : alpaShortages()) {
      for (const SuiteRow& row : alpaSuite()) {
        if (row.model.name() != way.model || !isAsked(row.model) || !models_.has(row.model)) continue;
        const auto [found, least] = RowSearch(row, models_, threads_).within(way);
        table.add({way.model, fmt::format("{}", row.gpus), way.way,
                   found.step_ns == 0 ? "out of memory" : "fits", least == 0 ? "" : formatBytes(least),
                   found.plan});
      }
    }
  }

 private:
  std::optional<MeasuredStep> single(const std::string& family) {
    for (const SuiteRow& row : alpaSuite()) {
      if (row.gpus != 1 || row.model.family != family || !models_.has(row.model)) continue;
      const Step& step = models_.step(row, row.microbatches);
      const auto seconds = [&row, &step](const Efficiency& efficiency) {
        return static_cast<double>(
                   predictStored(row, step, withEfficiency(suiteCluster(1), efficiency)).step_ns) /
               1e9;
      };
      return MeasuredStep{row.model.name() + " end to end", step.flops / row.measured / 1e12, seconds};
    }
    return {};
  }

  // The ablation's own step on one GPU.
  std::optional<MeasuredStep> singleOfAblation(const std::string& family) {
    for (const AblationRow& row : alpaAblation()) {
      if (row.gpus != 1 || row.model.family != family || !models_.has(row.model)) continue;
      const auto seconds = [this, &row](const Efficiency& efficiency) {
        return static_cast<double>(predict(row, withEfficiency(suiteCluster(1), efficiency)).step_ns) / 1e9;
      };
      return MeasuredStep{row.model.name() + " inside one node", row.seconds, seconds};
    }
    return {};
  }

  Prediction predict(const AblationRow& row, const Cluster& cluster) {
    const SuiteRow whole{row.model, row.gpus, row.batch, 1, row.layers(), {}, 0};
    return predictOneStage(models_.step(whole, 1), cluster, row.method, row.recomputation());
  }

  bool isAsked(const SuiteModel& model) const { return std::regex_search(model.name(), only_); }

  Models models_;
  std::regex only_;
  bool plans_;  // printed, too
  int threads_;
};

}  // namespace
}  // namespace pipeshard

int main(int argc, char** argv) {
  CLI::App app("Alpa's suites, predicted beside measured");
  std::string folder;
  std::string only = ".";
  app.add_option("--models", folder, "Where the graphs are, or are exported to")->required();
  app.add_option("--only", only, "Rows whose model matches this regular expression");
  bool compare = false;
  app.add_flag("--compare", compare,
               "Instead of other ablations, search plans, and compare them with other ways to plan");
  bool fit = false;
  app.add_flag("--fit", fit, "Instead print the efficiency that the preset should have by rows of one GPU")
      ->excludes("--compare");
  bool plans = false;
  app.add_flag("--plans", plans, "Print what stored plans hold in memory, and the plans that are compared");
  int threads = 2;
  app.add_option("--threads", threads, "For --compare; plans do not depend on it")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    pipeshard::Quality quality(folder, only, plans, threads);
    if (fit) {
      quality.fit();
      return 0;
    }
    quality.stored();
    if (compare) return quality.compare() ? 0 : 1;
    quality.shortages();
    quality.ablation();
  } catch (const pipeshard::Error& error) {
    fmt::print(stderr, "plan_quality: {}\n", error.message());
    return static_cast<int>(error.code());
  }
  return 0;
}
