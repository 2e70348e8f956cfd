// A second opinion on times and memory, written differently from partition/simulation/simulator.h: the
// longest path to every pass in the graph of what waits for what, found by sorting the graph once. No events,
// no clock, no links: a message takes `latency`, whatever else travels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "partition/schedules/schedule.h"

namespace pipeshard {

// Of one microbatch on one stage. Memory: what F adds, and what I (or B) and W change it by.
struct SecondCosts {
  int64_t forward = 1, input = 1, weight = 1;  // B takes input + weight
  int64_t forward_memory = 1, input_memory = 0, weight_memory = -1;
};

struct SecondSimulation {
  bool stuck = false;                        // a cycle: nothing below is filled
  std::vector<std::vector<int64_t>> starts;  // by rank, in the order of its list
  int64_t makespan = 0;
  std::vector<int64_t> idle;          // by rank: makespan without its passes
  std::vector<int64_t> spans;         // by rank: first start to last end
  std::vector<int64_t> peak_memory;   // by rank, between passes
  std::vector<int64_t> final_memory;  // 0 if all is freed

  int64_t longestSpan() const { return *std::max_element(spans.begin(), spans.end()); }
};

class SecondSimulator {
 public:
  SecondSimulator(const Schedule& schedule, const std::vector<SecondCosts>& stages, int64_t latency)
      : schedule_(schedule), stages_(stages), latency_(latency) {
    for (const PipelineRankId rank : schedule.orders.ids()) {
      for (const Action& action : schedule.orders[rank]) {
        id_[{stageOf(action), row(action.kind), action.microbatch}] = passes_.size();
        passes_.push_back({action, rank.index()});
      }
    }
    edges_.resize(passes_.size());
    degree_.resize(passes_.size());
    for (size_t i = 0; i < passes_.size(); ++i) {
      if (i > 0 && passes_[i].rank == passes_[i - 1].rank) connect(i - 1, i);
      connectNeeds(i);
    }
  }

  SecondSimulation run() {
    std::vector<int64_t> start(passes_.size(), 0);
    std::vector<size_t> sorted;
    for (size_t i = 0; i < passes_.size(); ++i) {
      if (degree_[i] == 0) sorted.push_back(i);
    }
    for (size_t next = 0; next < sorted.size(); ++next) {
      const size_t i = sorted[next];
      for (const size_t j : edges_[i]) {
        const int64_t travel = passes_[i].rank == passes_[j].rank ? 0 : latency_;
        start[j] = std::max(start[j], start[i] + timeOf(i) + travel);
        if (--degree_[j] == 0) sorted.push_back(j);
      }
    }
    SecondSimulation result;
    result.stuck = sorted.size() < passes_.size();
    if (!result.stuck) summarise(start, result);
    return result;
  }

 private:
  struct Pass {
    Action action;
    size_t rank;
  };

  static int stageOf(const Action& action) { return action.stage.index(); }
  static int row(ActionKind kind) {
    return kind == ActionKind::kForward ? 0 : kind == ActionKind::kBackwardWeight ? 2 : 1;
  }
  const SecondCosts& costs(size_t i) const { return stages_[stageOf(passes_[i].action)]; }

  int64_t timeOf(size_t i) const {
    const ActionKind kind = passes_[i].action.kind;
    if (kind == ActionKind::kForward) return costs(i).forward;
    return (kind == ActionKind::kBackwardWeight ? 0 : costs(i).input) +
           (kind == ActionKind::kBackwardInput ? 0 : costs(i).weight);
  }

  int64_t memoryOf(size_t i) const {
    const ActionKind kind = passes_[i].action.kind;
    if (kind == ActionKind::kForward) return costs(i).forward_memory;
    return (kind == ActionKind::kBackwardWeight ? 0 : costs(i).input_memory) +
           (kind == ActionKind::kBackwardInput ? 0 : costs(i).weight_memory);
  }

  void connect(size_t from, size_t to) {
    edges_[from].push_back(to);
    ++degree_[to];
  }

  void connectNeeds(size_t i) {
    const int stage = stageOf(passes_[i].action), k = passes_[i].action.microbatch;
    const ActionKind kind = passes_[i].action.kind;
    const auto need = [&](int other_stage, int other_row) {
      const auto found = id_.find({other_stage, other_row, k});
      if (found != id_.end()) connect(found->second, i);
    };
    if (row(kind) == 0) need(stage - 1, 0);
    if (row(kind) == 1) need(stage, 0);
    if (row(kind) == 1) need(stage + 1, 1);
    if (row(kind) == 2) need(stage, 1);
  }

  void summarise(const std::vector<int64_t>& start, SecondSimulation& result) const {
    const size_t ranks = schedule_.orders.size();
    std::vector<int64_t> first(ranks, -1), last(ranks, 0), busy(ranks, 0);
    result.starts.resize(ranks);
    result.peak_memory.assign(ranks, 0);
    result.final_memory.assign(ranks, 0);
    for (size_t i = 0; i < passes_.size(); ++i) {
      const size_t rank = passes_[i].rank;
      result.starts[rank].push_back(start[i]);
      if (first[rank] < 0) first[rank] = start[i];
      last[rank] = start[i] + timeOf(i);
      busy[rank] += timeOf(i);
      result.final_memory[rank] += memoryOf(i);
      result.peak_memory[rank] = std::max(result.peak_memory[rank], result.final_memory[rank]);
      result.makespan = std::max(result.makespan, last[rank]);
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      result.idle.push_back(result.makespan - busy[rank]);
      result.spans.push_back(last[rank] - std::max<int64_t>(first[rank], 0));
    }
  }

  const Schedule& schedule_;
  const std::vector<SecondCosts>& stages_;
  int64_t latency_;
  std::vector<Pass> passes_;
  std::map<std::tuple<int, int, int>, size_t> id_;
  std::vector<std::vector<size_t>> edges_;
  std::vector<size_t> degree_;
};

// Passes only (F, B, I, W); every stage takes stages[stage].
inline SecondSimulation secondSimulation(const Schedule& schedule, const std::vector<SecondCosts>& stages,
                                         int64_t latency = 0) {
  return SecondSimulator(schedule, stages, latency).run();
}
inline SecondSimulation secondSimulation(const Schedule& schedule, const SecondCosts& every_stage,
                                         int64_t latency = 0) {
  return secondSimulation(schedule, std::vector<SecondCosts>(schedule.stages, every_stage), latency);
}

}  // namespace pipeshard
