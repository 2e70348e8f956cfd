#include "ir/program/background.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>

namespace pipeshard {
namespace {

class WaitFinder {
 public:
  WaitFinder(const Program& program, const std::function<BufferId(BufferId)>& place_of)
      : program_(program),
        place_of_(place_of),
        written_(program.buffers.size(), 0),
        read_(program.buffers.size(), 0),
        arriving_(program.buffers.size()) {
    waits_.before.assign(program.instructions.size() + 1, 0);
    waits_.receives.resize(program.instructions.size() + 1);
  }

  BackgroundWaits find() && {
    size_t next = 0;
    for (const Instruction& instruction : program_.instructions) {
      const size_t i = next++;
      findReceives(i, instruction);
      if (isOfLane(instruction)) {
        waits_.lane.push_back(i);
        for (BufferId id : instruction.inputs) read_[place(id)] = waits_.lane.size();
        for (BufferId id : instruction.outputs) written_[place(id)] = waits_.lane.size();
      } else {
        findBefore(i, instruction);
      }
    }
    waits_.before.back() = waits_.lane.size();
    for (const auto& [peer, receives] : under_way_) {
      waits_.receives.back().insert(waits_.receives.back().end(), receives.begin(), receives.end());
    }
    std::sort(waits_.receives.back().begin(), waits_.receives.back().end());
    return std::move(waits_);
  }

 private:
  size_t place(BufferId id) const { return (place_of_ ? place_of_(id) : id).index(); }

  void findBefore(size_t i, const Instruction& instruction) {
    size_t& before = waits_.before[i];
    for (BufferId id : instruction.inputs) before = std::max(before, written_[place(id)]);
    for (BufferId id : instruction.outputs)
      before = std::max({before, written_[place(id)], read_[place(id)]});
    if (instruction.kind == InstructionKind::kFree)
      before = std::max(before, read_[place(instruction.inputs[0])]);
  }

  void findReceives(size_t i, const Instruction& instruction) {
    std::set<size_t> needed;
    for (const std::vector<BufferId>* ids : {&instruction.inputs, &instruction.outputs}) {
      for (BufferId id : *ids) {
        if (const std::optional<size_t> receive = arriving_[place(id)]) needed.insert(*receive);
      }
    }
    const bool posts = instruction.kind == InstructionKind::kReceive && instruction.background;
    if (instruction.kind == InstructionKind::kReceive && !posts && !under_way_[instruction.peer].empty()) {
      needed.insert(under_way_[instruction.peer].back());
    }
    for (size_t last : std::set<size_t>(needed)) {
      std::deque<size_t>& before = under_way_[program_.instructions.form(last).peer];
      for (; !before.empty() && before.front() <= last; before.pop_front()) {
        needed.insert(before.front());
        arriving_[place(program_.instructions.copyAt(before.front()).outputs[0])].reset();
      }
    }
    waits_.receives[i].assign(needed.begin(), needed.end());
    if (!posts) return;
    arriving_[place(instruction.outputs[0])] = i;
    under_way_[instruction.peer].push_back(i);
  }

  const Program& program_;
  const std::function<BufferId(BufferId)>& place_of_;
  BackgroundWaits waits_;
  // By buffer: how many of the lane's instructions there are up to the last one that writes, or reads, it.
  std::vector<size_t> written_, read_;
  std::vector<std::optional<size_t>> arriving_;     // by buffer: the background receive into it
  std::map<RankId, std::deque<size_t>> under_way_;  // by peer: the background receives from it, in order
};

}  // namespace

bool isOfLane(const Instruction& instruction) {
  return instruction.background && instruction.kind != InstructionKind::kReceive;
}

std::vector<std::vector<RankId>> backgroundGroups(const Program& program) {
  std::set<std::vector<RankId>> groups;
  for (const Instruction& instruction : program.instructions) {
    if (!isOfLane(instruction)) continue;
    if (instruction.group.valid()) groups.insert(program.groups.at(instruction.group));
    if (!instruction.subgraph.valid()) continue;
    for (GroupId group : program.subgraphs.at(instruction.subgraph.index()).collectives)
      groups.insert(program.groups.at(group));
  }
  return {groups.begin(), groups.end()};
}

BackgroundWaits backgroundWaits(const Program& program, const std::function<BufferId(BufferId)>& place_of) {
  return WaitFinder(program, place_of).find();
}

}  // namespace pipeshard
