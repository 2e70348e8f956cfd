#include "sharding/batch/time_compare.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

namespace pipeshard {

namespace {

OtherBatch::Comparison compareShapes(const Shape& shape, const Shape& other, const BatchShare& share) {
  OtherBatch::Comparison result{OtherBatch::Change::kNone, -1};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == other[axis]) continue;
    const bool grows = result.change == OtherBatch::Change::kNone &&
                       shape[axis] * share.other_rows == other[axis] * share.rows;
    if (!grows) return {OtherBatch::Change::kOther, -1};
    result = {OtherBatch::Change::kGrows, static_cast<int>(axis)};
  }
  return result;
}

}  // namespace

OtherBatch::OtherBatch(const Graph& graph, const BatchShare& share) : other_(share.other) {
  std::unordered_map<std::string_view, ValueId> names;
  for (size_t v = 0; v < other_->values.size(); ++v) names.emplace(other_->values[v].name, ValueId(v));
  for (const Value& value : graph.values) {
    namesake_.emplace_back();
    comparisons_.emplace_back();
    const auto found = names.find(value.name);
    if (found == names.end()) continue;
    const Value& namesake = other_->value(found->second);
    if (!value.shape || !namesake.shape || namesake.shape->size() != value.shape->size() ||
        namesake.data_type != value.data_type)
      continue;
    namesake_.back() = found->second;
    comparisons_.back() = compareShapes(*value.shape, *namesake.shape, share);
  }
}

OtherBatch::Comparison OtherBatch::compare(ValueId value) const {
  return value.index() < comparisons_.size() ? comparisons_[value.index()] : Comparison();
}

const Constant* OtherBatch::constant(ValueId value) const {
  const bool known = value.index() < namesake_.size() && namesake_[value.index()].valid();
  return known ? other_->constant(namesake_[value.index()]) : nullptr;
}

bool areEqualExamples(const Constant& constant, int64_t rows, const Constant& other, int64_t other_rows,
                      size_t axis) {
  const size_t entry =
      static_cast<size_t>(rowMajorStrides(constant.shape)[axis]) * dataTypeSize(constant.data_type);
  const size_t block = entry * static_cast<size_t>(constant.shape[axis]);
  const size_t example = block / static_cast<size_t>(rows);
  if (example == 0) return true;
  const auto allLike = [&](const Constant& tested, int64_t tested_rows) {
    for (size_t start = 0; start < tested.bytes.size(); start += example) {
      const size_t outer = start / (example * static_cast<size_t>(tested_rows));
      if (std::memcmp(tested.bytes.data() + start, constant.bytes.data() + outer * block, example) != 0)
        return false;
    }
    return true;
  };
  return allLike(constant, rows) && allLike(other, other_rows);
}

bool isShapeArgument(const Node& node, size_t input) {
  static const std::map<std::string_view, std::set<size_t>> kPositions = {
      {"Reshape", {1}},    {"Expand", {1}},  {"Tile", {1}},      {"Slice", {1, 2, 3, 4}},
      {"Split", {1}},      {"Squeeze", {1}}, {"Unsqueeze", {1}}, {"Pad", {1, 3}},
      {"OneHot", {1}},     {"Trilu", {1}},   {"CumSum", {1}},    {"ConstantOfShape", {0}},
      {"Range", {0, 1, 2}}};
  if (!node.domain.empty()) return false;
  if (node.op_type.starts_with("Reduce")) return input == 1;
  const auto found = kPositions.find(node.op_type);
  return found != kPositions.end() && found->second.contains(input);
}

}  // namespace pipeshard
