// Stage and mesh assignment against brute force, and by hand.
#include "partition/search/stage_assignment.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/partition/search/random_stage_costs.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;

Cluster clusterOf(const std::vector<int>& devices, const std::vector<int>& kinds = {}) {
  Cluster cluster;
  cluster.kinds.resize(3);
  cluster.nodes.assign(devices.size(), ClusterNode{});
  for (size_t i = 0; i < devices.size(); ++i) {
    cluster.nodes[i].devices = devices[i];
    if (!kinds.empty()) cluster.nodes[i].kind = kinds[i];
  }
  return cluster;
}

// Everything that the header says a plan may be, tried; nothing is shared with the search but the request.
class BruteForce {
 public:
  explicit BruteForce(const AssignmentRequest& request)
      : request_(request), costs_(request.costs), cluster_(request.cluster) {}

  std::optional<int64_t> best() {
    extend(0, 0);
    return best_;
  }
  int64_t plans() const { return plans_; }

  // Of a whole plan; nullopt: it is none.
  std::optional<int64_t> objective(const std::vector<AssignedStage>& stages) const {
    const int count = stages.size();
    if (count < request_.least_stages || (request_.most_stages > 0 && count > request_.most_stages))
      return std::nullopt;
    int64_t sum = 0;
    int64_t slowest = 0;
    for (int s = 0; s < count; ++s) {
      const AssignedStage& stage = stages[s];
      const int64_t behind = count - 1 - s;
      const int64_t in_flight =
          request_.in_flight ? request_.in_flight(behind) : std::min(request_.microbatches, behind + 1);
      const int64_t memory = costs_.memoryBytes(stage.submesh);
      const StageOption& o = stage.option;
      if (memory != INT64_MAX && o.fixed_bytes + o.activation_bytes * in_flight + o.transient_bytes > memory)
        return std::nullopt;
      sum += o.pass_ns + stage.transfer_ns;
      if (request_.objective == AssignmentObjective::kFlush) {
        slowest = std::max(slowest, (request_.microbatches -
                                     1) * (o.pass_ns + (request_.exposed_transfers ? stage.transfer_ns : 0)) +
                                        o.step_ns);
      } else {
        slowest = std::max({slowest, o.pass_ns + o.step_ns, stage.transfer_ns});
      }
    }
    return request_.objective == AssignmentObjective::kFlush ? sum + slowest : slowest;
  }

 private:
  void extend(int layer, int device) {
    if (layer == costs_.layers()) {
      if (request_.all_devices && device != cluster_.deviceCount()) return;
      ++plans_;
      const std::optional<int64_t> value = objective(stages_);
      if (value && (!best_ || *value < *best_)) best_ = value;
      return;
    }
    if (device == cluster_.deviceCount()) return;
    const int node = cluster_.nodeOf(device);
    const int node_begin = cluster_.firstDeviceOf(node);
    const int node_end = cluster_.firstDeviceOf(node + 1);
    for (int count = 1; device + count <= node_end; ++count) place(layer, {device, 1, count}, device + count);
    for (int last = node + 1; device == node_begin && last < cluster_.nodeCount(); ++last) {
      if (cluster_.nodes[last].devices != node_end - node_begin) break;
      place(layer, {device, last - node + 1, node_end - node_begin}, cluster_.firstDeviceOf(last + 1));
    }
    // the rest of the node stays unused
    if (device > node_begin && !request_.all_devices) extend(layer, node_end);
  }

  void place(int layer, const Submesh& submesh, int end) {
    if (request_.allowed && !request_.allowed(submesh)) return;
    for (int last = layer; last < costs_.layers(); ++last) {
      for (const StageOption& option : costs_.options(layer, last, submesh)) {
        stages_.push_back({layer, last, submesh, option, 0});
        if (stages_.size() > 1) {
          AssignedStage& before = stages_[stages_.size() - 2];
          before.transfer_ns =
              costs_.transfer(layer - 1, before.submesh, before.option.boundary, submesh, option.boundary);
        }
        extend(last + 1, end);
        stages_.pop_back();
      }
    }
    if (!stages_.empty()) stages_.back().transfer_ns = 0;
  }

  const AssignmentRequest& request_;
  const StageCosts& costs_;
  const Cluster& cluster_;
  std::vector<AssignedStage> stages_;
  std::optional<int64_t> best_;
  int64_t plans_ = 0;
};

