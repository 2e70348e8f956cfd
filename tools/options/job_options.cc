#include "tools/options/job_options.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_runner.h"
#include "tools/options/data_options.h"
#include "tools/options/option_checks.h"

namespace pipeshard {

void addJobOptions(CLI::App& command, JobSpec& job) {
  addDataOptions(command, job.data);
  addLoaderOptions(command, job.data);
  command
      .add_option("--seed", job.data.seed,
                  "Of synthetic data, of --shuffle, and of what the model draws (dropout)")
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--device", [&job](const std::string& name) { job.device.backend = *deviceBackendOf(name); },
          "What ranks compute on: cpu, or cuda: rank k of a node on its GPU number k (default: cpu)")
      ->type_name("DEVICE")
      ->check(CLI::IsMember(std::vector<std::string>(kDeviceBackends.begin(), kDeviceBackends.end())));
  command.add_flag("--share-devices", job.device.shared,
                   "With --device cuda: several ranks have one GPU where a node has fewer GPUs than ranks");
  command
      .add_option_function<std::string>(
          "--transport", [&job](const std::string& name) { job.device.transport = *deviceTransportOf(name); },
          "With --device cuda: how GPUs give each other tensors: nccl; ipc (CUDA IPC, on one machine); "
          "staged,\n"
          "through the host's memory; auto: by NCCL where each rank has a GPU of its own, by CUDA IPC where\n"
          "ranks share one and it works, else staged (default: auto)")
      ->type_name("TRANSPORT")
      ->check(CLI::IsMember(std::vector<std::string>(kDeviceTransports.begin(), kDeviceTransports.end())));
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
          "--load-timeout", [&job](int seconds) { job.load_timeout = std::chrono::seconds(seconds); },
          "Longest time from a worker's start until its weights are in memory (default: 10 minutes)")
      ->type_name("SECONDS")
      ->check(positiveWhole());
  command
      .add_option_function<int>(
          "--transfer-timeout",
          [&job](int seconds) {
            job.stall_timeout = std::chrono::seconds(seconds);
            job.transfer_timeout = std::max(job.transfer_timeout, job.stall_timeout);
          },
          "Longest time in which no worker moves while some wait for others (default: 20 times the longest\n"
          "wait so far, 30 seconds at least; 2 minutes in the first step)")
      ->type_name("SECONDS")
      ->check(positiveWhole());
  command
      .add_option_function<int>(
          "--progress-timeout", [&job](int seconds) { job.progress_timeout = std::chrono::seconds(seconds); },
          "Longest time that a worker may compute without finishing an operator (default: 2 minutes)")
      ->type_name("SECONDS")
      ->check(positiveWhole());
}

void refuseJobOptionsInVain(const CLI::App& command, const JobSpec& job) {
  if (job.device.backend != DeviceBackend::kCuda)
    refuseInVain(command, {"--share-devices", "--transport"}, "--device cuda");
  if (!isPipe(job.data)) refuseInVain(command, {"--data-timeout"}, "--data-command, or --data -");
}

namespace {

// Of no input the content.
std::unique_ptr<DataSource> lookAtData(const JobSpec& job) {
  ProgramFolder folder(job.plan_directory);
  const Program program = folder.program(RankId(0));
  DataDescription description = job.data;
  if (folder.hasLastBatch())
    description.end.last_batch = batchRows(folder.program(RankId(0), StepSize::kLastBatch));
  return openData(description, program.inputs, std::vector<bool>(program.inputs.size(), false),
                  shorterInputs(folder, RankId(0)));
}

}  // namespace

DataSummary summarizeData(const JobSpec& job) {
  // by openData, without a path
  const bool refused = job.data.shuffle || job.data.shift_labels || job.data.end_of_text >= 0 ||
                       job.data.truncate || !job.data.padding.empty();
  if (job.data.path.empty() && job.data.command.empty() && !refused) return {};
  const auto data = lookAtData(job);
  return {data->describe(), data->stepsPerEpoch()};
}

std::string lengthsOfSteps(const JobSpec& job, const Plan& plan) {
  if (plan.shorter_lengths.empty()) return "";
  if (isPipe(job.data)) return fmt::format("steps by {}: as the loader's batches are", plan.length_dimension);
  std::vector<int64_t> lengths = plan.shorter_lengths;
  lengths.insert(lengths.begin(), plan.dimensions.at(plan.length_dimension));
  std::vector<int64_t> steps(lengths.size(), 0);
  const auto data = lookAtData(job);
  for (int64_t step = 1; step <= job.steps; ++step) ++steps.at(data->lengthOf(step));
  std::vector<std::string> some, none;
  for (size_t k = 0; k < lengths.size(); ++k) {
    if (steps[k] == 0) none.push_back(std::to_string(lengths[k]));
    if (steps[k] > 0) some.push_back(fmt::format("{} of {}", steps[k], lengths[k]));
  }
  return fmt::format("steps by {}: {}{}{}", plan.length_dimension, fmt::join(some, ", "),
                     none.empty() ? "" : "; none of ", fmt::join(none, ", "));
}

}  // namespace pipeshard
