// Tables about shardings, for people.
#pragma once

#include <cstdint>
#include <string>

#include "partition/stages/partition.h"

namespace pipeshard {

// "12.3 us", "4.56 ms".
std::string formatNanoseconds(int64_t ns);

// A row per combination, best last: the spec of every input, cost, bytes that a device exchanges, memory. Of
// more than `most` rows the best.
std::string combinationTable(const StageCombinations& stage, size_t most);

}  // namespace pipeshard
