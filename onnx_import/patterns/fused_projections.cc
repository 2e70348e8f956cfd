#include "onnx_import/patterns/fused_projections.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "ir/graph/op_emitter.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/attention_form.h"
#include "ir/operators/fused_projection.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/functions.h"
#include "onnx_import/patterns/projection_parts.h"

namespace pipeshard {
namespace {

struct FusedProjection {
  NodeId product;
  NodeId turned;  // the Transpose of the weight, if the product reads one
  ValueId weight;
  ValueId bias;  // invalid: none
  ProjectionParts parts;
};

// Has the weight a row for each column of the product?
bool hasRowsOfParts(const Graph& graph, const FusedProjection& found) {
  return found.turned.valid() != (graph.node(found.product).intAttribute("transB", 0) != 0);
}

class ProjectionFinder : PatternReader {
 public:
  explicit ProjectionFinder(const PatternGraph& patterns) : PatternReader(patterns) {}

  std::optional<FusedProjection> find(NodeId product, std::vector<NearMiss>& missed) const {
    const Node& made = node(product);
    if (!made.is("MatMul") && !made.is("Gemm")) return std::nullopt;
    FusedProjection found{product, {}, made.inputs[1], {}, {}};
    if (const NodeId id = producer(found.weight); id.valid() && swapsLastTwoAxes(graph(), node(id))) {
      found.turned = id;
      found.weight = node(id).inputs[0];
    }
    if (!graph().initializers.contains(found.weight) || shape(found.weight).size() != 2) return std::nullopt;
    found.parts = projectionParts(patterns_, product);
    if (found.parts.values.empty() || !areUsedTogether(found.parts.values)) return std::nullopt;
    std::string reason = found.parts.reason;
    if (reason.empty()) reason = obstacle(found);
    if (reason.empty()) return found;
    missed.push_back({PatternKind::kFusedProjection, describeNode(made), reason});
    return std::nullopt;
  }

 private:
  bool isReadOnce(ValueId value) const {
    return readers(value).size() == 1 && !patterns_.is_output[value.index()];
  }

  // Also finds the bias.
  std::string obstacle(FusedProjection& found) const {
    const Node& product = node(found.product);
    found.bias = found.parts.bias;
    if (product.is("Gemm")) {
      if (product.floatAttribute("alpha", 1) != 1 || product.floatAttribute("beta", 1) != 1)
        return "it is scaled";
      if (product.intAttribute("transA", 0) != 0) return "it reads its rows as columns";
      const ValueId bias = product.inputs.size() > 2 ? product.inputs[2] : ValueId();
      const Shape columns = {shape(product.outputs[0]).back()};
      const bool is_row = graph().initializers.contains(bias) && shape(bias) == columns;
      if (bias.valid() && (!is_row || found.bias.valid()))
        return fmt::format("it adds '{}'", graph().value(bias).name);
      if (bias.valid()) found.bias = bias;
    }
    for (const ValueId value : {found.weight, product.inputs[1], found.bias}) {
      if (value.valid() && !isReadOnce(value))
        return fmt::format("'{}' is also read elsewhere", graph().value(value).name);
    }
    // What lies transposed and is read so has no rows for its columns.
    const auto* reference = std::get_if<WeightReference>(&graph().initializers.at(found.weight));
    const bool turned =
        isStoredTransposed(graph().value(found.weight)) || (reference != nullptr && reference->transposed);
    if (turned && hasRowsOfParts(graph(), found)) return "its weight is turned twice";
    if (!product.opaque.empty()) return "the file gives it a sharding";
    return "";
  }

  // All of them go into attention; or two into one product of elements, a gate.
  bool areUsedTogether(const std::vector<ValueId>& values) const {
    std::vector<Reached> reached;
    for (const ValueId value : values) reached.push_back(reach(value));
    if (std::ranges::all_of(reached, &Reached::attention)) return true;
    return values.size() == 2 && std::ranges::any_of(reached[0].gates, [&](NodeId gate) {
             return reached[1].gates.contains(gate);
           });
  }

  struct Reached {
    bool attention = false;
    std::set<NodeId> gates;  // Muls
  };

