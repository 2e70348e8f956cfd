// What one rank gets.
#pragma once

#include <memory>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/program/program.h"
#include "ir/program/program_set.h"

namespace pipeshard {

// Its program and the graphs of its subgraphs, in order.
struct RankProgram {
  Program program;
  std::vector<Graph> subgraphs;
};

// What all ranks get, each thing once.
struct EmittedPrograms {
  ProgramSet set;
  IdVector<KindId, std::shared_ptr<const std::vector<Graph>>> subgraphs;  // kinds may share theirs
  // Microbatches whose instructions were emitted one by one; the others were prolonged from these.
  int emitted_microbatches = 0;

  size_t size() const { return set.ranks.size(); }  // of ranks
  bool empty() const { return set.ranks.empty(); }
  // A rank's own, its lists in full.
  RankProgram of(RankId rank) const;
  IdVector<RankId, RankProgram> ofAllRanks() const;
};

}  // namespace pipeshard
