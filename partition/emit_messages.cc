#include "partition/emit_messages.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "ir/error.h"

namespace pipeshard {

std::vector<Phase> phasesOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward: return {Phase::kForward};
    case ActionKind::kBackward: return {Phase::kBackwardInput, Phase::kBackwardWeight};
    case ActionKind::kBackwardInput: return {Phase::kBackwardInput};
    case ActionKind::kBackwardWeight: return {Phase::kBackwardWeight};
    default: break;
  }
  return {};
}

Messages::Messages(const Cut& cut, const ScheduleOrders& orders) : stages_(cut.stages.size()) {
  using Need = std::tuple<int, int, Phase, size_t>;  // distance, receiver, its first phase that reads the value, position there
  std::map<ValueId, std::map<int, Need>> needs;      // by value and receiver
  for (int receiver = 0; receiver < static_cast<int>(stages_); ++receiver) {
    for (Phase phase : {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight}) {
      const std::vector<ValueId>& inputs = cut.piece(receiver, phase).inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const ValuePlace& place = cut.place(inputs[i]);
        if (place.role != ValueRole::kProduced || place.stage == receiver) continue;
        needs[inputs[i]].emplace(receiver, Need{std::abs(receiver - place.stage), receiver, phase, i});
      }
    }
  }
  departures_.assign(stages_, std::vector<std::vector<Departure>>(kPhaseCount));
  for (size_t stage = 0; stage < stages_; ++stage) {
    for (size_t phase = 0; phase < kPhaseCount; ++phase) {
      std::vector<std::pair<Need, ValueId>> leaving;
      for (ValueId value : cut.stages[stage][phase].outputs) {
        const auto found = needs.find(value);
        if (found == needs.end()) continue;
        for (const auto& [receiver, need] : found->second) leaving.emplace_back(need, value);
      }
      std::sort(leaving.begin(), leaving.end());
      for (const auto& [need, value] : leaving) departures_[stage][phase].push_back({std::get<1>(need), value});
    }
  }
  channels_.resize(stages_ * stages_);
  PIPESHARD_CHECK(orders.size() == stages_, "{} orders for {} stages", orders.size(), stages_);
  for (size_t sender = 0; sender < stages_; ++sender) {
    for (const Action& action : orders[sender]) {
      PIPESHARD_CHECK(action.stage == static_cast<int>(sender), "{} on rank {}", actionToString(action), sender);
      for (Phase phase : phasesOf(action.kind)) {
        for (const Departure& departure : departures(action.stage, phase)) {
          channels_[sender * stages_ + static_cast<size_t>(departure.receiver)].push_back({departure.value, action.microbatch});
        }
      }
    }
  }
}

const std::vector<Departure>& Messages::departures(int stage, Phase phase) const {
  return departures_[static_cast<size_t>(stage)][static_cast<size_t>(phase)];
}

const std::vector<Message>& Messages::channel(int sender, int receiver) const {
  return channels_[static_cast<size_t>(sender) * stages_ + static_cast<size_t>(receiver)];
}

}  // namespace pipeshard
