// What one operator does to a batch that is cut along time: the factor rules read along the time axis.
// Internal to time_axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "sharding/batch/time_axis.h"

namespace pipeshard {

// What is known of a value beside its kind.
struct TimeFacts {
  TimeKind kind;
  // computed from batch inputs and constants alone: a prologue can compute it before the first forward
  bool batch_only = false;
  // every microbatch has its own (batch statistics): nothing that the loss needs may read it
  bool own = false;
  uint64_t uniform = 0;  // invariant values: bit a set when all entries along axis a are equal
};
using TimeFactsTable = std::vector<TimeFacts>;  // by value index

// All entries of an invariant value along `axis` are equal (so a part of it is like any other part).
bool isUniform(const Graph& graph, const TimeFactsTable& facts, ValueId value, size_t axis);

// The axes along which output `output` of a node with invariant inputs is uniform.
uint64_t uniformAxes(const Graph& graph, const TimeFactsTable& facts, const Node& node, size_t output);

// What becomes of one output.
enum class OutputChange : uint8_t {
  kSplit,  // cut along `axis`
  kSum,    // a partial sum
  kMean,   // the mean of a part: a partial sum after scaling by the part's share, rows / batch
  // a microbatch's own, by definition of the operator (the running statistics of a batch normalisation)
  kOwn,
};
struct OutputKind {
  OutputChange change = OutputChange::kSplit;
  int axis = -1;
};

// The outputs (by position; absent ones have any value) of a node of which some inputs are split and none is
// a sum. `one_example`: a microbatch is one example, so the cut may be along a factor of size 1; otherwise
// such factors are literal ones. `share`: the part of the batch that the graph holds. Throws
// BatchCutError by refuseTimeCut.
std::vector<OutputKind> cutNode(const Graph& graph, const TimeFactsTable& facts, const Node& node,
                                bool one_example, const BatchShare& share);

// Throws BatchCutError (time_axis.h) of the node, isMeeting(): examples meet there, whatever the size of the
// batch.
[[noreturn]] void refuseMeeting(const Node& node, const std::string& reason);

// Throws BatchCutError of the node, which does not say that examples meet.
[[noreturn]] void refuseTimeCut(
    const Node& node, const std::string& reason,
    const std::string& way_out = "change the model so that examples meet only in sums and means");

}  // namespace pipeshard
