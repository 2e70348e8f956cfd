#include "sharding/spmd/form_table.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {

void FormTable::add(std::string_view domain, std::string_view op_type, Form form) {
  const bool fresh = forms_.emplace(std::pair(std::string(domain), std::string(op_type)), form).second;
  PIPESHARD_CHECK(fresh, "two exchange forms for {}::{}", domain, op_type);
}

const Form* FormTable::find(const std::string& domain, const std::string& op_type) const {
  const auto found = forms_.find({domain, op_type});
  return found == forms_.end() ? nullptr : &found->second;
}

Shard FormContext::outputShard(size_t position) const {
  return shardOf(strategy.outputs.at(position), wholeOutput(position), exchange.mesh, exchange.device);
}

std::function<int64_t(DeviceId)> FormContext::startsOf(const ShardingSpec& spec, const Shape& whole,
                                                       size_t axis) const {
  return [spec, whole, axis, mesh = exchange.mesh](DeviceId device) {
    return shardOf(spec, whole, mesh, device).start[axis];
  };
}

std::vector<GroupId> FormContext::groupsOf(const std::vector<int>& factors) const {
  std::vector<GroupId> groups;
  for (size_t axis = 0; axis < strategy.uses.size(); ++axis) {
    const AxisUse& use = strategy.uses[axis];
    if (use.kind != AxisUse::Kind::kFactor ||
        std::find(factors.begin(), factors.end(), use.index) == factors.end())
      continue;
    if (exchange.mesh.axisSize(axis) > 1) groups.push_back(exchange.groups.group_of_axis.at(axis));
  }
  return groups;
}

std::string axisKey(const ShardingSpec& spec, const Shape& whole, size_t axis) {
  return fmt::format("{} along {}", whole[axis], fmt::join(spec.axes[axis], ","));
}

const ExchangeForm* wholeOutputs() {
  static const ExchangeForm form{{false, false, false}};
  return &form;
}

const ExchangeForm* partialOutput() {
  static const ExchangeForm form{{true}};
  return &form;
}

bool isReal(const Graph& graph, ValueId value) {
  const DataType type = graph.dataType(value);
  return type == DataType::kFloat32 || type == DataType::kFloat64;
}

bool isReducible(const Graph& graph, ValueId value) {
  const DataType type = graph.dataType(value);
  return isReal(graph, value) || isHalf(type) || type == DataType::kInt32 || type == DataType::kInt64;
}

int soleFactor(const TensorFactors& tensor, size_t axis) {
  return axis < tensor.size() && tensor[axis].size() == 1 ? tensor[axis].front() : -1;
}

}  // namespace pipeshard
