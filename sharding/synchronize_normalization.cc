#include "sharding/synchronize_normalization.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ir/error.h"
#include "sharding/cost_model.h"

namespace pipeshard {
namespace {

constexpr const char* kInputGrad = "BatchNormalizationInputGrad";
constexpr const char* kWeightGrad = "BatchNormalizationWeightGrad";

bool isOurs(const Node& node, const char* op_type) { return node.domain == kPipeshardDomain && node.op_type == op_type; }

bool isTraining(const Node& node) { return node.is("BatchNormalization") && node.intAttribute("training_mode", 0) != 0; }

bool needsMoments(const Node& node) { return isTraining(node) || isOurs(node, kInputGrad) || isOurs(node, kWeightGrad); }

// Appends nodes that stand for one node of the piece.
class Rewriter {
 public:
  Rewriter(Graph& graph, int64_t rows_here, int64_t rows_together, int group)
      : graph_(graph), builder_(graph), rows_here_(rows_here), rows_together_(rows_together), group_(group) {}

  void rewrite(const Node& node) {
    origin_ = &node;
    if (isTraining(node)) {
      forward(node);
    } else if (isOurs(node, kInputGrad)) {
      inputGradient(node);
    } else {
      weightGradient(node);
    }
  }

 private:
  // Of one x, in float64: [1,C,1,..], but for `centred`, which has the shape of x.
  struct Moments {
    ValueId count, mean, centred, variance;
  };

  ValueId fresh(std::string_view name, ValueId like, Shape shape) {
    return builder_.addValue(name, graph_.dataType(like), std::move(shape));
  }

  void add(std::string_view domain, const char* op, std::vector<ValueId> inputs, ValueId output,
           std::map<std::string, Attribute> attributes = {}) {
    Node& node = graph_.node(builder_.addNode(domain, op, std::move(inputs), {output}, std::move(attributes)));
    node.name = origin_->name;
    node.metadata = origin_->metadata;
  }

  ValueId op(const char* op_type, std::vector<ValueId> inputs, Shape shape) {
    const ValueId result = fresh(graph_.value(inputs[0]).name + "_" + op_type, inputs[0], std::move(shape));
    add("", op_type, std::move(inputs), result);
    return result;
  }
  // Element by element, in the shape of the first operand, to which the second is broadcast.
  ValueId elementwise(const char* op_type, ValueId a, ValueId b) { return op(op_type, {a, b}, graph_.shape(a)); }

  ValueId scalar(double number, ValueId like) { return builder_.addConstant("number", makeScalar(graph_.dataType(like), number)); }
  ValueId integers(const std::vector<int64_t>& numbers) {
    return builder_.addConstant("integers", makeConstant<int64_t>({static_cast<int64_t>(numbers.size())}, numbers));
  }

  ValueId cast(ValueId x, DataType type) {
    if (graph_.dataType(x) == type) return x;
    const ValueId result = builder_.addValue(graph_.value(x).name + "_" + std::string(dataTypeName(type)), type, graph_.shape(x));
    add("", "Cast", {x}, result, {{"to", static_cast<int64_t>(type)}});
    return result;
  }
  // The value in float64: sums are taken in it, so that their order does not show after rounding.
  ValueId wide(ValueId x) {
    const auto [found, is_new] = wide_.try_emplace(x);
    if (is_new) found->second = cast(x, DataType::kFloat64);
    return found->second;
  }

  int64_t channels(ValueId x) const { return graph_.shape(x).size() > 1 ? graph_.shape(x)[1] : 1; }
  Shape wideShape(ValueId x) const {
    Shape shape(graph_.shape(x).size(), 1);
    if (shape.size() > 1) shape[1] = channels(x);
    return shape;
  }

