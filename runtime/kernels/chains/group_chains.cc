#include "runtime/kernels/chains/group_chains.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <list>
#include <optional>
#include <set>
#include <string_view>

#include "ir/base/error.h"
#include "runtime/kernels/chains/chain_rows.h"

namespace pipeshard::kernels {
namespace {

// Below, what lies between two operators is in a core's cache anyway, and a kernel is one thread's.
constexpr int64_t kFewestElements = 16384;
// A row and what is beside it fit a core's second cache.
constexpr int64_t kMostRowBytes = 128 << 10;
constexpr size_t kMostOperators = 32;
// Operators that may lie between two of a group; each delays what the group makes.
constexpr size_t kMostBetween = 4;
// Constants up to here are the group's own; others are inputs of it.
constexpr size_t kMostConstantBytes = 1024;

struct Group {
  std::vector<NodeId> nodes;
  std::vector<int64_t> rows;  // numbers of rows that suit all of them, rising
  size_t between = 0;         // operators behind its last one
};

class Grouper {
 public:
  Grouper(Graph& graph, const KernelRegistry& kernels)
      : graph_(graph),
        kernels_(kernels),
        uses_(computeUseDef(graph)),
        is_output_(graph.values.size(), false) {
    for (const ValueId id : graph.outputs) is_output_[id.index()] = true;
  }

  int run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) take(NodeId(n));
    while (!open_.empty()) close(open_.begin());
    return replace();
  }

 private:
  using Place = std::list<Group>::iterator;

  bool mayJoin(const Node& node) const {
    // Of whole bytes, as rows must be.
    const auto is_plain = [&](ValueId id) {
      if (!id.valid()) return true;
      const size_t size = dataTypeSize(graph_.dataType(id));
      return size > 0 && hasStaticType(graph_.value(id)) &&
             graph_.bytes(id) == elementCount(graph_.shape(id)) * static_cast<int64_t>(size);
    };
    return worksOnRows(node) && kernels_.has(node.domain, node.op_type) && !node.outputs.empty() &&
           node.outputs[0].valid() && node.inputs.size() <= kMostChainOperands &&
           node.outputs.size() <= kMostChainOperands &&
           std::all_of(node.inputs.begin(), node.inputs.end(), is_plain) &&
           std::all_of(node.outputs.begin(), node.outputs.end(), is_plain) &&
           elementCount(graph_.shape(node.outputs[0])) >= kFewestElements;
  }

  // The open groups that make something that the node reads.
  std::vector<Place> groupsBefore(const Node& node) {
    std::vector<Place> found;
    for (auto group = open_.begin(); group != open_.end(); ++group) {
      const auto makes = [&](ValueId id) { return id.valid() && isMadeBy(*group, id); };
      if (std::any_of(node.inputs.begin(), node.inputs.end(), makes)) found.push_back(group);
    }
    return found;
  }

  bool isMadeBy(const Group& group, ValueId id) const {
    const NodeId producer = uses_.producer[id.index()];
    return producer.valid() &&
           std::find(group.nodes.begin(), group.nodes.end(), producer) != group.nodes.end();
  }

  void take(NodeId id) {
    const Node& node = graph_.node(id);
    const std::vector<Place> before = groupsBefore(node);
    std::optional<Group> joined;
    if (mayJoin(node)) joined = join(id, before);
    for (const Place& group : before) {
      if (joined) {
        open_.erase(group);
      } else {
        close(group);
      }
    }
    if (!joined && mayJoin(node)) {
      const std::vector<int64_t> rows = usableRows({id});
      if (!rows.empty()) joined = Group{{id}, rows};
    }
    for (auto group = open_.begin(); group != open_.end();) {
      const Place here = group++;
      if (++here->between > kMostBetween) close(here);
    }
    if (joined) open_.push_back(std::move(*joined));
  }

  // The groups and the node as one; nothing: no number of rows suits all.
  std::optional<Group> join(NodeId id, const std::vector<Place>& before) const {
    Group all;
    for (const Place& group : before)
      all.nodes.insert(all.nodes.end(), group->nodes.begin(), group->nodes.end());
    all.nodes.push_back(id);
    std::sort(all.nodes.begin(), all.nodes.end(), [](NodeId a, NodeId b) { return a.index() < b.index(); });
    if (all.nodes.size() > kMostOperators) return std::nullopt;
    all.rows = usableRows(all.nodes);
    return all.rows.empty() ? std::nullopt : std::optional(all);
  }

  std::vector<int64_t> usableRows(const std::vector<NodeId>& nodes) const {
    std::set<int64_t> counts;
    for (const NodeId id : nodes) {
      const std::vector<int64_t> more = rowCounts(graph_, graph_.node(id));
      counts.insert(more.begin(), more.end());
    }
    std::vector<int64_t> rows;
    std::copy_if(counts.begin(), counts.end(), std::back_inserter(rows),
                 [&](int64_t count) { return suits(nodes, count); });
    return rows;
  }

