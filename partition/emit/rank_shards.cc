// RankBuilder: values on their way between stages.
#include <algorithm>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/emit/rank_builder.h"

namespace pipeshard {
namespace {

// One box that a device sends, and how it is cut out of what the device holds: after each range, what is
// left.
struct SentBox {
  DeviceId receiver;
  std::vector<AxisRange> ranges;
  std::vector<Shard> left;
};

std::vector<SentBox> boxesOf(const CrossMeshPlan& plan, const Shard& held, DeviceId device) {
  std::vector<SentBox> boxes;
  for (const CrossMeshPiece& piece : plan.transfer.pieces) {
    if (piece.sender != device) continue;
    SentBox& box = boxes.emplace_back(SentBox{piece.receiver, cutOut(held, piece.box), {}});
    Shard left = held;
    for (const AxisRange& range : box.ranges) {
      left.start[range.axis] += range.offset;
      left.size[range.axis] = range.size;
      box.left.push_back(left);
    }
  }
  return boxes;
}

void add(std::vector<int64_t>& alike, const Shape& sizes) {
  alike.push_back(std::ssize(sizes));
  alike.insert(alike.end(), sizes.begin(), sizes.end());
}

// Starts: of what it holds, then of what each range leaves.
RankAnswer describeSent(const CrossMeshPlan& plan, const Shape& whole, const LogicalMesh& mesh,
                        DeviceId device, const std::vector<RankId>& receivers) {
  const Shard held = shardOf(plan.sent, whole, mesh, device);
  RankAnswer answer;
  add(answer.alike, held.size);
  answer.starts.push_back(held.start);
  for (const SentBox& box : boxesOf(plan, held, device)) {
    answer.alike.push_back(std::ssize(box.ranges));
    for (const AxisRange& range : box.ranges) add(answer.alike, {range.axis, range.size});
    for (const Shard& left : box.left) answer.starts.push_back(left.start);
    answer.peers.push_back(receivers[box.receiver.index()]);
  }
  return answer;
}

// Starts: of the shard that they make up, then of each piece.
RankAnswer describeReceived(const CrossMeshPlan& plan, const Shape& whole, const LogicalMesh& mesh,
                            DeviceId device, const std::vector<RankId>& senders) {
  RankAnswer answer;
  const CrossMeshAssembly& assembly = plan.transfer.assemblies[device];
  if (!plan.transfer.adds) {
    const Shard wanted = shardOf(plan.received, whole, mesh, device);
    add(answer.alike, wanted.size);
    answer.starts.push_back(wanted.start);
    for (const Concatenation& step : putTogether(assembly)) {
      answer.alike.push_back(step.axis);
      add(answer.alike, {step.operands.begin(), step.operands.end()});
      add(answer.alike, step.shape);
    }
  }
  answer.alike.push_back(std::ssize(assembly.pieces));
  for (const int index : assembly.pieces) {
    const CrossMeshPiece& piece = plan.transfer.pieces[index];
    if (!plan.transfer.adds) {
      add(answer.alike, piece.box.size);
      answer.starts.push_back(piece.box.start);
    }
    answer.peers.push_back(senders[piece.sender.index()]);
  }
  return answer;
}

}  // namespace

const Shape& RankBuilder::wholeShapeOf(ValueId value, int microbatch) const {
  const TrainingFamily& family = context_.family;
  const int64_t rows = rowsOf(microbatch);
  return family.at(rows).graph.shape(family.valueAt(rows, value));
}

RankBuilder::Travelling RankBuilder::travelling(ValueId value, int microbatch) {
  return {
      value,      produced(value, microbatch),    nameOf(value, microbatch), wholeShapeOf(value, microbatch),
      microbatch, context_.cut.place(value).phase};
}

RankBuilder::Travelling RankBuilder::travelling(BufferId buffer, ValueId value) const {
  return {value, buffer, program_.buffer(buffer).name, training_.graph.shape(value)};
}

void RankBuilder::sendShards(const CrossMeshPlan& plan, ValueId value, int microbatch, StageId to_stage) {
  sendShards(plan, travelling(value, microbatch), to_stage);
}

void RankBuilder::receiveShards(const CrossMeshPlan& plan, ValueId value, int microbatch,
                                StageId from_stage) {
  receiveShards(plan, travelling(value, microbatch), from_stage);
}

void RankBuilder::sendShards(const CrossMeshPlan& plan, BufferId buffer, ValueId value, StageId to_stage) {
  sendShards(plan, travelling(buffer, value), to_stage);
}

void RankBuilder::receiveShards(const CrossMeshPlan& plan, BufferId buffer, ValueId value,
                                StageId from_stage) {
  receiveShards(plan, travelling(buffer, value), from_stage);
}

BufferId RankBuilder::boxBuffer(const Travelling& tensor, const Shard& box, int start, std::string name) {
  const bool boxed = name.empty();
  if (boxed) name = tensor.name + boxText(box.start, box.size);
  const bool is_new = !buffers_.contains(name);
  const int known = is_new ? -1 : start_slots_[buffers_.at(name).index()];
  const BufferId id = buffer(name, BufferKind::kActivation, tensor.value);
  Buffer& made = program_.buffers[id.index()];
  made.shape = box.size;
  made.part.reset();
  setStart(id, -1);
  if (box.size == tensor.whole) return id;
  made.part = BufferPart{tensor.whole, box.start};
  setStart(id, known >= 0 ? known : start);
  if (known >= 0) questions_.requireEqual(known, start);
  if (!boxed || !is_new) return id;
  boxed_.insert(id);
  std::vector<int>& others = starts_of_boxes_[{tensor.name, box.size}];
  for (const int other : others) questions_.requireDistinct(other, start);
  others.push_back(start);
  return id;
}

void RankBuilder::sendShards(const CrossMeshPlan& plan, const Travelling& tensor, StageId to_stage) {
  const LogicalMesh mesh = ownMesh(tensor.microbatch);
  const Shard held = shardOf(plan.sent, tensor.whole, mesh, ownDevice());
  const std::vector<RankId>& receivers = context_.layout.devices(to_stage);
  int start =
      questions_.ask(fmt::format("send {} to {}", fmt::ptr(&plan), to_stage),
                     [this_device = deviceOf(), &plan, whole = tensor.whole, mesh, &receivers](RankId rank) {
                       return describeSent(plan, whole, mesh, this_device(rank), receivers);
                     });
  BufferId source = tensor.buffer;
  if (!plan.before.steps.empty()) {
    const BufferId resharded = boxBuffer(tensor, held, start);
    if (sliced_.insert(resharded).second)
      runResharding(plan, tensor, {"", source, resharded, tensor.whole, kept(tensor.value), plan.before});
    source = resharded;
  }
  for (const SentBox& box : boxesOf(plan, held, ownDevice())) {
    BufferId part = source;
    for (size_t i = 0; i < box.ranges.size(); ++i) {
      const BufferId next = boxBuffer(tensor, box.left[i], ++start);
      if (sliced_.insert(next).second) {
        Instruction& instruction = add(InstructionKind::kSlice, tensor.microbatch, {part}, {next});
        instruction.axis = box.ranges[i].axis;
        instruction.offset = box.ranges[i].offset;
      }
      part = next;
    }
    send(receivers[box.receiver.index()], part, tensor.microbatch);
  }
}

void RankBuilder::receiveShards(const CrossMeshPlan& plan, const Travelling& tensor, StageId from_stage) {
  const LogicalMesh mesh = ownMesh(tensor.microbatch);
  const std::vector<RankId>& senders = context_.layout.devices(from_stage);
  const int start =
      questions_.ask(fmt::format("receive {} from {}", fmt::ptr(&plan), from_stage),
                     [this_device = deviceOf(), &plan, whole = tensor.whole, mesh, &senders](RankId rank) {
                       return describeReceived(plan, whole, mesh, this_device(rank), senders);
                     });
  if (plan.transfer.adds) return receiveSummands(plan.transfer, tensor, from_stage);
  const Shard wanted = shardOf(plan.received, tensor.whole, mesh, ownDevice());
  // What is there once a step has one name on all devices that meet about it (verifyPrograms).
  const std::string name = tensor.microbatch < 0 ? tensor.name + context_.separator + "received" : "";
  const BufferId last = plan.after.steps.empty() ? tensor.buffer : boxBuffer(tensor, wanted, start, name);
  const CrossMeshAssembly& assembly = plan.transfer.assemblies[ownDevice()];
  std::vector<BufferId> operands;
  std::vector<Shape> starts;
  std::vector<int> slots;  // of the starts
  for (int index : assembly.pieces) {
    const CrossMeshPiece& piece = plan.transfer.pieces[index];
    slots.push_back(start + 1 + static_cast<int>(slots.size()));
    operands.push_back(assembly.pieces.size() == 1 ? last : boxBuffer(tensor, piece.box, slots.back()));
    starts.push_back(piece.box.start);
    receive(context_.layout.devices(from_stage)[piece.sender.index()], operands.back(), tensor.microbatch);
  }
  const std::vector<Concatenation> steps = putTogether(assembly);
  for (const Concatenation& step : steps) {
    std::vector<BufferId> inputs;
    for (int operand : step.operands) inputs.push_back(operands[operand]);
    starts.push_back(starts[step.operands.front()]);
    slots.push_back(slots[step.operands.front()]);
    const bool is_last = &step == &steps.back();
    operands.push_back(is_last ? last : boxBuffer(tensor, {starts.back(), step.shape}, slots.back()));
    add(InstructionKind::kConcatenate, tensor.microbatch, std::move(inputs), {operands.back()}).axis =
        step.axis;
  }
  if (plan.after.steps.empty()) return;
  runResharding(plan, tensor, {"", last, tensor.buffer, tensor.whole, plan.received, plan.after});
}

void RankBuilder::runResharding(const CrossMeshPlan& plan, const Travelling& tensor, Pending resharding) {
  const BufferId from = resharding.from, to = resharding.to;
  const auto make = [&] {
    resharding.name = tensor.microbatch < 0 ? program_.buffer(from).name : nameOf(tensor.value);
    return reshardingSubgraph(fmt::format("reshard_{}", reshardings_++), tensor.phase, tensor.microbatch,
                              {std::move(resharding)});
  };
  SubgraphId id;
  if (tensor.microbatch < 0) {
    id = make();
  } else {
    const auto [found, is_new] = resharding_of_.try_emplace({&plan, tensor.value});
    if (is_new) found->second = make();
    id = found->second;
  }
  add(InstructionKind::kRun, tensor.microbatch, {from}, {to}).subgraph = id;
}

void RankBuilder::receiveSummands(const CrossMeshTransfer& transfer, const Travelling& tensor,
                                  StageId from_stage) {
  const std::vector<int>& pieces = transfer.assemblies[ownDevice()].pieces;
  const auto receiveInto = [&](BufferId buffer, int piece) {
    const DeviceId sender = transfer.pieces[piece].sender;
    receive(context_.layout.devices(from_stage)[sender.index()], buffer, tensor.microbatch);
  };
  if (pieces.empty()) {  // no summand fell to this device
    add(InstructionKind::kZero, tensor.microbatch, {}, {tensor.buffer});
    return;
  }
  if (pieces.size() == 1) return receiveInto(tensor.buffer, pieces.front());
  std::vector<BufferId> summands;
  const Shard whole{Shape(tensor.whole.size(), 0), tensor.whole};
  for (int piece : pieces) {
    const std::string name = fmt::format("{}{}summand{}", tensor.name, context_.separator, summands.size());
    receiveInto(summands.emplace_back(boxBuffer(tensor, whole, -1, name)), piece);
  }
  for (BufferId summand : summands) {
    add(InstructionKind::kAccumulate, tensor.microbatch, {summand}, {tensor.buffer}).overwrite =
        summand == summands.front();
  }
}

}  // namespace pipeshard