  // This device's sum over everything but the channels, [1,C,1,..].
  ValueId channelSum(ValueId x) {
    std::vector<int64_t> axes;
    for (size_t a = 0; a < graph_.shape(x).size(); ++a) {
      if (a != 1) axes.push_back(static_cast<int64_t>(a));
    }
    const ValueId sum = fresh(graph_.value(x).name + "_sum", x, wideShape(x));
    add("", "ReduceSum", {x, integers(axes)}, sum, {{"keepdims", int64_t{1}}});
    return sum;
  }
  ValueId allReduce(ValueId part) {
    const ValueId total = fresh(graph_.value(part).name + "_total", part, graph_.shape(part));
    add(kPipeshardDomain, "AllReduce", {part}, total, {{"group", int64_t{group_}}, {"reduction", std::string("sum")}});
    return total;
  }
  const Moments& momentsOf(ValueId narrow) {
    const auto [found, is_new] = moments_.try_emplace(narrow);
    if (!is_new) return found->second;
    const ValueId x = wide(narrow);
    const int64_t here = elementCount(graph_.shape(x)) / channels(x);
    PIPESHARD_CHECK(here * rows_together_ % rows_here_ == 0, "{}: {} elements per channel in {} of {} rows", describeNode(*origin_), here,
                    rows_here_, rows_together_);
    Moments& moments = found->second;
    const int64_t count = here * rows_together_ / rows_here_;
    moments.count = scalar(static_cast<double>(count), x);
    moments.mean = elementwise("Div", allReduce(channelSum(x)), moments.count);
    moments.centred = elementwise("Sub", x, moments.mean);
    const ValueId squares = elementwise("Mul", moments.centred, moments.centred);
    moments.variance = elementwise("Div", allReduce(channelSum(squares)), moments.count);
    return moments;
  }

  // 1 / sqrt(variance + epsilon), float64.
  ValueId inverseOf(ValueId x) {
    const float epsilon = origin_->floatAttribute("epsilon", 1e-5f);
    const auto [found, is_new] = inverses_.try_emplace({x, epsilon});
    if (!is_new) return found->second;
    const ValueId variance = momentsOf(x).variance;
    const ValueId shifted = elementwise("Add", variance, scalar(static_cast<double>(epsilon), variance));
    const Shape shape = wideShape(x);
    return found->second = op("Reciprocal", {op("Sqrt", {shifted}, shape)}, shape);
  }

  // [C] as [1,C,1,..].
  ValueId perChannel(ValueId vector, ValueId x) {
    const Shape shape = wideShape(x);
    return op("Reshape", {vector, integers({shape.begin(), shape.end()})}, shape);
  }

  // The arithmetic of the kernel of one device, step by step: the same bits, but for the order of the sums.
  //   Y = (X - mean) (inverse Scale) + B        with mean and inverse rounded to X's type
  void forward(const Node& node) {
    const ValueId x = node.inputs[0];
    const DataType type = graph_.dataType(x);
    const Moments moments = momentsOf(x);
    const ValueId statistics[] = {moments.mean, moments.variance};
    const auto momentum = static_cast<double>(node.floatAttribute("momentum", 0.9f));
    for (size_t i = 0; i < 2; ++i) {
      if (node.outputs.size() <= 1 + i || !node.outputs[1 + i].valid()) continue;
      const ValueId batch = op("Reshape", {statistics[i], integers({channels(x)})}, {channels(x)});
      const ValueId kept = elementwise("Mul", cast(node.inputs[3 + i], DataType::kFloat64), scalar(momentum, batch));
      const ValueId sum = elementwise("Add", kept, elementwise("Mul", batch, scalar(1 - momentum, batch)));
      add("", "Cast", {sum}, node.outputs[1 + i], {{"to", static_cast<int64_t>(type)}});
    }
    const ValueId factor = elementwise("Mul", cast(inverseOf(x), type), perChannel(node.inputs[1], x));
    const ValueId centred = elementwise("Sub", x, cast(moments.mean, type));
    add("", "Add", {elementwise("Mul", centred, factor), perChannel(node.inputs[2], x)}, node.outputs[0]);
  }

