// How good plans are, and how true: Alpa's suites on p3.16xlarge, predicted beside what its authors measured.
//
//   plan_quality --models DIR [--only REGEX] [--compare [--plans]]
//
// DIR has the suites' graphs without weights; those that are missing are exported where PIPESHARD_EXPORT_VENV names PyTorch's environment,
// else their rows are skipped. The efficiency of the device is fitted on the rows of one GPU alone: that of contractions and of all that
// waits for memory on GPT and MoE, that of convolutions on Wide-ResNet. --compare ends with 1 where another way to plan is faster than the
// search.
#include <algorithm>
#include <array>
#include <cstdio>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "benchmarks/alpa_suite.h"
#include "benchmarks/suite_models.h"
#include "benchmarks/suite_plans.h"
#include "ir/error.h"
#include "tools/console.h"

namespace pipeshard {
namespace {

class Quality {
 public:
  Quality(std::string folder, const std::string& only, bool plans, int threads)
      : models_(std::move(folder)), only_(only), plans_(plans), threads_(threads) {}

  // Our search beside other ways to plan, in the same simulator: how many times slower they are. False: one is faster.
  bool compare() {
    const std::vector<std::string> ways = {"auto", "stored", "uniform stages", "megatron grid", "data parallel", "ZeRO-3"};
    std::vector<std::vector<std::string>> rows = {{"model", "GPUs"}};
    rows[0].insert(rows[0].end(), ways.begin(), ways.end());
    std::string slower;
    for (const SuiteRow& row : alpaSuite()) {
      if (!std::regex_search(row.model.name(), only_) || !models_.has(row.model)) continue;
      RowSearch search(row, models_, efficiency_, threads_);
      const Prediction stored = predictStored(row, models_.step(row, row.microbatches), efficiency_);
      const std::vector<Planned> found = {search.best(),
                                          {stored.fits ? stored.step_ns : 0, "Alpa's"},
                                          search.uniform("auto"),
                                          search.uniform("megatron"),
                                          search.only("data-parallel", 1),
                                          search.only("zero3", 1)};
      const int64_t ours = found[0].step_ns;
      rows.push_back({row.model.name(), fmt::format("{}", row.gpus),
                      ours == 0 ? "out of memory" : fmt::format("{:.2f} s", static_cast<double>(ours) / 1e9)});
      for (size_t way = 0; way < ways.size(); ++way) {
        if (way > 0) rows.back().push_back(found[way].text(ours));
        const bool faster = found[way].step_ns > 0 && (ours == 0 || found[way].step_ns < ours);
        if (faster) slower += fmt::format("slower than {}: {} on {}\n", ways[way], row.model.name(), row.gpus);
        if (!plans_ && !faster) continue;
        fmt::print("{} on {}, {}: {}\n", row.model.name(), row.gpus, ways[way], found[way].step_ns == 0 ? "none fits" : found[way].plan);
      }
      fmt::print(stderr, "{}\n", fmt::join(rows.back(), "  "));
      std::fflush(stdout);
    }
    fmt::print("\n{}{}", formatTable(rows), slower.empty() ? "no other way to plan is faster in any row\n" : slower);
    return slower.empty();
  }

  // What was published as out of memory, by ways to plan that our search knows.
  void compareMemory() {
    struct Published {
      std::string model, what;
      std::vector<std::string> methods;
      int devices;  // of a stage; 0: any
    };
    std::vector<std::vector<std::string>> rows = {{"model", "GPUs", "published as out of memory", "predicted", "least memory"}};
    for (const Published& entry : std::vector<Published>{{"moe_27B", "pipeline alone", {"auto"}, 1},
                                                         {"moe_70B", "pipeline alone", {"auto"}, 1},
                                                         {"wrn_6.8B", "pipeline alone", {"auto"}, 1},
                                                         {"wrn_13B", "pipeline alone", {"auto"}, 1},
                                                         {"wrn_6.8B", "pipeline and data parallelism", {"data-parallel"}, 0},
                                                         {"wrn_13B", "pipeline and data parallelism", {"data-parallel"}, 0}}) {
      for (const SuiteRow& row : alpaSuite()) {
        if (row.model.name() != entry.model || !std::regex_search(entry.model, only_) || !models_.has(row.model)) continue;
        const auto [found, least] = RowSearch(row, models_, efficiency_, threads_).within(entry.methods, entry.devices);
        rows.push_back({entry.model, fmt::format("{}", row.gpus), entry.what, found.step_ns == 0 ? "out of memory" : "fits: " + found.plan,
                        least == 0 ? "" : formatBytes(least)});
      }
    }
    if (rows.size() > 1) fmt::print("\n{}", formatTable(rows));
  }

