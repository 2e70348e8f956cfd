// What one rank gets.
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "ir/program/program.h"

namespace pipeshard {

// Its program and the graphs of its subgraphs, in order.
struct RankProgram {
  Program program;
  std::vector<Graph> subgraphs;
};

}  // namespace pipeshard
