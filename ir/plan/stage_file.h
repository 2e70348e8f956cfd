// A stage file: stages written by hand, for `--stages FILE`. JSON with // comments; docs/stages.md explains
// every field.
//
//   {"version": 1,
//    "layers": 8,                                          // how many layers the operators are grouped into
//    "stages": [
//      {"layers": "0..2", "devices": [0]},                 // the first three of them, on device 0
//      {"layers": "3..7", "devices": [1, 2, 3], "mesh": [3, 1], "sharding": {"method": "data-parallel"}}]}
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/plan/plan.h"

namespace pipeshard {

inline constexpr int kStageFileVersion = 1;

struct StageSpec {
  LayerId first_layer;  // inclusive; when StageFile::layers > 0
  LayerId last_layer;
  // otherwise: the value at which the stage ends; "" for the last stage: the rest
  std::string until;
  // ranks, at least one; two stages share all of them (one pipeline rank) or none
  std::vector<RankId> devices;
  // {data, model}, the product is the number of devices; {1, n} when operators are sharded. A file may say
  // one axis alone: of data, or of the model under "replicated"
  std::vector<int> mesh_shape;
  // The stage's operators are sharded so, on this mesh (empty: the best). Nothing: they are not, as the
  // file's words "data-parallel" and "replicated" say, or nothing is said.
  std::optional<ShardingMethod> method;
  std::vector<int> logical_mesh;
  bool undecided = false;  // the file says neither mesh nor sharding
};

struct StageFile {
  std::string name;  // as in messages
  int layers = 0;    // the stages hold these layers exactly, in order; 0: the stages end at named values
  std::vector<StageSpec> stages;
};

// Reads and checks all that needs no model: types, layers without gap or overlap, devices of the cluster,
// which stages share as a whole or not at all, in use without gaps (0..n-1), submeshes that fit into nodes,
// meshes. `what` (the file's name) starts every message; `layers` is what --layers says, 0 if it does not.
// Throws Error(kConfiguration) naming the field ("stages[1].devices[0]"), what was found and what is allowed;
// Error(kVersionMismatch).
StageFile parseStageFile(std::string_view text, std::string_view what, const Cluster& cluster,
                         int layers = 0);

}  // namespace pipeshard
