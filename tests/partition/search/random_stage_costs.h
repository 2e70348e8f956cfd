// Stage costs drawn at random, for tests of stage assignment: any options, transfers that depend on all they
// may.
#pragma once

#include <map>
#include <random>
#include <vector>

#include "ir/cluster/cluster.h"
#include "partition/costs/stage_costs.h"

namespace pipeshard {

struct RandomCostsShape {
  int layers = 3;
  int most_options = 3;      // of a range of layers on a submesh: 0 to these
  int boundaries = 2;        // that options have
  int most_ns = 20;          // of a layer's pass on one device; small numbers make ties
  int64_t memory = 0;        // 0: no limit
  bool own_classes = false;  // every submesh is a class of its own
};

class RandomStageCosts : public StageCosts {
 public:
  RandomStageCosts(const Cluster& cluster, const RandomCostsShape& shape, unsigned seed);

  int layers() const override { return shape_.layers; }
  int submeshClass(const Submesh& submesh) const override { return classes_.at(submesh); }
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override;
  int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                   int to_boundary) const override;
  int64_t memoryBytes(const Submesh& submesh) const override;

 private:
  const Cluster& cluster_;
  RandomCostsShape shape_;
  std::map<Submesh, int> classes_;
  std::map<std::vector<int>, std::vector<StageOption>> options_;  // by first layer, last layer, class
  std::map<std::vector<int>, int64_t> transfers_;                 // by layer, classes, boundaries, same node
};

}  // namespace pipeshard
