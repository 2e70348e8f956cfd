#include "onnx_import/exporter/mistaken_calls.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"

namespace pipeshard {
namespace {

bool isArgument(const ExportedCall& call, size_t place, std::string_view text) {
  const std::vector<std::string> arguments = argumentTexts(call);
  return place < arguments.size() && arguments[place] == text;
}

// "norm" of "norm.running_mean"
std::string moduleOf(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// A constant of one element.
std::optional<double> oneNumber(const Graph& graph, ValueId value) {
  const Constant* constant = value.valid() ? graph.constant(value) : nullptr;
  if (constant == nullptr || !isFloatingPoint(constant->data_type) || elementCount(constant->shape) != 1)
    return std::nullopt;
  return numericElements(*constant).at(0);
}

// Where(mask, 0, the lowest number): what is added to scores.
bool choosesLowest(const Graph& graph, const Node& node) {
  constexpr double kLow = -6e4;  // that of float16 is -65504
  if (!node.is("Where") || oneNumber(graph, node.inputs[1]) != 0.0) return false;
  const std::optional<double> hidden = oneNumber(graph, node.inputs[2]);
  return hidden && std::isfinite(*hidden) && *hidden < kLow;
}

// A constant, or the quotient 1 / (p + 1e-6) that the TorchScript exporter writes of constants.
std::optional<double> exponentOf(const Graph& graph, ValueId value) {
  if (const std::optional<double> number = oneNumber(graph, value)) return number;
  const auto maker = [&](ValueId made) {
    return std::ranges::find_if(graph.nodes, [made](const Node& node) {
      return node.outputs.size() == 1 && node.outputs[0] == made;
    });
  };
  const auto quotient = maker(value);
  if (quotient == graph.nodes.end() || !quotient->is("Div")) return std::nullopt;
  const auto sum = maker(quotient->inputs[1]);
  if (sum == graph.nodes.end() || !sum->is("Add")) return std::nullopt;
  const std::optional<double> one = oneNumber(graph, quotient->inputs[0]);
  const std::optional<double> p = oneNumber(graph, sum->inputs[0]), little = oneNumber(graph, sum->inputs[1]);
  return one && p && little ? std::optional(*one / (*p + *little)) : std::nullopt;
}

// sum((a - b)^p)^(1 / (p + 1e-6)): pairwise_distance and cdist of the TorchScript exporter, which has left
// out the absolute value. That matters where p is no even number.
void refuseSignedDistances(const Graph& graph) {
  if (graph.producer_name != "pytorch") return;
  const UseDef uses = computeUseDef(graph);
  const auto makerOf = [&](ValueId value, std::string_view op_type) {
    const NodeId id = value.valid() ? uses.producer[value.index()] : NodeId();
    return id.valid() && graph.node(id).is(op_type) ? &graph.node(id) : nullptr;
  };
  for (const Node& root : graph.nodes) {
    const Node* sum = root.is("Pow") ? makerOf(root.inputs[0], "ReduceSum") : nullptr;
    const Node* power = sum != nullptr ? makerOf(sum->inputs[0], "Pow") : nullptr;
    if (power == nullptr || makerOf(power->inputs[0], "Sub") == nullptr) continue;
    const std::optional<double> p = oneNumber(graph, power->inputs[1]);
    if (!p || std::fmod(*p, 2.0) == 0) continue;
    const std::optional<double> exponent = exponentOf(graph, root.inputs[1]);
    if (!exponent) continue;
    const double off = std::abs(*exponent - 1 / (*p + 1e-6));
    if (off > 1e-7 || off > std::abs(*exponent - 1 / *p)) continue;  // somebody's own
    fail(
        ErrorCode::kBadModel,
        "{}: the module takes a distance (pairwise_distance or cdist with p = {}), but the exporter has left "
        "out the absolute value of the differences; export with dynamo=True, or write it in the module: "
        "(a - b).abs().pow(p).sum(-1).pow(1 / p)",
        describeNode(root), *p);
  }
}

}  // namespace

int hideWholeRows(Graph& graph) {
  constexpr const char* kAttends = "aten.scaled_dot_product_attention";
  std::set<std::string> with_zeros;  // calls
  for (const Node& node : graph.nodes) {
    const ExportedCall call = exportedCall(node);
    if (node.is("IsNaN") && isCallOf(call, kAttends)) with_zeros.insert(call.name);
  }
  std::map<DataType, ValueId> infinities;
  int attentions = 0;
  for (Node& node : graph.nodes) {
    const ExportedCall call = exportedCall(node);
    const bool attends = isCallOf(call, kAttends) && with_zeros.contains(call.name);
    if (!attends || !choosesLowest(graph, node)) continue;
    const DataType type = graph.dataType(node.inputs[2]);
    const auto [infinity, is_new] = infinities.try_emplace(type);
    if (is_new) {
      const double number = -std::numeric_limits<double>::infinity();
      infinity->second = GraphBuilder(graph).addConstant("hidden_score", makeScalar(type, number));
      markMade(graph.value(infinity->second));
    }
    node.inputs[2] = infinity->second;
    ++attentions;
  }
  return attentions;
}

void refuseMistakenCalls(const Graph& graph, bool trains) {
  refuseSignedDistances(graph);
  for (const Node& node : graph.nodes) {
    const ExportedCall call = exportedCall(node);
    if (node.is("ScatterElements") && isCallOf(call, "aten.scatter_reduce.") && isArgument(call, 4, "mean") &&
        node.stringAttribute("reduction", "none") == "none") {
      fail(ErrorCode::kBadModel,
           "{}: the module takes the mean (scatter_reduce with 'mean'), but the exporter has written an "
           "assignment, of which the last one stays; take 'sum' in the module, and divide by a sum of ones",
           describeNode(node));
    }
    if (trains && node.is("Gather") && isCallOf(call, "aten.embedding.") && isArgument(call, 3, "True")) {
      fail(ErrorCode::kBadModel,
           "{}: the module's embedding has scale_grad_by_freq=True, which divides its gradients by how often "
           "an index is in the batch; that is not there. Export the module without it",
           describeNode(node));
    }
  }
}

std::vector<std::string> changedBuffers(const Graph& graph) {
  std::set<std::string> normalizations;
  for (const Node& node : graph.nodes) {
    if (!node.is("BatchNormalization") || node.inputs.size() < 5 || !node.inputs[3].valid()) continue;
    normalizations.insert(moduleOf(graph.value(node.inputs[3]).name));
  }
  std::vector<std::string> changed;
  for (const std::string& name : mutatedBuffers(graph)) {
    const bool is_statistic = name.ends_with("running_mean") || name.ends_with("running_var") ||
                              name.ends_with("num_batches_tracked");
    if (!is_statistic || !normalizations.contains(moduleOf(name))) changed.push_back(name);
  }
  return changed;
}

}  // namespace pipeshard
