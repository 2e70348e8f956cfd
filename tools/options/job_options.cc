#include "tools/options/job_options.h"

#include <chrono>

#include "tools/options/option_checks.h"

namespace pipeshard {

void addJobOptions(CLI::App& command, JobSpec& job) {
  command
      .add_option("--data", job.data.path,
                  "An .npz file with an array per model input; arrays longer than the batch give the next "
                  "steps\n(default: synthetic)")
      ->type_name("FILE");
  command.add_flag("--drop-last", job.data.end.drop_last,
                   "Leave out the examples of a file that do not fill a batch");
  command.add_option("--seed", job.data.seed, "Of synthetic data, and of what the model draws (dropout)")
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

}  // namespace pipeshard
