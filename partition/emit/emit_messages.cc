#include "partition/emit/emit_messages.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace pipeshard {

std::vector<Phase> phasesOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward: return {Phase::kForward};
    case ActionKind::kBackward: return {kBackwardPhases.begin(), kBackwardPhases.end()};
    case ActionKind::kBackwardInput: return {Phase::kBackwardInput};
    case ActionKind::kBackwardWeight: return {Phase::kBackwardWeight};
    default: break;
  }
  return {};
}

void Messages::findDepartures(const Cut& cut) {
  // distance, receiver, its first phase that reads the value, position there
  using Need = std::tuple<size_t, StageId, Phase, size_t>;
  std::map<ValueId, std::map<PipelineRankId, Need>> needs;  // by value and receiving group
  for (const StageId receiver : cut.stages.ids()) {
    const PipelineRankId group = cut.groups[receiver];
    for (Phase phase : kPassPhases) {
      const std::vector<ValueId>& inputs = cut.piece(receiver, phase).inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const ValuePlace& place = cut.place(inputs[i]);
        if (place.role != ValueRole::kProduced || cut.groups[place.stage] == group) continue;
        const auto [nearer, farther] = std::minmax({receiver.index(), place.stage.index()});
        const Need need{farther - nearer, receiver, phase, i};
        const auto [found, is_new] = needs[inputs[i]].emplace(group, need);
        if (!is_new) found->second = std::min(found->second, need);
      }
    }
  }
  departures_.assign(cut.stages.size(), std::vector<std::vector<Departure>>(kPhaseCount));
  for (const StageId stage : cut.stages.ids()) {
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

Messages::Messages(const Cut& cut, const Schedule& schedule) {
  findDepartures(cut);
  const size_t groups = std::max_element(cut.groups.begin(), cut.groups.end())->index() + 1;
  channels_.assign(groups, Channels(groups));
  for (const std::vector<Action>& order : schedule.orders) {
    for (const Action& action : order) {
      const PipelineRankId sender = cut.groups.at(action.stage);
      for (Phase phase : phasesOf(action.kind)) {
        for (const Departure& departure : departures(action.stage, phase)) {
          const PipelineRankId receiver = cut.groups[departure.receiver];
          channels_[sender][receiver].push_back({departure.value, action.microbatch});
        }
      }
    }
  }
}

const std::vector<Departure>& Messages::departures(StageId stage, Phase phase) const {
  return departures_[stage][static_cast<size_t>(phase)];
}

const std::vector<Message>& Messages::channel(PipelineRankId sender, PipelineRankId receiver) const {
  return channels_[sender][receiver];
}

}  // namespace pipeshard
