#include "planning/model/sequence_lengths.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {
namespace {

// More would be of little use; a recording of a rank's programs has room for these (runtime/trace).
constexpr size_t kMostLengths = 12;

[[noreturn]] void refuseOther(const ForwardModel& model, int64_t length, const std::string& what) {
  fail(ErrorCode::kConfiguration,
       "with {0} = {1} the model is another than with {0} = {2}: {3}; the plan's stages and shardings do not "
       "say how to run it; plan for one length (--dim {0}={2})",
       model.length_dimension, length, model.dimensions.at(model.length_dimension), what);
}

void requireSameNodes(const ForwardModel& model, const Graph& shorter, int64_t length) {
  const Graph& longest = model.graph;
  const size_t count = std::min(longest.nodes.size(), shorter.nodes.size());
  for (size_t n = 0; n < count; ++n) {
    const Node& one = longest.nodes[n];
    const Node& other = shorter.nodes[n];
    const auto nameOf = [](const Graph& graph, const Node& node) {
      return graph.value(node.outputs.at(0)).name;
    };
    if (one.op_type == other.op_type && one.domain == other.domain &&
        nameOf(longest, one) == nameOf(shorter, other))
      continue;
    refuseOther(model, length,
                fmt::format("it has {} in place of {}", describeNode(other), describeNode(one)));
  }
  if (longest.nodes.size() != shorter.nodes.size())
    refuseOther(model, length,
                fmt::format("it has {} operators, not {}", shorter.nodes.size(), longest.nodes.size()));
}

// Sequences of the data are as long as the dimension says.
void requireSequences(const ForwardModel& model, const Graph& shorter, int64_t length) {
  const Graph& longest = model.graph;
  const int64_t whole = model.dimensions.at(model.length_dimension);
  bool any = false;
  for (const ValueId input : longest.inputs) {
    const std::string& name = longest.value(input).name;
    const ValueId other = findValue(shorter, name);
    if (!other.valid()) refuseOther(model, length, fmt::format("it has no input '{}'", name));
    if (longest.value(input).drawn) continue;
    const Shape& from = longest.shape(input);
    const Shape& to = shorter.shape(other);
    for (size_t axis = 0; axis < from.size(); ++axis) {
      if (from[axis] == to.at(axis)) continue;
      any = true;
      if (from[axis] == whole && to[axis] == length) continue;
      refuseOther(model, length,
                  fmt::format("axis {} of its input '{}' is {} there, which is no sequence of this length",
                              axis, name, to[axis]));
    }
  }
  if (any) return;
  fail(ErrorCode::kUsage, "--dim {}={},{}: no input of the model has this dimension, so that it has one size",
       model.length_dimension, length, whole);
}

}  // namespace

void takeLengths(const PlanRequest& request, ForwardModel& model) {
  model.length_dimension = request.length_dimension;
  model.shorter_lengths = request.shorter_lengths;
  if (request.length_dimension.empty() || model.dimensions.contains(request.length_dimension)) return;
  fail(ErrorCode::kUsage,
       "--dim {}: several sizes are for the length of sequences, which the model does not call so (it is a "
       "name of its batch)",
       request.length_dimension);
}

void requireShorterSequences(const ForwardModel& model) {
  const std::string& name = model.length_dimension;
  if (name.empty()) return;
  if (name == model.batch_dimension) {
    fail(ErrorCode::kUsage,
         "--dim {}: the batch has one size (--last-batch is for what does not fill it); several are for the "
         "length of sequences",
         name);
  }
  const auto longest = model.dimensions.find(name);
  if (longest == model.dimensions.end())
    fail(ErrorCode::kUsage, "--dim {}: the model has no such dimension", name);
  if (model.shorter_lengths.size() >= kMostLengths)
    fail(ErrorCode::kUsage, "--dim {}: found {} lengths; give at most {}", name,
         model.shorter_lengths.size() + 1, kMostLengths);
  int64_t before = longest->second;
  for (const int64_t length : model.shorter_lengths) {
    if (length >= before || length < 1)
      fail(ErrorCode::kUsage, "--dim {}: lengths of sequences are found in the order {}, {}; they descend",
           name, before, length);
    before = length;
    ofShorterSequences(model, length);
  }
}

ForwardModel ofShorterSequences(const ForwardModel& model, int64_t length) {
  ForwardModel shorter = model;
  shorter.dimensions[model.length_dimension] = length;
  shorter.shorter_lengths.clear();
  shorter.prepared = [prepared = model.prepared_at, length](int64_t rows) -> const Graph& {
    return prepared(rows, length);
  };
  shorter.graph =
      shorter.prepared(TrainingFamily(model.batch, model.microbatches, nullptr).largestMicrobatch());
  requireSequences(model, shorter.graph, length);
  requireSameNodes(model, shorter.graph, length);
  if (model.loss.valid()) shorter.loss = findValue(shorter.graph, lossName(model));
  return shorter;
}

}  // namespace pipeshard
