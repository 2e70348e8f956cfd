// PipeDream's planner (Narayanan et al. 2019, section 3.1), from its own profiles: layers to replicated stages under asynchronous
// schedules.
//
// A profile is the text that PipeDream's profiler writes (msr-fiddle/pipedream), a line per layer, then one per edge, after a tab:
//
//   node2 -- Conv2d(3, 64) -- forward_compute_time=22.307, backward_compute_time=24.613, activation_size=1644167168.000,
//   parameter_size=7168.000 	node2 -- node3
//
// Times are milliseconds of one minibatch, sizes bytes; a layer with several outputs has sizes [8.0; 16.0]. Layers whose description begins
// with "Input" are left out: data comes from elsewhere. The others are taken in one topological order, smallest number first, so stages are
// runs of that order: exact for a chain, one choice among several where layers branch.
//
// A stage of layers i..j on r workers, at B bytes a second:    pass    sum(forward + backward) / r
//                                                              weights 4 (r - 1) / r * sum(parameter bytes) / B / r
// Between stages travel 2 * (bytes that cross the cut) / B / (workers of the receiving stage). The planner minimises the largest stage
// (pass and weights) or transfer: kThroughput of partition/stage_assignment.h. All workers are used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "partition/stage_assignment.h"

namespace pipeshard {

struct PipeDreamLayer {
  std::string name;         // "node2"
  std::string description;  // "Conv2d(3, 64)"
  int64_t compute_ns = 0;   // forward and backward
  int64_t activation_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t cut_bytes = 0;  // cross the cut behind it: of all layers up to here that later ones read
};

struct PipeDreamProfile {
  std::vector<PipeDreamLayer> layers;
  int64_t computeNs() const;
};

// Throws Error(kBadModel) that names `source` and the line.
PipeDreamProfile parsePipeDreamProfile(std::string_view text, const std::string& source);

class PipeDreamCosts : public StageCosts {
 public:
  PipeDreamCosts(const PipeDreamProfile& profile, int workers, double bytes_per_ns);  // the profile by reference

  int layers() const override { return static_cast<int>(profile_.layers.size()); }
  int submeshClass(const Submesh& submesh) const override { return submesh.deviceCount(); }
  const std::vector<StageOption>& options(int first_layer, int last_layer, const Submesh& submesh) const override;
  int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to, int to_boundary) const override;
  int64_t memoryBytes(const Submesh&) const override { return INT64_MAX; }

 private:
  const PipeDreamProfile& profile_;
  double bytes_per_ns_;
  std::vector<std::vector<std::vector<StageOption>>> options_;  // by workers - 1; first layer * layers + last layer
};

struct PipeDreamPlan {
  Assignment assignment;          // its objective: one minibatch leaves every so many nanoseconds
  std::vector<int64_t> versions;  // by stage: of its weights that are kept at once
  int64_t data_parallel_ns = 0;   // one stage on all workers
  int64_t one_worker_ns = 0;
};
PipeDreamPlan planAsPipeDream(const PipeDreamProfile& profile, int workers, double bytes_per_ns);

}  // namespace pipeshard
