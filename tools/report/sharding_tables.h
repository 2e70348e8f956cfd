// Tables about shardings, for people.
#pragma once

#include <cstdint>
#include <string>

#include "partition/cut/shard_stages.h"

namespace pipeshard {

// A row per combination, best last: the spec of every input, cost, bytes that a device exchanges, memory. Of
// more than `most` rows the best.
std::string combinationTable(const StageCombinations& stage, size_t most);

}  // namespace pipeshard
