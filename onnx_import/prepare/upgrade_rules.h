// What differs between an old node and the same in opset 18. Internal to upgrade.cc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

inline constexpr int kUpgradedTo = 18;

// A node that is being rewritten, and what is put around it.
class OldNode {
 public:
  using Attributes = std::map<std::string, Attribute>;

  // `known`: the graph with all types and ranks that can be found.
  OldNode(GraphBuilder& builder, const Graph& known, Node original);

  Node node;

  bool hasInput(size_t position) const {
    return position < node.inputs.size() && node.inputs[position].valid();
  }
  std::optional<int64_t> rank(size_t position) const;
  const Constant* constant(size_t position) const;

  void setInput(size_t position, ValueId value);
  // The list of integers `name` becomes input `position`. One that is empty says as much as one left out.
  void integersToInput(const std::string& name, size_t position);

  ValueId made(std::string_view name, Constant content);
  ValueId integers(std::string_view name, const std::vector<int64_t>& numbers);
  // A scalar of the type that input 0 has; where that is not known yet, it is found when it is.
  ValueId numberLikeInput(std::string_view name, float number);

  // The result of another node that runs before this one.
  ValueId before(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {});
  // Another node gives the output in this one's place, from what this one has given and other inputs.
  void after(std::string_view op_type, size_t output, const std::vector<ValueId>& others,
             Attributes attributes = {});

  void moveTo(std::vector<Node>& nodes);

 private:
  ValueId untyped(std::string_view name);
  Node other(std::string_view op_type, std::vector<ValueId> inputs, ValueId output,
             Attributes attributes) const;

  GraphBuilder& builder_;
  const Graph& known_;
  std::string prefix_;
  std::vector<Node> before_;
  std::vector<Node> after_;
};

struct UpgradeRule {
  int before = 0;                     // for nodes of older opsets than this
  bool (*apply)(OldNode&) = nullptr;  // false: the node keeps its version
};

// The rule for a standard node, or nullptr.
const UpgradeRule* findUpgrade(const Node& node);

}  // namespace pipeshard
