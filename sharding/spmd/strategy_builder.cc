#include "sharding/spmd/strategy_builder.h"

#include <algorithm>

#include "ir/operators/operator_facts.h"
#include "sharding/spmd/linearity.h"

namespace pipeshard {

namespace {

// Every part would draw other numbers than the whole does.
bool drawsRandomNumbers(const Graph& graph, const Node& node) {
  if (!node.is("Dropout") || node.inputs.size() < 3 || !node.inputs[2].valid()) return false;
  const Constant* training = graph.constant(node.inputs[2]);
  return training == nullptr || numericElements(*training) != std::vector<double>{0};
}

// A mean over labels divides by what the labels weigh, which differs from part to part; others by the number
// of elements.
bool meansByShare(const Node& node) {
  if (!operatorFacts(node).takes_labels) return true;
  const bool ours = node.domain == kPipeshardDomain;
  const bool weighted = node.inputs.size() > 2 && node.inputs[2].valid();
  const bool ignores =
      ours ? node.intAttribute("has_ignore_index", 0) != 0 : node.hasAttribute("ignore_index");
  return !weighted && !ignores;
}

}  // namespace

StrategyBuilder::StrategyBuilder(const Graph& graph, const Node& node, const LogicalMesh& mesh)
    : graph_(graph), node_(node), mesh_(mesh), rule_(factorRule(graph, node)) {
  if (!rule_) return;
  cuts_.resize(rule_->factors.size());
  const bool random = drawsRandomNumbers(graph, node);
  for (int factor = 0; factor < std::ssize(cuts_) && !random; ++factor) describeCut(factor);
  linear_ = linearInputs(graph, node);
  for (const std::vector<int>& list : linear_) {
    const bool inputs =
        std::all_of(list.begin(), list.end(), [&](int p) { return isFloating(node.inputs[p]); });
    const bool outputs = std::all_of(node.outputs.begin(), node.outputs.end(),
                                     [&](ValueId id) { return !id.valid() || isFloating(id); });
    passes_.push_back(inputs && outputs && !random);
  }
}

// False where a tensor holds the factor at two axes, or not as the major part of one.
bool StrategyBuilder::findPlaces(int factor, const std::vector<TensorFactors>& tensors,
                                 std::vector<std::pair<int, int>>& places) {
  Cut& cut = cuts_[factor];
  for (size_t position = 0; position < tensors.size(); ++position) {
    bool found = false;
    for (size_t axis = 0; axis < tensors[position].size(); ++axis) {
      const std::vector<int>& factors = tensors[position][axis];
      const auto large = [&](int other) { return rule_->factors[other].size > 1; };
      if (std::find(factors.begin(), factors.end(), factor) == factors.end()) continue;
      if (found || *std::find_if(factors.begin(), factors.end(), large) != factor) return false;
      found = true;
      if (std::count_if(factors.begin(), factors.end(), large) > 1) {
        int64_t size = 1;
        for (const int other : factors) size *= rule_->factors[other].size;
        cut.merged.push_back(size);
      }
      places.emplace_back(position, axis);
    }
  }
  return true;
}

void StrategyBuilder::describeCut(int factor) {
  const FactorKind kind = rule_->factors[factor].kind;
  Cut& cut = cuts_[factor];
  if (rule_->factors[factor].size < 2) return;
  const bool added_once = rule_->added_once && rule_->added_once->factor == factor;
  const bool sums =
      kind == FactorKind::kSum || added_once || (kind == FactorKind::kMean && meansByShare(node_));
  if (kind != FactorKind::kParallel && !sums) {
    cut.exchange = exchangeForm(graph_, node_, *rule_, factor);
    if (cut.exchange == nullptr) return;
  }
  if (!findPlaces(factor, rule_->inputs, cut.in_inputs) ||
      !findPlaces(factor, rule_->outputs, cut.in_outputs))
    return;
  if (cut.in_inputs.empty() && cut.in_outputs.empty()) return;
  for (int output = 0; output < std::ssize(node_.outputs); ++output) {
    const size_t o = output;
    const bool held = std::any_of(cut.in_outputs.begin(), cut.in_outputs.end(),
                                  [&](auto place) { return place.first == output; });
    if (held || !node_.outputs[o].valid()) continue;
    if (cut.exchange == nullptr && !sums) return;
    const bool complete = cut.exchange != nullptr &&
                          (o >= cut.exchange->partial_outputs.size() || !cut.exchange->partial_outputs[o]);
    if (complete) continue;  // exchanging made it so
    if (!isFloating(node_.outputs[o])) return;
    cut.partial_outputs.push_back(output);
  }
  cut.possible = true;
}

bool StrategyBuilder::fits(int factor, int64_t devices) const {
  const Cut& cut = cuts_[factor];
  const int64_t size = rule_->factors[factor].size;
  const int64_t units = size / mesh_.unit(size);
  if (!cut.possible || units < devices) return false;
  // A cut of the factor is one of the axis where both have as many units, or all parts are equal.
  return std::all_of(cut.merged.begin(), cut.merged.end(), [&](int64_t axis) {
    const int64_t of_axis = axis / mesh_.unit(axis);
    return of_axis == units || (units % devices == 0 && of_axis % devices == 0);
  });
}

int64_t StrategyBuilder::devicesAlong(const std::vector<AxisUse>& uses, int factor) const {
  int64_t devices = 1;
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    if (uses[axis].kind == AxisUse::Kind::kFactor && uses[axis].index == factor)
      devices *= mesh_.axisSize(axis);
  }
  return devices;
}

