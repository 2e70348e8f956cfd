#include "partition/emit/rank_transfers.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {

RankTransfers::RankTransfers(const EmissionContext& context, RankId rank, RankBuilder& builder)
    : context_(context),
      layout_(context.layout),
      rank_(rank),
      place_(layout_.place(rank)),
      builder_(builder) {}

// Of equal copies on the devices of one group, the one that this position of another group works with.
RankId RankTransfers::counterpart(PipelineRankId group, DeviceId position) const {
  const std::vector<RankId>& devices = devicesOf(group);
  return devices[position.index() % devices.size()];
}

// Sends to all devices of another group that work with this one.
void RankTransfers::sendToGroup(PipelineRankId group, BufferId buffer) {
  for (const DeviceId position : idsBelow<DeviceId>(devicesOf(group).size())) {
    if (counterpart(place_.group, position) == rank_)
      builder_.send(devicesOf(group)[position.index()], buffer, -1);
  }
}

const CrossMeshPlan* RankTransfers::planBetween(PipelineRankId from_group, PipelineRankId to_group,
                                                ValueId value) const {
  const StageId from = layout_.firstStage(from_group), to = layout_.firstStage(to_group);
  if (!context_.shardings.transfersAreChosen(from, to)) return nullptr;
  return &context_.shardings.transfer(value, context_.family.largestMicrobatch(), from, to);
}

void RankTransfers::sendTo(PipelineRankId group, BufferId buffer, ValueId value) {
  if (const CrossMeshPlan* plan = planBetween(place_.group, group, value)) {
    builder_.sendShards(*plan, buffer, value, layout_.firstStage(group));
  } else {
    sendToGroup(group, buffer);
  }
}

void RankTransfers::receiveFrom(PipelineRankId group, BufferId buffer, ValueId value) {
  if (const CrossMeshPlan* plan = planBetween(group, place_.group, value)) {
    builder_.receiveShards(*plan, buffer, value, layout_.firstStage(group));
  } else {
    builder_.receive(counterpart(group, place_.position), buffer, -1);
  }
}

const CrossMeshPlan* RankTransfers::transferOf(ValueId value, int microbatch, StageId from_stage,
                                               StageId to_stage) const {
  if (layout_.inTurn()) return nullptr;
  return &context_.shardings.transfer(value, layout_.microbatch(microbatch).count, from_stage, to_stage);
}

RankId RankTransfers::senderInTurn(int microbatch, StageId from_stage, StageId to_stage,
                                   RankId receiver) const {
  const std::vector<RankId> senders =
      layout_.devicesOf(from_stage, layout_.replicaOf(from_stage, microbatch));
  const std::vector<RankId> takers = layout_.devicesOf(to_stage, layout_.replicaOf(to_stage, microbatch));
  const size_t place = std::find(takers.begin(), takers.end(), receiver) - takers.begin();
  return senders[place % senders.size()];
}

void RankTransfers::sendTo(const Departure& departure, int microbatch) {
  const StageId own_stage = ownStage(), to = departure.receiver;
  if (const CrossMeshPlan* plan = transferOf(departure.value, microbatch, own_stage, to))
    return builder_.sendShards(*plan, departure.value, microbatch, to);
  for (const RankId receiver : layout_.devicesOf(to, layout_.replicaOf(to, microbatch))) {
    if (senderInTurn(microbatch, own_stage, to, receiver) == rank_)
      builder_.send(receiver, builder_.produced(departure.value, microbatch), microbatch);
  }
}

void RankTransfers::receiveUntil(PipelineRankId sender, const Message& wanted) {
  const std::vector<Message>& channel = context_.messages.channel(sender, place_.group);
  const auto found = std::find(channel.begin(), channel.end(), wanted);
  PIPESHARD_CHECK(found != channel.end(), "'{}' never goes from group {} to group {}",
                  builder_.nameOf(wanted.value), sender, place_.group);
  const StageId stage = layout_.firstStage(sender);
  const int replica = layout_.replicaOf(stage, wanted.microbatch);
  size_t& taken = taken_[{sender, replica}];
  for (; taken <= static_cast<size_t>(found - channel.begin()); ++taken) {
    const Message& message = channel[taken];
    const bool from_there = layout_.replicaOf(stage, message.microbatch) == replica;
    if (from_there && layout_.takes(rank_, message.microbatch)) receiveMessage(stage, message);
  }
}

void RankTransfers::receiveMessage(StageId sender_stage, const Message& message) {
  const StageId own_stage = ownStage();
  const int microbatch = message.microbatch;
  if (const CrossMeshPlan* plan = transferOf(message.value, microbatch, sender_stage, own_stage))
    return builder_.receiveShards(*plan, message.value, microbatch, sender_stage);
  builder_.receive(senderInTurn(microbatch, sender_stage, own_stage, rank_),
                   builder_.produced(message.value, microbatch), microbatch);
}

}  // namespace pipeshard
