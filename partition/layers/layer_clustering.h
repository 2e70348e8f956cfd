// Layer clustering: forward operators to layers, runs of consecutive nodes that stages are made of (Alpa,
// Zheng et al. 2022, section 5.2; facts in its released code).
//
// Given costs by position (forward nodes in an order that clusterOrder chose), `layers` and `tolerance`, the
// dynamic program finds the runs whose FLOPs are between (1 - tolerance) and (1 + tolerance) of the average
// and that minimise, lexicographically,
//   1. the largest number of bytes that cross into a layer,
//   2. their sum,
//   3. the variance of FLOPs,
//   4. the cuts' positions.
// (Without the lower bound the cheapest cuts would part off layers of next to nothing: a view of the inputs,
// the last addition.) O(nodes^2 * layers), less where the bounds on FLOPs cut.
//
// Repeated blocks (runs of structurally equal nodes, found by structuralKey, not by name) count as atoms:
// layers end at their borders, unless there are more layers than blocks, or no solution keeps the bounds.
// Where none does anyway (an operator is larger than a layer may be), the upper bound is the least that can
// be kept, and half the bounds' distance for what stands beside that operator; the lower one is the highest
// that can be kept then.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "partition/layers/layers.h"

namespace pipeshard {

// A run of equal blocks: positions [first, first + blocks * length). blocks == 0: there is none.
struct RepeatedBlocks {
  int64_t first = 0;
  int64_t length = 0;  // nodes of a block
  int64_t blocks = 0;
  friend bool operator==(const RepeatedBlocks&, const RepeatedBlocks&) = default;
};

struct ClusteringProblem {
  std::vector<int64_t> flops;      // by position, forward
  std::vector<int64_t> cut_bytes;  // by position: of the cut behind it (partition/layers/layers.h)
  std::vector<bool> may_end;       // by position: a layer may end here; empty: anywhere
  int layers = 1;
  double tolerance = 0.5;
};
// Empty when there is no solution within the tolerance.
LayerEnds clusterLayers(const ClusteringProblem& problem);

// clusterLayers; where one layer cannot keep within the tolerance whatever is done (an operator is larger),
// with the bounds next to it that can be kept. Empty: there are fewer places than layers.
LayerEnds clusterAsEvenlyAsPossible(const ClusteringProblem& problem);

struct ClusteringOptions {
  int layers = 0;  // 0: automatic
  double tolerance = 0.5;
  int most_layers = 64;  // of the automatic choice
};
struct Clustering {
  LayerEnds ends;  // in forwardNodes(training)
  // layers of equal numbers are structurally equal, with equal parameters, inputs and outputs
  IdVector<LayerId, int> kinds;
  RepeatedBlocks blocks;           // the run that covers the most FLOPs, of those of at least two blocks
  std::vector<std::string> notes;  // what the user should know ("layers end inside blocks: ...")
};
// Automatic: the repeated blocks, each a layer (or runs of as many as keep within most_layers), with what
// stands before and behind them joined to the first and last where it is small (half a block), else layers of
// their own; runs of other blocks before and behind likewise. Of fewer than 16 layers, blocks are cut in
// equal places where a cut costs no more than between them. Without repeats (less than half of the FLOPs),
// the largest number of layers whose largest cut is at most 1.5 times that of two layers, or 16, with cuts as
// cheap as these allow, if there are fewer.
// No layer ends between two uses of one running statistic (a batch normalisation that is called twice), nor
// between a copy of a weight and its first reader, so there may be fewer layers than asked for.
// Error(kConfiguration): more layers than forward nodes.
Clustering clusterTraining(const TrainingGraph& training, const ClusteringOptions& options);

}  // namespace pipeshard
