#include "onnx_import/patterns/patterns.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/functions.h"
#include "onnx_import/patterns/activations.h"
#include "onnx_import/patterns/attention.h"
#include "onnx_import/patterns/fused_projections.h"
#include "onnx_import/patterns/losses.h"
#include "onnx_import/patterns/match.h"
#include "onnx_import/patterns/normalizations.h"
#include "onnx_import/patterns/turned_views.h"

namespace pipeshard {
namespace {

Constant filled(const Constant& scalar, const Shape& shape) {
  Constant result{scalar.data_type, shape, {}};
  for (int64_t i = 0; i < elementCount(shape); ++i)
    result.bytes.insert(result.bytes.end(), scalar.bytes.begin(), scalar.bytes.end());
  return result;
}

// Opset 17, the first with LayerNormalization, differs from 16 by new operators alone. (Files before 16 are
// read as of 18.)
void leaveOpset16(Graph& graph) {
  int& version = graph.opset_imports.at("");
  if (version != 16) return;
  version = 17;
  for (Node& node : graph.nodes) {
    if (node.domain.empty() && node.opset_version == 16) node.opset_version = 17;
  }
}

// Puts calls in the places of their nodes. Numbers that several calls read are one initializer.
class Rewriter {
 public:
  explicit Rewriter(Graph& graph) : graph_(graph), builder_(graph) {}

  // The call goes where the last node was, under its name and with its metadata.
  void replace(NodeId last, Match match) {
    for (const MadeInput& made : match.made) match.inputs[made.position] = make(made, match, last);
    Node& node = graph_.node(last);
    node.domain = match.is_standard ? "" : kPipeshardDomain;
    node.op_type = match.function;
    node.overload = match.overload;
    node.opset_version = match.is_standard ? graph_.opset_imports.at("") : 1;
    node.inputs = match.inputs;
    node.outputs = {match.output};
    node.attributes = match.attributes;
    if (match.output_shape) viewOutput(last, match);
    if (match.is_standard) return;
    graph_.opset_imports.try_emplace(std::string(kPipeshardDomain), 1);
    if (graph_.findFunction(kPipeshardDomain, match.function, match.overload) != nullptr) return;
    graph_.functions.push_back(
        makePipeshardFunction(match.function, match.overload, graph_.opset_imports.at("")));
  }

  // Puts the nodes in that have no place of their own.
  void finish() {
    std::vector<Node> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto take = [&](std::map<size_t, std::vector<Node>>& beside) {
        const auto found = beside.find(n);
        if (found != beside.end())
          std::move(found->second.begin(), found->second.end(), back_inserter(nodes));
      };
      take(before_);
      nodes.push_back(std::move(graph_.nodes[n]));
      take(behind_);
    }
    graph_.nodes = std::move(nodes);
  }

 private:
  ValueId make(const MadeInput& made, const Match& match, NodeId last) {
    if (made.number) return number(made.type, *made.number, made.shape);
    ValueId value = made.from;
    for (const MadeNode& step : made.nodes) {
      const ValueId input = value;
      value = builder_.addValue(nameOf(match, step.op_type), made.type, step.shape);
      if (made.place == last) {
        before_[last.index()].push_back(nodeOf(graph_.node(last), step, input, value));
      } else if (taken_.insert(made.place).second) {
        Node& node = graph_.node(made.place);
        const std::string name = node.name;
        node = nodeOf(node, step, input, value);
        node.name = name;
      } else {
        behind_[made.place.index()].push_back(nodeOf(graph_.node(made.place), step, input, value));
      }
    }
    return value;
  }

  // The provenance is that of `like`.
  Node nodeOf(const Node& like, const MadeNode& made, ValueId input, ValueId output) {
    Node node = like;
    node.domain = node.overload = "";
    node.op_type = made.op_type;
    node.opset_version = graph_.opset_imports.at("");
    node.inputs = {input};
    node.outputs = {output};
    node.attributes = made.attributes;
    node.name = graph_.value(output).name;
    if (made.op_type != "Reshape") return node;
    const ValueId sizes = builder_.addConstant(node.name + "/sizes",
                                               makeConstant<int64_t>({std::ssize(made.shape)}, made.shape));
    markMade(graph_.value(sizes));
    node.inputs.push_back(sizes);
    return node;
  }

  std::string nameOf(const Match& match, const std::string& op_type) const {
    return fmt::format("{}/{}", graph_.value(match.output).name, op_type);
  }