  // By elementwise work and movement: heads are turned (rotary embedding), normalised, viewed.
  Reached reach(ValueId from) const {
    constexpr size_t kMostNodes = 64;
    Reached result;
    std::vector<ValueId> values = {from};
    std::set<NodeId> seen;
    for (size_t i = 0; i < values.size() && seen.size() < kMostNodes; ++i) {
      for (const NodeId id : readers(values[i])) {
        const Node& reader = node(id);
        if (isAttention(reader, values[i])) result.attention = true;
        if (reader.is("Mul")) result.gates.insert(id);
        const OperatorFacts& facts = operatorFacts(reader);
        const bool goes_on = facts.work == WorkClass::kElementwise || facts.work == WorkClass::kMovement ||
                             facts.normalizes_rows;
        if (!goes_on || facts.multiplies_matrices || !seen.insert(id).second) continue;
        for (const ValueId output : reader.outputs) {
          if (output.valid()) values.push_back(output);
        }
      }
    }
    return result;
  }

  // A product of two activations is part of one that has not been recognised.
  bool isAttention(const Node& reader, ValueId value) const {
    if (reader.domain == kPipeshardDomain && reader.op_type == "Attention")
      return std::find(reader.inputs.begin(), reader.inputs.begin() + 3, value) != reader.inputs.begin() + 3;
    return reader.is("MatMul") && std::ranges::none_of(reader.inputs, [&](ValueId input) {
             return graph().initializers.contains(input);
           });
  }
};

// Writes the nodes that take the places of one projection's.
class ProjectionWriter : public OpEmitter {
 public:
  ProjectionWriter(GraphBuilder& builder, const FusedProjection& found)
      : OpEmitter(builder.graph()),
        builder_(builder),
        found_(found),
        product_(graph().node(found.product)),
        parts_(std::ssize(found.parts.values)) {}

  // In the graph's order; what they replace goes to `replaced`. The weight and the bias get their new shapes.
  std::vector<Node> write(std::set<NodeId>& replaced) {
    const ProjectionParts& parts = found_.parts;
    replaced.insert(found_.product);
    ValueId value = project();
    for (size_t s = 0; s < parts.steps.size(); ++s) {
      const Node step = graph().node(parts.steps[s]);
      const ValueId whole = step.outputs[0];
      replaced.insert(parts.steps[s]);
      if (s == parts.own_axis) {
        reshape(value, graph().shape(whole));
        nodes_.back().outputs = {whole};
        return std::move(nodes_);
      }
      if (step.is("Add")) continue;  // the bias
      if (step.is("Transpose")) {
        std::vector<int64_t> order = step.intsAttribute("perm");
        order.push_back(std::ssize(order));
        value = transpose(value, order);
      } else {
        value = reshape(value, inParts(graph().shape(whole)));
      }
    }
    replaced.insert(parts.readers.begin(), parts.readers.end());
    takeApart(value);
    return std::move(nodes_);
  }

 private:
  Graph& graph() const { return builder_.graph(); }

  // [.., columns] as [.., parts, columns of one]
  Shape inParts(Shape shape) const {
    shape.back() /= parts_;
    shape.insert(shape.end() - 1, parts_);
    return shape;
  }

  void divide(ValueId weight, size_t axis) {
    Value& value = graph().value(weight);
    value.metadata.emplace_back(kDividedAxis, std::to_string(axis));
    value.shape->at(axis) /= parts_;
    value.shape->insert(value.shape->begin() + static_cast<std::ptrdiff_t>(axis), parts_);
    if (auto* constant = std::get_if<Constant>(&graph().initializers.at(weight)))
      constant->shape = *value.shape;
  }

