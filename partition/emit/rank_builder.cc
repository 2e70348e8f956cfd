#include "partition/emit/rank_builder.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/graph/weight_files.h"
#include "partition/schedules/schedule.h"
#include "sharding/specs/resharding_emit.h"

namespace pipeshard {
namespace {

// Buffers are found by name and made at their first mention. A name is made of the value's name and of what
// of it the buffer has, so it is unique, and equal on all ranks that hold the same:
//
//   h@0            of microbatch 0                  h@0@summand1     of a partial sum, on its way
//   h@0@again      as a recomputation makes it      x@0@prologue     a batch input that the prologue reads
//   w@version2     a version of a parameter         loss@update1     where a step has several updates
//   dw@part1       a part of a gradient, summed     dw@synchronized  as the update reads it
//   h@0[0:4,8:16]  a box of a tensor, on its way between stages
//
// In a sharded stage a buffer has this device's part of the tensor (cut), as the value is kept.

// Puts the rank's groups into the program: ranks ascending, as they add up.
RankGroups addGroups(const EmissionContext& context, RankId rank, Program& program) {
  RankGroups groups;
  const StageId stage = context.layout.firstStage(context.layout.place(rank).group);
  std::vector<RankId> group = context.layout.counterparts(rank);
  if (group.size() > 1) {
    groups.replicas = program.groups.nextId();
    program.groups.push_back(std::move(group));
  }
  if (!context.shardings.isSharded(stage)) return groups;
  const LogicalMesh mesh = context.shardings.mesh(stage, context.family.largestMicrobatch());
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    GroupId& group_of_axis = groups.mesh.group_of_axis.emplace_back();
    const bool same = axis > 0 && context.shardings.sharesRows(stage);  // along it all compute the same
    if (mesh.axisSize(axis) == 1 || same) continue;
    group_of_axis = program.groups.nextId();
    std::vector<RankId> line;
    for (const DeviceId position : mesh.lineOf(context.layout.place(rank).position, axis)) {
      line.push_back(context.layout.devices(stage)[position.index()]);
    }
    if (!std::is_sorted(line.begin(), line.end())) {
      if (!context.shardings.sharesRows(stage)) refuseOrder(stage);
      std::sort(line.begin(), line.end());  // for sums the order of devices does not matter
      groups.in_order = false;
    }
    program.groups.push_back(std::move(line));
  }
  return groups;
}

}  // namespace

RankBuilder::RankBuilder(const EmissionContext& context, RankId rank)
    : context_(context),
      training_(context.family.base()),
      groups_(addGroups(context, rank, program_)),
      subgraphs_(context, rank, groups_) {
  program_.rank = rank;
  program_.world_size = context.layout.ranks();
  program_.microbatches = context.schedule.microbatches;
  program_.updates_per_step = context.versions.updates();
  listInputs();
}

void RankBuilder::listInputs() {
  const Graph& graph = training_.graph;
  for (const BatchInput& input : training_.inputs) {
    ProgramInput listed{
        nameOf(input.value), graph.dataType(input.value), graph.shape(input.value), input.axis, 0, 0};
    listed.drawn = graph.value(input.value).drawn;
    if (input.axis >= 0) {
      int64_t& size = listed.shape[input.axis];
      size = size / context_.family.largestMicrobatch() * context_.family.batch() * program_.updates_per_step;
    }
    program_.inputs.push_back(std::move(listed));
  }
}

BufferId RankBuilder::buffer(const std::string& name, BufferKind kind, ValueId like, ValueId kept) {
  const auto [found, is_new] = buffers_.try_emplace(name, program_.buffers.size());
  const Graph& graph = training_.graph;
  if (is_new) {
    program_.buffers.push_back(
        {name, kind, graph.dataType(like), graph.shape(like), nameOf(like), std::nullopt, {}});
    cut(found->second, graph.shape(like), kept.valid() ? kept : like);
  }
  return found->second;
}

void RankBuilder::cut(BufferId id, const Shape& whole, ValueId value, int microbatch) {
  Buffer& buffer = program_.buffer(id);
  buffer.shape = whole;
  buffer.part.reset();
  if (!isSharded() || kept(value).axes.size() != whole.size()) return;
  Shard shard = shardOf(kept(value), whole, ownMesh(microbatch), place().position);
  if (shard.size == whole) return;
  buffer.shape = std::move(shard.size);
  buffer.part = BufferPart{whole, std::move(shard.start)};
}

