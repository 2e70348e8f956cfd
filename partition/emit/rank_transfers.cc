#include "partition/emit/rank_transfers.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {

RankTransfers::RankTransfers(const EmissionContext& context, RankId rank, RankBuilder& builder)
    : context_(context),
      layout_(context.layout),
      rank_(rank),
      place_(layout_.place(rank)),
      builder_(builder) {}

// Of equal copies on the devices of another group, the one that this rank works with.
RankId RankTransfers::counterpart(PipelineRankId group) {
  const std::vector<RankId>& devices = devicesOf(group);
  const auto of = [&layout = layout_, &devices](RankId rank) {
    return devices[layout.place(rank).position.index() % devices.size()];
  };
  builder_.questions().ask(fmt::format("counterpart in {}", group), [of](RankId rank) {
    return RankAnswer{{}, {of(rank)}, {}, {}};
  });
  return of(rank_);
}

// Sends to all devices of another group that work with this one.
void RankTransfers::sendToGroup(PipelineRankId group, BufferId buffer) {
  const std::vector<RankId>& devices = devicesOf(group);
  const std::vector<RankId>& own = devicesOf(place_.group);
  const auto of = [&devices, &own](RankId rank) {
    std::vector<RankId> receivers;
    for (size_t position = 0; position < devices.size(); ++position) {
      if (own[position % own.size()] == rank) receivers.push_back(devices[position]);
    }
    return receivers;
  };
  builder_.questions().ask(fmt::format("who works with it in {}", group), [of](RankId rank) {
    return RankAnswer{{}, of(rank), {}, {}};
  });
  for (const RankId receiver : of(rank_)) builder_.send(receiver, buffer, -1);
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
    builder_.receive(counterpart(group), buffer, -1);
  }
}

const CrossMeshPlan* RankTransfers::transferOf(ValueId value, int microbatch, StageId from_stage,
                                               StageId to_stage) const {
  if (layout_.inTurn()) return nullptr;
  return &context_.shardings.transfer(value, layout_.microbatch(microbatch).count, from_stage, to_stage);
}

// Where replicas take turns: of the one that has the microbatch, the device that sends it to a device of the
// one that takes it, whole.
static RankId senderInTurn(const Layout& layout, int microbatch, StageId from_stage, StageId to_stage,
                           RankId receiver) {
  const std::vector<RankId> senders = layout.devicesOf(from_stage, layout.replicaOf(from_stage, microbatch));
  const std::vector<RankId> takers = layout.devicesOf(to_stage, layout.replicaOf(to_stage, microbatch));
  const size_t place = std::find(takers.begin(), takers.end(), receiver) - takers.begin();
  return senders[place % senders.size()];
}

void RankTransfers::sendTo(const Departure& departure, int microbatch) {
  const StageId own_stage = ownStage(), to = departure.receiver;
  if (const CrossMeshPlan* plan = transferOf(departure.value, microbatch, own_stage, to))
    return builder_.sendShards(*plan, departure.value, microbatch, to);
  const auto of = [&layout = layout_, microbatch, own_stage, to](RankId rank) {
    std::vector<RankId> receivers = layout.devicesOf(to, layout.replicaOf(to, microbatch));
    std::erase_if(receivers, [&](RankId receiver) {
      return senderInTurn(layout, microbatch, own_stage, to, receiver) != rank;
    });
    return receivers;
  };
  builder_.questions().ask(fmt::format("who takes {} of stage {} from {}", microbatch, to, own_stage),
                           [of](RankId rank) {
                             return RankAnswer{{}, of(rank), {}, {}};
                           });
  for (const RankId receiver : of(rank_))
    builder_.send(receiver, builder_.produced(departure.value, microbatch), microbatch);
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
  const auto of = [&layout = layout_, microbatch, sender_stage, own_stage](RankId rank) {
    return senderInTurn(layout, microbatch, sender_stage, own_stage, rank);
  };
  builder_.questions().ask(fmt::format("who sends {} of stage {} to {}", microbatch, sender_stage, own_stage),
                           [of](RankId rank) {
                             return RankAnswer{{}, {of(rank)}, {}, {}};
                           });
  builder_.receive(of(rank_), builder_.produced(message.value, microbatch), microbatch);
}

}  // namespace pipeshard
