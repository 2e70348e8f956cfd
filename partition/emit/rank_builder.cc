#include "partition/emit/rank_builder.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/graph/weight_files.h"
#include "partition/schedules/schedule.h"
#include "sharding/specs/device_differences.h"
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
//   w@bfloat16     a copy of a weight            w@bfloat16@version2  of a version of a parameter
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

// What is asked of every rank: whose work it does, and with whom it meets.
RankAnswer describePlace(const EmissionContext& context, RankId rank) {
  Program program;
  const RankGroups groups = addGroups(context, rank, program);
  const Place& place = context.layout.place(rank);
  RankAnswer answer;
  answer.alike = {static_cast<int64_t>(place.group.index()), place.replica, place.position == DeviceId(0),
                  groups.in_order, groups.replicas.valid()};
  for (const GroupId group : groups.mesh.group_of_axis) answer.alike.push_back(group.valid());
  for (std::vector<RankId>& group : program.groups) {
    answer.alike.push_back(std::ssize(group));
    answer.groups.push_back(std::move(group));
  }
  return answer;
}

}  // namespace

RankBuilder::RankBuilder(const EmissionContext& context, RankId rank)
    : context_(context),
      training_(context.family.base()),
      questions_(rank),
      groups_(addGroups(context, rank, program_)),
      subgraphs_(context, rank, groups_, questions_) {
  questions_.ask("place", [&context](RankId of) { return describePlace(context, of); });
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
  Buffer& buffer = program_.buffers[id.index()];
  buffer.shape = whole;
  buffer.part.reset();
  setStart(id, -1);
  if (!isSharded() || kept(value).axes.size() != whole.size()) return;
  const OwnPart& part = partOf(whole, value, microbatch);
  if (part.shard.size == whole) return;
  buffer.shape = part.shard.size;
  buffer.part = BufferPart{whole, part.shard.start};
  setStart(id, part.start);
}

const RankBuilder::OwnPart& RankBuilder::partOf(const Shape& whole, ValueId value, int microbatch) {
  OwnPart& part = parts_[{value, microbatch == kWholeStep ? 0 : rowsOf(microbatch)}];
  if (part.start >= 0 && part.whole == whole) return part;
  const ShardingSpec& spec = kept(value);
  const LogicalMesh mesh = ownMesh(microbatch);
  const Layout& layout = context_.layout;
  part.start = questions_.ask(fmt::format("part {} {} {}", printSpec(spec), shapeToString(whole), mesh.rows),
                              [&layout, spec, whole, mesh](RankId rank) {
                                Shard shard = shardOf(spec, whole, mesh, layout.place(rank).position);
                                return RankAnswer{std::move(shard.size), {}, {std::move(shard.start)}, {}};
                              });
  part.shard = shardOf(spec, whole, mesh, place().position);
  part.whole = whole;
  return part;
}

BufferId RankBuilder::ownNumber(const std::string& name, int64_t count,
                                const std::function<int64_t(RankId)>& of) {
  const auto [found, is_new] = buffers_.try_emplace(name, BufferId(program_.buffers.size()));
  if (!is_new) return found->second;
  std::vector<int64_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  Buffer& buffer = program_.buffers.emplace_back();
  buffer.name = buffer.value = name;
  buffer.kind = BufferKind::kWeight;
  buffer.data_type = buffer.source_type = DataType::kInt64;
  buffer.shape = {1};
  buffer.source = makeConstant<int64_t>({count}, all);
  buffer.part = BufferPart{{count}, {of(program_.rank)}};
  const auto answer = [of, count](RankId rank) { return RankAnswer{{count}, {}, {{of(rank)}}, {}}; };
  setStart(found->second, questions_.ask(name, answer));
  return found->second;
}

void RankBuilder::setStart(BufferId id, int start) {
  start_slots_.resize(program_.buffers.size(), -1);
  start_slots_[id.index()] = start;
}

std::string RankBuilder::nameOf(ValueId value, int microbatch) const {
  return fmt::format("{}{}{}", nameOf(value), context_.separator, microbatch);
}

