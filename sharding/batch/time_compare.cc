#include "sharding/batch/time_compare.h"

#include <cstring>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "ir/operators/operator_facts.h"

namespace pipeshard {

namespace {

OtherBatch::Comparison compareShapes(const Shape& shape, const Shape& other, const BatchShare& share) {
  OtherBatch::Comparison result{OtherBatch::Change::kNone, -1};
  for (int axis = 0; axis < std::ssize(shape); ++axis) {
    if (shape[axis] == other[axis]) continue;
    const bool grows = result.change == OtherBatch::Change::kNone &&
                       shape[axis] * share.other_rows == other[axis] * share.rows;
    if (!grows) return {OtherBatch::Change::kOther, -1};
    result = {OtherBatch::Change::kGrows, axis};
  }
  return result;
}

bool numbersPlaces(const Graph& graph, const Node& node) {
  if (node.is("ScatterND")) return true;
  return node.is("GatherND") && node.intAttribute("batch_dims", 0) == 0 &&
         graph.constant(node.inputs[1]) != nullptr;
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

const Node* OtherBatch::numberedElsewhere(const Graph& graph, const std::vector<ValueId>& values) const {
  if (other_ == nullptr) return nullptr;
  std::unordered_set<std::string_view> here;
  for (const Node& node : graph.nodes) {
    if (node.is("ScatterND") || node.is("GatherND")) here.insert(graph.value(node.outputs[0]).name);
  }
  std::vector<ValueId> namesakes;
  for (const ValueId value : values) {
    if (value.index() < namesake_.size() && namesake_[value.index()].valid())
      namesakes.push_back(namesake_[value.index()]);
  }
  const std::vector<bool> needed = ancestorsOf(*other_, namesakes);
  for (size_t n = 0; n < other_->nodes.size(); ++n) {
    const Node& node = other_->nodes[n];
    if (needed[n] && numbersPlaces(*other_, node) && !here.contains(other_->value(node.outputs[0]).name))
      return &node;
  }
  return nullptr;
}

bool areEqualExamples(const Constant& constant, int64_t rows, const Constant& other, int64_t other_rows,
                      size_t axis) {
  const size_t entry = rowMajorStrides(constant.shape)[axis] * dataTypeSize(constant.data_type);
  const size_t block = entry * constant.shape[axis];
  const size_t example = block / rows;
  if (example == 0) return true;
  const auto allLike = [&](const Constant& tested, int64_t tested_rows) {
    for (size_t start = 0; start < tested.bytes.size(); start += example) {
      const size_t outer = start / (example * tested_rows);
      if (std::memcmp(tested.bytes.data() + start, constant.bytes.data() + outer * block, example) != 0)
        return false;
    }
    return true;
  };
  return allLike(constant, rows) && allLike(other, other_rows);
}

bool numbersExamples(const Constant& constant, int64_t rows) {
  if (constant.data_type != DataType::kInt64 || rows == 0) return false;
  const std::vector<int64_t> numbers = integerElements(constant);
  const Shape strides = rowMajorStrides(constant.shape);
  for (size_t axis = 0; axis < constant.shape.size(); ++axis) {
    if (constant.shape[axis] != rows) continue;
    bool counts = true;
    for (int64_t i = 0; counts && i < std::ssize(numbers); ++i)
      counts = numbers[i] == i / strides[axis] % rows;
    if (counts) return true;
  }
  return false;
}

bool isShapeArgument(const Node& node, size_t input) {
  return operatorFacts(node).shape_inputs.contains(input);
}

}  // namespace pipeshard
