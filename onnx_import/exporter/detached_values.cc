#include "onnx_import/exporter/detached_values.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/lost_calls.h"
#include "ir/graph/stopped_gradient.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/exporter/lost_parameters.h"

namespace pipeshard {
namespace {

bool isDetach(const ExportedCall& call) { return isCallOf(call, "aten.detach"); }

// "detach", "detach_3": how the exporter names such calls; "detach_", "detach__1" of detach_().
bool namesDetach(std::string_view name) { return callKind(name) == "detach" || callKind(name) == "detach_"; }

// ".detach()", ".detach_()", ".data", and not ".data_format".
bool detaches(std::string_view code) {
  constexpr std::string_view kData = ".data";
  if (code.find(".detach(") != std::string_view::npos || code.find(".detach_(") != std::string_view::npos)
    return true;
  for (size_t at = code.find(kData); at != std::string_view::npos; at = code.find(kData, at + 1)) {
    const size_t end = at + kData.size();
    if (end == code.size() || (std::isalnum(static_cast<unsigned char>(code[end])) == 0 && code[end] != '_'))
      return true;
  }
  return false;
}

// The line by which a node's call comes about, if it detaches something; "" without one.
std::string lineThatDetaches(const Node& node) {
  for (const CodeLine& line : linesOfCode(node)) {
    if (detaches(line.code)) return line.code;
  }
  return "";
}

// The optimizer has dropped or merged what a node reads, with the detach() before it: that is how a line of
// code may still tell of one.
void refuseLost(const Graph& graph) {
  const std::vector<LostCall> lost_calls = lostCalls(graph);
  if (lost_calls.empty()) return;
  const UseDef uses = computeUseDef(graph);
  const std::vector<bool> trained = dependsOnParameters(graph);
  for (const LostCall& call : lost_calls) {
    if (!trained[call.value.index()]) continue;
    const Node& reader = graph.node(call.reader);
    std::string line = lineThatDetaches(reader);
    if (line.empty()) line = lineThatDetaches(graph.node(uses.producer[call.value.index()]));
    if (line.empty()) continue;
    fail(ErrorCode::kBadModel,
         "{}: the module gives it '{}', but the exporter's optimizer has put '{}' in its place; where the "
         "module detaches that one, a gradient would pass (the line of code: {}). Export the module without "
         "it: {}",
         describeNode(reader), call.lost, call.kept, line, exportLine());
  }
}

class Detaching {
 public:
  void mark(Graph& graph) {
    for (Node& node : graph.nodes) {
      const ExportedCall call = exportedCall(node);
      if (isDetach(call)) {
        known_.insert(call.name);
        if (node.is("Identity") && !stopsGradient(node)) {
          stopGradientAt(node);
          ++stops_;
        }
      }
      for (const std::string& argument : call.arguments) {
        if (namesDetach(argument)) mentioned_.emplace_back(describeNode(node), argument);
      }
      for (auto& [name, attribute] : node.attributes) markInside(attribute);
    }
  }

  // A value of that name is no answer: the optimizer gives an output's name to what the output was a copy of.
  void refuseRemoved() const {
    for (const auto& [node, argument] : mentioned_) {
      if (known_.contains(argument)) continue;
      fail(ErrorCode::kBadModel,
           "{}: it was computed from '{}', a value that the module detaches so that no gradient passes, and "
           "the exporter's optimizer has removed that. Export the module without it: {}",
           node, argument, exportLine());
    }
  }

  int stops() const { return stops_; }

 private:
  void markInside(Attribute& attribute) {
    auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
    if (body == nullptr || *body == nullptr) return;
    auto marked = std::make_shared<Graph>(**body);
    const int before = stops_;
    mark(*marked);
    if (stops_ > before) *body = std::move(marked);
  }

  std::set<std::string> known_;                                 // calls of detach() that are in the file
  std::vector<std::pair<std::string, std::string>> mentioned_;  // by which node; in branches and loops, too
  int stops_ = 0;
};

}  // namespace

std::vector<bool> dependsOnParameters(const Graph& graph) {
  const std::set<std::string> parameters = signatureParameterNames(graph);
  const auto carriesGradient = [&](ValueId id) {
    const DataType type = graph.value(id).data_type;
    return type != DataType::kBool && !isInteger(type);
  };
  std::vector<bool> depends(graph.values.size(), false);
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    const std::vector<std::string> sources = foldedFrom(value);
    depends[id.index()] =
        isMarkedParameter(value) ||
        (parameters.empty() ? !sources.empty()
                            : std::any_of(sources.begin(), sources.end(), [&](const std::string& source) {
                                return parameters.contains(source);
                              }));
  }
  for (const Node& node : graph.nodes) {
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return id.valid() && depends[id.index()]; });
    for (ValueId output : node.outputs) {
      if (output.valid()) depends[output.index()] = any && carriesGradient(output);
    }
  }
  return depends;
}

int stopAtDetachedValues(Graph& graph) {
  Detaching detaching;
  detaching.mark(graph);
  detaching.refuseRemoved();
  refuseLost(graph);
  return detaching.stops();
}

}  // namespace pipeshard
