// What stages cost, made up: for tests of searches, whose answers must be right whatever costs are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "partition/search/plan_prediction.h"

namespace pipeshard {

// Every layer has a time; a stage of n devices takes 1/n of its layers' and a share for each device more.
// Layers, times and sizes are drawn from the seed. A stage of several devices has two boundaries, and every
// stage may recompute: a third more time, a quarter of what is held.
class CostTable : public StageCosts {
 public:
  struct Size {
    int layers = 4;
    int64_t memory_bytes = INT64_MAX;
    int64_t microbatches = 1;  // times and activations are of a microbatch, 1/microbatches of the batch's
  };
  CostTable(uint64_t seed, const Size& size);

  int layers() const override { return size_.layers; }
  int submeshClass(const Submesh& submesh) const override {
    return submesh.nodes * 1000 + submesh.devices_per_node;
  }
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override;
  int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                   int to_boundary) const override;
  int64_t memoryBytes(const Submesh&) const override { return size_.memory_bytes; }

  StageConfig config(int config) const;
  StageCostParts parts(const StageOption& option) const;

 private:
  Size size_;
  std::vector<int64_t> time_, weight_, activation_, cut_;  // by layer
  mutable std::map<std::tuple<int, int, int>, std::vector<StageOption>> options_;
};

CountedCosts countedCosts(std::shared_ptr<const CostTable> table);

}  // namespace pipeshard