  void viewOutput(NodeId last, const Match& match) {
    const DataType type = graph_.dataType(match.output);
    const ValueId viewed = builder_.addValue(nameOf(match, match.function), type, *match.output_shape);
    graph_.node(last).outputs = {viewed};
    const Shape shape = graph_.shape(match.output);
    behind_[last.index()].push_back(nodeOf(graph_.node(last), {"Reshape", shape}, viewed, match.output));
  }

  ValueId number(DataType type, double number, const Shape& shape) {
    const auto [found, fresh] = numbers_.try_emplace({type, number, shape});
    if (!fresh) return found->second;
    found->second = builder_.addConstant("pattern/number", filled(makeScalar(type, number), shape));
    markMade(graph_.value(found->second));
    return found->second;
  }

  Graph& graph_;
  GraphBuilder builder_;
  std::map<std::tuple<DataType, double, Shape>, ValueId> numbers_;
  std::set<NodeId> taken_;                               // places
  std::map<size_t, std::vector<Node>> before_, behind_;  // by node index
};

}  // namespace

std::string_view patternName(PatternKind kind) {
  switch (kind) {
    case PatternKind::kGelu: return "Gelu";
    case PatternKind::kGeluTanh: return "Gelu (tanh)";
    case PatternKind::kSwish: return "Swish";
    case PatternKind::kAttention: return "Attention";
    case PatternKind::kRmsNorm: return "RMSNorm";
    case PatternKind::kLayerNorm: return "LayerNorm";
    case PatternKind::kCrossEntropy: return "cross-entropy";
    case PatternKind::kFusedProjection: return "fused projection";
    case PatternKind::kLogSigmoid: return "log-sigmoid";
  }
  return "";
}

namespace {

// Groups of nodes that become one call each.
void replaceGroups(Graph& graph, MoreRows& more_rows, FoundPatterns& result) {
  std::vector<std::pair<NodeId, Match>> matches;
  {
    const PatternGraph patterns(graph, &more_rows);
    std::set<NodeId> taken;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (taken.contains(NodeId(n))) continue;
      std::optional<Match> match = matchActivation(patterns, NodeId(n), result.missed);
      if (!match) match = matchAttention(patterns, NodeId(n), result.missed);
      if (!match) match = matchNormalization(patterns, NodeId(n), result.missed);
      if (!match) match = matchCrossEntropy(patterns, NodeId(n), result.missed);
      if (!match) match = matchLogSigmoid(patterns, NodeId(n));
      if (!match || !patterns.hasKernelType(match->inputs[0])) continue;
      bool free = true;
      for (const NodeId id : match->nodes) free = free && !taken.contains(id);
      if (!free) continue;
      taken.insert(match->nodes.begin(), match->nodes.end());
      const NodeId last = patterns.uses.producer[match->output.index()];
      matches.emplace_back(last, std::move(*match));
    }
  }
  if (matches.empty()) return;
  const bool normalizes = std::any_of(matches.begin(), matches.end(), [](const auto& found) {
    return found.second.kind == PatternKind::kLayerNorm;
  });
  if (normalizes) leaveOpset16(graph);
  Rewriter rewriter(graph);
  for (auto& [last, match] : matches) {
    ++result.found[match.kind];
    rewriter.replace(last, std::move(match));
  }
  rewriter.finish();
  removeDeadCode(graph);
}

}  // namespace

FoundPatterns recognisePatterns(Graph& graph, MakeMoreRows more_rows) {
  FoundPatterns result;
  MoreRows larger(std::move(more_rows));
  result.nodes_before = graph.nodes.size();
  replaceGroups(graph, larger, result);
  if (const int divided = divideFusedProjections(graph, result.missed); divided > 0)
    result.found[PatternKind::kFusedProjection] = divided;
  if (turnViews(graph, &larger) > 0) removeDeadCode(graph);
  result.nodes_after = graph.nodes.size();
  return result;
}

std::string patternsToString(const FoundPatterns& patterns) {
  if (patterns.found.empty()) return "";
  std::vector<std::string> parts;
  for (const auto& [kind, count] : patterns.found) {
    const bool several = kind == PatternKind::kFusedProjection && count > 1;
    parts.push_back(fmt::format("{} {}{}", count, patternName(kind), several ? "s" : ""));
  }
  return fmt::format("{}: {} nodes became {}", fmt::join(parts, ", "), patterns.nodes_before,
                     patterns.nodes_after);
}

}  // namespace pipeshard
