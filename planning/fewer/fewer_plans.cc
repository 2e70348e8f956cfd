#include "planning/fewer/fewer_plans.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"
#include "partition/stages/balance.h"
#include "partition/stages/stages.h"
#include "planning/directory/plan_directory.h"
#include "planning/directory/refresh_programs.h"
#include "planning/model/plan_description.h"
#include "planning/pipeline.h"
#include "runtime/files/durable_folder.h"
#include "runtime/job/job.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kListName = "plans.json";
constexpr int kListVersion = 3;

// What may be tried for so many devices.
struct Trial {
  StagesRequest stages = {};
  std::vector<std::string> boundaries = {};  // if any, instead
  std::optional<Balance> balance = {};
  int layers = 0;
  std::vector<int> stage_devices = {};
  std::optional<ShardingMethod> method = {};
  std::optional<ScheduleChoice> schedule = {};
};

std::vector<int> countsOf(const Plan& plan) {
  const int devices = plan.cluster.deviceCount();
  std::set<int, std::greater<>> counts;
  std::vector<int> lost = {1, 2};
  if (plan.cluster.nodeCount() > 1) lost.push_back(plan.cluster.devicesPerNode());
  for (const int count : lost) {
    if (count < devices) counts.insert(devices - count);
  }
  return {counts.begin(), counts.end()};
}

// Without the last devices.
Cluster reduced(Cluster cluster, int devices) {
  int surplus = cluster.deviceCount() - devices;
  while (surplus > 0) {
    ClusterNode& last = cluster.nodes.back();
    const int taken = std::min(surplus, last.devices);
    last.devices -= taken;
    surplus -= taken;
    if (last.devices == 0) cluster.nodes.pop_back();
  }
  cluster.name = cluster.isUniform() ? fmt::format("{}x{}", cluster.nodeCount(), cluster.devicesPerNode())
                                     : fmt::format("{} of {} devices", devices, cluster.name);
  return cluster;
}

int pipelineRanks(const Plan& plan) {
  std::set<std::vector<RankId>> groups;
  for (const StagePlan& stage : plan.stages) groups.insert(stage.devices);
  return std::max<int>(1, groups.size());
}

// The method that the plan's stages have, on other numbers of devices; "auto" stands in for a grid that does
// not go with them.
std::vector<std::optional<ShardingMethod>> methodsFor(const Plan& plan, const std::vector<int>& shares) {
  const auto sharded = std::find_if(plan.stages.begin(), plan.stages.end(),
                                    [](const StagePlan& stage) { return stage.sharding.has_value(); });
  if (sharded == plan.stages.end()) return {std::nullopt};
  ShardingMethod method = sharded->sharding->method;
  const ShardingMethod any{ShardingKind::kAuto};
  if (method.kind == ShardingKind::kManual) return {any};
  if (!method.hasGrid()) return {method, any};
  const bool fits = method.tensor > 0 && std::all_of(shares.begin(), shares.end(), [&](int share) {
                      return share == shares.front() && share % method.tensor == 0;
                    });
  if (!fits) return {any};
  method.data = shares.front() / method.tensor;
  return {method, any};
}

// The plan's stages in groups that follow each other, one for each of `widths`, of so many devices: the last
// stage of each. So that the largest share of the work is least.
std::vector<LayerId> joinStages(const Plan& plan, const std::vector<int>& widths) {
  StageProblem problem;
  problem.widths = widths;
  for (const StagePlan& stage : plan.stages) {
    problem.weight.push_back(stage.forward_flops + stage.backward_flops);
    problem.cut_bytes.push_back(0);
  }
  return assignStages(problem);
}

// Of the cuts that people have asked for, so many that `widths.size()` stages are left.
void keepCuts(const Plan& plan, const std::vector<int>& widths, Trial& trial) {
  trial.layers = plan.layer_count;
  if (!plan.balance.empty()) trial.balance = parseBalance(plan.balance);
  const bool has_counts = trial.balance && trial.balance->kind == Balance::Kind::kCounts;
  const size_t stages = has_counts ? trial.balance->counts.size() : plan.boundaries.size() + 1;
  if (!has_counts && plan.boundaries.empty()) return;
  if (stages != plan.stages.size() || widths.size() > stages) {
    trial.balance.reset();
    return;
  }
  std::vector<int> counts;
  size_t first = 0;
  for (const LayerId last : joinStages(plan, widths)) {
    if (last.index() + 1 < stages && !has_counts) trial.boundaries.push_back(plan.boundaries[last.index()]);
    int& count = counts.emplace_back();
    for (; first <= last.index() && has_counts; ++first) count += trial.balance->counts[first];
  }
  if (has_counts) trial.balance->counts = counts;
}

