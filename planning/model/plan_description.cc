#include "planning/model/plan_description.h"

#include <filesystem>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "ir/base/ids.h"
#include "ir/base/json_reader.h"
#include "planning/model/given_weights.h"

namespace pipeshard {
namespace {

// --memory counts, whatever the cluster says of a device; said once, of the device that has least.
void noteMemoryAbove(Plan& plan) {
  const int64_t least = plan.cluster.leastMemory(idsBelow<RankId>(plan.cluster.deviceCount()));
  if (least == 0 || plan.memory <= least) return;
  int device = 0;
  while (plan.cluster.kindOf(device).memory_bytes != least) ++device;
  plan.notes.push_back(fmt::format(
      "--memory {}: above the {} ({} bytes) that the cluster says of device {} ({}); the plan is made for "
      "--memory",
      plan.memory, formatBytes(least), least, device, plan.cluster.kindOf(device).name));
}

// A plan is JSON, and has its files by absolute path.
std::string pathInPlan(const std::string& given) {
  std::string path = std::filesystem::absolute(given).lexically_normal().string();
  if (!isUtf8(path)) {
    fail(ErrorCode::kConfiguration,
         "the path '{}' has bytes that are not UTF-8, and a plan cannot name it; rename the folder, or move "
         "the file",
         path);
  }
  return path;
}

}  // namespace

Plan describePlan(const PlanRequest& request, const ForwardModel& model) {
  Plan plan;
  plan.model_path = pathInPlan(request.model_path);
  plan.dimensions = model.dimensions;
  plan.batch_dimension = model.batch_dimension;
  plan.length_dimension = model.length_dimension;
  plan.shorter_lengths = model.shorter_lengths;
  plan.loss = lossToString(request.loss);
  if (plan.loss.empty()) plan.loss = lossName(model);
  plan.given = keptOptions(request.given, request.partition.cluster);
  for (std::string& text : plan.given.weights) {
    WeightSource source = parseWeightSource(text);
    if (source.kind == WeightSource::Kind::kFile) source.text = pathInPlan(source.text);
    text = weightSourceToString(source);
  }
  plan.microbatches = model.microbatches;
  plan.copies_weights = request.copy_weights;
  plan.boundaries = request.partition.boundaries;
  if (request.partition.balance) plan.balance = balanceToString(*request.partition.balance);
  plan.layer_count = request.partition.layers;
  plan.notes = model.notes;
  plan.cluster = request.partition.cluster;
  plan.memory = request.partition.sharding.memory_bytes;
  noteMemoryAbove(plan);
  return plan;
}

GivenOptions keptOptions(GivenOptions given, const Cluster& cluster) {
  if (cluster.nodeCount() == 1 && given.overlap_receives == OverlapReceives::kBetweenNodes)
    given.overlap_receives = OverlapReceives::kOff;
  return given;
}

PlanRequest requestOf(const Plan& plan) {
  PlanRequest request;
  request.model_path = plan.model_path;
  request.allow_missing_weights = true;
  request.dimensions = plan.dimensions;
  request.length_dimension = plan.length_dimension;
  request.shorter_lengths = plan.shorter_lengths;
  request.loss = parseLoss(plan.loss);
  request.given = plan.given;
  request.optimizer_given = true;
  request.batch_dimension = plan.batch_dimension;
  request.partition.sharding.memory_bytes = plan.memory;
  request.microbatches = plan.microbatches;
  request.copy_weights = plan.copies_weights;
  return request;
}

}  // namespace pipeshard
