#include "onnx_import/autodiff/backward.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "ir/base/error.h"
#include "onnx_import/autodiff/gradient_parts.h"
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

struct Contribution {
  GradientPart part;
  NodeId reader;  // the forward node that it comes through; invalid for the loss itself
};

// Reverse-mode differentiation, one forward node at a time from the last to the first.
//
// contributions_[v] collects gradients of the loss with regard to forward value v, one from each reader that
// passes one. Nodes are in topological order: when a node is visited, all readers of its outputs have been,
// so their contributions are complete and are summed there (gradientOf). Contributions to a parameter are not
// summed; they become its gradient_parts, each an output of its own (partsOf).
//
// Only *active* values get gradients: floating-point values that depend on a parameter, and on which the loss
// depends, through inputs that pass gradients. A rule is asked for the active inputs alone.
//   loss = ReduceSum(MatMul(x, w)), parameter w: x is not active, so MatMul's rule gives only w's gradient.
//
// What rules emit is appended: forward nodes stay at positions 0 to forward_nodes_-1, and the values that the
// forward pass had at the beginning keep their ids, by which active_, contributions_ and producer_ are
// indexed. A value beyond these is no forward value, or an output that a rule has added (ensureOutput), which
// gets no gradient.
class Differentiation {
 public:
  Differentiation(BackwardBuilder& builder, ValueId loss, const std::vector<ValueId>& parameters,
                  ValueId loss_scale)
      : builder_(builder),
        loss_(loss),
        loss_scale_(loss_scale),
        parameters_(parameters),
        forward_nodes_(builder.graph().nodes.size()) {
    builder_.setTrained(parameters);
  }

  Gradients run() {
    markActive();
    contributions_.resize(graph().values.size());
    producer_ = computeUseDef(graph()).producer;
    contributions_[loss_.index()] = {{{seed()}, NodeId()}};
    for (size_t n = forward_nodes_; n-- > 0;) differentiate(NodeId(n));
    builder_.removeReplaced();
    return collect();
  }

 private:
  const Graph& graph() const { return builder_.graph(); }

  // What the loss's own gradient is, of its shape: 1, or what it is scaled with.
  ValueId seed() {
    const Shape& shape = graph().shape(loss_);
    const DataType type = graph().dataType(loss_);
    const std::string name = graph().value(loss_).name + "_grad";
    if (!loss_scale_.valid()) {
      if (shape.empty()) return builder_.scalar(type, 1);
      return builder_.values().addConstant(name, Constant{type, shape, makeScalar(type, 1).bytes});
    }
    if (shape.empty()) return loss_scale_;
    const ValueId shaped = builder_.values().addValue(name, type, shape);
    builder_.addBackwardNode(producer_[loss_.index()], "", "Reshape", "",
                             {loss_scale_, builder_.integers(std::vector<int64_t>(shape.size(), 1))},
                             {shaped}, {});
    return shaped;
  }
  bool active(ValueId id) const { return id.valid() && id.index() < active_.size() && active_[id.index()]; }