  // dX = (inverse Scale) (dY - mean(dY) - (X - mean) inverse^2 mean(dY (X - mean)))
  void inputGradient(const Node& node) {
    const ValueId dy = node.inputs[0];
    const ValueId x = node.inputs[1];
    const DataType type = graph_.dataType(x);
    const Moments moments = momentsOf(x);
    const ValueId inverse = inverseOf(x);
    const ValueId mean = elementwise("Div", allReduce(gradientSum(dy)), moments.count);
    const ValueId dot = elementwise("Mul", elementwise("Mul", allReduce(projection(dy, x)), inverse), inverse);
    const ValueId slope = cast(elementwise("Div", dot, moments.count), type);
    const ValueId factor = cast(elementwise("Mul", inverse, cast(perChannel(node.inputs[2], x), DataType::kFloat64)), type);
    const ValueId along = elementwise("Mul", elementwise("Sub", x, cast(moments.mean, type)), slope);
    const ValueId rest = elementwise("Sub", elementwise("Sub", dy, cast(mean, type)), along);
    add("", "Mul", {rest, factor}, node.outputs[0]);
  }

  void weightGradient(const Node& node) {
    const ValueId x = node.inputs[1];
    const auto give = [&](size_t output, auto sum) {
      if (node.outputs.size() <= output || !node.outputs[output].valid()) return;
      add("", "Reshape", {cast(sum(), graph_.dataType(x)), integers({channels(x)})}, node.outputs[output]);
    };
    give(0, [&] { return elementwise("Mul", projection(node.inputs[0], x), inverseOf(x)); });
    give(1, [&] { return gradientSum(node.inputs[0]); });
  }

  // This device's sum of dY, and of dY (X - mean), float64.
  ValueId gradientSum(ValueId dy) {
    const auto found = gradient_sums_.find(dy);
    return found != gradient_sums_.end() ? found->second : gradient_sums_[dy] = channelSum(wide(dy));
  }
  ValueId projection(ValueId dy, ValueId x) {
    const ValueId centred = momentsOf(x).centred;
    const auto found = projections_.find({dy, x});
    return found != projections_.end() ? found->second : projections_[{dy, x}] = channelSum(elementwise("Mul", wide(dy), centred));
  }

  Graph& graph_;
  GraphBuilder builder_;
  int64_t rows_here_;
  int64_t rows_together_;
  int group_;
  const Node* origin_ = nullptr;  // the node that is being replaced
  std::map<ValueId, Moments> moments_;
  std::map<std::pair<ValueId, float>, ValueId> inverses_;
  std::map<ValueId, ValueId> wide_;
  std::map<ValueId, ValueId> gradient_sums_;
  std::map<std::pair<ValueId, ValueId>, ValueId> projections_;
};

}  // namespace

std::vector<int> synchronizeBatchNormalization(Graph& piece, int64_t rows_here, int64_t rows_together, int group) {
  PIPESHARD_CHECK(1 <= rows_here && rows_here <= rows_together, "{} of {} rows", rows_here, rows_together);
  if (rows_here == rows_together || std::none_of(piece.nodes.begin(), piece.nodes.end(), needsMoments)) return {};
  const std::vector<Node> nodes = std::exchange(piece.nodes, {});
  piece.opset_imports.try_emplace(std::string(kPipeshardDomain), 1);
  Rewriter rewriter(piece, rows_here, rows_together, group);
  for (const Node& node : nodes) {
    if (needsMoments(node)) {
      rewriter.rewrite(node);
    } else {
      piece.nodes.push_back(node);
    }
  }
  std::erase_if(piece.functions, [&](const Function& function) {
    return function.domain == kPipeshardDomain && (function.name == kInputGrad || function.name == kWeightGrad);
  });
  std::vector<int> groups;
  for (const Node& node : piece.nodes) {
    if (collectiveKind(node)) groups.push_back(static_cast<int>(node.intAttribute("group", -1)));
  }
  return groups;
}

}  // namespace pipeshard
