#include "runtime/rendezvous/device_order.h"

#include <set>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/program/program_set.h"
#include "ir/program/program_verify.h"
#include "runtime/execute/accumulation.h"
#include "runtime/execute/rank_image.h"

namespace pipeshard {
namespace {

// Which of the program's groups collectives go over.
std::set<GroupId> usedGroups(const Program& program) {
  std::set<GroupId> used;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.group.valid()) used.insert(instruction.group);
    if (!instruction.subgraph.valid()) continue;
    const std::vector<GroupId>& groups = program.subgraphs[instruction.subgraph.index()].collectives;
    used.insert(groups.begin(), groups.end());
  }
  return used;
}

void addGroups(const ProgramSet& set, std::set<std::vector<RankId>>& groups) {
  IdVector<KindId, std::set<GroupId>> used;
  for (const ProgramKind& kind : set.kinds) used.push_back(usedGroups(kind.program));
  for (const RankBinding& binding : set.ranks) {
    for (const GroupId group : used[binding.kind]) groups.insert(set.groups[binding.groups[group.index()]]);
  }
}

}  // namespace

DeviceOrder deviceOrder(ProgramFolder& programs, RankId rank) {
  DeviceOrder order;
  std::set<std::vector<RankId>> groups;
  for (const StepSize size : programs.sizes()) {
    const ProgramSet set = programs.takeSet(size);
    const RankSample sample = sampleOf(set);
    const std::vector<Program> sampled = samplePrograms(set, sample);
    verifySample(sampled);
    try {
      auto steps = communicationOrder(sampled, TransferQueues::kPerPair, mostAccumulation(sampled));
      order.steps[size] = std::move(steps.at(sample.place.at(rank)));
    } catch (Error& error) {
      error.addContext(
          fmt::format("{}: GPUs cannot reach each other straight (--transport staged goes through "
                      "the host's memory instead)",
                      programs.folder()));
      throw;
    }
    addGroups(set, groups);
  }
  order.groups = {groups.begin(), groups.end()};
  return order;
}

}  // namespace pipeshard