std::string RankBuilder::nameOf(ValueId value, int microbatch) const {
  return fmt::format("{}{}{}", nameOf(value), context_.separator, microbatch);
}

BufferId RankBuilder::produced(ValueId value, int microbatch) {
  const BufferId id = buffer(nameOf(value, microbatch), BufferKind::kActivation, value);
  cut(id, wholeShapeOf(value, microbatch), value, microbatch);
  return id;
}

BufferId RankBuilder::remade(ValueId value, int microbatch) {
  const BufferId id =
      buffer(nameOf(value, microbatch) + context_.separator + "again", BufferKind::kActivation, value);
  cut(id, wholeShapeOf(value, microbatch), value, microbatch);
  return id;
}

BufferId RankBuilder::stateBefore(ValueId state, int microbatch) {
  return buffer(nameOf(state, microbatch), BufferKind::kActivation, state);
}

BufferId RankBuilder::bufferOf(ValueId value, int microbatch, bool prologue) {
  const ValuePlace& place = context_.cut.place(value);
  switch (place.role) {
    case ValueRole::kProduced: return produced(value, microbatch);
    case ValueRole::kWeight: return buffer(nameOf(value), BufferKind::kWeight, value);
    case ValueRole::kParameter:
      return version(place.index,
                     microbatch == kWholeStep ? 0 : context_.versions.read(place.index, microbatch));
    case ValueRole::kForwardState: return buffer(nameOf(value), BufferKind::kForwardState, value);
    case ValueRole::kTotal:
      return ofUpdate(value, BufferKind::kAccumulator, context_.versions.updateOf(microbatch));
    case ValueRole::kGradient: return buffer(nameOf(value), BufferKind::kGradient, value);
    case ValueRole::kState: return buffer(nameOf(value), BufferKind::kOptimizerState, value);
    case ValueRole::kStep: return ofUpdate(value, BufferKind::kStep, context_.versions.updateOf(microbatch));
    case ValueRole::kBatchInput: {
      const BatchInput& input = training_.inputs[place.index];
      if (input.axis < 0) return buffer(nameOf(value), BufferKind::kInput, value);
      const BufferId id =
          buffer(nameOf(value, microbatch) + (prologue ? context_.separator + "prologue" : ""),
                 BufferKind::kInput, value);
      Shape whole = training_.graph.shape(value);
      int64_t& size = whole[input.axis];
      size = size / context_.family.largestMicrobatch() * rowsOf(microbatch);
      if (prologue) {
        program_.buffer(id).shape = std::move(whole);
        program_.buffer(id).part.reset();
      } else {
        cut(id, whole, value, microbatch);
      }
      return id;
    }
    case ValueRole::kConstant:
    case ValueRole::kNone: break;
  }
  PIPESHARD_CHECK(false, "'{}' needs no buffer", nameOf(value));
  return {};
}

BufferId RankBuilder::ofUpdate(ValueId value, BufferKind kind, int update) {
  const bool one = program_.updates_per_step == 1;
  const BufferId id =
      buffer(one ? nameOf(value) : fmt::format("{}{}update{}", nameOf(value), context_.separator, update),
             kind, value);
  if (kind == BufferKind::kStep) program_.buffer(id).update = update;
  return id;
}

BufferId RankBuilder::version(size_t parameter, int version) {
  const ValueId value = training_.parameters[parameter].value;
  bool in_parameter = true;
  if (version > 0) {
    const auto [found, is_new] = in_parameter_.try_emplace(parameter);
    if (is_new) {
      const StageId stage = context_.cut.owners[parameter];
      std::vector<Action> order = orderOfReplica(context_.schedule, stage, place().replica);
      std::erase_if(order, [&](const Action& action) { return action.stage != stage; });
      found->second = context_.versions.inParameter(parameter, order);
    }
    in_parameter = found->second[version];
  }
  if (in_parameter) return buffer(nameOf(value), BufferKind::kActivation, value);  // made before, or a copy
  return buffer(fmt::format("{}{}version{}", nameOf(value), context_.separator, version),
                BufferKind::kWeightVersion, value);
}