  // What one operator makes, others of the group read row by row.
  bool suits(const std::vector<NodeId>& nodes, int64_t rows) const {
    std::set<ValueId> made;
    for (const NodeId id : nodes) {
      const Node& node = graph_.node(id);
      const std::optional<NodeRows> seen = seeAsRows(graph_, node, rows);
      if (!seen) return false;
      const int64_t elements = elementCount(graph_.shape(node.outputs[0]));
      if (elements != rows && loopsOverRows(node, *seen) && !rowsOfWholeVectors(elements, rows)) return false;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i].valid() && made.contains(node.inputs[i]) && !seen->inputs_move[i]) return false;
      }
      for (const ValueId output : node.outputs) {
        if (!output.valid()) continue;
        if (graph_.bytes(output) / rows > kMostRowBytes) return false;
        made.insert(output);
      }
    }
    return true;
  }

  void close(Place group) {
    if (keepsOutOfMemory(group->nodes)) closed_.push_back(std::move(*group));
    open_.erase(group);
  }

  // Some tensor of theirs. A second reader of what is written anyway saves little: it finds it in a cache.
  bool keepsOutOfMemory(const std::vector<NodeId>& nodes) const {
    return std::any_of(nodes.begin(), nodes.end() - 1, [&](NodeId id) {
      const ValueId made = graph_.node(id).outputs[0];
      return !isReadOutside(made, nodes) && !uses_.consumers[made.index()].empty();
    });
  }

  // Is it read by others than these, or given by the graph?
  bool isReadOutside(ValueId id, const std::vector<NodeId>& nodes) const {
    const std::vector<NodeId>& readers = uses_.consumers[id.index()];
    return is_output_[id.index()] || std::any_of(readers.begin(), readers.end(), [&](NodeId reader) {
             return std::find(nodes.begin(), nodes.end(), reader) == nodes.end();
           });
  }

  bool isOwnConstant(ValueId id) const {
    const bool is_input = std::find(graph_.inputs.begin(), graph_.inputs.end(), id) != graph_.inputs.end();
    const Constant* constant = is_input ? nullptr : graph_.constant(id);
    return constant != nullptr && constant->bytes.size() <= kMostConstantBytes;
  }

  Node chainOf(const Group& group) const {
    std::vector<ValueId> inputs, outputs;
    std::set<ValueId> known;
    for (const NodeId id : group.nodes) {
      for (const ValueId input : graph_.node(id).inputs) {
        if (!input.valid() || isOwnConstant(input) || !known.insert(input).second) continue;
        inputs.push_back(input);
      }
      for (const ValueId output : graph_.node(id).outputs) {
        if (!output.valid()) continue;
        known.insert(output);
        if (isReadOutside(output, group.nodes)) outputs.push_back(output);
      }
    }
    Node node;
    node.domain = kPipeshardDomain;
    node.op_type = kChain;
    node.opset_version = 1;
    node.name = graph_.node(group.nodes.back()).name;
    node.inputs = inputs;
    node.outputs = outputs;
    node.attributes["rows"] = group.rows.back();
    node.attributes["body"] =
        std::make_shared<const Graph>(extractSubgraph(graph_, kChain, group.nodes, inputs, outputs));
    return node;
  }

  int replace() {
    if (closed_.empty()) return 0;
    std::vector<bool> is_gone(graph_.nodes.size(), false);
    for (const Group& group : closed_) {
      Node chain = chainOf(group);
      for (const NodeId id : group.nodes) is_gone[id.index()] = true;
      is_gone[group.nodes.back().index()] = false;
      chains_.emplace_back(group.nodes.back(), std::move(chain));
    }
    for (auto& [place, chain] : chains_) graph_.node(place) = std::move(chain);
    std::vector<Node> kept;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!is_gone[n]) kept.push_back(std::move(graph_.nodes[n]));
    }
    graph_.nodes = std::move(kept);
    return static_cast<int>(closed_.size());
  }

  Graph& graph_;
  const KernelRegistry& kernels_;
  const UseDef uses_;
  std::vector<bool> is_output_;  // by value
  std::list<Group> open_;        // nobody outside has read what they make
  std::vector<Group> closed_;
  std::vector<std::pair<NodeId, Node>> chains_;
};

}  // namespace

int groupChains(Graph& graph, const KernelRegistry& kernels) {
  const char* wanted = std::getenv("PIPESHARD_CHAINS");
  if (wanted != nullptr && std::string_view(wanted) == "off") return 0;
  return Grouper(graph, kernels).run();
}

bool isChain(const Node& node) { return node.domain == kPipeshardDomain && node.op_type == kChain; }

std::shared_ptr<const Graph> chainBody(const Node& node) {
  return std::get<std::shared_ptr<const Graph>>(node.attributes.at("body"));
}

int64_t chainRows(const Node& node) { return node.intAttribute("rows", 0); }

}  // namespace pipeshard::kernels
