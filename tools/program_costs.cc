#include "tools/program_costs.h"

#include "ir/error.h"
#include "runtime/accumulation.h"
#include "runtime/subgraph.h"

namespace pipeshard {
namespace {

int64_t bytesOf(const Program& program, BufferId id) { return byteCount(program.buffer(id).data_type, program.buffer(id).shape); }

class RankCosts {
 public:
  RankCosts(const RankImage& rank, const CostModel& model, Accumulation accumulation)
      : program_(rank.program), model_(model), accumulation_(std::move(accumulation)) {
    for (const std::vector<int>& group : program_.groups) group_sizes_.push_back(static_cast<int>(group.size()));
    PIPESHARD_CHECK(rank.subgraphs.size() == program_.subgraphs.size(), "{} subgraphs, {} graphs", program_.subgraphs.size(),
                    rank.subgraphs.size());
    for (const Graph& graph : rank.subgraphs) subgraphs_.push_back(workParts(runnableGraph(graph, cpuKernels()), group_sizes_, model));
  }

  ProgramCosts costs() const {
    ProgramCosts result;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      result.instructions.push_back(accumulation_.done[i] ? std::vector<WorkPart>() : partsOf(program_.instructions[i]));
    }
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      result.buffer_bytes.push_back(accumulation_.place[b].valid() ? 0 : bytesOf(program_, BufferId(b)));
    }
    return result;
  }

 private:
  std::vector<WorkPart> moving(int64_t bytes) const { return {{.compute = computeCost(model_, 0, bytes)}}; }

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
        const int size = group_sizes_.at(static_cast<size_t>(instruction.group));
        return {{.group = instruction.group,
                 .exchange = collectiveCost(model_, {{size}}, CollectiveKind::kAllReduce, 0, written),
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
  std::vector<int> group_sizes_;
  std::vector<std::vector<WorkPart>> subgraphs_;
  Accumulation accumulation_;
};

}  // namespace

ProgramCosts programCosts(const RankImage& rank, const CostModel& model, Accumulation accumulation) {
  return RankCosts(rank, model, std::move(accumulation)).costs();
}

ProgramCosts programCosts(const RankImage& rank, const CostModel& model) {
  return programCosts(rank, model, findAccumulation(rank.program, [](const Instruction&, size_t) { return true; }));
}

}  // namespace pipeshard