BufferId RankBuilder::sourced(ValueId value, BufferKind kind) {
  const BufferId id = buffer(nameOf(value), kind, value);
  Buffer& made = program_.buffer(id);
  made.kind = kind;
  made.source = absoluteSource(training_.graph, value);
  made.source_type = made.data_type;
  return id;
}

Instruction& RankBuilder::add(InstructionKind kind, int microbatch, std::vector<BufferId> inputs,
                              std::vector<BufferId> outputs) {
  Instruction& instruction = program_.instructions.emplace_back();
  instruction.kind = kind;
  instruction.stage = stage_;
  instruction.microbatch = microbatch;
  instruction.inputs = std::move(inputs);
  instruction.outputs = std::move(outputs);
  return instruction;
}

void RankBuilder::accumulate(BufferId part, BufferId total, int microbatch) {
  add(InstructionKind::kAccumulate, microbatch, {part}, {total}).overwrite = written_.insert(total).second;
}

void RankBuilder::average(int minibatches, BufferId sum) {
  const Buffer like = program_.buffer(sum);
  const auto [found, is_new] = averages_.try_emplace({minibatches, like.data_type, like.shape});
  if (is_new) {
    Graph graph;
    graph.name = fmt::format("average_{}", averages_.size());
    graph.opset_imports = training_.graph.opset_imports;
    GraphBuilder nodes(graph);
    graph.inputs = {nodes.addValue("sum", like.data_type, like.shape)};
    graph.outputs = {nodes.addValue("mean", like.data_type, like.shape)};
    const ValueId count = nodes.addConstant("minibatches", makeScalar(like.data_type, minibatches));
    nodes.addNode("", "Div", {graph.inputs[0], count}, {graph.outputs[0]});
    const std::string file = graph.name + ".onnx";
    found->second = subgraphs_.add({graph.name, file, Phase::kUpdate, {"sum"}, {"mean"}}, std::move(graph));
  }
  const BufferId mean(program_.buffers.size());
  const std::string name = fmt::format("{}{}mean{}", like.name, context_.separator, means_++);
  program_.buffers.push_back(
      {name, BufferKind::kActivation, like.data_type, like.shape, like.value, std::nullopt, {}});
  add(InstructionKind::kRun, -1, {sum}, {mean}).subgraph = found->second;
  add(InstructionKind::kAccumulate, -1, {mean}, {sum}).overwrite = true;
}

void RankBuilder::sumOverDevices(BufferId id, ValueId kept_like) {
  if (groups_.replicas.valid()) add(InstructionKind::kAllReduce, -1, {id}, {id}).group = groups_.replicas;
  if (!isSharded()) return;
  for (int axis : kept(kept_like).partial) {
    const GroupId group = groups_.mesh.group_of_axis[axis];
    if (group.valid()) add(InstructionKind::kAllReduce, -1, {id}, {id}).group = group;
  }
}

BufferId RankBuilder::synchronize(BufferId accumulator, ValueId part, ValueId gradient) {
  // of rows: summed part by part, before
  if (!context_.shardings.isChosen(firstStage()) || kept(part) == kept(gradient)) return accumulator;
  ShardingSpec summed = kept(part);
  summed.partial.clear();
  if (summed == kept(gradient)) {
    sumOverDevices(accumulator, part);
    return accumulator;
  }
  const BufferId result =
      buffer(nameOf(gradient) + context_.separator + "synchronized", BufferKind::kGradient, gradient);
  written_.insert(result);
  const Shape& whole = training_.graph.shape(gradient);
  pending_.push_back({accumulator, result, whole, kept(part),
                      planResharding(whole, training_.graph.dataType(gradient), kept(part), kept(gradient),
                                     ownMesh(kWholeStep), context_.shardings.model(firstStage()))});
  return result;
}

void RankBuilder::flushSynchronization() {
  if (!pending_.empty()) runReshardings("synchronize", Phase::kUpdate, -1, pending_);
  pending_.clear();
}

