#include "sharding/batch/time_kinds.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"
#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

bool constantIsUniform(const Constant& constant, size_t axis) {
  const size_t inner = rowMajorStrides(constant.shape)[axis] * dataTypeSize(constant.data_type);
  const size_t size = constant.shape[axis];
  const size_t block = inner * size;
  if (block == 0) return true;
  for (size_t start = 0; start < constant.bytes.size(); start += block) {
    const auto first = constant.bytes.begin() + start;
    for (size_t entry = 1; entry < size; ++entry) {
      if (!std::equal(first, first + inner, first + entry * inner)) return false;
    }
  }
  return true;
}

bool isSplit(const TimeFactsTable& facts, ValueId value) {
  return value.valid() && facts[value.index()].kind.kind == TimeKind::Kind::kSplit;
}

// A slice up to a fixed place takes other examples of the whole batch than of a microbatch, even where it
// takes all of this one. A place behind the end of the whole batch (tf2onnx writes 1000000000) is no bound.
bool isBoundedSlice(const Graph& graph, const Node& node, size_t axis, const BatchShare& share) {
  if (!node.is("Slice")) return false;
  const bool old = node.inputs.size() == 1;
  const auto ends =
      old ? node.intsAttribute("ends") : constantInput(graph, node, 2).value_or(std::vector<int64_t>());
  const auto axes =
      old ? node.intsAttribute("axes") : constantInput(graph, node, 3).value_or(std::vector<int64_t>());
  const Shape& shape = graph.shape(node.inputs[0]);
  const int64_t most_rows = std::max({share.rows, share.batch, share.other_rows});
  const double longest = static_cast<double>(shape[axis]) / static_cast<double>(share.rows) *
                         static_cast<double>(most_rows);  // the axis, of all rows that are looked at
  for (size_t i = 0; i < ends.size(); ++i) {
    size_t named = i;
    if (i < axes.size()) named = normalizeAxis(axes[i], shape.size());
    if (named == axis && static_cast<double>(ends[i]) <= longest) return true;
  }
  return false;
}

// Removes the factors that the batch cannot be in.
void dropLiteralOnes(FactorRule& rule) {
  const auto drop = [&](std::vector<TensorFactors>& tensors) {
    for (TensorFactors& tensor : tensors) {
      for (std::vector<int>& axis : tensor)
        std::erase_if(axis, [&](int factor) { return rule.factors[factor].size == 1; });
    }
  };
  drop(rule.inputs);
  drop(rule.outputs);
}

// The one factor that the batch is cut along, found from the inputs that are cut.
int cutFactor(const Graph& graph, const TimeFactsTable& facts, const Node& node, const FactorRule& rule,
              const BatchShare& share) {
  int factor = -1;
  ValueId first;
  for (size_t input = 0; input < node.inputs.size(); ++input) {
    const ValueId value = node.inputs[input];
    if (!isSplit(facts, value)) continue;
    const size_t axis = facts[value.index()].kind.axis;
    const std::vector<int>& factors = rule.inputs[input][axis];
    if (factors.empty() || rule.factors[factors.front()].kind == FactorKind::kWhole ||
        isBoundedSlice(graph, node, axis, share)) {
      const std::string reason =
          fmt::format("it needs the whole of axis {} of '{}', along which the batch is cut", axis,
                      graph.value(value).name);
      // It may take each its own, as groups of channels do.
      if (operatorFacts(node).work == WorkClass::kMovement || node.intAttribute("group", 1) > 1)
        refuseTimeCut(node, reason);
      refuseMeeting(node, reason);
    }
    if (factor >= 0 && factor != factors.front()) {
      refuseMeeting(node, fmt::format("it combines every example of '{}' with every example of '{}'",
                                      graph.value(first).name, graph.value(value).name));
    }
    factor = factors.front();
    first = value;
  }
  return factor;
}

// Every other place where the factor occurs in an input must be one that can be cut with it.
void checkOtherInputs(const Graph& graph, const TimeFactsTable& facts, const Node& node,
                      const FactorRule& rule, int factor) {
  for (size_t input = 0; input < node.inputs.size(); ++input) {
    const ValueId value = node.inputs[input];
    if (!value.valid()) continue;
    for (int axis = 0; axis < std::ssize(rule.inputs[input]); ++axis) {
      const std::vector<int>& factors = rule.inputs[input][axis];
      if (std::find(factors.begin(), factors.end(), factor) == factors.end()) continue;
      if (isSplit(facts, value)) {
        if (facts[value.index()].kind.axis != axis) {
          refuseTimeCut(node, fmt::format("it also uses axis {} of '{}', along which the batch is not cut",
                                          axis, graph.value(value).name));
        }
      } else if (factors.front() != factor || !isUniform(graph, facts, value, axis)) {
        refuseTimeCut(node, fmt::format("'{}' does not depend on the batch, but has {} different entries "
                                        "along axis {}, where the batch is cut",
                                        graph.value(value).name, graph.shape(value)[axis], axis));
      }
    }
  }
}

