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
  return context_.shardings.transfer(value, context_.family.largestMicrobatch(),
                                     layout_.firstStage(from_group), layout_.firstStage(to_group));
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

std::vector<Shipment> RankTransfers::shipmentsOf(ValueId value, int microbatch, StageId from_stage,
                                                 StageId to_stage) const {
  return shipments(layout_, context_.kinds[value.index()].kind, microbatch, from_stage, to_stage);
}

const CrossMeshPlan* RankTransfers::transferOf(ValueId value, int microbatch, StageId from_stage,
                                               StageId to_stage) const {
  return context_.shardings.transfer(value, layout_.microbatch(microbatch).count, from_stage, to_stage);
}

void RankTransfers::sendTo(const Departure& departure, const Cell& cell) {
  const StageId own_stage = ownStage();
  if (const CrossMeshPlan* plan =
          transferOf(departure.value, cell.microbatch, own_stage, departure.receiver)) {
    return builder_.sendShards(*plan, departure.value, cell, departure.receiver);
  }
  for (const Shipment& shipment :
       shipmentsOf(departure.value, cell.microbatch, own_stage, departure.receiver)) {
    if (shipment.sender != rank_) continue;
    builder_.send(shipment.receiver, builder_.slice(departure.value, cell, shipment.rows), cell.microbatch);
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
  if (const CrossMeshPlan* plan = transferOf(message.value, message.microbatch, sender_stage, own_stage)) {
    return builder_.receiveShards(*plan, message.value, builder_.own(message.microbatch), sender_stage);
  }
  std::vector<Shipment> mine = shipmentsOf(message.value, message.microbatch, sender_stage, own_stage);
  std::erase_if(mine, [&](const Shipment& shipment) { return shipment.receiver != rank_; });
  const TimeKind& kind = context_.kinds[message.value.index()];
  const bool split = kind.kind == TimeKind::Kind::kSplit;
  const BufferId whole = builder_.produced(message.value, builder_.own(message.microbatch));
  if (mine.empty()) {  // no part of the sum fell to this device
    builder_.add(InstructionKind::kZero, message.microbatch, {}, {whole});
    return;
  }
  if (mine.size() == 1) return builder_.receive(mine.front().sender, whole, message.microbatch);
  std::vector<BufferId> parts;
  // A part of a sum that has the rows of this device's cell has its buffer, too: it comes first, and the
  // others are added.
  std::stable_partition(mine.begin(), mine.end(), [&](const Shipment& shipment) {
    return shipment.rows == builder_.own(message.microbatch).rows;
  });
  for (const Shipment& shipment : mine) {
    parts.push_back(builder_.produced(message.value, {message.microbatch, shipment.rows}));
    builder_.receive(shipment.sender, parts.back(), message.microbatch);
  }
  if (split) {
    builder_.add(InstructionKind::kConcatenate, message.microbatch, parts, {whole}).axis = kind.axis;
  } else {
    bool begun = parts.front() == whole;
    for (size_t i = begun ? 1 : 0; i < parts.size(); ++i, begun = true)
      builder_.add(InstructionKind::kAccumulate, message.microbatch, {parts[i]}, {whole}).overwrite = !begun;
  }
}

}  // namespace pipeshard
