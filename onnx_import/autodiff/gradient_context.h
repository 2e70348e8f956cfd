// What a gradient rule works with: the forward node, the gradients of its outputs, and ways to emit backward
// nodes.
//
// Everything that is emitted gets a type and a static shape, the name "<forward node>_grad/<operator>", the
// metadata of the forward node, and an entry in BackwardBuilder::forwardNodes(). Constants are shared over
// the whole graph.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/op_emitter.h"

namespace pipeshard {

// Adds nodes, shared constants and functions to a graph whose first nodes are forward nodes. One per graph.
class BackwardBuilder {
 public:
  explicit BackwardBuilder(Graph& graph);

  const Graph& graph() const { return graph_; }
  Graph& graph() { return graph_; }
  GraphBuilder& values() { return builder_; }

  // An initializer of shape [] holding `number`; the same one for the same type and number.
  ValueId scalar(DataType type, double number);
  // A 1-D int64 initializer; the same one for the same elements.
  ValueId integers(const std::vector<int64_t>& elements);

  // Appends a node that differentiates `forward`. For a function of the pipeshard domain its definition is
  // added once.
  NodeId addBackwardNode(NodeId forward, std::string_view domain, std::string_view op_type,
                         std::string_view overload, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                         std::map<std::string, Attribute> attributes);
  // Appends a node that differentiates nothing (an update).
  NodeId addNode(std::string_view domain, std::string_view op_type, std::string_view overload,
                 std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                 std::map<std::string, Attribute> attributes);

  // The graph gets the definition of a function of the pipeshard domain, unless it has it.
  void useFunction(std::string_view name, std::string_view overload);

  // The outputs of a node are new: producer() knows them.
  void recordOutputs(NodeId node);
  // The node that makes a value; invalid for inputs and initializers. The only forward node that reads it;
  // invalid for none or several.
  NodeId producer(ValueId value) const;
  NodeId soleReader(ValueId value) const;
  // Makes of a Gemm without C, whose output nobody has read, its transpose: (A B)^T = B^T A^T. Returns its
  // new output; nobody makes the old one then.
  ValueId transposeProduct(NodeId gemm);
  bool isReplaced(ValueId value) const { return replaced_.contains(value); }
  // A backward node's only output has been replaced by something else: the node goes with the next
  // removeReplaced, unless another node reads it.
  void replace(ValueId value) { replaced_.insert(value); }
  void removeReplaced();

  // In which type the gradient of a forward value is taken: its own, but that of the weight where it is a
  // narrower copy of one, or a view of such a copy. Products and sums of narrow operands then give the
  // gradient of a weight without rounding it to their type.
  DataType gradientType(ValueId value) const;

  // Initializers that training changes: what they hold now is no constant.
  void setTrained(const std::vector<ValueId>& parameters) {
    trained_.insert(parameters.begin(), parameters.end());
  }
  bool isTrained(ValueId value) const { return trained_.contains(value); }

  // By node index: the forward node of each backward node, invalid for all others.
  const std::vector<NodeId>& forwardNodes() const { return forward_nodes_; }

 private:
  Graph& graph_;
  GraphBuilder builder_;
  std::map<std::pair<DataType, double>, ValueId> scalars_;
  std::map<std::vector<int64_t>, ValueId> integers_;
  std::vector<NodeId> forward_nodes_;
  std::vector<NodeId> producer_;  // by value index; shorter than the values
  std::map<std::string, int> name_uses_;
  std::set<ValueId> replaced_;
  std::set<ValueId> trained_;
};

// The gradient of a value; or of its elements [start, start + n) of an axis alone, where n is the gradient's
// size there: all others are 0.
struct GradientPart {
  ValueId gradient;
  std::optional<size_t> axis = std::nullopt;  // none: of the whole value
  int64_t start = 0;
};

class GradientContext : public OpEmitter {
 public:
  // `output_gradients` by output position, invalid where no gradient arrives; `needed` by input position.
  GradientContext(BackwardBuilder& builder, NodeId forward, std::vector<ValueId> output_gradients,
                  std::vector<bool> needed);

