// Schedules: for each pipeline rank the order of its passes. partition/families/ makes them.
//
// A *pipeline rank* is a group of devices that runs a set of stages: one stage each in plain pipelines, v
// stages ("chunks") each in interleaved and V-shaped ones. p pipeline ranks, m microbatches, S = p v stages.
// F is the forward pass of one microbatch through one stage, B its whole backward pass; I and W are its two
// halves (input gradients, weight gradients) where a schedule parts them. tF, tI, tW, tB = tI + tW are the
// times of one microbatch through a pipeline rank's *whole share* (all its stages): a chunk costs tF/v. A is
// the activation bytes of one microbatch on a whole share: a chunk keeps A/v from its F to its B (or W).
//
// F(s,k) needs F(s-1,k); B(s,k) and I(s,k) need F(s,k) and B or I(s+1,k); W(s,k) needs I(s,k). A rank runs
// its list in order.
//
// Synchronous schedules update all weights once, after all microbatches: results are those of one device.
// Asynchronous ones (PipeDream, PipeDream-2BW) update inside the list (kUpdate), and passes read older
// *versions* of the weights: `versions` says which.
//
// Every schedule runs the forward passes of a stage, its backward passes and its weight passes each in
// ascending order of microbatches, unless its description says otherwise. Gradients are thus added up in the
// same order in all of them: results are equal bit by bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/ids.h"
#include "ir/plan/schedule_spec.h"

namespace pipeshard {

enum class ActionKind : uint8_t {
  kForward,          // "F"
  kBackward,         // "B"
  kBackwardInput,    // "I"
  kBackwardWeight,   // "W"
  kUpdate,           // "UPDATE": asynchronous schedules; `microbatch` is the last one whose gradient it takes
  kReduceGradients,  // "REDUCE_GRAD": gradients of the stage are synchronised over its devices; no microbatch
  kSendForward,      // "SEND_F": the stage's output leaves for the next stage
  kReceiveForward,   // "RECV_F": the stage's input arrives from the stage before
  kSendBackward,     // "SEND_B": the gradient of the stage's input leaves for the stage before
  kReceiveBackward,  // "RECV_B": the gradient of the stage's output arrives from the next stage
};
std::string_view actionKindName(ActionKind kind);  // as above
bool isPass(ActionKind kind);                      // F, B, I, W

struct Action {
  StageId stage;
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;  // -1: none (kReduceGradients)
  // The next action of the list belongs to this one: a forward and a backward pass that a device may overlap
  // (DualPipe). They need nothing of each other, and can start when the inputs of both are there. Here they
  // run one after the other.
  bool overlaps_next = false;
  friend bool operator==(const Action&, const Action&) = default;
};
std::string actionToString(const Action& action);  // "2F3": stage, kind, microbatch; without overlaps_next

// By pipeline rank: its actions, first to last.
using ScheduleOrders = IdVector<PipelineRankId, std::vector<Action>>;
// By stage: its pipeline rank.
using RankOfStage = IdVector<StageId, PipelineRankId>;

struct Schedule {
  ScheduleSpec spec;     // as the family names itself, {"interleaved", {{"v", 2}}}; ofFile() where read
  int stages = 1;        // S
  int microbatches = 1;  // m: of one step (of the whole window, for asynchronous schedules)
  RankOfStage rank_of_stage = {PipelineRankId(0)};
  ScheduleOrders orders;      // passes and updates only
  bool forward_only = false;  // no backward passes: evaluation
  // Asynchronous schedules. Microbatches that one update takes: the minibatch. 0: synchronous, one update at
  // the end of the step.
  int microbatches_per_update = 0;
  // versions[stage][microbatch]: how many updates the weights that its forward and backward pass read have
  // seen. Empty: synchronous.
  IdVector<StageId, std::vector<int>> versions = {};
  // Asynchronous schedules on replicated stages: replicas that take the microbatches in turn, by stage.
  // Microbatch k runs on replica k mod replicas[stage]; an order has the passes of all replicas of its rank,
  // as they could run one after the other, and an update is one of all replicas together. Empty: one replica
  // of each.
  IdVector<StageId, int> replicas = {};
  // By stage: microbatches that one of its updates takes, where that is not the minibatch: on replicas, which
  // average the gradients of one minibatch each. Empty: microbatches_per_update.
  IdVector<StageId, int> update_every = {};

  std::string name() const { return scheduleSpecToString(spec); }  // "interleaved:v=2"
  int ranks() const { return orders.size(); }
  bool asynchronous() const { return microbatches_per_update > 0; }
  int replicasOf(StageId stage) const { return replicas.empty() ? 1 : replicas[stage]; }
  int updateEvery(StageId stage) const {
    return update_every.empty() ? microbatches_per_update : update_every[stage];
  }
};

// What automatic schedules (zb-1p, zb-2p, v-min, ...) are made for: of a whole share, in any one unit of time
// and one of memory.
struct ScheduleCosts {
  int64_t forward = 1;
  int64_t backward_input = 1;
  int64_t backward_weight = 1;
  int64_t transfer = 0;  // from the end of a pass to the moment when the next stage can start
  // What a microbatch's F adds to the memory of its rank, and what I and W change it by (negative: they
  // free).
  int64_t forward_memory = 1;
  int64_t input_memory = 0;
  int64_t weight_memory = -1;
};

// The most stashes that the rank holds at once, from F to B (or W), of all its stages or of one alone: in
// stages' shares, A/v each. Without backward passes: 1, while F runs.
int64_t peakActivations(const std::vector<Action>& order, std::optional<StageId> alone = {});

// Some backward pass of the stage runs in halves, I and W.
bool splitsBackward(const Schedule& schedule, StageId stage);

// Of the order of a stage's pipeline rank, what one of its replicas runs: its passes, and the updates.
std::vector<Action> orderOfReplica(const Schedule& schedule, StageId stage, int replica);

}  // namespace pipeshard