  void run() {
    fit();
    fmt::print("fitted on one GPU: contraction {:.2f}, convolution {:.2f}, memory {:.2f} of the data sheet\n\n", efficiency_.contraction,
               efficiency_.convolution, efficiency_.memory);
    std::vector<std::vector<std::string>> rows = {
        {"model", "GPUs", "microbatches", "stages", "step", "memory", "TFLOP/s", "measured", "ratio"}};
    int close = 0;
    int fitting = 0;
    int judged = 0;
    for (const SuiteRow& row : alpaSuite()) {
      if (!std::regex_search(row.model.name(), only_)) continue;
      rows.push_back(
          {row.model.name(), fmt::format("{}", row.gpus), fmt::format("{}", row.microbatches), fmt::format("{}", row.stages.size())});
      std::vector<std::string>& cells = rows.back();
      if (!models_.has(row.model)) {
        cells.insert(cells.end(), {"skipped: no PIPESHARD_EXPORT_VENV to export it", "", "", "", ""});
        continue;
      }
      const Step& step = models_.step(row, row.microbatches);
      const Prediction prediction = predictStored(row, step, efficiency_);
      if (prediction.step_ns == 0) {
        cells.insert(cells.end(), {"no such plan", "", "", "", ""});
        continue;
      }
      if (plans_) fmt::print("{} on {}: {}\n", row.model.name(), row.gpus, prediction.parts);
      const double tflops = step.flops / static_cast<double>(prediction.step_ns) / 1e3 / row.gpus;
      cells.insert(cells.end(), {fmt::format("{:.2f} s", static_cast<double>(prediction.step_ns) / 1e9),
                                 formatBytes(prediction.memory) + (prediction.fits ? "" : ": too much"), fmt::format("{:.1f}", tflops),
                                 row.measured > 0 ? fmt::format("{:.1f}", row.measured) : "", ""});
      if (row.measured == 0) continue;
      cells.back() = fmt::format("{:.2f}", tflops / row.measured);
      if (row.gpus == 1) continue;
      ++judged;
      close += std::abs(tflops / row.measured - 1) <= 0.2;
      fitting += prediction.fits;
    }
    fmt::print("{}\n{} of {} rows of several GPUs within 20 % of what was measured; {} of {} are said to fit into memory, as all did\n",
               formatTable(rows), close, judged, fitting, judged);
  }

 private:
  const SuiteRow* single(const std::string& family) {
    for (const SuiteRow& row : alpaSuite()) {
      if (row.gpus == 1 && row.model.family == family && models_.has(row.model)) return &row;
    }
    return nullptr;
  }

  double seconds(const SuiteRow& row, const Efficiency& efficiency) {
    return static_cast<double>(predictStored(row, models_.step(row, row.microbatches), efficiency).step_ns) / 1e9;
  }
  double measuredSeconds(const SuiteRow& row) { return models_.step(row, row.microbatches).flops / row.measured / 1e12; }

  // Times add up by class of work, so they are linear in one over the efficiencies.
  void fit() {
    const SuiteRow* gpt = single("gpt");
    const SuiteRow* moe = single("moe");
    const SuiteRow* wrn = single("wrn");
    if (gpt != nullptr && moe != nullptr) {
      std::array<std::array<double, 3>, 2> equations{};  // a / contraction + b / memory = c
      size_t i = 0;
      for (const SuiteRow* row : {gpt, moe}) {
        const double base = seconds(*row, {1, 1, 1});
        const double contraction = seconds(*row, {0.5, 1, 1}) - base;
        equations[i++] = {contraction, base - contraction, measuredSeconds(*row)};
        fmt::print("{}: contractions {:.2f} s, memory {:.2f} s at the data sheet's rates, measured {:.2f} s\n", row->model.name(),
                   contraction, base - contraction, measuredSeconds(*row));
      }
      const auto& [one, two] = equations;
      const double determinant = one[0] * two[1] - two[0] * one[1];
      const double x = (one[2] * two[1] - two[2] * one[1]) / determinant;
      const double y = (one[0] * two[2] - two[0] * one[2]) / determinant;
      if (x >= 1 && y > 0) {
        efficiency_.contraction = 1 / x;
        efficiency_.memory = 1 / y;
      } else {  // no such pair is physical: one factor for both
        fmt::print("the two rows fit no pair of efficiencies (1/{:.2f}, 1/{:.2f}): one is fitted for both\n", x, y);
        efficiency_.contraction = efficiency_.memory = (one[0] + one[1] + two[0] + two[1]) / (one[2] + two[2]);
      }
    }
    if (wrn != nullptr) {
      const double base = seconds(*wrn, {efficiency_.contraction, 1, efficiency_.memory});
      const double convolution = seconds(*wrn, {efficiency_.contraction, 0.5, efficiency_.memory}) - base;
      const double left = measuredSeconds(*wrn) - (base - convolution);
      fmt::print("{}: convolutions {:.2f} s at the data sheet's rate, the rest {:.2f} s, measured {:.2f} s\n", wrn->model.name(),
                 convolution, base - convolution, measuredSeconds(*wrn));
      if (left > 0) efficiency_.convolution = std::min(1.0, convolution / left);
    }
  }

  Models models_;
  std::regex only_;
  bool plans_;  // printed, too
  int threads_;
  Efficiency efficiency_;
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
  app.add_flag("--compare", compare, "Also search plans, and compare them with other ways to plan");
  bool plans = false;
  app.add_flag("--plans", plans, "Print what stored plans hold in memory, and the plans that are compared");
  int threads = 2;
  app.add_option("--threads", threads, "For --compare; plans do not depend on it")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    pipeshard::Quality quality(folder, only, plans, threads);
    quality.run();
    if (!compare) return 0;
    const bool best = quality.compare();
    quality.compareMemory();
    return best ? 0 : 1;
  } catch (const pipeshard::Error& error) {
    fmt::print(stderr, "plan_quality: {}\n", error.message());
    return static_cast<int>(error.code());
  }
  return 0;
}