// What the trial lacks of it, in words; "" if nothing.
std::string droppedBy(const Trial& trial, const Plan& plan) {
  std::vector<std::string> dropped;
  const std::string kept = trial.balance ? balanceToString(*trial.balance) : "";
  if (kept != plan.balance) {
    dropped.push_back("--balance " + plan.balance +
                      (kept.empty() ? "" : fmt::format(" (stages are fewer: it has {})", kept)));
  }
  if (trial.layers != plan.layer_count) dropped.push_back(fmt::format("--layers {}", plan.layer_count));
  return fmt::format("{}", fmt::join(dropped, ", "));
}

// The likest to the plan first: as many pipeline ranks as it has, then fewer.
std::vector<Trial> trialsFor(const Plan& plan, int devices) {
  std::vector<Trial> trials;
  if (plan.search)
    trials.push_back({.stages = {.kind = StagesRequest::Kind::kSearched}, .layers = plan.layer_count});
  const int ranks = pipelineRanks(plan);
  const int chunks = std::max<int>(1, static_cast<int>(plan.stages.size()) / ranks);
  std::vector<std::optional<ScheduleChoice>> schedules = {std::nullopt};
  if (!plan.schedule.isOfFile()) schedules.insert(schedules.begin(), ScheduleChoice(plan.schedule));
  for (int pipeline = std::min(ranks, devices); pipeline >= 1; --pipeline) {
    std::vector<int> shares(pipeline, devices / pipeline);
    for (int i = 0; i < devices % pipeline; ++i) ++shares[i];
    for (const std::optional<ShardingMethod>& method : methodsFor(plan, shares)) {
      for (const std::optional<ScheduleChoice>& schedule : schedules) {
        const int stages = schedule ? pipeline * chunks : pipeline;
        const std::vector<int> widths = stages == pipeline ? shares : std::vector<int>(stages, 1);
        Trial trial{
            .stages = uniformStages(stages), .stage_devices = shares, .method = method, .schedule = schedule};
        keepCuts(plan, widths, trial);
        trials.push_back(std::move(trial));
      }
    }
  }
  const bool has_cuts = !plan.boundaries.empty() || !plan.balance.empty() || plan.layer_count > 0;
  const size_t count = has_cuts ? trials.size() : 0;
  for (size_t i = 0; i < count; ++i) {
    Trial balanced = trials[i];
    balanced.boundaries.clear();
    balanced.balance.reset();
    balanced.layers = 0;
    trials.push_back(std::move(balanced));
  }
  return trials;
}

PlanRequest requestFor(const Plan& plan, int devices, const Trial& trial) {
  PlanRequest request = requestOf(plan);
  request.last_batch = plan.last_batch;
  PartitionOptions& options = request.partition;
  options.cluster = reduced(plan.cluster, devices);
  options.stages = trial.stages;
  options.boundaries = trial.boundaries;
  options.balance = trial.balance;
  options.layers = trial.layers;
  options.stage_devices = trial.stage_devices;
  options.sharding.method = trial.method;
  options.schedule = trial.schedule;
  for (const StagePlan& stage : plan.stages)
    options.recomputation.all = std::max(options.recomputation.all, stage.recomputation);
  return request;
}

// The same step: of as many microbatches, cut alike.
void requireSameStep(const Plan& plan, const Plan& made) {
  if (made.microbatches == plan.microbatches && made.dimensions == plan.dimensions &&
      made.shorter_lengths == plan.shorter_lengths && made.last_batch == plan.last_batch &&
      made.last_microbatches == plan.last_microbatches)
    return;
  fail(ErrorCode::kConfiguration, "the step would be another: of {} microbatches, where the plan has {}",
       made.microbatches, plan.microbatches);
}

