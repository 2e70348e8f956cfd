// PipeDream's planner (Narayanan et al. 2019, section 3.1), from its own profiles: layers to replicated
// stages under asynchronous schedules, on machines of several levels.
//
// A component of level 0 is a worker; one of level k consists of n_k components of level k-1, any two of
// which exchange B_k bytes a second. W_k = n_1 ... n_k workers are in a component of level k; the whole is
// one of the last level.
//
//   A_0(i..j)        time of layers i..j on a worker: sum(forward + backward)
//   T_k(i..j on r)   of a stage on r components of level k-1, which take minibatches in turn, each with
//                    layers i..j planned the best way:
//                    pass     A_{k-1}(i..j) / r
//                    weights  4 (r - 1) / r * sum(parameter bytes) / B_k / r (what each sends and receives
//                             of gradients and weights)
//   x_k(s, r)        what crosses the cut behind layer s, there and back: 2 * bytes / B_k / r, into a stage
//                    on r components
//   A_k(i..j)        the least, over all ways to cut i..j into stages that have all n_k components, of the
//                    largest T_k or x_k
//
// So a minibatch leaves every A_L(all layers) of the last level L. The paper overlaps pass and weights (their
// maximum counts, and 2 instead of 4 crosses); these are the constants of its authors' optimizer, which adds
// them. That optimizer also divides the weights of a stage that is all of a level by the n_{k-1} of the level
// below, and not those of others: here, as in the paper, none is divided.
//
// Memory, as under that optimizer's --use_memory_constraint: a stage on w workers with b workers behind it
// keeps ceil(b / w) * (activation + parameter bytes) beside the newest, and that must fit into a worker. b
// and w are of the whole plan: w all replicas on all levels, b all in later stages. On one level that is the
// optimizer's rule; on several it counts what runs (the optimizer looks at each level as if it were alone).
//
//   two layers of 12 and 4 ms, no bytes, levels {2, 2}: one stage per level, 16 / 2 / 2 = 4 ms. With 1 GB/s
//   between nodes and 6 MB of weights in the second layer: replicated over the nodes
//   8 / 2 + 4 * (1/2) * 6 / 2 = 10; one node for each layer max(12 / 2, 4 / 2) = 6
//
// Times are nanoseconds, pass and weights rounded each. Per level all tables A_k are made by PipeDream's
// dynamic program; the last level, and each stage that it chooses, by the exact search of
// partition/search/stage_assignment.h (kThroughput: of plans of equal time that of the least sum of passes
// and transfers), so one level is that search alone. Single-threaded and deterministic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/cluster/cluster.h"
#include "partition/pipedream/pipedream_profile.h"

namespace pipeshard {

struct PipeDreamLevel {
  int components = 1;       // n_k, of the level below
  double bytes_per_ns = 1;  // B_k; 1 is 1 GB/s
  friend bool operator==(const PipeDreamLevel&, const PipeDreamLevel&) = default;
};

// Devices in a node, at the rate of the link inside; nodes, at that of all NICs of a node. Levels of one
// component are left out, but for the first. Error(kConfiguration) where nodes differ.
std::vector<PipeDreamLevel> pipeDreamLevels(const Cluster& cluster);

struct PipeDreamRequest {
  std::vector<PipeDreamLevel> levels;  // innermost first; at least one
  int64_t memory_bytes = 0;            // of a worker; 0: no limit
};

struct PipeDreamStage {
  int first_layer = 0;
  int last_layer = 0;
  int components = 1;  // of the level below that take minibatches in turn; on level 1 workers
  // of one minibatch, by all components together: what each needs, divided by `components`
  int64_t pass_ns = 0;
  int64_t weights_ns = 0;              // to keep the weights of the components equal
  int64_t transfer_ns = 0;             // to the next stage of its level
  std::vector<PipeDreamStage> inside;  // on levels above 1: what each of the components does
  // On level 1, of the whole plan. Minibatch i goes to workers[i mod size]: to the outermost components in
  // turn first.
  std::vector<int> workers;
  int64_t versions = 0;  // of its weights that are kept at once
};

struct PipeDreamPlan {
  std::vector<PipeDreamStage> stages;  // of the last level
  int64_t minibatch_ns = 0;            // one minibatch leaves every so many nanoseconds
  int64_t data_parallel_ns = 0;        // one stage on all workers
  int64_t one_worker_ns = 0;

  // The stages of level 1 in order: what each worker runs.
  std::vector<const PipeDreamStage*> workerStages() const&;
};

// Error(kUsage) when the tables would take more than some seconds.
PipeDreamPlan planAsPipeDream(const PipeDreamProfile& profile, const PipeDreamRequest& request);

// The stages of level 1 with their workers as devices: a stage file (ir/plan/stage_file.h) for a model of as
// many layers, which `--stages FILE --schedule pipedream` runs.
std::string stageFileOf(const PipeDreamProfile& profile, const PipeDreamPlan& plan);

}  // namespace pipeshard
