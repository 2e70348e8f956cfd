// `simulate`: what happens when, without running anything.
#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule_csv.h"
#include "planning/directory/plan_directory.h"
#include "tools/commands.h"
#include "tools/options/option_checks.h"
#include "tools/output/standard_streams.h"
#include "tools/refresh.h"
#include "tools/report/text_table.h"
#include "tools/simulation/simulation_report.h"
#include "tools/simulation/trace_file.h"

namespace pipeshard {
namespace {

constexpr const char* kBare = "A bare schedule";
constexpr const char* kPlan = "A plan directory";
constexpr const char* kOutput = "Output";
constexpr int kNarrowest = 20;

constexpr const char* kSimulateFooter = R"(
A bare schedule needs no model: it is simulated with the times that you give, of one microbatch through all that a pipeline
rank has to do (with v stages per rank, each stage takes 1/v of them). Numbers are exact: 18.522 is not rounded.

  F  forward            I  gradients of the inputs       B  I and W together (instead of both)
                        W  gradients of the weights      R  recomputation before B or I      U  update at the end of the step

  pipeshard simulate --schedule zb-h1 --p 4 --m 8 --times F=1,I=1,W=1 --comm 0.5
  pipeshard simulate --schedule interleaved --p 4 --m 8 --v 3 --times F=1,B=2 --trace step.json      open it in ui.perfetto.dev
  pipeshard simulate --schedule 1f1b --p 4 --m 8 --csv mine.csv; edit it; pipeshard simulate --schedule mine.csv

Of a plan directory, the programs are followed that `run` would run, with the cost model's durations:

  pipeshard plan examples/gpt2.onnx --cluster 1x4 --schedule zb-h1 --microbatches 8 -o gpt2.plan && pipeshard simulate gpt2.plan

What is printed: the makespan (from the first start to the last end of a step); the bubble, which is idle time, by three
conventions: as part of the makespan, relative to the useful work, and as part of the longest span (a rank's time from its
first start to its last end: what remains where steps follow each other without a barrier); per rank the most microbatches
whose activations it holds at once; and a picture, a row per rank. Times of a plan are nanoseconds in the JSON.)";

class SimulateCommand {
 public:
  BareRequest bare;
  PlanSimulationRequest plan;
  int width = 0;
  std::string json, csv, trace, ranks;

  int run(const CLI::App& command) const {
    checkOptions(command);
    if (!plan.directory.empty() && hasPrograms(plan.directory))
      refreshEdited(plan.directory, [](const std::string&) {});
    const SimulationReport report = plan.directory.empty() ? simulateBare(bare) : simulatePlan(asked());
    print(report);
    if (!json.empty()) writeTextFile(json, report.json);
    if (!csv.empty()) writeTextFile(csv, scheduleToCsv(report.orders));
    if (!trace.empty()) writeTextFile(trace, tracesToJson({&report.trace, 1}));
    return 0;
  }

 private:
  void checkOptions(const CLI::App& command) const {
    const char* other = plan.directory.empty() ? kPlan : kBare;
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_group() != other || option->count() == 0) continue;
      fail(ErrorCode::kUsage, "{}: says nothing {}", option->get_name(),
           plan.directory.empty() ? "about a bare schedule; leave it out"
                                  : "about a plan directory, which is already decided; leave it out");
    }
    if (plan.directory.empty() && bare.schedule.empty()) {
      fail(ErrorCode::kUsage,
           "what is to be simulated? Give a plan directory, or --schedule NAME --p RANKS --m MICROBATCHES "
           "(--help explains)");
    }
  }

  PlanSimulationRequest asked() const {
    PlanSimulationRequest request = plan;
    request.with_json = !json.empty();
    request.each_simulated = !trace.empty();
    request.shown = parseRanks("--ranks", ranks);
    return request;
  }

  GanttStyle style() const {
    GanttStyle result;
    const bool terminal = isatty(STDOUT_FILENO) == 1;
    winsize size{};
    result.colours = terminal;
    if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
      result.width = std::max<int>(size.ws_col - 5, kNarrowest);
    if (width > 0) result.width = width;
    return result;
  }

  void print(const SimulationReport& report) const {
    fmt::print(
        "{}\n\nmakespan  {}\nbubble    {:.2f}% of the makespan, {:.2f}% of the useful work, {:.2f}% of the "
        "longest span\n\n",
        report.title, report.makespan_text, 100 * report.bubble_of_makespan, 100 * report.bubble_of_useful,
        100 * report.bubble_of_span);
    fmt::print("{}\n", formatTable(report.table));
    if (report.makespan == 0) return;
    printControl(stdout, ganttText(report.gantt, report.makespan, style()));  // colours
    const double column =
        static_cast<double>(ganttColumn(report.gantt, report.makespan, style())) / report.ticks_per_unit;
    fmt::print("{}; a column is {:.4g}{}\n", ganttLegend(report.gantt), column, report.unit);
  }
};

void addBareOptions(CLI::App& sub, BareRequest& bare) {
  sub.add_option("--schedule", bare.schedule,
                 "One of " + fmt::format("{}", fmt::join(scheduleNames(), ", ")) + ", or a .csv file")
      ->group(kBare);
  sub.add_option("--p", bare.ranks, "Pipeline ranks")->check(positiveWhole(4096))->group(kBare);
  sub.add_option("--m", bare.microbatches, "Microbatches of a step")
      ->check(positiveWhole(65536))
      ->group(kBare);
  sub.add_option("--v", bare.chunks, "Stages per pipeline rank (default: as the schedule says)")
      ->check(positiveWhole(64))
      ->group(kBare);
  sub.add_option("--limit", bare.limit,
                 "Of zb-1p, zb-2p and their like: at most the activations of N microbatches on a rank")
      ->type_name("N")
      ->group(kBare);
}

