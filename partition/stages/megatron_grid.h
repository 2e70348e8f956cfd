// Megatron's grid as options: pp equal stages (v of them on each pipeline rank with interleaving), each on dp
// x tp devices, sharded as Megatron does (sharding/stage/shard_stage.h: the batch over dp, matrix products
// column- then row-parallel over tp). After Narayanan et al. 2021, section 3: tensor-parallel groups
// innermost, so they stay inside a node as long as tp divides its devices; pipeline stages outermost.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pipeshard {

struct PartitionOptions;

struct MegatronGrid {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int chunks = 1;                                               // stages of each pipeline rank
  int deviceCount() const { return data * tensor * pipeline; }  // each is at most 1024
  friend bool operator==(const MegatronGrid&, const MegatronGrid&) = default;
};

// "megatron:2,2,4" is 2 x 2 devices in each of 4 stages; "megatron:1,2,4,2" has 8 stages on 4 pipeline ranks.
// nullopt for other texts, also for the two numbers of the method of one stage, "megatron:2,2".
// Error(kUsage): three or more that are no such numbers.
std::optional<MegatronGrid> parseMegatronGrid(std::string_view text);

std::string megatronGridToString(const MegatronGrid& grid);  // parse gives the same grid

// Where options.stages or options.method_grid is a grid: what it means in the options that there are
// (uniform stages, devices of each, the method of one stage, the schedule where none was asked for). Nothing
// happens elsewhere. Errors: kUsage (other options that say stages or methods), kConfiguration (more devices
// than the cluster has; a schedule of another number of stages per rank).
//   {.stages = megatron:2,2,2} on 1x8  ->
//   {.stages = uniform:2, .stage_devices = {4, 4}, .sharding = {.method = megatron:2,2}}
void useMegatronGrid(PartitionOptions& options);

}  // namespace pipeshard
