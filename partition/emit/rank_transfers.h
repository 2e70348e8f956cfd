// What one rank sends to other groups of devices and receives from them: values of passes, channel by
// channel, and tensors that are there once a step. Internal to partition/emit/.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "partition/emit/emission_context.h"
#include "partition/emit/rank_builder.h"

namespace pipeshard {

class RankTransfers {
 public:
  // The builder is the rank's; all are kept by reference.
  RankTransfers(const EmissionContext& context, RankId rank, RankBuilder& builder);

  // How a tensor that is there once a step gets from one group to another; nullptr: nothing was chosen, it
  // goes whole, from the counterpart.
  const CrossMeshPlan* planBetween(PipelineRankId from_group, PipelineRankId to_group, ValueId value) const;
  void sendTo(PipelineRankId group, BufferId buffer, ValueId value);
  void receiveFrom(PipelineRankId group, BufferId buffer, ValueId value);
  // Of equal copies on the devices of another group, the one that this rank works with.
  RankId counterpart(PipelineRankId group);

  // What leaves after a pass.
  void sendTo(const Departure& departure, int microbatch);
  // What other groups have sent, in the order of the channel, up to what is wanted; nothing twice.
  void receiveUntil(PipelineRankId sender, const Message& wanted);

 private:
  const std::vector<RankId>& devicesOf(PipelineRankId group) const {
    return layout_.devices(layout_.firstStage(group));
  }
  StageId ownStage() const { return layout_.firstStage(place_.group); }
  void sendToGroup(PipelineRankId group, BufferId buffer);
  // nullptr: whole, by replicas that take turns.
  const CrossMeshPlan* transferOf(ValueId value, int microbatch, StageId from_stage, StageId to_stage) const;
  void receiveMessage(StageId sender_stage, const Message& message);

  const EmissionContext& context_;
  const Layout& layout_;
  const RankId rank_;
  const Place& place_;
  RankBuilder& builder_;
  // by sending group and replica: how far its channel has been received
  std::map<std::pair<PipelineRankId, int>, size_t> taken_;
};

}  // namespace pipeshard