void RankBuilder::runReshardings(const std::string& name, Phase phase, int microbatch,
                                 const std::vector<Pending>& reshardings) {
  Graph graph;
  graph.name = name;
  graph.opset_imports = training_.graph.opset_imports;
  graph.opset_imports.try_emplace(std::string(kPipeshardDomain), 1);
  GraphBuilder nodes(graph);
  std::vector<BufferId> inputs, outputs;
  Subgraph description{name, name + ".onnx", phase, {}, {}};
  for (const Pending& one : reshardings) {
    const Buffer& from = program_.buffer(one.from);
    const ValueId input = nodes.addValue(from.name, from.data_type, from.shape);
    graph.inputs.push_back(input);
    graph.outputs.push_back(emitResharding(nodes, input, one.whole, one.before, one.steps,
                                           ownMesh(microbatch), ownDevice(), groups_.mesh));
    description.inputs.push_back(graph.value(input).name);
    description.outputs.push_back(graph.value(graph.outputs.back()).name);
    inputs.push_back(one.from);
    outputs.push_back(one.to);
  }
  description.collectives = collectiveGroups(graph);
  const SubgraphId id = subgraphs_.add(std::move(description), std::move(graph));
  add(InstructionKind::kRun, microbatch, std::move(inputs), std::move(outputs)).subgraph = id;
}

// ---- values on their way between stages ----

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

BufferId RankBuilder::boxBuffer(const Travelling& tensor, const Shard& box, std::string name) {
  if (name.empty()) name = boxName(tensor, box);
  const BufferId id = buffer(name, BufferKind::kActivation, tensor.value);
  Buffer& made = program_.buffer(id);
  made.shape = box.size;
  made.part.reset();
  if (box.size != tensor.whole) made.part = BufferPart{tensor.whole, box.start};
  return id;
}

std::string RankBuilder::boxName(const Travelling& tensor, const Shard& box) {
  std::string name = tensor.name + "[";
  for (size_t axis = 0; axis < box.start.size(); ++axis) {
    name += fmt::format("{}{}:{}", axis > 0 ? "," : "", box.start[axis], box.start[axis] + box.size[axis]);
  }
  return name + "]";
}

void RankBuilder::sendShards(const CrossMeshPlan& plan, const Travelling& tensor, StageId to_stage) {
  const Shard held = shardOf(plan.sent, tensor.whole, ownMesh(tensor.microbatch), ownDevice());
  BufferId source = tensor.buffer;
  if (!plan.before.steps.empty()) {
    const BufferId resharded = boxBuffer(tensor, held);
    if (sliced_.insert(resharded).second) {
      runReshardings(fmt::format("reshard_{}", reshardings_++), tensor.phase, tensor.microbatch,
                     {{source, resharded, tensor.whole, kept(tensor.value), plan.before}});
    }
    source = resharded;
  }
  for (const CrossMeshPiece& piece : plan.transfer.pieces) {
    if (piece.sender != ownDevice()) continue;
    BufferId part = source;
    Shard box = held;
    for (const AxisRange& range : cutOut(held, piece.box)) {
      const size_t axis = range.axis;
      box.start[axis] += range.offset;
      box.size[axis] = range.size;
      const BufferId next = boxBuffer(tensor, box);
      if (sliced_.insert(next).second) {
        Instruction& instruction = add(InstructionKind::kSlice, tensor.microbatch, {part}, {next});
        instruction.axis = range.axis;
        instruction.offset = range.offset;
      }
      part = next;
    }
    send(context_.layout.devices(to_stage)[piece.receiver.index()], part, tensor.microbatch);
  }
}