// What passes and messages of a bare schedule take.
void addBareCosts(CLI::App& sub, BareRequest& bare) {
  sub.add_option("--times", bare.times, "Of one microbatch on a rank, in any unit")
      ->type_name("F=..,I=..,W=..")
      ->capture_default_str()
      ->group(kBare);
  sub.add_option("--comm", bare.communication, "Latency of a message between ranks, in the same unit")
      ->type_name("TIME")
      ->capture_default_str()
      ->group(kBare);
  sub.add_option("--occupancy", bare.occupancy,
                 "How long a message holds the link from its sender to its receiver, before the latency")
      ->type_name("TIME")
      ->capture_default_str()
      ->group(kBare);
  sub.add_flag("--exposed", bare.exposed,
               "Sender and receiver compute nothing while a message travels between them (default: it "
               "travels beside compute)")
      ->group(kBare);
  sub.add_flag("--split-pairs", bare.split_pairs,
               "Passes that a device may overlap (dual-pipe-v) run one after the other (default: they start "
               "and end together)")
      ->group(kBare);
  sub.add_option("--memory-model", bare.memory_model,
                 "What passes change the memory of a rank by; adds up to 0")
      ->type_name("F=..,I=..,W=..")
      ->capture_default_str()
      ->group(kBare);
}

void addDeviceOptions(CLI::App& sub, PlanSimulationRequest& plan) {
  sub.add_option("--device-gflops", plan.device_gflops,
                 "GFLOP/s of a device (default: as the plan's cluster says)")
      ->check(numberFrom(1e-6, 1e9))
      ->group(kPlan);
  sub.add_option("--device-gbytes", plan.device_gbytes,
                 "GB/s of a device's memory (default: as the plan's cluster says)")
      ->check(numberFrom(1e-6, 1e9))
      ->group(kPlan);
  sub.add_option("--link-gbytes", plan.link_gbytes,
                 "GB/s of a link between two devices (default: as the plan's cluster says)")
      ->check(numberFrom(1e-6, 1e9))
      ->group(kPlan);
  sub.add_option("--link-us", plan.link_us,
                 "Microseconds of latency of a message (default: as the plan's cluster says)")
      ->check(numberFrom(0, 1e9))
      ->group(kPlan);
}

void addSimulatedPlanOptions(CLI::App& sub, SimulateCommand& command) {
  sub.add_option("--profile", command.plan.profile,
                 "Durations of operators as `pipeshard profile` has measured them: a FILE, or off\n"
                 "(default: this machine's, if there is one)")
      ->type_name("FILE|off")
      ->group(kPlan);
  sub.add_option("--measured", command.plan.measured,
                 "Take durations from a trace of `run --trace`, of this plan or one with the same stages")
      ->type_name("TRACE")
      ->group(kPlan);
  sub.add_option("--threads", command.plan.threads,
                 "Threads per worker, on which its memory depends (default: as `run` has them here)")
      ->check(positiveWhole(4096))
      ->group(kPlan);
  sub.add_flag("--eager", command.plan.eager,
               "Messages travel before they are wanted, as over a network (default: as in shared memory)")
      ->group(kPlan);
  sub.add_option("--ranks", command.ranks,
                 "Of more than 64 ranks some are shown that stand for all; these, too, and those that they "
                 "send to: 17,500-503")
      ->type_name("LIST")
      ->group(kPlan);
}

void addPictureOptions(CLI::App& sub, SimulateCommand& command) {
  sub.add_option("--width", command.width, "Columns of the picture (default: the terminal's, or 100)")
      ->check(positiveWhole(10000))
      ->group(kOutput);
  sub.add_option("--json", command.json, "Also write everything to this file")
      ->type_name("FILE")
      ->group(kOutput);
  sub.add_option("--csv", command.csv,
                 "Write the orders to this file, in the form of torch.distributed.pipelining")
      ->type_name("FILE")
      ->group(kOutput);
  sub.add_option("--trace", command.trace,
                 "Write a trace to this file, for ui.perfetto.dev or chrome://tracing")
      ->type_name("FILE")
      ->group(kOutput);
}

}  // namespace

CommandFunction addSimulateCommand(CLI::App& app) {
  auto command = std::make_shared<SimulateCommand>();
  CLI::App* sub = app.add_subcommand(
      "simulate",
      "What happens when in a step, of a plan or of a bare schedule: makespan, bubble, memory, picture");
  sub->add_option("DIR", command->plan.directory, "A plan directory; or nothing, and --schedule");
  addBareOptions(*sub, command->bare);
  addBareCosts(*sub, command->bare);
  addDeviceOptions(*sub, command->plan);
  addSimulatedPlanOptions(*sub, *command);
  const auto contention = [command](int64_t) {
    command->bare.no_contention = command->plan.no_contention = true;
  };
  sub->add_flag_function("--no-contention", contention, "Messages of one link do not wait for each other");
  addPictureOptions(*sub, *command);
  sub->footer(kSimulateFooter);
  return [command, sub] { return command->run(*sub); };
}

}  // namespace pipeshard