  ValueId project() {
    const bool by_rows = hasRowsOfParts(graph(), found_);
    std::vector<ValueId> inputs = {product_.inputs[0], found_.weight};
    divide(found_.weight, by_rows ? 0 : 1);
    if (found_.bias.valid()) {
      divide(found_.bias, 0);
      inputs.push_back(found_.bias);
    }
    const ValueId whole = product_.outputs[0];
    Node node = product_;
    node.domain = kPipeshardDomain;
    node.op_type = "FusedProjection";
    node.overload = projectionOverload(by_rows, found_.bias.valid());
    node.opset_version = 1;
    node.inputs = inputs;
    node.attributes = {{"transposed", int64_t{by_rows}}};
    node.outputs = {builder_.addValue(graph().value(whole).name + "/parts", graph().dataType(whole),
                                      inParts(graph().shape(whole)))};
    graph().opset_imports.try_emplace(std::string(kPipeshardDomain), 1);
    if (graph().findFunction(kPipeshardDomain, node.op_type, node.overload) == nullptr)
      graph().functions.push_back(
          makePipeshardFunction(node.op_type, node.overload, graph().opset_imports.at("")));
    nodes_.push_back(std::move(node));
    return nodes_.back().outputs[0];
  }

  // One Split gives all parts.
  void takeApart(ValueId value) {
    Shape shape = graph().shape(value);
    const auto axis = std::ssize(shape) - 2;
    shape[axis] = 1;
    Node split = standardNode("Split", {{"axis", axis}}, {value});
    if (split.opset_version >= 18) split.attributes["num_outputs"] = parts_;
    split.outputs.clear();
    for (const ValueId part : found_.parts.values)
      split.outputs.push_back(
          builder_.addValue(graph().value(part).name + "/part", graph().dataType(part), shape));
    const std::vector<ValueId> pieces = split.outputs;
    nodes_.push_back(std::move(split));
    for (size_t part = 0; part < pieces.size(); ++part) {
      reshape(pieces[part], graph().shape(found_.parts.values[part]));
      nodes_.back().outputs = {found_.parts.values[part]};
    }
  }

  // With the product's provenance.
  Node standardNode(std::string_view op_type, Attributes attributes, std::vector<ValueId> inputs) const {
    Node node = product_;
    node.op_type = op_type;
    node.opset_version = graph().opset_imports.at("");
    node.attributes = std::move(attributes);
    node.inputs = std::move(inputs);
    node.name = fmt::format("{}/{}", product_.name, op_type);
    return node;
  }

  ValueId emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type, Shape shape,
               Attributes attributes) override {
    Node node = standardNode(op_type, std::move(attributes), std::move(inputs));
    node.outputs = {builder_.addValue(fmt::format("{}/{}", graph().value(product_.outputs[0]).name, op_type),
                                      type, std::move(shape))};
    nodes_.push_back(std::move(node));
    return nodes_.back().outputs[0];
  }
  ValueId scalar(DataType type, double number) override { return constant(makeScalar(type, number)); }
  ValueId integers(const std::vector<int64_t>& numbers) override {
    return constant(makeConstant<int64_t>({std::ssize(numbers)}, numbers));
  }
  ValueId constant(Constant content) {
    const ValueId id =
        builder_.addConstant(graph().value(product_.outputs[0]).name + "/number", std::move(content));
    markMade(graph().value(id));
    return id;
  }

  GraphBuilder& builder_;
  const FusedProjection& found_;
  const Node product_;  // a copy
  const int64_t parts_;
  std::vector<Node> nodes_;
};

}  // namespace

int divideFusedProjections(Graph& graph, std::vector<NearMiss>& missed) {
  std::vector<FusedProjection> all;
  {
    const PatternGraph patterns(graph);
    const ProjectionFinder finder(patterns);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (std::optional<FusedProjection> found = finder.find(NodeId(n), missed))
        all.push_back(std::move(*found));
    }
  }
  if (all.empty()) return 0;
  GraphBuilder builder(graph);
  std::map<NodeId, std::vector<Node>> written;  // in the place of a product
  std::set<NodeId> replaced;
  for (const FusedProjection& found : all)
    written[found.product] = ProjectionWriter(builder, found).write(replaced);
  std::vector<Node> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (const auto found = written.find(NodeId(n)); found != written.end())
      std::move(found->second.begin(), found->second.end(), std::back_inserter(nodes));
    else if (!replaced.contains(NodeId(n)))
      nodes.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(nodes);
  removeDeadCode(graph);
  return static_cast<int>(all.size());
}

}  // namespace pipeshard
