#include "tools/options/job_options.h"

#include <chrono>
#include <filesystem>

#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_runner.h"
#include "tools/options/option_checks.h"

namespace pipeshard {

void addJobOptions(CLI::App& command, JobSpec& job) {
  command
      .add_option("--data", job.data.path,
                  "An array per model input (.npz, .safetensors, a folder of .npy, .csv, .jsonl) or tokens "
                  "(.u16, .u32, .bin);\nwhat is longer than the batch gives the next steps (default: "
                  "synthetic)")
      ->type_name("FILE|DIR");
  command.add_flag("--shuffle", job.data.shuffle,
                   "Take the examples in another order in every epoch, by --seed");
  command.add_flag("--shift-labels", job.data.shift_labels,
                   "Of tokens: labels are one token behind the ids, for a model that does not shift them");
  command.add_flag("--drop-last", job.data.end.drop_last,
                   "Leave out the examples of a file that do not fill a batch");
  command
      .add_option("--seed", job.data.seed,
                  "Of synthetic data, of --shuffle, and of what the model draws (dropout)")
      ->capture_default_str();
  command
      .add_option("--threads", job.threads_per_worker,
                  "Threads per worker (default: the cores divided by the workers)")
      ->check(positiveWhole());
  command
      .add_option_function<int>(
          "--timeout",
          [&job](int seconds) { job.step_timeout = job.transfer_timeout = std::chrono::seconds(seconds); },
          "Longest time that one step may take (default: 30 minutes)")
      ->type_name("SECONDS")
      ->check(positiveWhole());
  command
      .add_option_function<int>(
          "--progress-timeout", [&job](int seconds) { job.progress_timeout = std::chrono::seconds(seconds); },
          "Longest time that a worker may compute without finishing an operator (default: 2 minutes)")
      ->type_name("SECONDS")
      ->check(positiveWhole());
}

DataSummary summarizeData(const JobSpec& job) {
  const bool refused = job.data.shuffle || job.data.shift_labels;  // by openData, without a path
  if (job.data.path.empty() && !refused) return {};
  const std::filesystem::path rank =
      std::filesystem::path(job.plan_directory) / "ranks" / rankDirectoryName(RankId(0));
  const Program program = loadProgram(rank.string());
  DataDescription description = job.data;
  const std::filesystem::path last = rank / kLastBatchFolder;
  if (std::filesystem::is_directory(last)) description.end.last_batch = batchRows(loadProgram(last.string()));
  // of no input the content
  const auto data = openData(description, program.inputs, std::vector<bool>(program.inputs.size(), false));
  return {data->describe(), data->stepsPerEpoch()};
}

}  // namespace pipeshard
