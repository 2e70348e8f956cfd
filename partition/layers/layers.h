// Layers: runs of consecutive forward nodes, the unit that stages are made of.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/base/ids.h"
#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"

namespace pipeshard {

// The last position of each layer, in an order of forward nodes: the layers.
using LayerEnds = IdVector<LayerId, int64_t>;

// Forward FLOPs of each forward node, by position; none where a weight is only moved or cast.
std::vector<int64_t> forwardFlops(const TrainingGraph& training, const std::vector<NodeId>& forward);

// By position i: bytes of all values that forward nodes up to i make and forward nodes after i read: what a
// cut behind i costs per microbatch, once for each value.
std::vector<int64_t> cutBytes(const TrainingGraph& training, const std::vector<NodeId>& forward);

// By position: where what the node takes counts. For a copy of a weight (ir/graph/weight_copies.h) that is
// the first node that reads it, since the copy is made in the stage of its reader; for all others it is the
// node itself.
std::vector<size_t> countingPositions(const TrainingGraph& training, const std::vector<NodeId>& forward);

// By position: may a stage end behind it? Not between a copy of a weight and its first reader.
std::vector<bool> possibleEnds(const std::vector<size_t>& counting_positions);

// By position: may a stage end behind it? Not between where a running statistic is first read and where its
// last use updates it (a batch normalisation that is called twice): one stage must have both, or every
// microbatch would wait for the one before.
std::vector<bool> endsBesideStatistics(const TrainingGraph& training, const std::vector<NodeId>& forward);

// Cuts the nodes into exactly `layers` layers; returns the last position of each. Cut i of L aims at i/L of
// the cumulative FLOPs. Of the positions less than half an average layer away from the aim it takes the one
// with the fewest cut bytes, then the nearest, then the earliest; if there is none (one node is larger than a
// layer), the nearest. No layer is empty. Layers end where they may (`may_end`, by position; empty:
// anywhere), and at the last position; anywhere, if that leaves fewer places than layers. Requires 1 <=
// layers <= flops.size() and cut_bytes.size() == flops.size().
//   formLayers({1,1,1,1}, {4,9,4,0}, 2) == {1,3}
//   formLayers({1,1,1,1,1,1,1,1}, {9,9,5,9,9,9,9,0}, 2) == {2,7}
LayerEnds formLayers(const std::vector<int64_t>& flops, const std::vector<int64_t>& cut_bytes, int layers,
                     const std::vector<bool>& may_end = {});

}  // namespace pipeshard
