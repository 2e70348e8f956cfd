// The dynamic program of stage assignment, under one bound. Private to stage assignment; the objective is put
// together above it.
//
// value(k, i, m, b): of layers i and what follows on exactly k stages, the first of them on submesh m with
// boundary b. From the last stage to the first, since the memory of a stage depends on how many are behind
// it. O(stages * layers^2 * submeshes * choices), a choice being an option that no other of its boundary
// beats under the bound.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "partition/search/assignment_tables.h"

namespace pipeshard {

enum class AssignmentGoal : uint8_t {
  kLeastSum,  // of sum_s (t_s + x_s), where every slowestPart is at most the bound
  // max_s slowestPart; kFlush leaves transfers out (a lower bound where they are exposed), and knows no bound
  kLeastSlowest,
};

class AssignmentSolver {
 public:
  AssignmentSolver(const AssignmentRequest& request, const AssignmentTables& tables)
      : request_(request),
        tables_(tables),
        threads_(tables.layers * tables.meshes.size() < kWorthAThread ? 1 : request.threads) {}

  // False: interrupted; nothing below may be asked. Plans of value `limit` or more are of no interest, and
  // may be missed.
  bool solve(AssignmentGoal goal, int64_t bound, int64_t limit = kNever);
  int64_t value(int stages) const;  // kNever: there is no such plan
  Assignment plan(int stages) const;
  int64_t states() const { return states_; }  // that can be, in all solves so far

 private:
  static constexpr size_t kWorthAThread = 1'000;  // layers * submeshes: below, threads cost more than they do

  // An option under the bound.
  struct Choice {
    int64_t cost = 0;           // what the goal adds up, or takes the maximum of
    int64_t most_transfer = 0;  // that keeps the bound
    int64_t most_in_flight = 0;
    int boundary = 0;
    int option = 0;  // in the table's list
  };
  struct Entry {
    int64_t value = 0;
    int mesh_class = 0;
    int boundary = 0;
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };

  void makeChoices();
  void makePrefixes();  // bounds from the front
  Choice choiceOf(const StageOption& option) const;
  void fillLastStages();                   // level 1
  void fillLevel(int stages);              // from connections to level stages - 1
  void fillFrom(int stages, int first);    // one first layer of it
  void connect(int stages);                // what the best next stage adds, behind every submesh and boundary
  void connectAt(int stages, int next);    // to one next layer
  void listEntries(int stages, int next);  // sorted, by device
  // The best next stage with a transfer of at most `most`; its transfer in *transfer.
  int64_t bestNext(int next, int mesh, int boundary, int64_t most, int64_t* transfer) const;
  int64_t combined(int64_t a, int64_t b) const {
    return goal_ == AssignmentGoal::kLeastSum ? a + b : std::max(a, b);
  }
  int64_t join(int64_t transfer, int64_t value) const;
  void relax(const Choice& choice, int next, int first_mesh, int end_mesh, int64_t* values) const;
  bool isFollowed(int stages, int last, const Choice& choice, int64_t target, int& mesh, int& boundary,
                  int64_t& transfer) const;
  AssignedStage nextOf(int stages, int first, int& mesh, int& boundary) const;

  const std::vector<Choice>& choicesOf(int mesh_class, int first, int last) const {
    return choices_[(mesh_class * tables_.layers + first) * tables_.layers + last];
  }
  size_t row(int layer, int boundary) const {
    return (static_cast<size_t>(layer) * static_cast<size_t>(tables_.boundaries) +
            static_cast<size_t>(boundary)) *
           tables_.meshes.size();
  }

  const AssignmentRequest& request_;
  const AssignmentTables& tables_;
  int threads_;
  AssignmentGoal goal_ = AssignmentGoal::kLeastSum;
  int64_t bound_ = kNever;
  int64_t limit_ = kNever;
  std::vector<std::vector<Choice>> choices_;  // as tables' options
  // At least the value of the layers before, when a stage begins with this layer on this device: by layer,
  // device. Transfers left out.
  std::vector<int64_t> prefix_;
  std::vector<int64_t> least_prefix_;         // by layer
  std::vector<std::vector<int64_t>> levels_;  // by stages: values by row(first layer, boundary) + mesh
  // To the level below: by row(next layer, boundary) + mesh.
  std::vector<int64_t> next_value_;
  std::vector<int64_t> next_transfer_;
  std::vector<int64_t> least_next_;          // of a class: by next layer, boundary, class
  std::vector<std::vector<Entry>> entries_;  // by next layer, device
  int64_t states_ = 0;
};

}  // namespace pipeshard
