#include "partition/layers/modules.h"

#include <map>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/name_pattern.h"
#include "ir/graph/exporter_marks.h"

namespace pipeshard {
namespace {

std::string unitName(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return node.name.empty() ? fmt::format("{} number {}", node.op_type, id.index()) : node.name;
}

NamePattern patternOf(const std::string& text) {
  if (text.empty())
    fail(ErrorCode::kUsage,
         "--balance type: needs a regular expression, for example type:block or 'type:h\\.\\d+$'");
  return NamePattern("--balance type:" + text, text, NamePattern::Case::kIgnored);
}

// "GPT2Block (4), LayerNorm (9), ...": the types of modules, or their paths, or the operators, that a pattern
// can name.
std::string namesToMatch(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::map<std::string, std::string> modules;  // path -> type
  std::map<std::string, int> counts;
  for (NodeId id : nodes) {
    for (const ModuleScope& scope : moduleScopes(graph.node(id))) modules.try_emplace(scope.path, scope.type);
  }
  for (const auto& [path, type] : modules) ++counts[type.empty() ? path : type];
  if (modules.empty()) {
    for (NodeId id : nodes) ++counts[graph.node(id).op_type];
  }
  constexpr size_t kMost = 10;
  std::vector<std::string> shown;
  for (const auto& [name, count] : counts) {
    if (shown.size() < kMost) shown.push_back(count > 1 ? fmt::format("{} ({})", name, count) : name);
  }
  if (counts.size() > kMost) shown.push_back(fmt::format("and {} more", counts.size() - kMost));
  return fmt::format("{}{}",
                     modules.empty() ? "no modules are recorded, operator types are " : "there are modules ",
                     fmt::join(shown, ", "));
}

}  // namespace

ModuleMatch matchModules(const Graph& graph, const std::vector<NodeId>& nodes, const std::string& text) {
  const NamePattern pattern = patternOf(text);
  const auto matches = [&](const std::string& name) { return !name.empty() && pattern.isFoundIn(name); };
  ModuleMatch match;
  std::map<std::string, int> unit_of;  // by module path, or by "node" and index
  for (NodeId id : nodes) {
    const Node& node = graph.node(id);
    std::string key, name;
    for (const ModuleScope& scope : moduleScopes(node)) {
      if (!matches(scope.path) && !matches(scope.type)) continue;
      key = name = scope.path;
      break;
    }
    if (key.empty() && (matches(node.op_type) || matches(node.name))) {
      key = fmt::format("node {}", id.index());
      name = unitName(graph, id);
    }
    if (key.empty()) {
      match.unit.push_back(-1);
      continue;
    }
    const auto [found, is_new] = unit_of.try_emplace(key, static_cast<int>(match.names.size()));
    if (is_new) match.names.push_back(name);
    match.unit.push_back(found->second);
  }
  if (match.names.empty()) {
    fail(ErrorCode::kConfiguration, "--balance type:{} matches no module and no operator; {}", text,
         namesToMatch(graph, nodes));
  }
  return match;
}

UnitLayers unitLayers(const std::vector<int>& unit) {
  const int64_t count = unit.size();
  std::vector<int64_t> starts;  // of the units
  int seen = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (unit[i] != seen) continue;
    starts.push_back(i);
    ++seen;
  }
  UnitLayers layers;
  const auto close = [&](int64_t end, int64_t weight) {
    layers.ends.push_back(end);
    layers.weights.push_back(weight);
  };
  if (starts.empty() || starts[0] > 0) close(starts.empty() ? count - 1 : starts[0] - 1, 0);
  for (size_t u = 0; u < starts.size(); ++u) {
    const int64_t end = (u + 1 < starts.size() ? starts[u + 1] : count) - 1;
    int64_t last = end;
    while (unit[last] < 0) --last;
    close(last, 1);
    if (last < end) close(end, 0);
  }
  return layers;
}

}  // namespace pipeshard
