#include "partition/emit/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
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
constexpr const char* kLossScale = "loss_scale";
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
             std::map<std::string, Attribute> attributes = {}, std::string_view domain = "",
             DataType type = DataType::kFloat64) {
    const ValueId result = nodes_.addValue("norm/" + std::string(op_type), type, {});
    nodes_.addNode(domain, op_type, std::move(inputs), {result}, std::move(attributes));
    return result;
  }
  ValueId cast(ValueId value, DataType type) {
    return op("Cast", {value}, {{"to", static_cast<int64_t>(type)}}, "", type);
  }
  // Of two float64 scalars.
  ValueId isLess(ValueId a, ValueId b) { return op("Less", {a, b}, {}, "", DataType::kBool); }
  ValueId where(ValueId condition, ValueId then, ValueId otherwise) {
    return op("Where", {condition, then, otherwise});
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
    return cast(flat, DataType::kFloat64);
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

BufferId scalarBuffer(RankBuilder& builder, const std::string& name, DataType type = DataType::kFloat64) {
  LoopedList<Buffer>& buffers = builder.program().buffers;
  buffers.push_back({name, BufferKind::kAccumulator, type, {}, name, std::nullopt, {}});
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

// From the sum of squares: the norm, what gradients are scaled with, and what becomes of the loss's scale.
class Measuring {
 public:
  Measuring(const EmissionContext& context, BufferId squares, RankBuilder& builder)
      : training_(context.family.base()),
        separator_(context.separator),
        builder_(builder),
        graph_(context, kNorm) {
    norm_ = graph_.op("Sqrt", {read(squares)});
    if (training_.loss_scale.valid()) readLossScale();
  }

  // Where each result is, in the order in which they are listed.
  std::vector<Result> run() && {
    measure(kNorm, norm_, scalarBuffer(builder_, named("norm")));
    builder_.program().guard = outputs_.front();
    if (training_.gradient_scale.valid())
      measure(kScale, shareOfGradients(), builder_.bufferOf(training_.gradient_scale, kWholeStep));
    if (scale_.valid()) replaceLossScale();
    std::move(graph_).run(builder_, std::move(inputs_), std::move(outputs_));
    for (const auto& [from, to] : replaced_)
      builder_.add(InstructionKind::kAccumulate, -1, {from}, {to}).overwrite = true;
    return std::move(results_);
  }

 private:
  std::string named(const char* what) const { return kNorm + separator_ + what; }
  ValueId read(BufferId buffer) {
    inputs_.push_back(buffer);
    return graph_.input(builder_.program().buffer(buffer));
  }
  void give(ValueId value, BufferId buffer) {
    graph_.output(value);
    outputs_.push_back(buffer);
  }
  void measure(const char* name, ValueId value, BufferId buffer) {
    give(value, buffer);
    results_.push_back({Result::Kind::kMeasure, name, "", buffer});
  }

  void readLossScale() {
    const std::string& name = builder_.nameOf(training_.loss_scale);
    scale_buffer_ = builder_.lossScale();
    count_buffer_ =
        builder_.lasting(name + separator_ + "steps", name + ".steps", makeScalar(DataType::kInt64, 0));
    scale_ = graph_.cast(read(scale_buffer_), DataType::kFloat64);
    count_ = graph_.cast(read(count_buffer_), DataType::kFloat64);
    norm_ = graph_.op("Div", {norm_, scale_});  // gradients are so many times as large
  }

  ValueId shareOfGradients() {
    ValueId share = graph_.number(1);
    if (!std::isinf(training_.clip_norm)) {
      const ValueId raised = graph_.op("Add", {norm_, graph_.number(1e-6)});
      share = graph_.op("Min", {graph_.op("Div", {graph_.number(training_.clip_norm), raised}), share});
    }
    return scale_.valid() ? graph_.op("Div", {share, scale_}) : share;
  }

  // finite = norm < inf;  early = count + 1 < steps
  // scale := finite ? (early ? scale : min(2 scale, most)) : scale / 2
  // count := finite and early ? count + 1 : 0
  void replaceLossScale() {
    const ValueId zero = graph_.number(0), two = graph_.number(2);
    const ValueId finite = graph_.isLess(norm_, graph_.number(std::numeric_limits<double>::infinity()));
    const ValueId more = graph_.op("Add", {count_, graph_.number(1)});
    const ValueId early =
        graph_.isLess(more, graph_.number(static_cast<double>(training_.loss_scaling.steps)));
    const ValueId doubled =
        graph_.op("Min", {graph_.op("Mul", {scale_, two}), graph_.number(LossScaling::kMost)});
    const ValueId scale =
        graph_.where(finite, graph_.where(early, scale_, doubled), graph_.op("Div", {scale_, two}));
    const ValueId count = graph_.where(finite, graph_.where(early, more, zero), zero);
    measure(kLossScale, scale_, scalarBuffer(builder_, named("loss_scale")));
    replace("scale", scale, scale_buffer_);
    replace("steps", count, count_buffer_);
    builder_.program().loss_scale = scale_buffer_;
  }
  void replace(const char* state, ValueId value, BufferId buffer) {
    const DataType type = builder_.program().buffer(buffer).data_type;
    const BufferId made = scalarBuffer(builder_, named("next_") + state, type);
    give(graph_.cast(value, type), made);
    replaced_.emplace_back(made, buffer);
    results_.push_back({Result::Kind::kOptimizerState, "loss", state, buffer});
  }

  const TrainingGraph& training_;
  const std::string separator_;
  RankBuilder& builder_;
  NormGraph graph_;
  ValueId norm_, scale_, count_;
  BufferId scale_buffer_, count_buffer_;
  std::vector<BufferId> inputs_, outputs_;
  std::vector<std::pair<BufferId, BufferId>> replaced_;
  std::vector<Result> results_;
};

}  // namespace

void takeGradientNorm(const EmissionContext& context, RankId rank, const std::vector<BufferId>& gradients,
                      BufferId loss, RankBuilder& builder) {
  const BufferId squares = scalarBuffer(builder, kNorm + context.separator + "squares");
  sumSquares(context, rank, gradients, loss, builder, squares);
  if (context.layout.ranks() > 1) {
    const GroupId all = everybody(context, builder);
    builder.add(InstructionKind::kAllReduce, -1, {squares}, {squares}).group = all;
  }
  std::vector<Result> results = Measuring(context, squares, builder).run();
  builder.questions().ask("first rank", [](RankId of) { return RankAnswer{{of == RankId(0)}, {}, {}, {}}; });
  if (rank != RankId(0)) return;
  for (Result& result : results) builder.program().results.push_back(std::move(result));
}

}  // namespace pipeshard
