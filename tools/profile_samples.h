// The operators of programs as samples to measure (runtime/profiling.h), each with what a profile knows it by.
#pragma once

#include <map>
#include <vector>

#include "ir/profile.h"
#include "ir/program.h"
#include "runtime/profiling.h"

namespace pipeshard {

class ProfileSamples {
 public:
  // The distinct nodes of a rank's subgraphs as they are run (runnableGraph); what is known already is passed over. Views, collectives
  // and what brings values into place take no time of their own.
  void add(const Program& program, const std::vector<Graph>& subgraphs);
  // Of one graph. `in_place`: outputs of the graph and the inputs whose memory they are, as an update's. What a step's updates touch is
  // out of caches by the next step where it is more than they hold: `update_bytes` of it.
  void add(const Graph& graph, const std::map<ValueId, ValueId>& in_place = {}, int64_t update_bytes = 0);

  size_t size() const { return works_.size(); }
  const std::vector<OperatorSample>& samples() const { return samples_; }
  // By the samples' times.
  std::vector<ProfilePoint> points(const std::vector<OperatorTime>& times) const;
  // Of the classes of work in float32: medians of the samples of about equal amount, for operators that nobody measured.
  std::vector<WorkRate> rates(const std::vector<OperatorTime>& times) const;

 private:
  std::vector<OperatorWork> works_;
  std::vector<WorkClass> classes_;
  std::vector<OperatorSample> samples_;
  std::map<OperatorWork, size_t> known_;
};

}  // namespace pipeshard
