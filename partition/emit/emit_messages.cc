#include "partition/emit/emit_messages.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

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

void Messages::findDepartures(const Cut& cut) {
  // distance, receiver, its first phase that reads the value, position there
  using Need = std::tuple<int, int, Phase, size_t>;
  std::map<ValueId, std::map<int, Need>> needs;  // by value and receiving group
  for (int receiver = 0; receiver < std::ssize(cut.stages); ++receiver) {
    const int group = cut.groups[receiver];
    for (Phase phase : {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight}) {
      const std::vector<ValueId>& inputs = cut.piece(receiver, phase).inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const ValuePlace& place = cut.place(inputs[i]);
        if (place.role != ValueRole::kProduced || cut.groups[place.stage] == group) continue;
        const Need need{std::abs(receiver - place.stage), receiver, phase, i};
        const auto [found, is_new] = needs[inputs[i]].emplace(group, need);
        if (!is_new) found->second = std::min(found->second, need);
      }
    }
  }
  departures_.assign(cut.stages.size(), std::vector<std::vector<Departure>>(kPhaseCount));
  for (size_t stage = 0; stage < cut.stages.size(); ++stage) {
    for (size_t phase = 0; phase < kPhaseCount; ++phase) {
      std::vector<std::pair<Need, ValueId>> leaving;
      for (ValueId value : cut.stages[stage][phase].outputs) {
        const auto found = needs.find(value);
        if (found == needs.end()) continue;
        for (const auto& [group, need] : found->second) leaving.emplace_back(need, value);
      }
      std::sort(leaving.begin(), leaving.end());
      for (const auto& [need, value] : leaving)
        departures_[stage][phase].push_back({std::get<1>(need), value});
    }
  }
}

Messages::Messages(const Cut& cut, const Schedule& schedule)
    : groups_(static_cast<size_t>(*std::max_element(cut.groups.begin(), cut.groups.end())) + 1) {
  findDepartures(cut);
  channels_.resize(groups_ * groups_);
  for (const std::vector<Action>& order : schedule.orders) {
    for (const Action& action : order) {
      const int stage = action.stage.index();
      const size_t sender = cut.groups.at(stage);
      for (Phase phase : phasesOf(action.kind)) {
        for (const Departure& departure : departures(stage, phase)) {
          const size_t receiver = cut.groups[departure.receiver];
          channels_[sender * groups_ + receiver].push_back({departure.value, action.microbatch});
        }
      }
    }
  }
}

const std::vector<Departure>& Messages::departures(int stage, Phase phase) const {
  return departures_[static_cast<size_t>(stage)][static_cast<size_t>(phase)];
}

const std::vector<Message>& Messages::channel(int sender, int receiver) const {
  return channels_[static_cast<size_t>(sender) * groups_ + static_cast<size_t>(receiver)];
}

}  // namespace pipeshard