bool StrategyBuilder::exchangesAny(const std::vector<AxisUse>& uses) const {
  return std::any_of(uses.begin(), uses.end(), [&](const AxisUse& use) {
    return use.kind == AxisUse::Kind::kFactor && exchanges(use.index);
  });
}

std::vector<int> StrategyBuilder::meanFactors(const std::vector<AxisUse>& uses, int output) const {
  std::vector<int> factors;
  if (!rule_ || exchangesAny(uses)) return factors;  // an exchange form gives what is wanted
  for (int factor = 0; factor < std::ssize(cuts_); ++factor) {
    const bool mean = rule_->factors[factor].kind == FactorKind::kMean;
    if (!mean || devicesAlong(uses, factor) == 1) continue;
    const std::vector<int>& lacking = cuts_[factor].partial_outputs;
    if (std::find(lacking.begin(), lacking.end(), output) != lacking.end()) factors.push_back(factor);
  }
  return factors;
}

bool StrategyBuilder::scalesMean(const std::vector<AxisUse>& uses, int output) const {
  return !meanFactors(uses, output).empty();
}

bool StrategyBuilder::allows(const std::vector<AxisUse>& uses) const {
  if (!uses.empty() && std::ssize(uses) != mesh_.rank()) return false;
  for (const AxisUse& use : uses) {
    if (use.kind == AxisUse::Kind::kReplicate) continue;
    const int choices = use.kind == AxisUse::Kind::kFactor ? cuts_.size() : passes_.size();
    if (use.index < 0 || use.index >= choices) return false;
    if (use.kind == AxisUse::Kind::kPass ? !canPass(use.index)
                                         : !fits(use.index, devicesAlong(uses, use.index)))
      return false;
  }
  return true;
}

void StrategyBuilder::apply(Strategy& strategy, int mesh_axis, const AxisUse& use) const {
  if (use.kind == AxisUse::Kind::kReplicate) return;
  if (use.kind == AxisUse::Kind::kPass) {
    for (int input : linear_[use.index]) strategy.inputs[input].partial.push_back(mesh_axis);
    for (size_t output = 0; output < node_.outputs.size(); ++output) {
      if (node_.outputs[output].valid()) strategy.outputs[output].partial.push_back(mesh_axis);
    }
    return;
  }
  const Cut& cut = cuts_[use.index];
  const auto cutAt = [&](std::vector<ShardingSpec>& specs, const std::pair<int, int>& place) {
    specs[place.first].axes[place.second].push_back(mesh_axis);
  };
  for (const auto& place : cut.in_inputs) cutAt(strategy.inputs, place);
  for (const auto& place : cut.in_outputs) cutAt(strategy.outputs, place);
  for (int output : cut.partial_outputs) strategy.outputs[output].partial.push_back(mesh_axis);
  if (rule_->added_once && rule_->added_once->factor == use.index) {
    strategy.inputs[rule_->added_once->input].partial.push_back(mesh_axis);
  }
}

std::optional<Strategy> StrategyBuilder::make(const std::vector<AxisUse>& uses) const {
  if (!allows(uses)) return std::nullopt;
  Strategy strategy;
  strategy.uses = uses;
  strategy.uses.resize(mesh_.rank());
  const auto whole = [&](ValueId id) {
    return id.valid() ? replicated(graph_.shape(id).size()) : ShardingSpec();
  };
  strategy.inputs.reserve(node_.inputs.size());
  strategy.outputs.reserve(node_.outputs.size());
  for (ValueId id : node_.inputs) strategy.inputs.push_back(whole(id));
  for (ValueId id : node_.outputs) strategy.outputs.push_back(whole(id));
  for (size_t axis = 0; axis < uses.size(); ++axis) apply(strategy, axis, uses[axis]);
  return strategy;
}

}  // namespace pipeshard
