// How much the arena of a rank sets aside for what microbatches leave behind between their passes: GPT-2,
// stage by stage, against the schedule's own count.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/plan/plan_json.h"
#include "ir/program/program.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule.h"
#include "runtime/execute/memory_plan.h"
#include "runtime/execute/rank_image.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using Microbatch = std::pair<StageId, int>;  // stage, microbatch

struct Planned {
  Plan plan;
  std::vector<Program> programs;
};

Planned planExample(const std::string& schedule, const std::string& recomputation) {
  const TemporaryFolder folder;
  const CommandResult result = runPipeshard(
      {"plan", "examples/gpt2.onnx", "--dim", "batch=8", "--cluster", "1x4", "--microbatches", "8",
       "--layers", "16", "--schedule", schedule, "--recompute", recomputation, "-o", folder.file("plan")});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  Planned planned{planFromJson(readFile(folder.path() / "plan/plan.json")), {}};
  for (int rank = 0; rank < 4; ++rank)
    planned.programs.push_back(loadProgram(folder.file("plan"), RankId(rank)));
  return planned;
}

// What a forward pass reads or makes and the backward passes of its microbatch read.
std::map<Microbatch, std::set<BufferId>> stashes(const Program& program) {
  std::map<Microbatch, std::set<BufferId>> forward, stash;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kRun || instruction.microbatch < 0) continue;
    const Subgraph& subgraph = program.subgraphs[instruction.subgraph.index()];
    const Microbatch at{instruction.stage, instruction.microbatch};
    if (subgraph.phase == Phase::kForward && !subgraph.recomputation) {
      forward[at].insert(instruction.inputs.begin(), instruction.inputs.end());
      forward[at].insert(instruction.outputs.begin(), instruction.outputs.end());
    } else if (subgraph.phase != Phase::kPrologue) {
      for (BufferId id : instruction.inputs) {
        const bool own = program.nameOf(id).ends_with(fmt::format("@{}", instruction.microbatch));
        if (own && forward[at].contains(id)) stash[at].insert(id);
      }
    }
  }
  return stash;
}

int64_t alignedBytes(const LiveBlock& block) {
  return (block.bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

std::vector<LiveBlock> intervalsOf(const Program& program) {
  Accumulation none;
  none.place.resize(program.buffers.size());
  return bufferIntervals(program, none);
}

// The most bytes of stashes that the arena's intervals have at one instruction. Stages of a rank hold some
// buffers together.
int64_t measured(const Program& program) {
  const std::vector<LiveBlock> intervals = intervalsOf(program);
  std::set<BufferId> all;
  for (const auto& [at, buffers] : stashes(program)) all.insert(buffers.begin(), buffers.end());
  std::vector<int64_t> change(program.instructions.size() + 2);
  for (BufferId id : all) {
    change[intervals[id.index()].begin] += alignedBytes(intervals[id.index()]);
    change[intervals[id.index()].end] -= alignedBytes(intervals[id.index()]);
  }
  int64_t live = 0, most = 0;
  for (int64_t bytes : change) most = std::max(most, live += bytes);
  return most;
}

// What the schedule says: every microbatch of a stage from its F to its B or W, with all that it leaves
// behind.
int64_t counted(const Program& program, const std::vector<Action>& order) {
  const std::vector<LiveBlock> intervals = intervalsOf(program);
  const std::map<Microbatch, std::set<BufferId>> stash = stashes(program);
  std::set<Microbatch> held;
  int64_t most = 0;
  for (const Action& action : order) {
    const Microbatch own{action.stage, action.microbatch};
    if (action.kind == ActionKind::kForward) held.insert(own);
    std::set<BufferId> buffers;
    for (const Microbatch& at : held) {
      const auto found = stash.find(at);
      if (found != stash.end()) buffers.insert(found->second.begin(), found->second.end());
    }
    int64_t bytes = 0;
    for (BufferId id : buffers) bytes += alignedBytes(intervals[id.index()]);
    most = std::max(most, bytes);
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) held.erase(own);
  }
  return most;
}

int64_t largestMessage(const Program& program) {
  const std::vector<LiveBlock> intervals = intervalsOf(program);
  int64_t largest = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kReceive || instruction.microbatch < 0) continue;
    largest = std::max(largest, alignedBytes(intervals[instruction.outputs[0].index()]));
  }
  return largest;
}

TEST(ScheduleMemory, ArenasHoldWhatThePeaksOfSchedulesCount) {
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (family.asynchronous || makeSchedule(family.name, 4, 8).forward_only) continue;
    for (const std::string recomputation : {"never", "always", "layers"}) {
      const Planned planned = planExample(family.name, recomputation);
      const Schedule schedule = scheduleOf(planned.plan);
      for (size_t rank = 0; rank < planned.programs.size(); ++rank) {
        SCOPED_TRACE(fmt::format("{}, rank {}, {}", family.name, rank, recomputation));
        const int64_t held = measured(planned.programs[rank]);
        const int64_t said = counted(planned.programs[rank], schedule.orders[PipelineRankId(rank)]);
        EXPECT_GT(held, 0);
        // What only I reads goes before W. With several stages on a rank, messages come in the order in which
        // the other rank sends them: the input of one stage may be there before its F, while another stage
        // waits for its own.
        EXPECT_LE(held, said + (family.chunks > 1 ? largestMessage(planned.programs[rank]) : 0));
        if (!family.splits_backward && family.chunks == 1) {
          EXPECT_EQ(held, said);
          const std::map<Microbatch, std::set<BufferId>> stash = stashes(planned.programs[rank]);
          EXPECT_EQ(said % peakActivations(schedule.orders[PipelineRankId(rank)]), 0);
          EXPECT_EQ(stash.size(), 8u);
        }
      }
    }
  }
}

// The most bytes of what passes make and read that are live at one instruction.
int64_t liveActivations(const Program& program) {
  const std::vector<LiveBlock> intervals = intervalsOf(program);
  std::vector<int64_t> change(program.instructions.size() + 2);
  for (size_t b = 0; b < intervals.size(); ++b) {
    if (program.buffer(BufferId(b)).kind != BufferKind::kActivation) continue;
    change[intervals[b].begin] += alignedBytes(intervals[b]);
    change[intervals[b].end] -= alignedBytes(intervals[b]);
  }
  int64_t live = 0, most = 0;
  for (int64_t bytes : change) most = std::max(most, live += bytes);
  return most;
}

TEST(ScheduleMemory, RecomputationByLayersHoldsLessThanThatOfWholeStages) {
  const Planned never = planExample("1f1b", "never"), always = planExample("1f1b", "always"),
                layers = planExample("1f1b", "layers");
  for (size_t rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_LT(liveActivations(layers.programs[rank]), liveActivations(always.programs[rank]));
    EXPECT_LE(liveActivations(always.programs[rank]), liveActivations(never.programs[rank]));
  }
}

}  // namespace
}  // namespace pipeshard