BufferId RankBuilder::produced(ValueId value, int microbatch) {
  const auto [found, is_new] = produced_[microbatch].try_emplace(value);
  if (!is_new) return found->second;
  found->second = buffer(nameOf(value, microbatch), BufferKind::kActivation, value);
  cut(found->second, wholeShapeOf(value, microbatch), value, microbatch);
  return found->second;
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
    case ValueRole::kWeightCopy: return copyOf(value, microbatch);
    case ValueRole::kTotal:
      return ofUpdate(value, BufferKind::kAccumulator, context_.versions.updateOf(microbatch));
    case ValueRole::kGradient: return buffer(nameOf(value), BufferKind::kGradient, value);
    case ValueRole::kState: return buffer(nameOf(value), BufferKind::kOptimizerState, value);
    case ValueRole::kGradientScale: return buffer(nameOf(value), BufferKind::kAccumulator, value);
    case ValueRole::kLossScale: return lossScale();
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
        program_.buffers[id.index()].shape = std::move(whole);
        program_.buffers[id.index()].part.reset();
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

BufferId RankBuilder::copyOf(ValueId copy, int microbatch) {
  const ValueId weight = context_.cut.place(copy).weight;
  const ValuePlace& place = context_.cut.place(weight);
  std::string name =
      fmt::format("{}{}{}", nameOf(weight), context_.separator, dataTypeName(training_.graph.dataType(copy)));
  const int version = place.role == ValueRole::kParameter && microbatch != kWholeStep
                          ? context_.versions.read(place.index, microbatch)
                          : 0;
  if (version > 0) name += fmt::format("{}version{}", context_.separator, version);
  return buffer(name, BufferKind::kActivation, copy);
}

BufferId RankBuilder::ofUpdate(ValueId value, BufferKind kind, int update) {
  const bool one = program_.updates_per_step == 1;
  const BufferId id =
      buffer(one ? nameOf(value) : fmt::format("{}{}update{}", nameOf(value), context_.separator, update),
             kind, value);
  if (kind == BufferKind::kStep) program_.buffers[id.index()].update = update;
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

BufferId RankBuilder::sourced(ValueId value, BufferKind kind, ValueId source) {
  const BufferId id = buffer(nameOf(value), kind, value);
  Buffer& made = program_.buffers[id.index()];
  made.kind = kind;
  made.source = absoluteSource(training_.graph, source.valid() ? source : value);
  made.source_type = made.data_type;
  return id;
}

BufferId RankBuilder::lasting(const std::string& name, const std::string& value, Constant start) {
  const auto [found, is_new] = buffers_.try_emplace(name, program_.buffers.size());
  if (!is_new) return found->second;
  Buffer& made = program_.buffers.emplace_back();
  made.name = name;
  made.value = value;
  made.kind = BufferKind::kOptimizerState;
  made.data_type = made.source_type = start.data_type;
  made.shape = start.shape;
  made.source = std::move(start);
  return found->second;
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
  pending_.push_back({program_.buffer(accumulator).name, accumulator, result, whole, kept(part),
                      planResharding(whole, training_.graph.dataType(gradient), kept(part), kept(gradient),
                                     ownMesh(kWholeStep), context_.shardings.model(firstStage()))});
  return result;
}

void RankBuilder::flushSynchronization() {
  if (pending_.empty()) return;
  std::vector<BufferId> inputs, outputs;
  for (const Pending& one : pending_) {
    inputs.push_back(one.from);
    outputs.push_back(one.to);
  }
  const SubgraphId id = reshardingSubgraph("synchronize", Phase::kUpdate, kWholeStep, pending_);
  add(InstructionKind::kRun, kWholeStep, std::move(inputs), std::move(outputs)).subgraph = id;
  pending_.clear();
}

SubgraphId RankBuilder::reshardingSubgraph(const std::string& name, Phase phase, int microbatch,
                                           const std::vector<Pending>& reshardings) {
  Graph graph;
  graph.name = name;
  graph.opset_imports = training_.graph.opset_imports;
  graph.opset_imports.try_emplace(std::string(kPipeshardDomain), 1);
  GraphBuilder nodes(graph);
  Subgraph description{name, name + ".onnx", phase, {}, {}};
  const LogicalMesh mesh = ownMesh(microbatch);
  MeshAxes differs_along(mesh.rank());
  for (const Pending& one : reshardings)
    markResharding(one.whole, one.before, one.steps, mesh, differs_along);
  const Layout& layout = context_.layout;
  const std::vector<int64_t> marks(differs_along.begin(), differs_along.end());
  questions_.ask("coordinates along " + shapeToString(marks), [&layout, mesh, differs_along](RankId rank) {
    return RankAnswer{markedCoordinates(layout.place(rank).position, mesh, differs_along), {}, {}, {}};
  });
  std::vector<DeviceConstant> own;
  for (const Pending& one : reshardings) {
    const Buffer& from = program_.buffer(one.from);
    const ValueId input = nodes.addValue(one.name, from.data_type, from.shape);
    graph.inputs.push_back(input);
    graph.outputs.push_back(emitResharding(nodes, input, one.whole, one.before, one.steps, mesh, ownDevice(),
                                           groups_.mesh, &own));
    description.inputs.push_back(graph.value(input).name);
    description.outputs.push_back(graph.value(graph.outputs.back()).name);
  }
  subgraphs_.makeOwn(own, mesh, graph);
  description.collectives = collectiveGroups(graph);
  return subgraphs_.add(std::move(description), std::move(graph));
}

void RankBuilder::runGraph(Subgraph description, Graph graph, std::vector<BufferId> inputs,
                           std::vector<BufferId> outputs, int microbatch) {
  description.collectives = collectiveGroups(graph);
  const SubgraphId id = subgraphs_.add(std::move(description), std::move(graph));
  add(InstructionKind::kRun, microbatch, std::move(inputs), std::move(outputs)).subgraph = id;
}

bool RankBuilder::speaksFor(ValueId value) {
  if (!isSharded()) return place().position == DeviceId(0);
  const LogicalMesh mesh = ownMesh(kWholeStep);
  MeshAxes unused;
  for (int axis = 0; axis < mesh.rank(); ++axis) unused.push_back(!kept(value).uses(axis));
  const auto speaks = [&layout = context_.layout, mesh, unused](RankId rank) {
    const std::vector<int64_t> of = markedCoordinates(layout.place(rank).position, mesh, unused);
    return std::all_of(of.begin(), of.end(), [](int64_t coordinate) { return coordinate == 0; });
  };
  questions_.ask("first along " + shapeToString(Shape(unused.begin(), unused.end())), [speaks](RankId rank) {
    return RankAnswer{{speaks(rank)}, {}, {}, {}};
  });
  return speaks(program_.rank);
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

void RankBuilder::makeCopies(StageId stage, const Piece& all, int microbatch) {
  Piece missing;
  std::vector<BufferId> inputs, outputs;
  for (size_t i = 0; i < all.nodes.size(); ++i) {
    const BufferId copy = copyOf(all.outputs[i], microbatch);
    if (!copied_.insert(copy).second) continue;
    missing.nodes.push_back(all.nodes[i]);
    missing.outputs.push_back(all.outputs[i]);
    outputs.push_back(copy);
    const ValueId weight = context_.cut.place(all.outputs[i]).weight;
    if (std::find(missing.inputs.begin(), missing.inputs.end(), weight) != missing.inputs.end()) continue;
    missing.inputs.push_back(weight);
    inputs.push_back(context_.cut.place(weight).role == ValueRole::kWeight
                         ? sourced(weight, BufferKind::kWeight)  // not trained
                         : bufferOf(weight, microbatch));
  }
  if (missing.empty()) return;
  const SubgraphId id = subgraphs_.ofCopies(stage, missing);
  add(InstructionKind::kRun, kWholeStep, std::move(inputs), std::move(outputs)).subgraph = id;
}

void RankBuilder::runUpdate(StageId stage, int microbatch, std::vector<BufferId> inputs,
                            std::vector<BufferId> outputs) {
  const SubgraphId id =
      subgraphs_.of(stage, Phase::kUpdate, PassForm::kWhole, 0, context_.family.largestMicrobatch());
  add(InstructionKind::kUpdate, microbatch, std::move(inputs), std::move(outputs)).subgraph = id;
}

EmittedRank RankBuilder::take() && {
  program_.subgraphs = std::move(subgraphs_).takeDescriptions();
  start_slots_.resize(program_.buffers.size(), -1);
  std::vector<bool> boxed(program_.buffers.size());
  for (const BufferId id : boxed_) boxed[id.index()] = true;
  return {{std::move(program_), std::move(subgraphs_).takeGraphs()},
          std::move(questions_),
          std::move(start_slots_),
          std::move(boxed)};
}

}  // namespace pipeshard