void RankBuilder::receiveShards(const CrossMeshPlan& plan, const Travelling& tensor, StageId from_stage) {
  if (plan.transfer.adds) return receiveSummands(plan.transfer, tensor, from_stage);
  const Shard wanted = shardOf(plan.received, tensor.whole, ownMesh(tensor.microbatch), ownDevice());
  // What is there once a step has one name on all devices that meet about it (verifyPrograms).
  const std::string name = tensor.microbatch < 0 ? tensor.name + context_.separator + "received" : "";
  const BufferId last = plan.after.steps.empty() ? tensor.buffer : boxBuffer(tensor, wanted, name);
  const CrossMeshAssembly& assembly = plan.transfer.assemblies[ownDevice()];
  std::vector<BufferId> operands;
  std::vector<Shape> starts;
  for (int index : assembly.pieces) {
    const CrossMeshPiece& piece = plan.transfer.pieces[index];
    operands.push_back(assembly.pieces.size() == 1 ? last : boxBuffer(tensor, piece.box));
    starts.push_back(piece.box.start);
    receive(context_.layout.devices(from_stage)[piece.sender.index()], operands.back(), tensor.microbatch);
  }
  const std::vector<Concatenation> steps = putTogether(assembly);
  for (const Concatenation& step : steps) {
    std::vector<BufferId> inputs;
    for (int operand : step.operands) inputs.push_back(operands[operand]);
    starts.push_back(starts[step.operands.front()]);
    const bool is_last = &step == &steps.back();
    operands.push_back(is_last ? last : boxBuffer(tensor, {starts.back(), step.shape}));
    add(InstructionKind::kConcatenate, tensor.microbatch, std::move(inputs), {operands.back()}).axis =
        step.axis;
  }
  if (plan.after.steps.empty()) return;
  runReshardings(fmt::format("reshard_{}", reshardings_++), tensor.phase, tensor.microbatch,
                 {{last, tensor.buffer, tensor.whole, plan.received, plan.after}});
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
    receiveInto(summands.emplace_back(boxBuffer(tensor, whole, name)), piece);
  }
  for (BufferId summand : summands) {
    add(InstructionKind::kAccumulate, tensor.microbatch, {summand}, {tensor.buffer}).overwrite =
        summand == summands.front();
  }
}

bool RankBuilder::speaksFor(ValueId value) const {
  if (!isSharded()) return place().position == DeviceId(0);
  const LogicalMesh mesh = ownMesh(kWholeStep);
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (!kept(value).uses(axis) && mesh.coordinate(place().position, axis) != 0) return false;
  }
  return true;
}

void RankBuilder::load(ValueId input, int microbatch, bool prologue) {
  const BufferId id = bufferOf(input, microbatch, prologue);
  if (!loaded_.insert(id).second) return;
  const int axis = training_.inputs[context_.cut.place(input).index].axis;
  Instruction& instruction = add(InstructionKind::kLoadInput, axis < 0 ? 0 : microbatch, {}, {id});
  if (axis >= 0)
    instruction.offset = wholeShape(program_.buffer(id))[axis] / rowsOf(microbatch) *
                         context_.layout.microbatch(microbatch).first;
}

void RankBuilder::run(StageId stage, Phase phase, int microbatch, PassForm form, size_t part) {
  const bool prologue = phase == Phase::kPrologue;
  const bool again = form == PassForm::kAgain;
  const Piece& piece = context_.cut.piece(stage, phase, form, part);
  std::vector<BufferId> inputs, outputs;
  for (ValueId input : piece.inputs) {
    const bool is_state = context_.cut.place(input).role == ValueRole::kForwardState;
    const bool is_remade =
        form == PassForm::kRemade && context_.cut.recomputation(stage).parts[part].remakes(input);
    inputs.push_back(again && is_state ? stateBefore(input, microbatch)
                     : is_remade       ? remade(input, microbatch)
                                       : bufferOf(input, microbatch, prologue));
  }
  for (ValueId output : piece.outputs)
    outputs.push_back(again ? remade(output, microbatch) : bufferOf(output, microbatch));
  const SubgraphId id = subgraphs_.of(stage, phase, form, part, rowsOf(microbatch));
  add(InstructionKind::kRun, microbatch, std::move(inputs), std::move(outputs)).subgraph = id;
}

void RankBuilder::runUpdate(StageId stage, int microbatch, std::vector<BufferId> inputs,
                            std::vector<BufferId> outputs) {
  const SubgraphId id =
      subgraphs_.of(stage, Phase::kUpdate, PassForm::kWhole, 0, context_.family.largestMicrobatch());
  add(InstructionKind::kUpdate, microbatch, std::move(inputs), std::move(outputs)).subgraph = id;
}

RankProgram RankBuilder::take() && {
  program_.subgraphs = std::move(subgraphs_).takeDescriptions();
  return {std::move(program_), std::move(subgraphs_).takeGraphs()};
}

}  // namespace pipeshard