PlanForFewer makePlan(const Plan& plan, int devices, const fs::path& folder,
                      const ProgressCallback& progress) {
  PlanForFewer made{devices, "", "", {}};
  for (const Trial& trial : trialsFor(plan, devices)) {
    try {
      PlannedTraining planned = planTraining(requestFor(plan, devices, trial), [&](const std::string& phase) {
        progress(fmt::format("a plan for {} devices: {}", devices, phase));
      });
      requireSameStep(plan, planned.plan);
      const fs::path directory = folder / std::to_string(devices);
      writePlanDirectory(std::move(planned), directory.string());
      made.directory = directory.string();
      made.why.clear();
      made.dropped = droppedBy(trial, plan);
      for (const std::string& value : plan.boundaries) {
        if (std::ranges::find(trial.boundaries, value) == trial.boundaries.end()) made.uncut.push_back(value);
      }
      return made;
    } catch (const JobInterrupted&) {
      throw;
    } catch (const Error& error) {
      if (made.why.empty()) made.why = error.message();
      if (error.code() == ErrorCode::kDiskFull || error.code() == ErrorCode::kMissingInput) return made;
    }
  }
  return made;
}

// What an earlier call has left for the same plan.
std::optional<std::vector<PlanForFewer>> readList(const fs::path& folder, const std::string& of) {
  const std::optional<std::string> text = readTextFile((folder / kListName).string());
  if (!text) return std::nullopt;
  try {
    const Json list = parseJson(*text, kListName);
    if (list.at("version") != kListVersion || list.at("of").get<std::string>() != of) return std::nullopt;
    std::vector<PlanForFewer> plans;
    for (const Json& entry : list.at("plans")) {
      const int64_t devices = JsonReader(entry.at("devices"), "devices").integer(1, INT32_MAX);
      PlanForFewer plan{static_cast<int>(devices), "", entry.value("why", ""),
                        entry.value("uncut", std::vector<std::string>()), entry.value("dropped", "")};
      const fs::path directory = folder / std::to_string(plan.devices);
      if (plan.why.empty()) plan.directory = directory.string();
      if (plan.why.empty() && !hasPrograms(plan.directory)) return std::nullopt;
      plans.push_back(std::move(plan));
    }
    return plans;
  } catch (const Json::exception&) {
    return std::nullopt;  // it is made again
  } catch (const Error&) {
    return std::nullopt;
  }
}

void writeList(const fs::path& folder, const std::string& of, const std::vector<PlanForFewer>& plans) {
  nlohmann::ordered_json list = {
      {"version", kListVersion}, {"of", of}, {"plans", nlohmann::ordered_json::array()}};
  for (const PlanForFewer& plan : plans) {
    list["plans"].push_back({{"devices", plan.devices}});
    if (plan.directory.empty()) list["plans"].back()["why"] = plan.why;
    if (!plan.uncut.empty()) list["plans"].back()["uncut"] = plan.uncut;
    if (!plan.dropped.empty()) list["plans"].back()["dropped"] = plan.dropped;
  }
  writeDurably(folder / kListName, list.dump(1) + "\n");
}

}  // namespace

std::vector<PlanForFewer> prepareFewerPlans(const std::string& directory, const ProgressCallback& progress) {
  const Plan plan = readPlanDirectory(directory);
  const fs::path folder = fs::absolute(directory) / kFewerFolder;
  const std::string of = madeFrom(plan);
  if (std::optional<std::vector<PlanForFewer>> found = readList(folder, of)) return *found;
  std::vector<PlanForFewer> plans;
  try {
    makeFolder(folder);
  } catch (const Error& error) {
    for (const int devices : countsOf(plan)) plans.push_back({devices, "", error.message(), {}});
    return plans;
  }
  for (const int devices : countsOf(plan)) {
    if (plan.updates_per_step > 1) {
      plans.push_back({devices,
                       "",
                       fmt::format("what the schedule {} computes depends on its stages",
                                   scheduleSpecToString(plan.schedule)),
                       {}});
      continue;
    }
    plans.push_back(makePlan(plan, devices, folder, progress));
  }
  try {
    writeList(folder, of, plans);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDiskFull) throw;  // made again next time
  }
  return plans;
}

}  // namespace pipeshard
