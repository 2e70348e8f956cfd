#include "planning/programs/program_costs.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

int64_t bytesOf(const Program& program, BufferId id) {
  return byteCount(program.buffer(id).data_type, program.buffer(id).shape);
}

class RankCosts {
 public:
  RankCosts(const Program& program, const std::vector<const CompiledSubgraph*>& subgraphs,
            const CostModel& model, const Accumulation& accumulation)
      : program_(program), model_(model), accumulation_(accumulation) {
    for (const std::vector<RankId>& group : program_.groups) group_sizes_.push_back(group.size());
    PIPESHARD_CHECK(subgraphs.size() == program_.subgraphs.size(), "{} subgraphs, {} graphs",
                    program_.subgraphs.size(), subgraphs.size());
    for (const CompiledSubgraph* subgraph : subgraphs)
      subgraphs_.push_back(workParts(subgraph->graph(), group_sizes_, model));
  }

  ProgramCosts costs() const {
    ProgramCosts result;
    result.instructions.reserve(program_.instructions.size());
    result.buffer_bytes.reserve(program_.buffers.size());
    for (const Instruction& instruction : program_.instructions) {
      const bool is_done = accumulation_.done[result.instructions.size()];
      result.instructions.push_back(is_done ? std::vector<WorkPart>() : partsOf(instruction));
    }
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      result.buffer_bytes.push_back(accumulation_.place[b].valid() ? 0 : bytesOf(program_, BufferId(b)));
    }
    return result;
  }

 private:
  std::vector<WorkPart> moving(int64_t bytes) const {
    const std::optional<int64_t> measured = model_.times ? model_.times->copyTime(bytes) : std::nullopt;
    return {{.compute = measured.value_or(computeCost(model_, 0, bytes))}};
  }

  std::vector<WorkPart> partsOf(const Instruction& instruction) const {
    const int64_t written = instruction.outputs.empty() ? 0 : bytesOf(program_, instruction.outputs[0]);
    switch (instruction.kind) {
      case InstructionKind::kRun:
      case InstructionKind::kUpdate: return subgraphs_[instruction.subgraph.index()];
      case InstructionKind::kAccumulate: return moving(instruction.overwrite ? 2 * written : 3 * written);
      case InstructionKind::kSlice:
      case InstructionKind::kConcatenate:
      case InstructionKind::kLoadInput: return moving(2 * written);
      case InstructionKind::kZero: return moving(written);
      case InstructionKind::kAllReduce: {
        const int size = group_sizes_.at(instruction.group);
        return {{.group = instruction.group,
                 .exchange = collectiveCost(groupModel(model_, instruction.group), {{size}},
                                            CollectiveKind::kAllReduce, 0, written),
                 .bytes = written}};
      }
      case InstructionKind::kSend:
      case InstructionKind::kReceive:
      case InstructionKind::kFree: return {};
    }
    return {};
  }

  const Program& program_;
  const CostModel& model_;
  IdVector<GroupId, int> group_sizes_;
  std::vector<std::vector<WorkPart>> subgraphs_;
  const Accumulation& accumulation_;
};

}  // namespace

ProgramCosts programCosts(const Program& program, const std::vector<const CompiledSubgraph*>& subgraphs,
                          const CostModel& model, const Accumulation& accumulation) {
  return RankCosts(program, subgraphs, model, accumulation).costs();
}

std::vector<std::vector<KindId>> kindsBySubgraphs(const ProgramSet& set) {
  std::vector<std::vector<KindId>> together;
  std::vector<std::set<std::string>> files;  // of the first of each
  for (const KindId kind : set.kinds.ids()) {
    std::set<std::string> own;
    for (const Subgraph& subgraph : set.kinds[kind].program.subgraphs) own.insert(subgraph.file);
    const auto shares = [&](const std::set<std::string>& others) {
      return 2 * std::count_if(own.begin(), own.end(),
                               [&](const std::string& file) { return others.contains(file); }) >
             std::ssize(own);
    };
    const size_t place = std::find_if(files.begin(), files.end(), shares) - files.begin();
    if (place == files.size()) {
      together.emplace_back();
      files.push_back(std::move(own));
    }
    together[place].push_back(kind);
  }
  return together;
}

namespace {

// A group is a line of its stage's mesh, beside others; else it is alone.
LinkCost linkOfGroup(const Plan& plan, RankId rank, std::vector<RankId> group) {
  std::sort(group.begin(), group.end());
  for (const StagePlan& stage : plan.stages) {
    const auto place = std::find(stage.devices.begin(), stage.devices.end(), rank);
    if (place == stage.devices.end()) continue;
    const LogicalMesh mesh{stage.sharding ? stage.sharding->mesh : stage.mesh_shape};
    for (int axis = 0; axis < mesh.rank(); ++axis) {
      std::vector<RankId> line;
      for (const DeviceId member : mesh.lineOf(DeviceId(place - stage.devices.begin()), axis)) {
        line.push_back(stage.devices[member.index()]);
      }
      std::sort(line.begin(), line.end());
      if (line == group) return costModelOn(plan.cluster, stage.devices, mesh).links[axis];
    }
  }
  return costModelOn(plan.cluster, group, {{static_cast<int>(group.size())}}).links[0];
}

}  // namespace

PlanCosts::PlanCosts(const Plan& plan) : plan_(plan) {
  const int devices = plan.cluster.deviceCount();
  stage_.resize(devices);
  for (int device = 0; device < devices; ++device) node_.push_back(plan.cluster.nodeOf(device));
  for (const StageId stage : plan.stages.ids()) {
    for (const RankId rank : plan.stages[stage].devices) {
      if (!stage_.at(rank).valid()) stage_[rank] = stage;
    }
  }
}

std::vector<RankId> PlanCosts::devicesBeside(RankId rank) const {
  return stage_.at(rank).valid() ? plan_.stages[stage_[rank]].devices : std::vector{rank};
}

// Ranks that share their first stage share all: they see a group that they are in alike.
LinkCost PlanCosts::groupLink(RankId rank, const std::vector<RankId>& group) {
  if (!stage_.at(rank).valid()) return linkOfGroup(plan_, rank, group);
  const auto [found, is_new] = of_groups_.try_emplace({stage_[rank], group});
  if (is_new) found->second = linkOfGroup(plan_, rank, group);
  return found->second;
}

CostModel PlanCosts::model(RankId rank, const std::vector<std::vector<RankId>>& groups) {
  CostModel model = costModelOn(plan_.cluster, {rank}, {{1}});
  for (const std::vector<RankId>& group : groups) {
    for (const RankId member : group) model.one_node = model.one_node && node_.at(member) == node_.at(rank);
  }
  model.links.clear();
  for (const std::vector<RankId>& group : groups) model.links.push_back(groupLink(rank, group));
  if (model.links.empty()) model.links.emplace_back();
  return model;
}

LinkCost PlanCosts::link(RankId from, RankId to) {
  const auto find = [&] {
    const LinkCost link = linkBetween(plan_.cluster, devicesBeside(from), devicesBeside(to));
    return link.receive_bytes_per_ns > 0 && link.receive_bytes_per_ns < link.bytes_per_ns
               ? receivingSide(link)
               : link;
  };
  if (!stage_.at(from).valid() || !stage_.at(to).valid()) return find();
  const auto [found, is_new] = between_.try_emplace({stage_[from], stage_[to]});
  if (is_new) found->second = find();
  return found->second;
}

}  // namespace pipeshard
