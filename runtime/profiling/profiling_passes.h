// What operators take on this machine, in processes like a job's workers. Times are nanoseconds.
//
//   // one time per work, alone and beside a second worker
//   measurePasses({{image, work}}, works, {.threads = 1, .workers = 2}, progress)
//
// An operator takes what it finds in caches: inside a step, some of what it reads has just been made, some
// was made long ago, and its code has been pushed out by that of others. So it is measured where it stands: a
// rank's program runs as in a job (runtime/profiling/profiling_rank.h), and every node of it is timed, over
// steps that took neither long nor short. The same work at several places takes the mean over them; gradients
// that are computed where they are accumulated count as they are. Helper processes are forked; they end with
// the call, whatever happens. Thread rules: one call at a time, from a process that has not used OpenMP with
// several threads before (its team would not be there in a fork).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/execute/rank_image.h"

namespace pipeshard {

class Device;          // runtime/device/device.h
class KernelRegistry;  // runtime/kernels/base/kernel.h

struct ProfilingOptions {
  int threads = 1;  // of a worker
  // of the node, all at the same work while `busy_ns` is measured; 1: that is not measured
  int workers = 1;
  int64_t sample_ns = 700'000'000;  // of every sample, for each of its two times
  // of all samples together: shared out evenly, what one leaves goes to those behind it
  int64_t budget_ns = 80'000'000'000;
  const KernelRegistry* kernels = nullptr;  // nullptr: the device's
  // nullptr: cpuDevice(). Of one that works beside the host, times are the device's own (timed events), and
  // `workers` is 1: a job's ranks have one each.
  Device* device = nullptr;
};

// A rank's program. When its time is over, what has been measured before is left out and the rest is still
// run once: so a step that takes longer than there is time for costs no more than one run of each of its
// different operators.
struct PassSample {
  RankImage image;
  // By subgraph and node, as they are run (runnableGraph): the number of the node's work. -1: no time is
  // wanted (views, collectives).
  std::vector<std::vector<int>> work;
};

struct OperatorTime {
  int64_t ns = 0;       // 0: no sample has run it
  int64_t busy_ns = 0;  // 0: not measured
  int repetitions = 0;  // how many runs `ns` is the mean of
};

using ProfilingProgress = std::function<void(size_t done, size_t all)>;

// By the number of the work, of `works`. Errors: as StandaloneRank; kPeerUnavailable when a helper process
// has ended.
std::vector<OperatorTime> measurePasses(std::span<const PassSample> samples, size_t works,
                                        const ProfilingOptions& options,
                                        const ProfilingProgress& progress = {});

// Memory that one worker takes for a sample.
int64_t passBytes(const PassSample& sample, const ProfilingOptions& options);

}  // namespace pipeshard
