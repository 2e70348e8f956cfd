#include "tests/partition/schedules/schedule_oracle.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/families/make_schedule.h"
#include "tests/partition/schedules/schedule_from_text.h"

namespace pipeshard {
namespace {

bool accepts(const std::string& text) {
  try {
    parseSchedule(text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Union of actions into nodes, and edges between them. Actions are numbered as they stand in the orders, rank
// by rank; node_ has the action that stands for each: itself, the first one of an overlapped pair, or the
// send of a receive. Edges to actions that are not there are left out, so one list of rules serves schedules
// with whole and with halved backward passes, with transfers and without.
class ActionGraph {
 public:
  explicit ActionGraph(const Schedule& schedule) : schedule_(schedule) {
    for (const PipelineRankId rank : schedule.orders.ids()) {
      for (const Action& action : schedule.orders[rank]) {
        names_[actionToString(action)].push_back(actions_.size());
        rank_of_.push_back(rank);
        actions_.push_back(action);
      }
    }
    node_.resize(actions_.size());
    std::iota(node_.begin(), node_.end(), 0);
  }

  bool complete() {
    std::map<std::string, int> expected;
    bool transfers = false;
    for (const Action& action : actions_) transfers = transfers || action.kind >= ActionKind::kSendForward;
    for (const StageId stage : schedule_.rank_of_stage.ids()) {
      for (int k = 0; k < schedule_.microbatches; ++k) {
        expected[name(stage, "F", k)] = 1;
        if (transfers && crosses(stage, stage.next()))
          expected[name(stage, "SEND_F", k)] = expected[name(stage.next(), "RECV_F", k)] = 1;
        if (schedule_.forward_only) continue;
        const bool split = names_.count(name(stage, "I", k)) > 0;
        expected[name(stage, split ? "I" : "B", k)] = 1;
        if (split) expected[name(stage, "W", k)] = 1;
        if (transfers && crosses(stage, stage.previous()))
          expected[name(stage, "SEND_B", k)] = expected[name(stage.previous(), "RECV_B", k)] = 1;
        const int n = schedule_.microbatches_per_update;
        if (n > 0 && k % n == n - 1) expected[name(stage, "UPDATE", k)] = 1;
      }
    }
    bool all = expected.size() == names_.size();
    for (const auto& [text, where] : names_) all = all && where.size() == 1 && expected.count(text) > 0;
    for (size_t i = 0; i < actions_.size(); ++i) {
      all = all && schedule_.rank_of_stage[actions_[i].stage] == rank_of_[i];
    }
    return all && pairsAreSound();
  }

  void run(ScheduleRun& result, const PassDurations& durations) {
    mergeNodes();
    addEdges();
    std::vector<int64_t> duration(actions_.size());
    for (size_t i = 0; i < actions_.size(); ++i) duration[node(i)] += durationOf(actions_[i].kind, durations);
    sort(result, duration);
    result.busy.assign(schedule_.orders.size(), 0);
    for (size_t i = 0; i < actions_.size(); ++i)
      result.busy[rank_of_[i]] += durationOf(actions_[i].kind, durations);
  }

 private:
  // Of no action, where there is no such stage.
  static std::string name(StageId stage, std::string_view kind, int k) {
    return fmt::format("{}{}{}", stage, kind, k);
  }
  size_t node(size_t action) const { return node_[action]; }

  bool crosses(StageId stage, StageId other) const {
    return schedule_.rank_of_stage.has(other) &&
           schedule_.rank_of_stage[stage] != schedule_.rank_of_stage[other];
  }

  static bool isForward(const Action& action) { return action.kind == ActionKind::kForward; }
  static bool isGradientOfInput(const Action& action) {
    return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  }

  bool pairsAreSound() const {
    for (const std::vector<Action>& order : schedule_.orders) {
      for (size_t i = 0; i < order.size(); ++i) {
        if (!order[i].overlaps_next) continue;
        if (i + 1 == order.size() || order[i + 1].overlaps_next) return false;
        const Action& a = order[i];
        const Action& b = order[i + 1];
        if (!(isForward(a) && isGradientOfInput(b)) && !(isForward(b) && isGradientOfInput(a))) return false;
        if (a.stage == b.stage && a.microbatch == b.microbatch) return false;
      }
    }
    return true;
  }

  static int64_t durationOf(ActionKind kind, const PassDurations& durations) {
    switch (kind) {
      case ActionKind::kForward: return durations.forward;
      case ActionKind::kBackward: return durations.backward_input + durations.backward_weight;
      case ActionKind::kBackwardInput: return durations.backward_input;
      case ActionKind::kBackwardWeight: return durations.backward_weight;
      default: return 0;
    }
  }

  void mergeNodes() {
    for (size_t i = 0; i < actions_.size(); ++i) {
      if (i > 0 && actions_[i - 1].overlaps_next) node_[i] = node_[i - 1];
      const Action& action = actions_[i];
      if (action.kind == ActionKind::kSendForward)
        node_[names_[name(action.stage.next(), "RECV_F", action.microbatch)][0]] = node_[i];
      if (action.kind == ActionKind::kSendBackward)
        node_[names_[name(action.stage.previous(), "RECV_B", action.microbatch)][0]] = node_[i];
    }
  }

  void edge(const std::string& from, const std::string& to) {
    const auto a = names_.find(from);
    const auto b = names_.find(to);
    if (a != names_.end() && b != names_.end()) edges_.emplace_back(node(a->second[0]), node(b->second[0]));
  }

  void addEdges() {
    for (size_t i = 1; i < actions_.size(); ++i) {
      if (rank_of_[i] == rank_of_[i - 1] && node(i) != node(i - 1)) edges_.emplace_back(node(i - 1), node(i));
    }
    const int n = schedule_.microbatches_per_update;
    for (const StageId stage : schedule_.rank_of_stage.ids()) {
      for (int k = 0; k < schedule_.microbatches; ++k) {
        edge(name(stage, "F", k), name(stage.next(), "F", k));
        edge(name(stage, "F", k), name(stage, "SEND_F", k));
        edge(name(stage, "RECV_F", k), name(stage, "F", k));
        edge(name(stage, "I", k), name(stage, "W", k));
        for (const char* half : {"B", "I"}) {
          edge(name(stage, "F", k), name(stage, half, k));
          edge(name(stage, half, k), name(stage, "SEND_B", k));
          edge(name(stage, "RECV_B", k), name(stage, half, k));
          for (const char* other : {"B", "I"}) edge(name(stage.next(), half, k), name(stage, other, k));
        }
        if (n == 0) continue;
        const int version = schedule_.versions[stage][k];
        if (version > 0) edge(name(stage, "UPDATE", version * n - 1), name(stage, "F", k));
        for (const char* half : {"B", "W"}) {
          edge(name(stage, half, k), name(stage, "UPDATE", k / n * n + n - 1));
          edge(name(stage, "UPDATE", k / n * n - 1), name(stage, half, k));
        }
      }
    }
  }

  void sort(ScheduleRun& result, const std::vector<int64_t>& duration) {
    std::vector<std::vector<size_t>> after(actions_.size());
    std::vector<int> missing(actions_.size());
    for (const auto& [from, to] : edges_) {
      after[from].push_back(to);
      ++missing[to];
    }
    std::vector<int64_t> start(actions_.size());
    std::vector<size_t> ready;
    size_t nodes = 0;
    for (size_t i = 0; i < actions_.size(); ++i) {
      if (node(i) != i) continue;
      ++nodes;
      if (missing[i] == 0) ready.push_back(i);
    }
    size_t sorted = 0;
    for (; !ready.empty(); ++sorted) {
      const size_t i = ready.back();
      ready.pop_back();
      result.makespan = std::max(result.makespan, start[i] + duration[i]);
      for (size_t next : after[i]) {
        start[next] = std::max(start[next], start[i] + duration[i]);
        if (--missing[next] == 0) ready.push_back(next);
      }
    }
    result.acyclic = sorted == nodes;
    result.first_start.assign(schedule_.orders.size(), -1);
    for (size_t i = 0; i < actions_.size(); ++i) {
      if (result.first_start[rank_of_[i]] < 0) result.first_start[rank_of_[i]] = start[node(i)];
    }
  }

  const Schedule& schedule_;
  std::vector<Action> actions_;
  std::vector<PipelineRankId> rank_of_;
  std::map<std::string, std::vector<size_t>> names_;
  std::vector<size_t> node_;
  std::vector<std::pair<size_t, size_t>> edges_;
};

}  // namespace

std::vector<std::string> scheduleTexts() {
  std::vector<std::string> texts;
  for (const std::string& name : scheduleNames()) {
    texts.push_back(name);
    for (int v = 1; v <= 4; ++v) {
      const std::string text = name + ":v=" + std::to_string(v);
      if (accepts(text)) texts.push_back(text);
    }
    for (const char* option : {"extra=0", "extra=2", "extra=100", "group=3", "group=5", "m=1", "m=4"}) {
      if (accepts(name + ":" + option)) texts.push_back(name + ":" + option);
    }
  }
  return texts;
}

std::vector<Schedule> schedulesOf(int ranks, int microbatches) {
  std::vector<Schedule> schedules;
  for (const std::string& text : scheduleTexts()) {
    try {
      schedules.push_back(makeSchedule(text, ranks, microbatches));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfiguration) << text << ": " << error.message();
    }
  }
  return schedules;
}

ScheduleRun runSchedule(const Schedule& schedule, const PassDurations& durations) {
  ScheduleRun result;
  ActionGraph graph(schedule);
  result.complete = graph.complete();
  if (result.complete) graph.run(result, durations);
  return result;
}

int64_t mostWaitingMessages(const ScheduleOrders& orders) {
  int64_t most = 0;
  for (const std::vector<Action>& order : orders) {
    std::map<std::pair<StageId, int>, int> forward, backward;  // by stage and microbatch
    int64_t waiting = 0;
    for (const Action& action : order) {
      const std::pair<StageId, int> key(action.stage, action.microbatch);
      if (action.kind == ActionKind::kReceiveForward) waiting += ++forward[key];
      if (action.kind == ActionKind::kReceiveBackward) waiting += ++backward[key];
      if (action.kind == ActionKind::kForward) waiting -= forward[key];
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput)
        waiting -= backward[key];
      most = std::max(most, waiting);
    }
  }
  return most;
}

}  // namespace pipeshard
