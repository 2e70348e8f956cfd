// What ranks keep across steps: programs that work on the same tensors keep the same ones.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "ir/program/program_set.h"

namespace pipeshard {

// By name: type, whole shape, and where in it the rank's part lies (start, size).
using KeptTensors = std::map<std::string, std::tuple<DataType, Shape, Shape, Shape>>;

KeptTensors keptTensors(const ProgramSet& set, RankId rank);

}  // namespace pipeshard