// What a result promises, whatever is best.
void expectValid(const AssignmentRequest& request, const Assignment& assignment) {
  const BruteForce brute(request);
  const std::optional<int64_t> objective = brute.objective(assignment.stages);
  ASSERT_TRUE(objective.has_value()) << "does not fit";
  EXPECT_EQ(*objective, assignment.objective_ns);
  EXPECT_EQ(objectiveOf(request, assignment.stages), assignment.objective_ns);
  int layer = 0;
  int device = 0;
  for (size_t s = 0; s < assignment.stages.size(); ++s) {
    const AssignedStage& stage = assignment.stages[s];
    EXPECT_EQ(stage.first_layer, layer);
    layer = stage.last_layer + 1;
    const int node_begin = request.cluster.firstDeviceOf(request.cluster.nodeOf(stage.submesh.first_device));
    EXPECT_TRUE(stage.submesh.first_device == device ||
                (!request.all_devices && stage.submesh.first_device == node_begin &&
                 request.cluster.nodeOf(device) + 1 == request.cluster.nodeOf(node_begin)));
    device = stage.submesh.first_device + stage.submesh.deviceCount();
    EXPECT_TRUE(!request.allowed || request.allowed(stage.submesh));
    const std::vector<StageOption>& options =
        request.costs.options(stage.first_layer, stage.last_layer, stage.submesh);
    EXPECT_TRUE(std::any_of(options.begin(), options.end(), [&](const StageOption& o) {
      return o.config == stage.option.config && o.boundary == stage.option.boundary &&
             o.pass_ns == stage.option.pass_ns;
    }));
    const int64_t transfer =
        s + 1 == assignment.stages.size()
            ? 0
            : request.costs.transfer(stage.last_layer, stage.submesh, stage.option.boundary,
                                     assignment.stages[s + 1].submesh,
                                     assignment.stages[s + 1].option.boundary);
    EXPECT_EQ(stage.transfer_ns, transfer);
  }
  EXPECT_EQ(layer, request.costs.layers());
  EXPECT_TRUE(!request.all_devices || device == request.cluster.deviceCount());
}

std::string describe(const AssignmentResult& result) {
  std::string text;
  for (const Assignment& assignment : result.assignments) {
    text += std::to_string(assignment.objective_ns) + ":";
    for (const AssignedStage& stage : assignment.stages) {
      text += " " + std::to_string(stage.last_layer) + "@" + std::to_string(stage.submesh.first_device) +
              "+" + std::to_string(stage.submesh.nodes) + "x" +
              std::to_string(stage.submesh.devices_per_node) + "/" + std::to_string(stage.option.config);
    }
    text += "\n";
  }
  return text;
}

struct Instance {
  Cluster cluster;
  RandomCostsShape shape;
};

Instance drawInstance(std::mt19937& random) {
  static const std::vector<std::vector<int>> kClusters = {{1},          {3},    {4},       {5},      {6},
                                                          {1, 1, 1, 1}, {2, 2}, {2, 2, 2}, {1, 3},   {3, 3},
                                                          {3, 1, 1},    {4, 2}, {2, 3},    {2, 1, 2}};
  const std::vector<int>& devices = kClusters[random() % kClusters.size()];
  std::vector<int> kinds(devices.size());
  for (int& kind : kinds) kind = random() % 3 == 0 ? static_cast<int>(random() % 3) : 0;
  Instance instance{clusterOf(devices, kinds), {}};
  instance.shape.layers = 1 + static_cast<int>(random() % 7);
  instance.shape.boundaries = 1 + static_cast<int>(random() % 3);
  instance.shape.most_options = 1 + static_cast<int>(random() % 4);
  instance.shape.most_ns = random() % 2 == 0 ? 12 : 200;
  instance.shape.memory = random() % 3 == 0 ? 0 : 8 + static_cast<int64_t>(random() % 14);
  instance.shape.own_classes = random() % 3 == 0;
  return instance;
}

void drawRequest(std::mt19937& random, AssignmentRequest& request) {
  request.objective = random() % 3 == 0 ? AssignmentObjective::kThroughput : AssignmentObjective::kFlush;
  request.microbatches = random() % 4 == 0 ? 1 : 1 + static_cast<int64_t>(random() % 20);
  request.exposed_transfers = random() % 3 != 0;
  const int64_t microbatches = request.microbatches;
  if (random() % 3 == 0) request.in_flight = [microbatches](int64_t) { return microbatches; };    // GPipe
  if (random() % 5 == 0) request.in_flight = [](int64_t behind) { return behind == 1 ? 4 : 2; };  // any rule
  if (random() % 4 == 0) request.allowed = [](const Submesh& submesh) { return submesh.deviceCount() != 2; };
  request.all_devices = random() % 4 == 0;
  if (random() % 5 == 0) request.least_stages = 2;
  if (random() % 5 == 0) request.most_stages = 2 + static_cast<int>(random() % 2);
}

