// What the tests of schedules compare with: which schedules there are, and a model of what may run that
// shares no code with the verifier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "partition/schedules/schedule.h"

namespace pipeshard {

// Texts of all families: with v = 1 to 4 where that is an option, with some values of the others.
std::vector<std::string> scheduleTexts();
// Those of them that exist for so many ranks and microbatches; others must be refused as kConfiguration.
std::vector<Schedule> schedulesOf(int ranks, int microbatches);

struct PassDurations {
  int64_t forward = 1;
  int64_t backward_input = 1;
  int64_t backward_weight = 1;
};

struct ScheduleRun {
  bool complete = false;  // every pass once, on its rank; every message sent and received once
  bool acyclic = false;   // nobody waits for itself; only then:
  // passes as early as possible, messages take no time, overlapped pairs are one pass
  int64_t makespan = 0;
  IdVector<PipelineRankId, int64_t> busy;
  IdVector<PipelineRankId, int64_t> first_start;
  bool legal() const { return complete && acyclic; }
};

// By a graph: a node per action (overlapped pairs are one node, and so are a send and its receive:
// rendezvous), an edge from each action to the next one of its rank, edges for data, updates and versions.
// What can run is what can be sorted; times are longest paths.
ScheduleRun runSchedule(const Schedule& schedule, const PassDurations& durations = {});

// The most messages that a rank has received and not used yet.
int64_t mostWaitingMessages(const ScheduleOrders& orders);

}  // namespace pipeshard
