// What a plan directory holds for a rank, in memory: its program and subgraphs.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/program/program.h"

namespace pipeshard {

// A rank's directory in memory.
struct RankImage {
  Program program;
  std::vector<Graph> subgraphs;  // by SubgraphId
  std::string directory;         // where relative weight locations start
};

// "0003": the name of a rank's folder under ranks/.
std::string rankDirectoryName(RankId rank);

// Reads program.json, and verifies what it says of this rank alone. Errors: kMissingInput, kConfiguration,
// kVersionMismatch, naming the file.
Program loadProgram(const std::string& directory);

// Reads program.json and the subgraphs. Errors: kMissingInput, kConfiguration, kVersionMismatch, kBadModel,
// naming the file.
RankImage loadRank(const std::string& directory);

// How many ranks a plan directory has. Error(kMissingInput) when it has none, kConfiguration when numbers are
// missing.
int countRanks(const std::string& plan_directory);

}  // namespace pipeshard
