#include "onnx_import/patterns/patterns.h"

#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "onnx_import/autodiff/functions.h"
#include "onnx_import/patterns/activations.h"
#include "onnx_import/patterns/match.h"
#include "onnx_import/patterns/normalizations.h"

namespace pipeshard {
namespace {

// The call goes where the last node was, under its name and with its metadata.
void replace(Graph& graph, NodeId last, const Match& match) {
  Node& node = graph.node(last);
  node.domain = kPipeshardDomain;
  node.op_type = match.function;
  node.overload = match.overload;
  node.opset_version = 1;
  node.inputs = match.inputs;
  node.outputs = {match.output};
  node.attributes = match.attributes;
  graph.opset_imports.try_emplace(std::string(kPipeshardDomain), 1);
  if (graph.findFunction(kPipeshardDomain, match.function, match.overload) != nullptr) return;
  graph.functions.push_back(
      makePipeshardFunction(match.function, match.overload, graph.opset_imports.at("")));
}

}  // namespace

std::string_view patternName(PatternKind kind) {
  switch (kind) {
    case PatternKind::kGelu: return "Gelu";
    case PatternKind::kGeluTanh: return "Gelu (tanh)";
    case PatternKind::kSwish: return "Swish";
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
  for (const auto& [last, match] : matches) {
    ++result.found[match.kind];
    replace(graph, last, match);
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
