// The operators of programs as samples to measure (runtime/profiling/profiling_passes.h), each with what a
// profile knows it by.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/cluster/profile.h"
#include "ir/program/program.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "runtime/profiling/profiling_passes.h"

namespace pipeshard {

// A graph that is one pass by itself: all its nodes in a row, on memory of its own.
struct GraphPass {
  Graph graph;                               // as it is run (runnableGraph)
  std::map<ValueId, ValueId> in_place = {};  // outputs, and the inputs whose memory they are, as an update's
  std::set<ValueId> states = {};             // inputs that start as zeros
  std::map<ValueId, int64_t> below = {};     // whole numbers: inputs, and what is above all of their elements
};
RankImage imageOf(const GraphPass& pass);

class ProfileSamples {
 public:
  // `kernels`: of the device that is measured; used until destruction.
  explicit ProfileSamples(const KernelRegistry& kernels = cpuKernels()) : kernels_(kernels) {}

  // A rank's program; passed over when it has no operator that is not known already. Views and collectives
  // take no time of their own.
  void add(RankImage image);

  size_t size() const { return works_.size(); }
  // One time per operator. Programs that take more memory than a worker may, `most_bytes` (usually its share
  // of what is available), are taken apart: each of their operators is measured alone. So are programs with
  // an operator that options.device has no kernel for; such an operator is left out, its time is 0. Errors:
  // as measurePasses.
  std::vector<OperatorTime> measure(const ProfilingOptions& options,
                                    const ProfilingProgress& progress = {}) const {
    return measure(options, progress, shareOfMemory(options.workers));
  }
  std::vector<OperatorTime> measure(const ProfilingOptions& options, const ProfilingProgress& progress,
                                    int64_t most_bytes) const;

  // By the operators' times.
  std::vector<ProfilePoint> points(const std::vector<OperatorTime>& times) const;
  // Those without a time.
  std::set<std::string> leftOut(const std::vector<OperatorTime>& times) const;
  // Of the classes of work in float32: medians of the operators of about equal amount, for those that nobody
  // measured.
  std::vector<WorkRate> rates(const std::vector<OperatorTime>& times) const;

 private:
  static int64_t shareOfMemory(int workers);
  std::vector<int> addWorks(const Graph& graph, size_t& added);
  std::vector<PassSample> apart(const PassSample& pass) const;

  const KernelRegistry& kernels_;
  std::vector<OperatorWork> works_;
  std::vector<WorkClass> classes_;
  std::map<OperatorWork, size_t> known_;
  std::vector<PassSample> passes_;
};

}  // namespace pipeshard
