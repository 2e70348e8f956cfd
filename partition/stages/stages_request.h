// --stages: who says where stages end and which devices they have. As a value, with its text and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "partition/stages/megatron_grid.h"

namespace pipeshard {

struct StagesRequest {
  enum class Kind : uint8_t {
    kPerDevice,  // "per-device": one stage per device and chunk
    kUniform,    // "uniform:K": K stages in all
    kGrid,       // "megatron:2,2,4": useMegatronGrid makes uniform ones of it
    kFile,       // the path of a stage file (ir/plan/stage_file.h): every other text
    kSearched,   // "auto": as PartitionOptions::chosen says
  };
  Kind kind = Kind::kPerDevice;
  int count = 0;           // kUniform
  MegatronGrid grid = {};  // kGrid
  std::string file = {};   // kFile
};
// Error(kUsage) for a grid that is none.
StagesRequest parseStages(std::string_view text);
std::string stagesToString(const StagesRequest& stages);  // parse gives the same request
StagesRequest uniformStages(int count);

}  // namespace pipeshard
