// Schedules as simulated and as run: schedule_overlay DIR... [--steps N] [--pipeshard FILE] [--json FILE]
//
// Runs each plan directory in turn (interleaved, several rounds) with a trace, and simulates its schedule
// with the pass times that were measured: those of its own trace, and those of the first directory's. Prints
// makespans, their difference, and the bubble beside the simulated one.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "benchmarks/measured_times.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/text_file.h"
#include "ir/trace/trace_breakdown.h"
#include "partition/families/plan_schedule.h"
#include "planning/directory/plan_directory.h"
#include "runtime/job/coordinator.h"
#include "runtime/job/job.h"
#include "tools/report/text_table.h"
#include "tools/simulation/trace_file.h"

namespace pipeshard {
namespace {

struct Options {
  std::vector<std::string> directories;
  std::string executable;
  int64_t steps = 3;
  int rounds = 1;
  std::string trace;
};

struct Side {
  std::string directory;
  Schedule schedule;
  // of all rounds, without each one's first step, which touches memory for the first time
  std::vector<MeasuredStep> steps;
  std::vector<MeasuredTimes> times;
};

double milliseconds(int64_t ns) { return static_cast<double>(ns) / 1e6; }

template <typename Key>
const MeasuredStep& medianStep(std::vector<MeasuredStep>& steps, Key key) {
  std::sort(steps.begin(), steps.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return steps[steps.size() / 2];
}

Trace runTraced(const Options& options, const std::string& directory) {
  Trace trace;
  JobSpec job;
  job.plan_directory = std::filesystem::absolute(directory).string();
  job.worker_executable = options.executable;
  job.steps = options.steps + 1;
  job.trace = &trace;
  job.trace_steps = options.steps;
  runJob(job);
  return trace;
}

Simulation predict(const Schedule& schedule, const MeasuredTimes& times) {
  return simulate({.schedule = schedule, .stages = times.stages, .latency = times.latency});
}

void run(const Options& options) {
  std::vector<Side> sides;
  for (const std::string& directory : options.directories)
    sides.push_back({directory, scheduleOf(readPlanDirectory(directory)), {}, {}});
  for (int round = 0; round < options.rounds; ++round) {
    for (Side& side : sides) {
      const Trace trace = runTraced(options, side.directory);
      fmt::print("{}\n{}\n", side.directory, printBreakdown(trace));
      for (MeasuredStep& step : measuredSteps(trace)) side.steps.push_back(std::move(step));
      side.times.push_back(measuredTimes(trace, side.schedule.stages));
      if (!options.trace.empty()) writeTextFile(options.trace, tracesToJson({&trace, 1}));
    }
  }
  for (const MeasuredTimes& times : sides.front().times) {
    for (const StageId stage : times.stages.ids()) {
      const PassTimes& pass = times.stages[stage];
      fmt::print("stage {}: F {:.1f} ms, I {:.1f} ms, W {:.1f} ms; transfer {:.2f} ms\n", stage,
                 milliseconds(pass.forward), milliseconds(pass.backward_input),
                 milliseconds(pass.backward_weight), milliseconds(times.latency));
    }
  }
  std::vector<std::vector<std::string>> rows = {{"schedule", "measured", "predicted", "difference",
                                                 "by the first's times", "difference", "bubble measured",
                                                 "bubble predicted"}};
  for (Side& side : sides) {
    const MeasuredStep& step = medianStep(side.steps, [](const MeasuredStep& of) { return of.makespan(); });
    const Simulation own = predict(side.schedule, side.times.back());
    const Simulation other = predict(side.schedule, sides.front().times.back());
    const auto ms = [](int64_t ns) { return fmt::format("{:.1f} ms", milliseconds(ns)); };
    const auto difference = [&](int64_t predicted) {
      return fmt::format("{:+.1f}%",
                         100 * (static_cast<double>(predicted) / static_cast<double>(step.makespan()) - 1));
    };
    rows.push_back({side.schedule.name(), ms(step.makespan()), ms(own.makespan), difference(own.makespan),
                    ms(other.makespan), difference(other.makespan),
                    fmt::format("{:.1f}%", 100 * step.bubble()),
                    fmt::format("{:.1f}%", 100 * own.bubbleOfMakespan())});
  }
  fmt::print("{}", formatTable(rows));
}

}  // namespace
}  // namespace pipeshard

int main(int argc, char** argv) {
  CLI::App app("Schedules as simulated and as run");
  pipeshard::Options options;
  options.executable =
      (std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() / "tools" / "pipeshard")
          .string();
  app.add_option("DIR", options.directories, "Plan directories")->required();
  app.add_option("--steps", options.steps, "Steps that count, of each run")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Runs of each")->capture_default_str();
  app.add_option("--pipeshard", options.executable, "The command whose workers run")->capture_default_str();
  app.add_option("--trace", options.trace, "Write the last run's trace");
  CLI11_PARSE(app, argc, argv);
  try {
    pipeshard::run(options);
    return 0;
  } catch (const pipeshard::Error& error) {
    fmt::print(stderr, "schedule_overlay: {}\n", error.message());
    return static_cast<int>(error.code());
  }
}
