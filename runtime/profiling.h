// Measuring this machine: what operators, copies and messages take, in processes like a job's workers. Times are nanoseconds, medians.
//
//   measureOperators({samples}, {.threads = 1, .workers = 2}, progress)   one time per sample, alone and with a second worker at the same
//
// Samples run through the kernels and the subgraph executor that a worker uses (runtime/subgraph.h), with a worker's number of threads, on
// memory of their own with synthetic content. Every sample is warmed up, then run in batches until its share of the time is spent.
// Helper processes are forked; they end with the call, whatever happens. Thread rules: one call at a time, from a process that has not
// used OpenMP with several threads before (its team would not be there in a fork).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/cluster.h"
#include "ir/graph.h"
#include "runtime/kernels/kernel.h"

namespace pipeshard {

struct ProfilingOptions {
  int threads = 1;                          // of a worker
  int workers = 1;                          // of the node, all at the same work while `busy_ns` is measured; 1: that is not measured
  int64_t budget_ns = 8'000'000;            // of every sample, for each of its two times; what is expensive runs at least three times
  const KernelRegistry* kernels = nullptr;  // nullptr: cpuKernels()
};

// A graph of one node, or few; every shape static. Its inputs get random content: floating-point ones standard normal, integers below the
// smallest axis of the others (so that indices are valid).
//
// Inside a step an operator finds some of what it reads in the nearest caches, and some not. Its tensors are therefore rotated over
// `footprint_bytes`, more than the caches of one core hold and less than those that cores share; predictions of whole steps are best so
// (docs/profile.md).
inline constexpr int64_t kDefaultFootprint = int64_t{4} << 20;
struct OperatorSample {
  Graph graph;
  int64_t footprint_bytes = kDefaultFootprint;
  std::vector<int> in_place = {};  // by output: the input whose memory it is, as an optimizer's update has it; -1: own. Empty: all own
};

struct OperatorTime {
  int64_t ns = 0;
  int64_t busy_ns = 0;  // 0: not measured
};

using ProfilingProgress = std::function<void(size_t done, size_t all)>;

// Errors: as CompiledSubgraph (an operator that has no kernel: kBadModel); kOutOfMemory.
std::vector<OperatorTime> measureOperators(std::span<const OperatorSample> samples, const ProfilingOptions& options,
                                           const ProfilingProgress& progress = {});

// Copies of growing size: ns by bytes read and written.
CostCurve measureMemory(const ProfilingOptions& options);

struct LinkTimes {
  CostCurve send;  // ns by bytes of a message, from its posting until the receiver, who waits for it, has it
  CostCurve all_reduce, all_gather, reduce_scatter, all_to_all;  // ns by bytes: the B of sharding/cost_model.h; of float32, two ranks
};
// Between two workers of a node (shared memory).
LinkTimes measureInside(int64_t most_bytes);
// Between two nodes, as far as one machine can tell: messages by Gloo over the loopback interface.
CostCurve measureBetween(int64_t most_bytes);

}  // namespace pipeshard