  // ---- the forward node ----
  const Node& node() const { return node_; }  // a copy: emitting nodes does not invalidate it
  const Graph& graph() const { return builder_.graph(); }
  size_t inputCount() const { return node_.inputs.size(); }
  bool hasInput(size_t position) const {
    return position < node_.inputs.size() && node_.inputs[position].valid();
  }
  ValueId input(size_t position) const;
  ValueId output(size_t position = 0) const;
  // The output at `position`, added to the forward node (with this name suffix, type and shape) if it is not
  // there.
  ValueId ensureOutput(size_t position, std::string_view suffix, DataType type, Shape shape);
  // The forward node is a function of the pipeshard domain from now on, with the same inputs and outputs.
  void becomeFunction(std::string_view name, std::string_view overload, Attributes attributes);
  Shape shape(ValueId value) const { return builder_.graph().shape(value); }
  DataType type(ValueId value) const { return builder_.graph().dataType(value); }
  // Of numbers that a forward node keeps of each row for its gradient: float32 beside bfloat16 and float16.
  DataType statisticsType(ValueId value) const {
    return isHalf(type(value)) ? DataType::kFloat32 : type(value);
  }
  // The elements of an integer input that is constant; nullopt if the input is absent. Refuses one that is
  // not constant.
  std::optional<std::vector<int64_t>> constantIntegers(size_t position) const;
  // The single number that an input holds for certain, if it is a constant of one element.
  std::optional<double> constantNumber(ValueId value) const;

  // ---- gradients ----
  ValueId outputGradient(size_t position = 0) const {
    return position < output_gradients_.size() ? output_gradients_[position] : ValueId();
  }
  bool needs(size_t position) const { return position < needed_.size() && needed_[position]; }
  // BackwardBuilder::gradientType of an input.
  DataType gradientType(size_t position) const { return builder_.gradientType(input(position)); }
  // A forward node of one of these operators reads the first output. Looks through the whole graph.
  bool isReadBy(std::initializer_list<std::string_view> op_types) const;
  // The constant that a forward Max takes of it and of the first output; nothing without such a Max.
  std::optional<double> boundBelow() const;
  // Says what the gradient of an input is. The shape must be the input's, and the type gradientType, or the
  // input's, from which it is cast.
  void give(size_t position, ValueId gradient);
  // give, of the elements from `start` on along an axis alone. What others give of the rest is put beside it.
  void givePart(size_t position, ValueId gradient, size_t axis, int64_t start);
  // give, after summing a gradient of the output's shape over what was broadcast.
  void giveReduced(size_t position, ValueId gradient) { give(position, reducedFor(position, gradient)); }
  // The sum alone, in gradientType.
  ValueId reducedFor(size_t position, ValueId gradient) {
    return reduceTo(gradient, shape(input(position)), gradientType(position));
  }
  const std::vector<GradientPart>& inputGradients() const { return input_gradients_; }

  // Error(kBadModel) naming the node, its operator and `reason`.
  [[noreturn]] void refuse(std::string_view reason) const;
  // Refuses a node whose operator has a lower version than `version`, where it meant something else.
  void requireVersion(int version) const;

  // ---- emitting ----
  // A function of the pipeshard domain with one output.
  ValueId function(std::string_view name, std::string_view overload, std::vector<ValueId> inputs,
                   DataType type, Shape shape, std::map<std::string, Attribute> attributes = {});
  // The same with several outputs; absent ones are given as nullopt and come back invalid.
  std::vector<ValueId> functionOutputs(std::string_view name, std::string_view overload,
                                       std::vector<ValueId> inputs, DataType type,
                                       const std::vector<std::optional<Shape>>& shapes,
                                       std::map<std::string, Attribute> attributes);
  ValueId scalar(DataType type, double number) override { return builder_.scalar(type, number); }
  ValueId integers(const std::vector<int64_t>& elements) override { return builder_.integers(elements); }

  ValueId multiply(ValueId a, ValueId b);   // constants of one element are folded
  ValueId scale(ValueId x, double number);  // x * number; x itself for 1
  ValueId transposeLastTwo(ValueId x);
  // The matrix that the forward pass has transposed to get x; invalid where it has not.
  ValueId untransposed(ValueId x) const;
  // For a Transpose of a matrix: its input's gradient without a pass over it, computed by the product that
  // gave the output's. Invalid unless a product is all that reads the output.
  ValueId transposedOutputGradient();
  ValueId reduceSum(ValueId x, const std::vector<int64_t>& axes, bool keep_dims,
                    DataType type = DataType::kUndefined) {
    return reduce("ReduceSum", x, axes, keep_dims, type);
  }
  // The adjoint of broadcasting `shape` to x's shape: sums over the broadcast axes. The sum has `type`, x
  // itself its own.
  ValueId reduceTo(ValueId x, const Shape& shape, DataType type = DataType::kUndefined);

 private:
  ValueId emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type, Shape shape,
               Attributes attributes) override;
  void giveOfShape(size_t position, const Shape& wanted, GradientPart part);
  std::string nodeName(std::string_view op_type);

  BackwardBuilder& builder_;
  NodeId forward_;
  Node node_;
  std::vector<ValueId> output_gradients_;
  std::vector<bool> needed_;
  std::vector<GradientPart> input_gradients_;
};

}  // namespace pipeshard
