#include "planning/model/plan_description.h"

#include <filesystem>

#include "planning/model/given_weights.h"

namespace pipeshard {

Plan describePlan(const PlanRequest& request, const ForwardModel& model) {
  Plan plan;
  plan.model_path = std::filesystem::absolute(request.model_path).lexically_normal().string();
  plan.dimensions = model.dimensions;
  plan.batch_dimension = model.batch_dimension;
  plan.length_dimension = model.length_dimension;
  plan.shorter_lengths = model.shorter_lengths;
  plan.loss = lossToString(request.loss);
  if (plan.loss.empty()) plan.loss = lossName(model);
  plan.given = keptOptions(request.given, request.partition.cluster);
  for (std::string& text : plan.given.weights) {
    WeightSource source = parseWeightSource(text);
    if (source.kind == WeightSource::Kind::kFile)
      source.text = std::filesystem::absolute(source.text).lexically_normal().string();
    text = weightSourceToString(source);
  }
  plan.microbatches = model.microbatches;
  plan.copies_weights = request.copy_weights;
  plan.boundaries = request.partition.boundaries;
  if (request.partition.balance) plan.balance = balanceToString(*request.partition.balance);
  plan.layer_count = request.partition.layers;
  plan.notes = model.notes;
  plan.cluster = request.partition.cluster;
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
  request.microbatches = plan.microbatches;
  request.copy_weights = plan.copies_weights;
  return request;
}

}  // namespace pipeshard
