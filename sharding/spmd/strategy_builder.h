// Strategies of one operator on one mesh, with everything that they share looked up once. Internal to
// sharding.
#pragma once

#include <optional>
#include <vector>

#include "sharding/spmd/exchange_forms.h"
#include "sharding/spmd/strategy.h"

namespace pipeshard {

class StrategyBuilder {
 public:
  StrategyBuilder(const Graph& graph, const Node& node, const LogicalMesh& mesh);

  const std::optional<FactorRule>& rule() const { return rule_; }
  const std::vector<std::vector<int>>& linear() const { return linear_; }

  // The operator can share its work along the factor, devices permitting.
  bool canCut(int factor) const { return cuts_[factor].possible; }
  // Over so many devices.
  bool fits(int factor, int64_t devices) const;
  bool canPass(int list) const { return passes_[list]; }
  // The factor is whole in the rule and is cut by exchanging.
  bool exchanges(int factor) const { return cuts_[factor].exchange != nullptr; }

  bool exchangesAny(const std::vector<AxisUse>& uses) const;
  // Output `output` of the operator is a mean over the device's part: to be multiplied by the part's share.
  bool scalesMean(const std::vector<AxisUse>& uses, int output) const;
  // The factors over whose parts it is one.
  std::vector<int> meanFactors(const std::vector<AxisUse>& uses, int output) const;

  // nullopt where a use is not possible. An empty list replicates on all axes.
  std::optional<Strategy> make(const std::vector<AxisUse>& uses) const;

  // Devices that share the factor in these uses.
  int64_t devicesAlong(const std::vector<AxisUse>& uses, int factor) const;

 private:
  struct Cut {
    bool possible = false;
    std::vector<int64_t> merged;  // sizes of the axes that hold other factors beside it
    const ExchangeForm* exchange = nullptr;
    std::vector<std::pair<int, int>> in_inputs;  // (position, axis) that hold the factor
    std::vector<std::pair<int, int>> in_outputs;
    std::vector<int> partial_outputs;
  };
  void describeCut(int factor);
  bool findPlaces(int factor, const std::vector<TensorFactors>& tensors,
                  std::vector<std::pair<int, int>>& places);
  bool allows(const std::vector<AxisUse>& uses) const;
  void apply(Strategy& strategy, int mesh_axis, const AxisUse& use) const;
  bool isFloating(ValueId value) const { return isFloatingPoint(graph_.dataType(value)); }

  const Graph& graph_;
  const Node& node_;
  const LogicalMesh& mesh_;
  std::optional<FactorRule> rule_;
  std::vector<std::vector<int>> linear_;
  std::vector<Cut> cuts_;     // by factor
  std::vector<bool> passes_;  // by linear list
};

}  // namespace pipeshard
