#include "partition/emit/gradient_norm.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr const char* kNorm = "gradient_norm";
constexpr const char* kScale = "gradient_scale";
constexpr const char* kSquareSum = "SquareSum";

// Of the devices that hold the same part of a value: how many they are, which of them this one is, and the
// axes of the mesh along which they lie.
struct Holder {
  int64_t index = 0;
  int64_t count = 1;
  std::vector<int> axes = {};
};

Holder holderOf(const EmissionContext& context, RankId rank, ValueId value) {
  const Place& place = context.layout.place(rank);
  const StageId stage = context.layout.firstStage(place.group);
  if (!context.shardings.isSharded(stage)) return {};
  const LogicalMesh mesh = context.shardings.mesh(stage, context.family.largestMicrobatch());
  Holder holder;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (context.shardings.kept(stage, value).uses(axis)) continue;
    holder.index = holder.index * mesh.axisSize(axis) + mesh.coordinate(place.position, axis);
    holder.count *= mesh.axisSize(axis);
    holder.axes.push_back(axis);
  }
  return holder;
}

Graph emptyGraph(const EmissionContext& context, const std::string& name) {
  const Graph& training = context.family.base().graph;
  Graph graph;
  graph.name = name;
  graph.ir_version = training.ir_version;
  graph.opset_imports = training.opset_imports;
  return graph;
}

// One of the rank's two subgraphs while it grows.
class NormGraph {
 public:
  NormGraph(const EmissionContext& context, const std::string& name)
      : graph_(emptyGraph(context, name)), nodes_(graph_) {}

  ValueId input(const Buffer& buffer) {
    graph_.inputs.push_back(nodes_.addValue(buffer.name, buffer.data_type, buffer.shape));
    return graph_.inputs.back();
  }
  // float64 scalars
  ValueId op(const char* op_type, std::vector<ValueId> inputs,
             std::map<std::string, Attribute> attributes = {}, std::string_view domain = "") {
    const ValueId result = nodes_.addValue("norm/" + std::string(op_type), DataType::kFloat64, {});
    nodes_.addNode(domain, op_type, std::move(inputs), {result}, std::move(attributes));
    return result;
  }
  ValueId number(double value) {
    return nodes_.addConstant("norm/number", makeScalar(DataType::kFloat64, value));
  }
  ValueId integer(int64_t value) {
    return nodes_.addConstant("norm/integer", makeConstant<int64_t>({1}, {value}));
  }
  void output(ValueId value) { graph_.outputs.push_back(value); }
  void define(const Function& function) { graph_.functions.push_back(function); }

  // The loss, of whatever floating-point type, as a float64 scalar.
  ValueId scalarOf(ValueId loss) {
    const ValueId flat = nodes_.addValue("norm/loss", graph_.dataType(loss), {});
    const ValueId shape = nodes_.addConstant("norm/shape", makeConstant<int64_t>({0}, {}));
    nodes_.addNode("", "Reshape", {loss, shape}, {flat});
    return op("Cast", {flat}, {{"to", static_cast<int64_t>(DataType::kFloat64)}});
  }

  // Runs it on these buffers.
  void run(RankBuilder& builder, std::vector<BufferId> inputs, std::vector<BufferId> outputs) && {
    Subgraph description{graph_.name, graph_.name + ".onnx", Phase::kUpdate, {}, {}};
    for (const ValueId id : graph_.inputs) description.inputs.push_back(graph_.value(id).name);
    for (const ValueId id : graph_.outputs) description.outputs.push_back(graph_.value(id).name);
    builder.runGraph(std::move(description), std::move(graph_), std::move(inputs), std::move(outputs));
  }

 private:
  Graph graph_;
  GraphBuilder nodes_;
};

BufferId scalarBuffer(RankBuilder& builder, const std::string& name) {
  std::vector<Buffer>& buffers = builder.program().buffers;
  buffers.push_back({name, BufferKind::kAccumulator, DataType::kFloat64, {}, name, std::nullopt, {}});
  return BufferId(buffers.size() - 1);
}

// All ranks: a group of its own only where none is the same.
GroupId everybody(const EmissionContext& context, RankBuilder& builder) {
  Program& program = builder.program();
  const std::vector<RankId> all = context.layout.rankIds();
  const auto found = std::find(program.groups.begin(), program.groups.end(), all);
  if (found != program.groups.end()) return GroupId(found - program.groups.begin());
  builder.questions().ask("everybody", [all](RankId) { return RankAnswer{{}, {}, {}, {all}}; });
  program.groups.push_back(all);
  return GroupId(program.groups.size() - 1);
}

// Which of its holders the rank is, as a value of the graph. The number is read from a buffer, so that
// holders are of one kind.
class HolderNumbers {
 public:
  // `inputs`: the buffers of the graph's inputs, which get its own.
  HolderNumbers(const EmissionContext& context, RankBuilder& builder, NormGraph& graph,
                std::vector<BufferId>& inputs)
      : context_(context), builder_(builder), graph_(graph), inputs_(inputs) {}

