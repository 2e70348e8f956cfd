// Programs with every item of their lists.
#pragma once

#include <vector>

#include "partition/emit/rank_program.h"

namespace pipeshard::testing {

inline std::vector<RankProgram> unrolledPrograms(std::vector<RankProgram> ranks) {
  for (RankProgram& rank : ranks) {
    rank.program.buffers.unrolled();
    rank.program.instructions.unrolled();
  }
  return ranks;
}

}  // namespace pipeshard::testing
