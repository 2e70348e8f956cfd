// A training step built by hand, for one rank or two:
//
//   h = x w0;  y = h w1;  loss = sum(y * y);  gradients of w0 and w1 by hand;  w -= rate * gradient
//
// Two ranks are a pipeline: rank 0 has w0, rank 1 has w1. expectedSteps computes the same in plain loops.
#pragma once

#include <string>
#include <vector>

#include "runtime/execute/rank_image.h"

namespace pipeshard {

struct PipelineOptions {
  DataType data_type = DataType::kFloat64;
  int64_t batch = 8;
  int64_t microbatches = 2;
  double rate = 0.01;
  bool endless = false;  // the last rank's forward subgraph holds an operator that takes minutes
};

inline constexpr int64_t kFeatures = 3;
inline constexpr int64_t kHidden = 5;
inline constexpr int64_t kOutputs = 2;

// The initial weights, row-major.
std::vector<double> initialWeights(int which);

// One image per rank.
std::vector<RankImage> pipelineImages(int ranks, const PipelineOptions& options = {});

// Writes a folder of programs (runtime/execute/rank_image.h), of a kind for each rank: kinds/NNNN.json is
// that of rank N, "subgraphs/NNNN_forward0.onnx" a subgraph of it.
void writePlanDirectory(const std::string& directory, const std::vector<RankImage>& images);

struct ExpectedStep {
  double loss = 0;
  std::vector<double> gradients[2];
  std::vector<double> weights[2];  // after the update
};
// The steps on synthetic data of that seed.
std::vector<ExpectedStep> expectedSteps(int steps, uint64_t seed, const PipelineOptions& options = {});

}  // namespace pipeshard
