#include "onnx_import/forms/update_cone.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"

namespace pipeshard {
namespace {

bool isElementwise(const Node& node) {
  static const std::set<std::string_view> kOperators = {
      "Abs",      "Add",  "Cast", "CastLike", "Clip", "Div",  "Exp", "Expand",
      "Identity", "Log",  "Max",  "Min",      "Mul",  "Neg",  "Pow", "Reciprocal",
      "Reshape",  "Sign", "Sqrt", "Sub",      "Sum",  "Where"};
  return node.domain.empty() && kOperators.contains(node.op_type);
}

// x of c * x, x * c, x / c and -x.
ValueId unscaled(const StepGraph& step, ValueId id) {
  while (const Node* node = step.producer(step.origin(id))) {
    if (node->is("Mul") && step.number(node->inputs[0])) return node->inputs[1];
    if ((node->is("Mul") || node->is("Div")) && step.number(node->inputs[1])) return node->inputs[0];
    if (!node->is("Neg")) break;
    id = node->inputs[0];
  }
  return id;
}

// What lies between the outputs and parameter, gradient and states; and the scalars that it reads.
void findConeNodes(const StepGraph& step, const CutFacts& facts, UpdateCone& cone) {
  const Graph& graph = step.graph();
  std::set<ValueId> ends(cone.states.begin(), cone.states.end());
  ends.insert({cone.parameter, cone.gradient});
  std::set<ValueId> needed(cone.outputs.begin(), cone.outputs.end());
  const size_t past =
      step.position(*std::max_element(cone.outputs.begin(), cone.outputs.end(), [&](ValueId a, ValueId b) {
        return step.position(a) < step.position(b);
      }));
  for (size_t n = past; n-- > 0;) {
    const Node& node = graph.nodes[n];
    const bool used = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return id.valid() && needed.contains(id) && !ends.contains(id);
    });
    if (!used) continue;
    cone.nodes.emplace_back(n);
    for (ValueId id : node.inputs) {
      if (id.valid()) needed.insert(id);
    }
  }
  std::reverse(cone.nodes.begin(), cone.nodes.end());
  for (ValueId id : needed) {
    const bool counted = facts.counters.contains(id);
    if (ends.contains(id) || !step.isLeaf(id) || (!step.isGiven(id) && !counted)) continue;
    if (!step.isOneElement(id))
      refuseUpdate(step.value(cone.parameter).name,
                   fmt::format("it reads {}", describeValue(step.value(id))));
    cone.scalars.push_back(id);
  }
}

class ConeFinder {
 public:
  ConeFinder(const StepGraph& step, const CutFacts& facts, ValueId parameter, ValueId updated,
             ValueId gradient)
      : step_(step), facts_(facts), parameter_(parameter), updated_(updated), gradient_(gradient) {}

  UpdateCone find() {
    UpdateCone cone;
    cone.parameter = parameter_;
    cone.outputs = {updated_};
    findStates(cone);
    cone.gradient = gradient_.valid() ? gradient_ : gradientOf(cone);
    if (!gradient_.valid()) refuseClipped(cone.gradient);
    findConeNodes(step_, facts_, cone);
    return cone;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    refuseUpdate(step_.value(parameter_).name, reason);
  }

