#include "sharding/time_compare.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

namespace pipeshard {

namespace {

WholeBatch::Comparison compareShapes(const Shape& part, const Shape& whole, int64_t microbatches) {
  WholeBatch::Comparison result{WholeBatch::Change::kNone, -1};
  for (size_t axis = 0; axis < part.size(); ++axis) {
    if (part[axis] == whole[axis]) continue;
    const bool grows = result.change == WholeBatch::Change::kNone && part[axis] * microbatches == whole[axis];
    if (!grows) return {WholeBatch::Change::kOther, -1};
    result = {WholeBatch::Change::kGrows, static_cast<int>(axis)};
  }
  return result;
}

}  // namespace

WholeBatch::WholeBatch(const Graph& microbatch, const Graph& whole, int64_t microbatches) : whole_(&whole) {
  std::unordered_map<std::string_view, ValueId> names;
  for (size_t v = 0; v < whole.values.size(); ++v) names.emplace(whole.values[v].name, ValueId(v));
  for (const Value& value : microbatch.values) {
    namesake_.emplace_back();
    comparisons_.emplace_back();
    const auto found = names.find(value.name);
    if (found == names.end()) continue;
    const Value& other = whole.value(found->second);
    if (!value.shape || !other.shape || other.shape->size() != value.shape->size() || other.data_type != value.data_type) continue;
    namesake_.back() = found->second;
    comparisons_.back() = compareShapes(*value.shape, *other.shape, microbatches);
  }
}

WholeBatch::Comparison WholeBatch::compare(ValueId value) const {
  return value.index() < comparisons_.size() ? comparisons_[value.index()] : Comparison();
}

const Constant* WholeBatch::constant(ValueId value) const {
  const bool known = value.index() < namesake_.size() && namesake_[value.index()].valid();
  return known ? whole_->constant(namesake_[value.index()]) : nullptr;
}

bool isRepetition(const Constant& part, const Constant& whole, size_t axis) {
  const size_t block = static_cast<size_t>(rowMajorStrides(part.shape)[axis] * part.shape[axis]) * dataTypeSize(part.data_type);
  if (block == 0) return true;
  const size_t repeats = whole.bytes.size() / part.bytes.size();
  for (size_t target = 0; target < whole.bytes.size(); target += block) {
    const size_t source = target / (block * repeats) * block;
    if (std::memcmp(whole.bytes.data() + target, part.bytes.data() + source, block) != 0) return false;
  }
  return true;
}

bool isShapeArgument(const Node& node, size_t input) {
  static const std::map<std::string_view, std::set<size_t>> kPositions = {
      {"Reshape", {1}}, {"Expand", {1}},          {"Tile", {1}},       {"Slice", {1, 2, 3, 4}}, {"Split", {1}},
      {"Squeeze", {1}}, {"Unsqueeze", {1}},       {"Pad", {1, 3}},     {"OneHot", {1}},         {"Trilu", {1}},
      {"CumSum", {1}},  {"ConstantOfShape", {0}}, {"Range", {0, 1, 2}}};
  if (!node.domain.empty()) return false;
  if (node.op_type.starts_with("Reduce")) return input == 1;
  const auto found = kPositions.find(node.op_type);
  return found != kPositions.end() && found->second.contains(input);
}

}  // namespace pipeshard
