// The suites' models as training steps in layers, and the cluster they are planned for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "benchmarks/alpa_suite.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/training_graph.h"
#include "partition/layers/layer_clustering.h"

namespace pipeshard {

// So many V100 of the preset p3.16xlarge, with the memory that programs could have there: that of
// `plan --cluster p3.16xlarge:N --memory 15250489344`.
Cluster suiteCluster(int gpus);

// A model's training step at one number of microbatches, in layers.
struct Step {
  TrainingGraph training;
  Clustering clustering;
  double flops = 0;  // of a whole step, with recomputation
};

class Models {
 public:
  // The folder has graphs without weights, by SuiteModel::name(). Those that are missing are exported where
  // PIPESHARD_EXPORT_VENV names PyTorch's environment.
  explicit Models(std::string folder) : folder_(std::move(folder)) {}

  bool has(const SuiteModel& model) const;
  // Of the row's model, batch and layers. References stay valid.
  const Step& step(const SuiteRow& row, int64_t microbatches);

 private:
  std::string folder_;
  std::map<std::string, std::map<std::pair<int64_t, int>, std::unique_ptr<Step>>> steps_;
};

}  // namespace pipeshard
