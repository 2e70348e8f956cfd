#include "tools/options/run_options.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "ir/base/error.h"
#include "tools/options/job_options.h"
#include "tools/options/option_checks.h"

namespace pipeshard {
namespace {

constexpr std::array<std::string_view, 4> kOnNanNames = {"stop", "skip", "rewind", "find"};  // by value

// Of one of those names.
OnNan onNanOf(std::string_view name) {
  return static_cast<OnNan>(std::find(kOnNanNames.begin(), kOnNanNames.end(), name) - kOnNanNames.begin());
}

void addSteps(CLI::App& command, RunOptions& options) {
  command.add_option("DIR", options.directory, "A plan directory, as `pipeshard plan` writes it")->required();
  CLI::Option* steps =
      command
          .add_option(
              "--steps", options.job.steps,
              "How many training steps in all; a run that goes on from a checkpoint does what is left")
          ->check(positiveWhole())
          ->capture_default_str();
  command
      .add_option("--epochs", options.epochs, "Instead of --steps: how often every example of --data is used")
      ->check(positiveWhole())
      ->excludes(steps);
}

void addEvaluation(CLI::App& command, RunOptions& options) {
  CLI::Option* evaluation =
      command
          .add_option("--eval", options.job.evaluation.data.path,
                      "Held-out data, in any format of --data but a pipe: their loss, with dropouts off and "
                      "nothing updated,\nafter the last step (which may be done already) and as --eval-every "
                      "says")
          ->type_name("FILE|DIR");
  command
      .add_option("--eval-every", options.job.evaluation.every_steps,
                  "Evaluate after every so many steps, too")
      ->type_name("STEPS")
      ->check(positiveWhole())
      ->needs(evaluation);
  command
      .add_flag("--eval-at-start", options.job.evaluation.at_start,
                "Evaluate before the first step, too; not in a run that goes on from a checkpoint (one that "
                "has all\nsteps is evaluated in any case)")
      ->needs(evaluation);
}

void addOnNan(CLI::App& command, RunOptions& options) {
  command
      .add_option_function<std::string>(
          "--on-nan", [&options](const std::string& name) { options.on_nan = onNanOf(name); },
          "A step with a loss or gradients that are not finite: stop (exit code 82), skip: leave it out on "
          "all\nranks (with a plan that has --clip-norm), rewind: go back to the newest checkpoint, once in "
          "a "
          "row,\nfind: look at every value of every step, and stop (82) at the first that is not a number,\n"
          "even where what reads it drops it and loss and gradients are finite; steps are slower (default: "
          "stop; with a plan in float16, whose scale halves then, skip)")
      ->check(CLI::IsMember(std::vector<std::string>(kOnNanNames.begin(), kOnNanNames.end())));
}

// What it writes and shows.
void addRunOutputs(CLI::App& command, RunOptions& options) {
  command.add_flag(
      "--operators", options.job.operators,
      "Print what the operators of a step took: time, share, GFLOP/s, and what they would take at "
      "the best\nrates that kernels reach on this machine");
  command
      .add_option("--dump", options.job.dump_directory,
                  "Write loss and parameters of every step here, as safetensors (with --listen:\n"
                  "in a folder that all hosts share)")
      ->type_name("DIR");
  command
      .add_option("--outputs", options.outputs,
                  "Of a plan with the schedule forward-only: write what the model gives for all batches here")
      ->type_name("FILE.npz");
  command
      .add_option(
          "--log", options.log,
          "Write a line per step here while running: steps.jsonl, steps.csv, evaluations.jsonl, "
          "events.jsonl,\n"
          "event files for TensorBoard, and in ranks/ what each rank says; `pipeshard report DIR --log` "
          "draws it")
      ->type_name("DIR");
  command
      .add_option("--metrics", options.metrics,
                  "Serve the run's numbers at http://HOST:PORT/metrics, as Prometheus reads them (HOST: "
                  "127.0.0.1; PORT 0: any)")
      ->type_name("[HOST:]PORT");
  command.add_option("--json", options.json, "Also write losses, times and memory to this file")
      ->type_name("FILE");
}

}  // namespace

void addRunOptions(CLI::App& command, RunOptions& options) {
  addSteps(command, options);
  addJobOptions(command, options.job);
  addEvaluation(command, options);
  addListenOptions(command, options.listen);
  options.checkpoint.add(command);
  options.trace.add(command);
  addOnNan(command, options);
  addRunOutputs(command, options);
}

void refuseRunOptionsInVain(const CLI::App& command, const RunOptions& options) {
  refuseJobOptionsInVain(command, options.job);
  refuseListenOptionsInVain(command, options.listen);
  if (options.trace.file.empty()) refuseInVain(command, {"--trace-steps"}, "--trace FILE");
  if (!options.outputs.empty() && options.job.data.shuffle)
    fail(ErrorCode::kUsage,
         "--outputs {}: its rows are those of the data in their order, which --shuffle changes; leave out "
         "--shuffle",
         options.outputs);
}

}  // namespace pipeshard