  // Tensors like the parameter that the operators near to an output read, and that the loss does not depend
  // on.
  std::set<ValueId> statesNear(ValueId output) const {
    std::set<ValueId> states, seen = {output};
    std::vector<ValueId> open = {output};
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      if (step_.isGiven(id) && id != parameter_ && !step_.feedsLoss(id) && step_.isTensor(id) &&
          step_.sameType(id, parameter_))
        states.insert(id);
      const Node* node = step_.producer(id);
      if (node == nullptr || !isElementwise(*node) || step_.feedsLoss(id)) continue;
      for (size_t i = 0; i < node->inputs.size(); ++i) {
        const ValueId input = node->inputs[i];
        if (input.valid() && readsContent(*node, i) && seen.insert(input).second) open.push_back(input);
      }
    }
    return states;
  }

  // The states, and the outputs that are their new values: the output that depends on one state alone is that
  // state's, and so on with the states that are left.
  void findStates(UpdateCone& cone) const {
    std::set<ValueId> left = statesNear(updated_);
    cone.states.assign(left.begin(), left.end());
    std::map<ValueId, std::set<ValueId>> open;
    for (ValueId output : step_.graph().outputs) {
      if (!left.empty() && output != updated_ && step_.isTensor(output) && step_.sameType(output, parameter_))
        open.emplace(output, statesNear(output));
    }
    std::map<ValueId, ValueId> output_of;
    while (!left.empty()) {
      const auto found = std::find_if(open.begin(), open.end(), [&](const auto& entry) {
        return std::count_if(entry.second.begin(), entry.second.end(),
                             [&](ValueId id) { return left.contains(id); }) == 1;
      });
      if (found == open.end())
        refuse(fmt::format("it reads {}, of which no output is the new value",
                           describeValue(step_.value(*left.begin()))));
      const ValueId state = *std::find_if(found->second.begin(), found->second.end(),
                                          [&](ValueId id) { return left.contains(id); });
      output_of[state] = found->first;
      left.erase(state);
      open.erase(found);
    }
    for (ValueId state : cone.states) cone.outputs.push_back(output_of.at(state));
  }

  // The walk from the outputs back to the batch: a set of values that all of the batch's effect goes through.
  // Whenever it is one value, that may be the gradient; it is the first one before which no weight, state or
  // step is read. Where only the parameter is (p - lr * g), the factor before the subtraction is the learning
  // rate. What is read last may belong to the gradient: that of a penalty on the parameter.
  //   p - lr * (g + wd * p)   {p'} reads p; {lr * (..)}; {g + wd * p} reads p; {g}
  ValueId gradientOf(const UpdateCone& cone) const {
    std::set<ValueId> cut;
    for (ValueId output : cone.outputs) {
      if (facts_.from_batch[output.index()]) cut.insert(output);
    }
    std::vector<ValueId> candidates;
    std::vector<size_t> reads = {0};  // how many candidates there were when something was read
    while (!cut.empty()) {
      const ValueId last = *std::max_element(cut.begin(), cut.end(), [&](ValueId a, ValueId b) {
        return step_.position(a) < step_.position(b);
      });
      const Node* node = step_.producer(last);
      if (node == nullptr || !isElementwise(*node) || step_.feedsLoss(last)) break;
      cut.erase(last);
      if (readsGiven(*node) && reads.back() != candidates.size()) reads.push_back(candidates.size());
      for (size_t i = 0; i < node->inputs.size(); ++i) {
        const ValueId input = node->inputs[i];
        if (input.valid() && readsContent(*node, i) && facts_.from_batch[input.index()]) cut.insert(input);
      }
      if (cut.size() == 1 && step_.isTensor(*cut.begin()) && step_.sameType(*cut.begin(), parameter_))
        candidates.push_back(*cut.begin());
    }
    if (reads.size() > 1 && isPenalised()) reads.pop_back();
    const size_t chosen = reads.back();
    if (candidates.size() <= chosen) refuse("no single value in it is the gradient");
    return cone.states.empty() && chosen == 0 ? unscaled(step_, candidates[0]) : candidates[chosen];
  }

  // Reads the parameter, a state, the step, a rate that is an input.
  bool readsGiven(const Node& node) const {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (input.valid() && readsContent(node, i) && !facts_.from_batch[input.index()] &&
          facts_.from_given[input.index()])
        return true;
    }
    return false;
  }

  // The loss has the square or the norm of the parameter in it.
  bool isPenalised() const {
    for (ValueId shown : step_.shownAs(parameter_)) {
      for (const Node* node : step_.consumers(shown)) {
        if (!step_.feedsLoss(*node)) continue;
        const bool square = node->is("Mul") && step_.origin(node->inputs[0]) == step_.origin(node->inputs[1]);
        if (square || node->is("Pow") || node->is("Abs") || node->op_type.starts_with("Reduce")) return true;
      }
    }
    return false;
  }

  void refuseClipped(ValueId gradient) const {
    const Node* node = step_.producer(step_.origin(gradient));
    if (node == nullptr) return;
    if (node->is("Clip")) refuse("the gradient is clipped, which pipeshard's optimizers do not do");
    if (!(node->is("Mul") || node->is("Div")) || step_.isOneElement(gradient)) return;
    for (ValueId input : node->inputs) {
      if (step_.isOneElement(input) && facts_.from_batch[input.index()])
        refuse(
            "the gradient is scaled by a number that depends on the batch (clipped by its norm?), which "
            "pipeshard's optimizers do not do");
    }
  }

  const StepGraph& step_;
  const CutFacts& facts_;
  ValueId parameter_;
  ValueId updated_;
  ValueId gradient_;  // invalid: to be found
};

}  // namespace

void refuseUpdate(const std::string& parameter, const std::string& reason) {
  fail(ErrorCode::kBadModel, "the update of '{}' in the file is not taken: {} (--optimizer takes its place)",
       parameter, reason);
}

CutFacts cutFacts(const StepGraph& step, const std::vector<ValueId>& parameters) {
  CutFacts facts{step.fromBatch(parameters), step.fromGiven(), {}};
  for (ValueId output : step.graph().outputs) {
    const Node* node = step.producer(step.origin(output));
    if (node == nullptr || !node->is("Add") || !step.isOneElement(output)) continue;
    for (const size_t side : {0, 1}) {
      const ValueId leaf = step.origin(node->inputs[side]);
      if (step.isLeaf(leaf) && !isFolded(step.value(leaf)) && !step.feedsLoss(leaf) &&
          step.number(node->inputs[1 - side]) == 1.0)
        facts.counters.emplace(leaf, output);
    }
  }
  return facts;
}

std::optional<UpdateCone> withoutFactor(const StepGraph& step, const CutFacts& facts, UpdateCone cone) {
  const ValueId gradient = unscaled(step, cone.gradient);
  if (gradient == cone.gradient || !step.sameType(gradient, cone.parameter)) return std::nullopt;
  cone.gradient = gradient;
  cone.nodes.clear();
  cone.scalars.clear();
  findConeNodes(step, facts, cone);
  return cone;
}

UpdateCone updateCone(const StepGraph& step, const CutFacts& facts, ValueId parameter, ValueId updated,
                      ValueId gradient) {
  return ConeFinder(step, facts, parameter, updated, gradient).find();
}

}  // namespace pipeshard