  // Active values: floating-point, made from a parameter, and the loss is made from them, by differentiable
  // inputs only.
  void markActive() {
    std::vector<bool> from_parameter(graph().values.size(), false);
    from_input_.assign(graph().values.size(), false);
    for (ValueId id : parameters_) from_parameter[id.index()] = true;
    for (ValueId id : graph().inputs) from_input_[id.index()] = true;
    for (const Node& node : graph().nodes) {
      bool parameter = false;
      bool input = false;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!node.inputs[i].valid()) continue;
        parameter = parameter || (from_parameter[node.inputs[i].index()] && passesGradient(node, i));
        input = input || from_input_[node.inputs[i].index()];
      }
      for (ValueId output : node.outputs) {
        if (!output.valid()) continue;
        from_parameter[output.index()] = parameter && isFloatingPoint(graph().dataType(output));
        from_input_[output.index()] = input;
      }
    }
    std::vector<bool> to_loss(graph().values.size(), false);
    to_loss[loss_.index()] = true;
    for (size_t n = graph().nodes.size(); n-- > 0;) {
      const Node& node = graph().nodes[n];
      bool needed = false;
      for (ValueId output : node.outputs)
        needed = needed || (output.valid() && to_loss[output.index()] && from_parameter[output.index()]);
      for (size_t i = 0; needed && i < node.inputs.size(); ++i) {
        if (node.inputs[i].valid() && passesGradient(node, i)) to_loss[node.inputs[i].index()] = true;
      }
    }
    active_.resize(graph().values.size());
    for (size_t i = 0; i < active_.size(); ++i) active_[i] = from_parameter[i] && to_loss[i];
    if (!active(loss_)) {
      fail(ErrorCode::kBadModel,
           "the loss '{}' depends on no parameter: nothing can be trained. Choose another loss (--loss)",
           graph().value(loss_).name);
    }
  }

  // What the readers of a computed value contributed, as one value; invalid if there is nothing.
  ValueId gradientOf(ValueId value, NodeId producer) {
    if (!active(value)) return {};
    std::vector<Contribution>& contributions = contributions_[value.index()];
    if (contributions.empty()) return {};
    if (contributions.size() > 1 || contributions[0].part.axis) {
      const NodeId by = contributions.size() > 1 ? firstReader(contributions) : producer;
      contributions = {{{joined(contributions, value, by)}, NodeId()}};
    }
    return contributions[0].part.gradient;
  }

  // Gradients are added where the first reader is: between stages, one goes to the value's producer, not one
  // of each reader (a residual connection has two).
  static NodeId firstReader(const std::vector<Contribution>& contributions) {
    const auto first = std::ranges::min_element(contributions, {}, &Contribution::reader);
    return first->reader;
  }

  // Emitted for the forward node `by`.
  ValueId joined(const std::vector<Contribution>& contributions, ValueId value, NodeId by) {
    std::vector<GradientPart> parts;
    for (const Contribution& contribution : contributions) parts.push_back(contribution.part);
    GradientContext context(builder_, by, {}, {});
    const Shape shape = graph().shape(value);  // a copy: joining adds values, and those that are there move
    return joinGradientParts(context, builder_, shape, parts);
  }

  void requireKnownType(const Node& node, ValueId value) const {
    const DataType type = graph().dataType(value);
    if (type == DataType::kFloat32 || type == DataType::kFloat64 || isHalf(type)) return;
    fail(ErrorCode::kBadModel,
         "{}: '{}' is {}, but gradients are taken in float32, float64, bfloat16 or float16; export the model "
         "in "
         "float32",
         describeNode(node), graph().value(value).name, dataTypeName(type));
  }

  void differentiate(NodeId id) {
    const Node node = graph().node(id);
    std::vector<ValueId> output_gradients;
    bool any = false;
    for (ValueId output : node.outputs) {
      output_gradients.push_back(gradientOf(output, id));
      any = any || output_gradients.back().valid();
    }
    if (!any) return;
    std::vector<bool> needed;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      needed.push_back(active(node.inputs[i]) && passesGradient(node, i));
    for (ValueId output : node.outputs) {
      if (active(output)) requireKnownType(node, output);
    }
    const GradientRule* rule = findGradientRule(node);
    if (rule == nullptr) {
      fail(ErrorCode::kBadModel,
           "{}: this operator has no gradient rule, and it lies between parameter and loss. Either choose a "
           "loss that does not depend on it (--loss), or replace it in the model by operators that have one "
           "(docs/operators.md lists them), or add a rule (docs/adding-an-operator.md)",
           describeNode(node));
    }
    GradientContext context(builder_, id, std::move(output_gradients), needed);
    rule->apply(context);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const GradientPart& part = context.inputGradients()[i];
      PIPESHARD_CHECK(!needed[i] || part.gradient.valid(), "{}: its gradient rule forgets input {}",
                      describeNode(node), i);
      if (part.gradient.valid()) contributions_[node.inputs[i].index()].push_back({part, id});
    }
  }

  // Ids are fixed from here on: only names change.
  Gradients collect() {
    Gradients result;
    for (ValueId parameter : parameters_) result.parameter_parts.push_back(partsOf(parameter));
    std::unordered_set<std::string> names;
    for (const Value& value : graph().values) names.insert(value.name);
    std::set<ValueId> renamed;
    const auto rename = [&](ValueId id, const std::string& name) {
      const bool is_backward = id.index() >= contributions_.size() && !graph().initializers.contains(id);
      if (is_backward && renamed.insert(id).second && names.insert(name).second)
        builder_.graph().value(id).name = name;
    };
    for (size_t i = 0; i < contributions_.size(); ++i) {
      if (contributions_[i].size() != 1 || !producer_[i].valid() ||
          builder_.isReplaced(contributions_[i][0].part.gradient))
        continue;
      const ValueId gradient = contributions_[i][0].part.gradient;
      if (from_input_[i]) result.activation_gradients.push_back(gradient);
      rename(gradient, graph().values[i].name + "_grad");
    }
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const std::vector<ValueId>& parts = result.parameter_parts[p];
      const std::string name = graph().value(parameters_[p]).name + "_grad";
      for (size_t k = 0; k < parts.size(); ++k)
        rename(parts[k], parts.size() == 1 ? name : fmt::format("{}.{}", name, k));
    }
    return result;
  }

  // A part is a value of its own: computed, and not the gradient of something else.
  std::vector<ValueId> partsOf(ValueId parameter) {
    std::vector<ValueId> parts;
    for (const Contribution& contribution : contributions_[parameter.index()]) {
      ValueId part = contribution.part.gradient;
      if (contribution.part.axis) {
        part = joined({contribution}, parameter, contribution.reader);
      } else if (graph().initializers.contains(part) || part == loss_scale_ || useCount(part) > 1) {
        part = addLike(parameter, "_grad.part", graph().dataType(parameter));
        builder_.addBackwardNode(contribution.reader, "", "Identity", "", {contribution.part.gradient},
                                 {part}, {});
      }
      parts.push_back(part);
    }
    return parts;
  }

  // Of how many values it is a contribution.
  int useCount(ValueId gradient) {
    if (uses_.empty()) {
      uses_.resize(graph().values.size());
      for (const std::vector<Contribution>& contributions : contributions_) {
        for (const Contribution& contribution : contributions) ++uses_[contribution.part.gradient.index()];
      }
    }
    return uses_[gradient.index()];
  }

  ValueId addLike(ValueId value, std::string_view suffix, DataType type) {
    const Value like = graph().value(value);
    return builder_.values().addValue(fmt::format("{}{}", like.name, suffix), type, *like.shape);
  }

  BackwardBuilder& builder_;
  ValueId loss_, loss_scale_;
  const std::vector<ValueId>& parameters_;
  size_t forward_nodes_;
  std::vector<bool> active_;
  std::vector<bool> from_input_;
  std::vector<NodeId> producer_;
  std::vector<std::vector<Contribution>> contributions_;  // by forward value
  std::vector<int> uses_;                                 // by value, see useCount
};

}  // namespace

Gradients appendBackward(BackwardBuilder& builder, ValueId loss, const std::vector<ValueId>& parameters,
                         ValueId loss_scale) {
  return Differentiation(builder, loss, parameters, loss_scale).run();
}

void splitBackwardPhases(const Graph& graph, const std::vector<NodeId>& forward_nodes,
                         const std::vector<ValueId>& activation_gradients, std::vector<Phase>& phases) {
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId id : activation_gradients) needed[id.index()] = true;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (!forward_nodes[n].valid()) continue;
    const Node& node = graph.nodes[n];
    bool input_phase = false;
    for (ValueId output : node.outputs)
      input_phase = input_phase || (output.valid() && needed[output.index()]);
    phases[n] = input_phase ? Phase::kBackwardInput : Phase::kBackwardWeight;
    for (ValueId id : node.inputs) {
      if (input_phase && id.valid()) needed[id.index()] = true;
    }
  }
}

}  // namespace pipeshard
