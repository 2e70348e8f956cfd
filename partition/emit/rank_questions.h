// What an emission has asked about its own rank, so that other ranks can be asked the same.
//
// Emission is one procedure for all ranks: whatever differs from rank to rank follows from the answers to
// questions about the rank's place (which part of this tensor is its own, who gets this piece of it). So the
// program of one rank is that of another, too, if all answers are *alike* in what decides about instructions
// (sizes, how many pieces); what is then the other rank's own are the peers, groups, starts and constants in
// its answers.
//
//   asked by rank 0 of a stage of two: "part S0 of [8,6]": alike {4,6}, start {0,0}
//   rank 1 answers alike {4,6}, start {4,0}: it is of rank 0's kind
// Internal to partition/emit/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/ids.h"
#include "ir/base/shape.h"
#include "ir/graph/graph.h"
#include "ir/program/program_set.h"

namespace pipeshard {

struct RankAnswer {
  std::vector<int64_t> alike = {};  // equal on ranks of one kind
  std::vector<RankId> peers = {};
  std::vector<Shape> starts = {};
  std::vector<std::vector<RankId>> groups = {};
  std::vector<Constant> constants = {};
};

// The entry of ProgramSet::groups that is this one; made where there is none.
size_t groupIn(ProgramSet& set, const std::vector<RankId>& group);

class RankQuestions {
 public:
  using Question = std::function<RankAnswer(RankId)>;

  explicit RankQuestions(RankId rank) : rank_(rank) {}

  // Asks the emission's own rank, once per key. Returns the entry of RankBinding::starts that has the first
  // of the answer's starts; those behind it follow.
  int ask(const std::string& key, Question question);
  // Asks for a constant of subgraphs. Returns the rank's own.
  const Constant& askConstant(const std::string& key, std::function<Constant(RankId)> of);
  // The entry of RankBinding::constants that has what was asked for.
  size_t constantSlot(const std::string& key) const { return constants_.at(key).slot; }
  // Equal for a rank and each of its peers, on ranks of one kind.
  void requireOfPeers(std::function<int64_t(RankId rank, RankId peer)> of) {
    of_peers_.push_back(std::move(of));
  }
  // Two buffers have one name because their parts begin at the same place: so they do on ranks of this kind.
  void requireEqual(int start, int other) {
    if (start != other) equal_.emplace_back(start, other);
  }
  // Two buffers of one tensor and size have two names.
  void requireDistinct(int start, int other) {
    if (start != other) distinct_.emplace_back(start, other);
  }

  // What is the rank's own, if a program that the answers gave is its program too. `of_kind`: peersOf it.
  // Groups are put into `set`.
  std::optional<RankBinding> bindingOf(RankId rank, const std::vector<RankId>& of_kind,
                                       ProgramSet& set) const;

 private:
  struct Asked {
    Question question;
    RankAnswer own;
  };

  RankId rank_;
  std::vector<Asked> asked_;
  struct OwnedConstant {
    size_t slot;
    Constant own;
  };
  std::map<std::string, OwnedConstant> constants_;  // by key
  std::map<std::string, int> first_start_;          // by key
  int starts_ = 0;
  std::vector<std::pair<int, int>> equal_, distinct_;
  std::vector<std::function<int64_t(RankId, RankId)>> of_peers_;
};

}  // namespace pipeshard
