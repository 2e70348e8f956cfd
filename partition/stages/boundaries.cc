#include "partition/stages/boundaries.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"

namespace pipeshard {
namespace {

[[noreturn]] void failUnknown(const Chain& chain, const Boundary& boundary) {
  const Graph& graph = chain.training.graph;
  std::vector<std::string> names;
  for (NodeId node : chain.nodes) {
    for (ValueId output : graph.node(node).outputs) {
      if (output.valid()) names.push_back(graph.value(output).name);
    }
  }
  const std::vector<std::string> near = nearMatches(boundary.value, names);
  const bool exists = findValue(graph, boundary.value).valid();
  const std::string hint = near.empty() ? fmt::format("such as \"{}\"", names[names.size() / 2])
                                        : fmt::format("perhaps \"{}\"", fmt::join(near, "\" or \""));
  fail(ErrorCode::kConfiguration,
       "{} \"{}\" {}; a boundary is a value that a forward node makes, {}; --no-patterns keeps those inside "
       "of "
       "activations",
       boundary.subject, boundary.value,
       exists ? "is an input, a weight or a value of the backward pass" : "is no value of the model", hint);
}

}  // namespace

int64_t positionOf(const Chain& chain, const Boundary& boundary) {
  const Graph& graph = chain.training.graph;
  const ValueId value = findValue(graph, boundary.value);
  const auto makes = [&](NodeId node) {
    const std::vector<ValueId>& outputs = graph.node(node).outputs;
    return value.valid() && std::find(outputs.begin(), outputs.end(), value) != outputs.end();
  };
  const int64_t position = std::find_if(chain.nodes.begin(), chain.nodes.end(), makes) - chain.nodes.begin();
  if (position == chain.count()) failUnknown(chain, boundary);
  return position;
}

std::vector<int64_t> boundaryPositions(const Chain& chain, const std::vector<Boundary>& boundaries) {
  std::vector<int64_t> cuts;
  for (const Boundary& boundary : boundaries) {
    const int64_t position = positionOf(chain, boundary);
    if (position == chain.count() - 1) {
      fail(ErrorCode::kConfiguration,
           "{} \"{}\" is made by the last forward node; the stage behind it would be empty", boundary.subject,
           boundary.value);
    }
    if (!cuts.empty() && position <= cuts.back()) {
      fail(ErrorCode::kConfiguration,
           "{} \"{}\" does not come after \"{}\"; name boundaries in the model's order, each once",
           boundary.subject, boundary.value, boundaries[cuts.size() - 1].value);
    }
    cuts.push_back(position);
  }
  return cuts;
}

}  // namespace pipeshard