OutputKind cutOutput(const Graph& graph, const Node& node, const FactorRule& rule, size_t output,
                     int factor) {
  for (int axis = 0; axis < std::ssize(rule.outputs[output]); ++axis) {
    const std::vector<int>& factors = rule.outputs[output][axis];
    const auto place = std::find(factors.begin(), factors.end(), factor);
    if (place == factors.end()) continue;
    if (place == factors.begin()) return {OutputChange::kSplit, axis};
    refuseTimeCut(
        node, fmt::format("in its output '{}' the examples are not one block after the other along axis {}",
                          graph.value(node.outputs[output]).name, axis));
  }
  switch (rule.factors[factor].kind) {
    case FactorKind::kSum: return {OutputChange::kSum, -1};
    case FactorKind::kMean: return {OutputChange::kMean, -1};
    case FactorKind::kMax: refuseMeeting(node, "it takes the maximum over the batch");
    case FactorKind::kMin: refuseMeeting(node, "it takes the minimum over the batch");
    default: break;
  }
  refuseTimeCut(node, fmt::format("its output '{}' depends on the whole batch",
                                  graph.value(node.outputs[output]).name));
}

}  // namespace

bool isUniform(const Graph& graph, const TimeFactsTable& facts, ValueId value, size_t axis) {
  if (graph.shape(value)[axis] == 1) return true;
  if (const Constant* constant = graph.constant(value)) return constantIsUniform(*constant, axis);
  return axis < 64 && (facts[value.index()].uniform >> axis & 1) != 0;
}

uint64_t uniformAxes(const Graph& graph, const TimeFactsTable& facts, const Node& node, size_t output) {
  const auto rule = factorRule(graph, node);
  if (!rule) return 0;
  const auto uniformAlong = [&](int factor) {
    if (rule->factors[factor].kind != FactorKind::kParallel) return false;
    for (size_t input = 0; input < node.inputs.size(); ++input) {
      for (size_t axis = 0; axis < rule->inputs[input].size(); ++axis) {
        const std::vector<int>& factors = rule->inputs[input][axis];
        const bool touched = std::find(factors.begin(), factors.end(), factor) != factors.end();
        if (touched && !isUniform(graph, facts, node.inputs[input], axis)) return false;
      }
    }
    return true;
  };
  uint64_t axes = 0;
  for (size_t axis = 0; axis < std::min<size_t>(rule->outputs[output].size(), 64); ++axis) {
    const std::vector<int>& factors = rule->outputs[output][axis];
    if (!factors.empty() && std::all_of(factors.begin(), factors.end(), uniformAlong))
      axes |= uint64_t{1} << axis;
  }
  return axes;
}

namespace {

// Batch normalisation in training mode sees one microbatch, whole: that is what it means, not a use of the
// whole batch.
bool normalizesMicrobatch(const TimeFactsTable& facts, const Node& node) {
  if (!normalizesByBatch(node)) return false;
  const bool only_x = std::none_of(node.inputs.begin() + 1, node.inputs.end(),
                                   [&](ValueId input) { return isSplit(facts, input); });
  return only_x && isSplit(facts, node.inputs[0]) && facts[node.inputs[0].index()].kind.axis == 0;
}

}  // namespace

std::vector<OutputKind> cutNode(const Graph& graph, const TimeFactsTable& facts, const Node& node,
                                bool one_example, const BatchShare& share) {
  if (normalizesMicrobatch(facts, node)) {
    std::vector<OutputKind> kinds(node.outputs.size(), {OutputChange::kOwn, -1});
    kinds[0] = {OutputChange::kSplit, 0};
    return kinds;
  }
  auto rule = factorRule(graph, node);
  if (!rule)
    refuseTimeCut(node, "there is no sharding rule for this operator, so the batch must reach it whole");
  if (!one_example) dropLiteralOnes(*rule);
  const int factor = cutFactor(graph, facts, node, *rule, share);
  checkOtherInputs(graph, facts, node, *rule, factor);
  std::vector<OutputKind> kinds(node.outputs.size());
  for (size_t output = 0; output < node.outputs.size(); ++output) {
    if (node.outputs[output].valid()) kinds[output] = cutOutput(graph, node, *rule, output, factor);
  }
  return kinds;
}

void refuseMeeting(const Node& node, const std::string& reason) {
  try {
    refuseTimeCut(node, reason);
  } catch (BatchCutError& error) {
    error.setMeeting();
    throw;
  }
}

void refuseTimeCut(const Node& node, const std::string& reason, const std::string& way_out) {
  throw BatchCutError(
      fmt::format("{}: the batch cannot be cut into microbatches here: {}", describeNode(node), reason),
      way_out);
}

}  // namespace pipeshard
