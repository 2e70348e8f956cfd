#include "onnx_import/patterns/patterns.h"

#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/functions.h"
#include "onnx_import/patterns/activations.h"
#include "onnx_import/patterns/attention.h"
#include "onnx_import/patterns/match.h"
#include "onnx_import/patterns/normalizations.h"

namespace pipeshard {
namespace {

// Puts calls in the places of their nodes. Numbers that several calls read are one initializer.
class Rewriter {
 public:
  explicit Rewriter(Graph& graph) : graph_(graph), builder_(graph) {}

  // The call goes where the last node was, under its name and with its metadata.
  void replace(NodeId last, Match match) {
    for (const MadeInput& made : match.made) match.inputs[made.position] = make(made, match);
    Node& node = graph_.node(last);
    node.domain = kPipeshardDomain;
    node.op_type = match.function;
    node.overload = match.overload;
    node.opset_version = 1;
    node.inputs = match.inputs;
    node.outputs = {match.output};
    node.attributes = match.attributes;
    graph_.opset_imports.try_emplace(std::string(kPipeshardDomain), 1);
    if (graph_.findFunction(kPipeshardDomain, match.function, match.overload) != nullptr) return;
    graph_.functions.push_back(
        makePipeshardFunction(match.function, match.overload, graph_.opset_imports.at("")));
  }

 private:
  ValueId make(const MadeInput& made, const Match& match) {
    if (made.number) return number(made.type, *made.number);
    const std::string name = fmt::format("{}/{}", graph_.value(match.output).name, made.op_type);
    const ValueId value = builder_.addValue(name, made.type, made.shape);
    Node& node = graph_.node(made.place);
    node.op_type = made.op_type;
    node.inputs = {made.from};
    node.outputs = {value};
    node.attributes = made.attributes;
    return value;
  }

  ValueId number(DataType type, double number) {
    const auto [found, fresh] = numbers_.try_emplace({type, number});
    if (!fresh) return found->second;
    found->second = builder_.addConstant("pattern/number", makeScalar(type, number));
    graph_.value(found->second).metadata.emplace_back(kConstantMark, "made");
    return found->second;
  }

  Graph& graph_;
  GraphBuilder builder_;
  std::map<std::pair<DataType, double>, ValueId> numbers_;
};

}  // namespace

std::string_view patternName(PatternKind kind) {
  switch (kind) {
    case PatternKind::kGelu: return "Gelu";
    case PatternKind::kGeluTanh: return "Gelu (tanh)";
    case PatternKind::kSwish: return "Swish";
    case PatternKind::kAttention: return "Attention";
    case PatternKind::kRmsNorm: return "RMSNorm";
  }
  return "";
}

FoundPatterns recognisePatterns(Graph& graph) {
  FoundPatterns result;
  result.nodes_before = result.nodes_after = graph.nodes.size();
  std::vector<std::pair<NodeId, Match>> matches;
  {
    const PatternGraph patterns(graph);
    std::set<NodeId> taken;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      std::optional<Match> match = matchActivation(patterns, NodeId(n), result.missed);
      if (!match) match = matchAttention(patterns, NodeId(n), result.missed);
      if (!match) match = matchRmsNormalization(patterns, NodeId(n), result.missed);
      if (!match || !patterns.hasKernelType(match->inputs[0])) continue;
      bool free = true;
      for (const NodeId id : match->nodes) free = free && !taken.contains(id);
      if (!free) continue;
      taken.insert(match->nodes.begin(), match->nodes.end());
      const NodeId last = patterns.uses.producer[match->output.index()];
      matches.emplace_back(last, std::move(*match));
    }
  }
  if (matches.empty()) return result;
  Rewriter rewriter(graph);
  for (auto& [last, match] : matches) {
    ++result.found[match.kind];
    rewriter.replace(last, std::move(match));
  }
  removeDeadCode(graph);
  result.nodes_after = graph.nodes.size();
  return result;
}

std::string patternsToString(const FoundPatterns& patterns) {
  if (patterns.found.empty()) return "";
  std::vector<std::string> parts;
  for (const auto& [kind, count] : patterns.found)
    parts.push_back(fmt::format("{} {}", count, patternName(kind)));
  return fmt::format("{}: {} nodes became {}", fmt::join(parts, ", "), patterns.nodes_before,
                     patterns.nodes_after);
}

}  // namespace pipeshard
