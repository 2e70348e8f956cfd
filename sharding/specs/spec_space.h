// All sharding specs that tensors of a rank may have on meshes of a rank, and the steps of resharding.h
// between them: the graph over which cheapest paths are searched. It knows no sizes, so one serves every
// tensor of its rank.
//
//   tensors of rank 1 on a mesh of 1 axis: specs "R", "R;P0", "S0";
//   steps: slice R->S0, keep one R->P0, all-gather S0->R, all-reduce P0->R, reduce-scatter P0->S0
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {

class SpecSpace {
 public:
  struct Edge {
    int from = 0;  // index into specs()
    int to = 0;
    ReshardingStep::Kind kind = ReshardingStep::Kind::kSlice;
    int mesh_axis = 0;
    int from_axis = -1;
    int to_axis = -1;
  };

  // Shared between callers and threads; made when it is first asked for. Error(kConfiguration) when there are
  // too many specs.
  static std::shared_ptr<const SpecSpace> of(size_t tensor_rank, int mesh_rank);

  SpecSpace(size_t tensor_rank, int mesh_rank);

  const std::vector<ShardingSpec>& specs() const { return specs_; }
  const std::vector<Edge>& edges() const { return edges_; }  // by source, in the order that decides ties
  // Of a well-formed spec (specFault).
  int find(const ShardingSpec& spec) const;
  // Indices of edges.
  std::pair<int, int> edgesFrom(int spec) const { return {first_out_[spec], first_out_[spec + 1]}; }
  const std::vector<int>& edgesInto(int spec) const { return into_[spec]; }

 private:
  uint64_t keyOf(const ShardingSpec& spec) const;
  void enumerate(ShardingSpec& spec, int mesh_axis);
  void addEdges(int from);
  void addEdge(Edge edge, const ShardingSpec& after);

  int tensor_rank_;
  int mesh_rank_;
  std::vector<ShardingSpec> specs_;
  std::unordered_map<uint64_t, int> index_;
  std::vector<Edge> edges_;
  std::vector<int> first_out_;
  std::vector<std::vector<int>> into_;
};

}  // namespace pipeshard
