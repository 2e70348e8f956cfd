// ranks.json: which kind each rank of a job is of, and what is its own. Beside kinds/, which has the programs
// (ir/program/program_json.h).
//
//   {"version": 6, "ranks": 4,
//    "whole": {"kinds": 1, "groups": [[0,1,2,3]], "starts": [[0,0],[2,0],[4,0],[6,0]],
//              "bindings": [{"kind": 0, "peers": [], "groups": [0], "starts": [0]}, ...]},
//    "last_batch": {...}, "shorter": [{...}, ...]}
//
// Equal starts are written once; bindings name them by position. Where ranks have constants of their own,
// both have "constants", likewise.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ir/program/program_set.h"

namespace pipeshard {

// A ProgramSet whose kinds are elsewhere.
struct BindingTable {
  size_t kinds = 0;
  std::vector<std::vector<RankId>> groups;
  IdVector<RankId, RankBinding> ranks;
};

struct RankTables {
  BindingTable whole;                // of whole batches
  std::optional<BindingTable> last;  // of the shorter batch that ends an epoch; as many ranks
  // of whole batches of shorter sequences, by StepSize::length from 1 on; as many ranks
  std::vector<BindingTable> shorter = {};
};

BindingTable bindingsOf(const ProgramSet& set);

std::string rankTablesToJson(const RankTables& tables);
// Positions are checked; what else must hold of a binding is for verifyBinding. Error(kConfiguration) naming
// the field; version mismatch: Error(kVersionMismatch).
RankTables rankTablesFromJson(std::string_view text);

}  // namespace pipeshard
