#include "ir/training_family.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "ir/error.h"

namespace pipeshard {
namespace {

[[noreturn]] void refuseForm(const std::string& what, int64_t rows, int64_t base_rows) {
  fail(ErrorCode::kBadModel,
       "the model for {} examples has another form than for {}: {}; cut the batch into parts of equal size (microbatches that divide it, "
       "data-parallel devices that divide a microbatch)",
       rows, base_rows, what);
}

// By value index of `base`: the value of `other` with the same place. Nodes are matched by position, all else by name.
std::vector<ValueId> matchValues(const TrainingGraph& base, const TrainingGraph& other, int64_t rows, int64_t base_rows) {
  const Graph& a = base.graph;
  const Graph& b = other.graph;
  if (a.nodes.size() != b.nodes.size()) refuseForm(fmt::format("{} nodes, not {}", b.nodes.size(), a.nodes.size()), rows, base_rows);
  std::unordered_map<std::string_view, ValueId> names;
  for (size_t v = 0; v < b.values.size(); ++v) names.emplace(b.values[v].name, ValueId(v));
  std::vector<ValueId> result(a.values.size());
  for (size_t v = 0; v < a.values.size(); ++v) {
    const auto found = names.find(a.values[v].name);
    if (found != names.end()) result[v] = found->second;
  }
  for (size_t n = 0; n < a.nodes.size(); ++n) {
    const Node& x = a.nodes[n];
    const Node& y = b.nodes[n];
    const bool same = x.domain == y.domain && x.op_type == y.op_type && x.inputs.size() == y.inputs.size() &&
                      x.outputs.size() == y.outputs.size() && base.node_phase[n] == other.node_phase[n] &&
                      base.forward_node[n] == other.forward_node[n];
    if (!same) refuseForm(fmt::format("{} in the place of {}", describeNode(y), describeNode(x)), rows, base_rows);
    for (size_t i = 0; i < x.outputs.size(); ++i) {
      if (x.outputs[i].valid() != y.outputs[i].valid()) refuseForm(describeNode(y), rows, base_rows);
      if (x.outputs[i].valid()) result[x.outputs[i].index()] = y.outputs[i];
    }
    for (size_t i = 0; i < x.inputs.size(); ++i) {
      const bool constants = x.inputs[i].valid() && y.inputs[i].valid() && a.constant(x.inputs[i]) != nullptr;
      if (constants || (!x.inputs[i].valid() && !y.inputs[i].valid())) continue;
      if (!x.inputs[i].valid() || result[x.inputs[i].index()] != y.inputs[i]) {
        refuseForm(fmt::format("{} reads other values", describeNode(y)), rows, base_rows);
      }
    }
  }
  return result;
}

}  // namespace

Rows shareOf(Rows rows, int64_t index, int64_t parts) {
  const int64_t begin = index * rows.count / parts;
  const int64_t end = (index + 1) * rows.count / parts;
  return {rows.first + begin, end - begin};
}

TrainingFamily::TrainingFamily(int64_t batch, int64_t microbatches, Maker maker)
    : batch_(batch), microbatches_(microbatches), maker_(std::move(maker)) {
  PIPESHARD_CHECK(microbatches >= 1 && batch >= microbatches, "{} microbatches of a batch of {}", microbatches, batch);
}

TrainingFamily::TrainingFamily(TrainingGraph only) : batch_(only.microbatches), microbatches_(only.microbatches) {
  members_.emplace(1, std::make_unique<const Member>(Member{std::move(only), {}}));
}

const TrainingFamily::Member& TrainingFamily::member(int64_t rows) const {
  const auto found = members_.find(rows);
  if (found != members_.end()) return *found->second;
  PIPESHARD_CHECK(maker_ != nullptr && rows >= 1 && rows <= batch_, "no training graph of {} rows", rows);
  Member made{maker_(rows), {}};
  const int64_t base_rows = largestMicrobatch();
  if (rows != base_rows) made.value_of = matchValues(base(), made.training, rows, base_rows);
  return *members_.emplace(rows, std::make_unique<const Member>(std::move(made))).first->second;
}

ValueId TrainingFamily::valueAt(int64_t rows, ValueId base_value) const {
  const Member& found = member(rows);
  if (found.value_of.empty() || !base_value.valid()) return base_value;
  const ValueId value = found.value_of[base_value.index()];
  PIPESHARD_CHECK(value.valid(), "'{}' has no counterpart for {} rows", base().graph.value(base_value).name, rows);
  return value;
}

}  // namespace pipeshard
