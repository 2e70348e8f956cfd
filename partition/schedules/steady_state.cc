#include "partition/schedules/steady_state.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "partition/schedules/schedule_verify.h"

namespace pipeshard {
namespace {

constexpr int kLongestPeriod = 64;  // microbatches

NumberedList numberedList(const std::vector<Action>& order) {
  NumberedList list;
  for (const Action& action : order) {
    const int64_t form = static_cast<int64_t>(action.kind) * 2 + (action.overlaps_next ? 1 : 0);
    list.add(fmt::format("{} {}", action.stage.index(), form), {action.microbatch});
  }
  return list;
}

// How many microbatches an iteration of the loop takes; 0 where its passes do not go on alike.
int advanceOf(const std::vector<Action>& order, const Loop& loop) {
  int advance = 0;
  for (size_t i = loop.first; i < loop.first + loop.period; ++i) {
    const int step = order[i + loop.period].microbatch - order[i].microbatch;
    if (step <= 0 || (advance > 0 && step != advance)) return 0;
    advance = step;
  }
  return advance;
}

}  // namespace

std::optional<SteadyState> SteadyState::of(const Schedule& schedule) {
  if (schedule.asynchronous() || !schedule.replicas.empty()) return std::nullopt;
  SteadyState state(schedule);
  if (!state.find()) return std::nullopt;
  try {
    verifySchedule(state.without(state.most_));
  } catch (const Error&) {
    return std::nullopt;
  }
  return state;
}

// Loops that go through at least half of all microbatches are those of the steady state; the short ones fill
// and drain the pipeline.
bool SteadyState::find() {
  std::vector<int64_t> lengths;  // microbatches
  for (const std::vector<Action>& order : schedule_.orders) {
    std::vector<Loop>& steady = loops_.emplace_back();
    for (const Loop& loop : findLoops(numberedList(order))) {
      const int advance = advanceOf(order, loop);
      const int64_t length = static_cast<int64_t>(loop.count) * advance;
      if (2 * length < schedule_.microbatches) continue;
      steady.push_back(loop);
      lengths.push_back(length);
      period_ = std::lcm(period_, advance);
      if (period_ > kLongestPeriod) return false;
    }
    if (steady.empty()) return false;
  }
  const int64_t kept = 2 * schedule_.stages + 8;  // microbatches that the shortest has then
  most_ = static_cast<int>((*std::min_element(lengths.begin(), lengths.end()) - kept) / period_) - 3;
  return most_ > 0;
}

Schedule SteadyState::without(int iterations) const {
  Schedule schedule = schedule_;
  schedule.microbatches -= iterations * period_;
  for (const PipelineRankId rank : schedule.orders.ids()) schedule.orders[rank] = shortened(rank, iterations);
  return schedule;
}

std::vector<Action> SteadyState::shortened(PipelineRankId rank, int iterations) const {
  const std::vector<Action>& order = schedule_.orders[rank];
  std::vector<Action> made;
  std::map<std::pair<StageId, ActionKind>, int> gone;  // microbatches that have been left out of these passes
  const auto add = [&](const Action& action) {
    made.push_back(action);
    made.back().microbatch -= gone[{action.stage, action.kind}];
  };
  size_t at = 0;
  for (const Loop& loop : loops_[rank]) {
    const size_t less = static_cast<size_t>(iterations) * period_ / advanceOf(order, loop);
    for (const size_t end = loop.end() - less * loop.period; at < end; ++at) add(order[at]);
    std::set<std::pair<StageId, ActionKind>> shortened;
    for (size_t i = loop.first; i < loop.first + loop.period; ++i)
      shortened.emplace(order[i].stage, order[i].kind);
    for (const auto& passes : shortened) gone[passes] += iterations * period_;
    at = loop.end();
  }
  for (; at < order.size(); ++at) add(order[at]);
  return made;
}

}  // namespace pipeshard