  ValueId of(ValueId gradient, const Holder& holder) {
    builder_.questions().ask("holders of " + builder_.nameOf(gradient),
                             [&context = context_, gradient](RankId of) {
                               const Holder holder = holderOf(context, of, gradient);
                               std::vector<int64_t> alike(holder.axes.begin(), holder.axes.end());
                               alike.push_back(holder.count);
                               return RankAnswer{std::move(alike), {}, {}, {}};
                             });
    const auto [found, is_new] = numbers_.try_emplace(holder.axes);
    if (!is_new) return found->second;
    if (holder.count == 1) return found->second = graph_.integer(0);
    const std::string name =
        fmt::format("{}{}holder{}", kNorm, context_.separator, fmt::join(holder.axes, "_"));
    const BufferId buffer = builder_.ownNumber(
        name, holder.count,
        [&context = context_, gradient](RankId of) { return holderOf(context, of, gradient).index; });
    inputs_.push_back(buffer);
    return found->second = graph_.input(builder_.program().buffer(buffer));
  }

 private:
  const EmissionContext& context_;
  RankBuilder& builder_;
  NormGraph& graph_;
  std::vector<BufferId>& inputs_;
  std::map<std::vector<int>, ValueId> numbers_;  // by axes
};

// Of the rank's share of what it holds. All zeros where it holds nothing.
void sumSquares(const EmissionContext& context, RankId rank, const std::vector<BufferId>& gradients,
                BufferId loss, RankBuilder& builder, BufferId squares) {
  const TrainingGraph& training = context.family.base();
  NormGraph graph(context, "gradient_squares");
  std::vector<BufferId> inputs;
  HolderNumbers numbers(context, builder, graph, inputs);
  std::vector<ValueId> summands;
  for (size_t p = 0; p < gradients.size(); ++p) {
    if (!gradients[p].valid()) continue;
    const ValueId gradient = training.parameters[p].gradient;
    const Holder holder = holderOf(context, rank, gradient);
    const ValueId number = numbers.of(gradient, holder);
    inputs.push_back(gradients[p]);
    summands.push_back(graph.op(kSquareSum, {graph.input(builder.program().buffer(gradients[p])), number},
                                {{"parts", holder.count}}, kPipeshardDomain));
  }
  if (!summands.empty()) {
    const Function* function = training.graph.findFunction(kPipeshardDomain, kSquareSum, "");
    PIPESHARD_CHECK(function != nullptr, "the training graph lacks the function {}", kSquareSum);
    graph.define(*function);
  }
  if (loss.valid()) {
    inputs.push_back(loss);
    const ValueId value = graph.scalarOf(graph.input(builder.program().buffer(loss)));
    summands.push_back(graph.op("Mul", {value, graph.number(0)}));
  }
  if (inputs.empty()) {
    builder.add(InstructionKind::kZero, -1, {}, {squares});
    return;
  }
  graph.output(graph.op("Sum", std::move(summands)));
  std::move(graph).run(builder, std::move(inputs), {squares});
}

}  // namespace

void takeGradientNorm(const EmissionContext& context, RankId rank, const std::vector<BufferId>& gradients,
                      BufferId loss, RankBuilder& builder) {
  const TrainingGraph& training = context.family.base();
  const BufferId squares = scalarBuffer(builder, kNorm + context.separator + "squares");
  sumSquares(context, rank, gradients, loss, builder, squares);
  if (context.layout.ranks() > 1) {
    const GroupId all = everybody(context, builder);
    builder.add(InstructionKind::kAllReduce, -1, {squares}, {squares}).group = all;
  }
  NormGraph graph(context, kNorm);
  const ValueId norm = graph.op("Sqrt", {graph.input(builder.program().buffer(squares))});
  graph.output(norm);
  std::vector<BufferId> outputs = {scalarBuffer(builder, kNorm + context.separator + "norm")};
  std::vector<const char*> measures = {kNorm};
  if (training.gradient_scale.valid()) {
    const ValueId raised = graph.op("Add", {norm, graph.number(1e-6)});
    const ValueId share = graph.op("Div", {graph.number(training.clip_norm), raised});
    graph.output(graph.op("Min", {share, graph.number(1)}));
    outputs.push_back(builder.bufferOf(training.gradient_scale, kWholeStep));
    measures.push_back(kScale);
  }
  Program& program = builder.program();
  program.guard = outputs.front();
  builder.questions().ask("first rank", [](RankId of) { return RankAnswer{{of == RankId(0)}, {}, {}, {}}; });
  for (size_t m = 0; rank == RankId(0) && m < measures.size(); ++m)
    program.results.push_back({Result::Kind::kMeasure, measures[m], "", outputs[m]});
  std::move(graph).run(builder, {squares}, std::move(outputs));
}

}  // namespace pipeshard