TEST(AssignStagesToMeshes, IsAsGoodAsBruteForceOnRandomInstances) {
  std::mt19937 random(20);
  int64_t plans = 0;
  int feasible = 0;
  for (int round = 0; round < 1500; ++round) {
    const Instance instance = drawInstance(random);
    const RandomStageCosts costs(instance.cluster, instance.shape, static_cast<unsigned>(random()));
    AssignmentRequest request{.costs = costs, .cluster = instance.cluster};
    drawRequest(random, request);
    BruteForce brute(request);
    const std::optional<int64_t> best = brute.best();
    plans += brute.plans();
    feasible += best.has_value();
    const AssignmentResult result = assignStagesToMeshes(request);
    EXPECT_TRUE(result.complete);
    ASSERT_EQ(result.assignments.empty(), !best.has_value()) << "round " << round;
    if (!best) continue;
    ASSERT_EQ(result.assignments.front().objective_ns, *best) << "round " << round << "\n"
                                                              << describe(result);
    for (const Assignment& assignment : result.assignments) expectValid(request, assignment);
    ASSERT_FALSE(HasFailure()) << "round " << round << "\n" << describe(result);

    request.threads = 2;
    EXPECT_EQ(describe(assignStagesToMeshes(request)), describe(result)) << "round " << round;
    request.bound_ns = *best;
    EXPECT_TRUE(assignStagesToMeshes(request).assignments.empty()) << "round " << round;
    request.bound_ns = *best + 1;
    const AssignmentResult bounded = assignStagesToMeshes(request);
    ASSERT_FALSE(bounded.assignments.empty()) << "round " << round;
    EXPECT_EQ(bounded.assignments.front().objective_ns, *best) << "round " << round;
    request.any = true;
    // none other is below the bound
    EXPECT_EQ(assignStagesToMeshes(request).assignments.front().objective_ns, *best) << "round " << round;
    request.bound_ns = *best;
    EXPECT_TRUE(assignStagesToMeshes(request).assignments.empty()) << "round " << round;
    request.bound_ns = *best + *best / 4;
    const AssignmentResult some = assignStagesToMeshes(request);
    ASSERT_EQ(some.assignments.empty(), request.bound_ns == *best) << "round " << round;
    for (const Assignment& assignment : some.assignments)
      EXPECT_LT(assignment.objective_ns, request.bound_ns) << "round " << round;
  }
  EXPECT_GT(feasible, 700);
  EXPECT_GT(plans, 500'000);
}

// Layers of 10 ns; on n devices 10/n + 2 ns, rounded, and 8 ns a step.
class EqualLayers : public StageCosts {
 public:
  EqualLayers(int layers, int64_t transfer) : layers_(layers), transfer_(transfer) {}
  int layers() const override { return layers_; }
  int submeshClass(const Submesh& submesh) const override { return submesh.deviceCount(); }
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override {
    const int devices = submesh.deviceCount();
    StageOption option{
        .pass_ns = (last_layer - first_layer + 1) * int64_t{10} / devices + (devices > 1 ? 2 : 0),
        .step_ns = devices > 1 ? 8 : 0};
    return options_.try_emplace({first_layer, last_layer, devices}, std::vector<StageOption>{option})
        .first->second;
  }
  int64_t transfer(int, const Submesh&, int, const Submesh&, int) const override { return transfer_; }
  int64_t memoryBytes(const Submesh&) const override { return INT64_MAX; }

 private:
  int layers_;
  int64_t transfer_;
  mutable std::map<std::vector<int>, std::vector<StageOption>> options_;
};

TEST(AssignStagesToMeshes, GivesTheHeadersExample) {
  const EqualLayers costs(2, 0);
  const Cluster cluster = uniformCluster(1, 2);
  AssignmentRequest request{.costs = costs, .cluster = cluster, .microbatches = 4};
  EXPECT_EQ(assignStagesToMeshes(request).assignments.front().objective_ns, 50);
  request.most_stages = 1;
  EXPECT_EQ(assignStagesToMeshes(request).assignments.front().objective_ns, 56);
  request.allowed = [](const Submesh& submesh) { return submesh.deviceCount() == 1; };
  EXPECT_EQ(assignStagesToMeshes(request).assignments.front().objective_ns, 80);
}

TEST(AssignStagesToMeshes, GivesUpAStageWhenTransfersHoldUpTheDevices) {
  const Cluster cluster = uniformCluster(1, 2);
  const EqualLayers costs(2, 3);
  AssignmentRequest request{.costs = costs, .cluster = cluster, .microbatches = 4};
  // two stages: 10 + 3 + 10 + 3 * (10 + 3) = 62
  EXPECT_EQ(assignStagesToMeshes(request).assignments.front().objective_ns, 56);
  request.exposed_transfers = false;
  EXPECT_EQ(assignStagesToMeshes(request).assignments.front().objective_ns, 53);
}

TEST(AssignStagesToMeshes, ListsOtherNumbersOfStages) {
  const EqualLayers costs(4, 1);
  const Cluster cluster = uniformCluster(1, 4);
  const AssignmentResult result =
      assignStagesToMeshes({.costs = costs, .cluster = cluster, .microbatches = 8});
  std::vector<int> counts;
  for (const Assignment& assignment : result.assignments) counts.push_back(assignment.stages.size());
  for (int stages = 1; stages <= 4; ++stages) EXPECT_THAT(counts, ::testing::Contains(stages));
  EXPECT_TRUE(std::is_sorted(
      result.assignments.begin(), result.assignments.end(),
      [](const Assignment& a, const Assignment& b) { return a.objective_ns < b.objective_ns; }));
}

TEST(AssignStagesToMeshes, IsTheSameWithTwoThreads) {
  const Cluster cluster = clusterOf({4, 4, 3, 4}, {0, 0, 1, 0});
  for (unsigned seed = 0; seed < 4; ++seed) {
    const RandomStageCosts costs(
        cluster, {.layers = 24, .most_options = 6, .boundaries = 3, .most_ns = 100'000, .memory = 20}, seed);
    AssignmentRequest request{
        .costs = costs, .cluster = cluster, .microbatches = 16, .exposed_transfers = seed % 2 == 0};
    const AssignmentResult one = assignStagesToMeshes(request);
    EXPECT_FALSE(one.assignments.empty());
    request.threads = 2;
    const AssignmentResult two = assignStagesToMeshes(request);
    EXPECT_EQ(describe(two), describe(one));
    EXPECT_EQ(two.states, one.states);
  }
}

TEST(AssignStagesToMeshes, InterruptedReturnsTheBestSoFarMarked) {
  const Cluster cluster = uniformCluster(4, 4);
  const RandomStageCosts costs(cluster,
                               {.layers = 24, .most_options = 6, .boundaries = 3, .most_ns = 100'000}, 5);
  std::atomic<int64_t> asked = 0;
  int64_t most = INT64_MAX;
  AssignmentRequest request{.costs = costs, .cluster = cluster, .microbatches = 16};
  request.interrupted = [&] { return ++asked > most; };
  const AssignmentResult whole = assignStagesToMeshes(request);
  ASSERT_TRUE(whole.complete);
  const int64_t asked_in_all = asked;
  const auto interruptedAfter = [&](int64_t questions) {
    most = questions;
    asked = 0;
    return assignStagesToMeshes(request);
  };
  const AssignmentResult none = interruptedAfter(0);
  EXPECT_FALSE(none.complete);
  EXPECT_TRUE(none.assignments.empty());
  for (int64_t before_the_end = 1; before_the_end <= 12; ++before_the_end) {
    const AssignmentResult result = interruptedAfter(asked_in_all - before_the_end);
    EXPECT_FALSE(result.complete);
    ASSERT_FALSE(result.assignments.empty());
    for (const Assignment& assignment : result.assignments) expectValid(request, assignment);
    EXPECT_GE(result.assignments.front().objective_ns, whole.assignments.front().objective_ns);
  }
}

TEST(SubmeshesAt, ArePartsOfANodeOrWholeEqualNodes) {
  const Cluster cluster = clusterOf({2, 2, 3});
  EXPECT_THAT(submeshesAt(cluster, 0), ElementsAre(Submesh{0, 1, 1}, Submesh{0, 1, 2}, Submesh{0, 2, 2}));
  EXPECT_THAT(submeshesAt(cluster, 1), ElementsAre(Submesh{1, 1, 1}));
  EXPECT_THAT(submeshesAt(cluster, 2), ElementsAre(Submesh{2, 1, 1}, Submesh{2, 1, 2}));
  EXPECT_THAT(submeshesAt(cluster, 5), ElementsAre(Submesh{5, 1, 1}, Submesh{5, 1, 2}));
}

}  // namespace
}  // namespace pipeshard
