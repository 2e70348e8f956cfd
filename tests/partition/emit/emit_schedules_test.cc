// Programs of every synchronous schedule over grids of ranks, microbatches and chunks: they compute the
// definition, and hold the activations of exactly those microbatches that the schedule says.
#include <algorithm>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program_print.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/stages/partition_training.h"
#include "tests/partition/emit/symbolic_execution.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

// A chain of one node per stage, with skip connections to near and far stages, a parameter that three stages
// share, a total and states.
TrainingGraph chainOfStages(int stages, int64_t microbatches) {
  TrainingBuilder builder(microbatches);
  const ValueId x = builder.input("x");
  const ValueId count = builder.total("count", x);
  const ValueId tied = builder.parameter("tied");
  std::vector<ValueId> made = {x};
  for (int s = 0; s < stages; ++s) {
    std::vector<ValueId> inputs = {made.back(), builder.parameter("w" + std::to_string(s))};
    if (s > 1) inputs.push_back(made[made.size() - 2]);
    if (s == stages - 1 || s == stages / 2)
      inputs.insert(inputs.end(), {made.size() > 1 ? made[1] : x, tied, count});
    if (s == 0) inputs.push_back(tied);
    const std::string name = "h" + std::to_string(s);
    made.push_back(s % 3 == 1 ? builder.stateful(name, inputs) : builder.op(name, inputs));
  }
  return builder.finish({made.back()});
}

struct Case {
  std::string schedule;
  int ranks = 1;
  int microbatches = 1;
};

// Every synchronous schedule that trains, where it exists.
std::vector<Case> allCases() {
  std::vector<Case> cases;
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (family.asynchronous) continue;
    for (int p : {1, 2, 3, 4}) {
      for (int m : {1, 2, 3, 4, 6, 8, 12}) {
        for (const std::string options : {"", ":v=3"}) {
          if (!options.empty() && family.chunks == 1) continue;
          try {
            if (!makeSchedule(family.name + options, p, m).forward_only)
              cases.push_back({family.name + options, p, m});
          } catch (const Error& error) {  // it does not exist, or not with this option
            EXPECT_TRUE(error.code() == ErrorCode::kConfiguration || error.code() == ErrorCode::kUsage)
                << error.what();
          }
        }
      }
    }
  }
  return cases;
}

Plan planOf(const TrainingGraph& training, const Case& c, const std::string& recomputation) {
  const int stages = c.ranks * chunksOf(c.schedule);
  PartitionOptions options;
  options.schedule = parseSchedule(c.schedule);
  options.cluster = uniformCluster(1, c.ranks);
  options.recomputation = parseRecomputation(recomputation);
  for (int s = 0; s + 1 < stages; ++s) options.boundaries.push_back("h" + std::to_string(s));
  Plan plan;
  plan.cluster = options.cluster;
  partitionTraining(training, options, plan);
  return plan;
}

using Microbatch = std::pair<StageId, int>;  // stage, microbatch

// What a stage's forward pass reads or makes and its backward passes read: by microbatch, the buffers.
std::map<Microbatch, std::set<BufferId>> stashes(const Program& program) {
  std::map<Microbatch, std::set<BufferId>> forward, both;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind != InstructionKind::kRun) continue;
    const Subgraph& subgraph = program.subgraphs[instruction.subgraph.index()];
    const Microbatch at{instruction.stage, instruction.microbatch};
    if (subgraph.phase == Phase::kForward && !subgraph.recomputation) {
      forward[at].insert(instruction.inputs.begin(), instruction.inputs.end());
      forward[at].insert(instruction.outputs.begin(), instruction.outputs.end());
    }
    const bool again = subgraph.recomputation;
    if (!again && !isBackward(subgraph.phase)) continue;
    for (BufferId id : instruction.inputs) {
      const std::string name = program.nameOf(id);
      const std::string number = "@" + std::to_string(instruction.microbatch);
      if (forward[at].contains(id) && name.ends_with(number)) both[at].insert(id);
    }
  }
  return both;
}

bool isPartOf(const Instruction& run, const Subgraph& subgraph, const Action& action) {
  if (action.stage != run.stage || action.microbatch != run.microbatch) return false;
  if (subgraph.recomputation) return action.kind != ActionKind::kForward;
  if (subgraph.phase == Phase::kForward) return action.kind == ActionKind::kForward;
  if (action.kind == ActionKind::kBackward) return true;
  const ActionKind half =
      subgraph.phase == Phase::kBackwardInput ? ActionKind::kBackwardInput : ActionKind::kBackwardWeight;
  return subgraph.phase != Phase::kBackward && action.kind == half;
}

// Microbatches whose forward pass has run and whose backward passes have not, and those whose stash is in
// memory.
struct Held {
  std::string after;
  std::set<Microbatch> said;
  std::set<Microbatch> found;
};

class HeldWatch {
 public:
  HeldWatch(const Program& program, const std::vector<Action>& order)
      : program_(program), order_(order), stash_(stashes(program)) {}

  // After each action of the rank.
  std::vector<Held> run() {
    for (const Instruction& instruction : program_.instructions) {
      if (instruction.kind == InstructionKind::kRun && instruction.microbatch >= 0) {
        const Subgraph& subgraph = program_.subgraphs[instruction.subgraph.index()];
        while (subgraph.phase != Phase::kPrologue &&
               !isPartOf(instruction, subgraph, order_.at(result_.size())))
          note();
        if (subgraph.phase == Phase::kForward && !subgraph.recomputation)
          begun_.insert({instruction.stage, instruction.microbatch});
      }
      alive_.insert(instruction.outputs.begin(), instruction.outputs.end());
      if (instruction.kind == InstructionKind::kFree) alive_.erase(instruction.inputs[0]);
    }
    return std::move(result_);
  }

 private:
  void note() {
    const Action& action = order_[result_.size()];
    const Microbatch changed{action.stage, action.microbatch};
    if (action.kind == ActionKind::kForward) said_.insert(changed);
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight)
      said_.erase(changed);
    Held& held = result_.emplace_back(Held{actionToString(action), said_, {}});
    for (const auto& [at, buffers] : stash_) {
      const auto is_held = [&, &own = at](BufferId id) {
        return alive_.contains(id) && (said_.contains(own) || !belongsToAnother(id, own));
      };
      if (begun_.contains(at) && std::any_of(buffers.begin(), buffers.end(), is_held)) held.found.insert(at);
    }
  }

  // Of several stages that hold a buffer together, one has it rightly.
  bool belongsToAnother(BufferId id, const Microbatch& at) const {
    return std::any_of(said_.begin(), said_.end(), [&](const Microbatch& other) {
      const auto stash = stash_.find(other);
      return other != at && stash != stash_.end() && stash->second.contains(id);
    });
  }

  const Program& program_;
  const std::vector<Action>& order_;
  const std::map<Microbatch, std::set<BufferId>> stash_;
  std::set<BufferId> alive_;
  std::set<Microbatch> begun_, said_;
  std::vector<Held> result_;
};

TEST(EveryScheduleEmitted, ComputesTheDefinitionAndHoldsTheActivationsThatItsPeakCounts) {
  size_t peaks = 0;
  for (const Case& c : allCases()) {
    SCOPED_TRACE(c.schedule + " p=" + std::to_string(c.ranks) + " m=" + std::to_string(c.microbatches));
    const TrainingGraph training = chainOfStages(c.ranks * chunksOf(c.schedule), c.microbatches);
    const std::vector<Symbols> expected = executeDefinition(training, 2);
    for (const std::string recomputation : {"never", "always", "except-last", "layers", "selective"}) {
      Plan plan = planOf(training, c, recomputation);
      plan.given.overlap_receives = peaks % 2 == 0 ? OverlapReceives::kOn : OverlapReceives::kOff;
      const Schedule schedule = scheduleOf(plan);
      const std::vector<RankProgram> ranks = emitOneSize(training, plan);
      ASSERT_EQ(ranks.size(), static_cast<size_t>(c.ranks));
      ASSERT_EQ(executePrograms(ranks, 2), expected) << recomputation;
      for (size_t r = 0; r < ranks.size(); ++r) {
        const std::vector<Action>& order = schedule.orders[PipelineRankId(r)];
        size_t most = 0;
        for (const Held& held : HeldWatch(ranks[r].program, order).run()) {
          EXPECT_EQ(held.found, held.said)
              << "rank " << r << " after " << held.after << ", " << recomputation;
          most = std::max(most, held.found.size());
        }
        EXPECT_EQ(static_cast<int64_t>(most), peakActivations(order)) << "rank " << r;
        ++peaks;
      }
    }
  }
  EXPECT_GT(peaks, 1000u);
}

// The gradient of a value that comes from parameters alone is part of no activation's gradient: a weight
// part. When another stage made that value, its weight part waits for this one, and no schedule says in which
// order they run.
TEST(EveryScheduleEmitted, WeightPartsOfDifferentStagesDoNotWaitForEachOther) {
  TrainingBuilder builder(2);
  const ValueId of_weight = builder.op("t", {builder.parameter("wt")});
  const ValueId h0 = builder.op("h0", {builder.input("x"), builder.parameter("w0")});
  TrainingGraph training = builder.finish({builder.op("h1", {h0, of_weight, builder.parameter("w1")})});
  int changed = 0;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (training.graph.value(training.graph.nodes[n].outputs[0]).name != "d_t_by_h1") continue;
    training.node_phase[n] = Phase::kBackwardWeight;
    ++changed;
  }
  ASSERT_EQ(changed, 1);
  PartitionOptions options;
  options.cluster = uniformCluster(1, 2);
  options.boundaries = {"h0"};
  Plan plan;
  partitionTraining(training, options, plan);
  plan.schedule_orders = {"0F0,0I0,0W0,0F1,0B1", "1F0,1I0,1F1,1W0,1B1"};
  EXPECT_EQ(executePrograms(emitOneSize(training, plan), 2), executeDefinition(training, 2));
}

// What a recomputation makes is gone when the backward passes of its microbatch are done, and the forward
// pass has not kept it.
TEST(EveryScheduleEmitted, RecomputesOnlyWhileAMicrobatchRunsBackward) {
  for (const std::string schedule : {"1f1b", "zb-h1", "interleaved:v=2"}) {
    const Case c{schedule, 2, 4};
    const TrainingGraph training = chainOfStages(2 * chunksOf(schedule), 4);
    for (const RankProgram& rank : emitOneSize(training, planOf(training, c, "always"))) {
      std::map<BufferId, Microbatch> again;
      int runs = 0;
      for (const Instruction& instruction : rank.program.instructions) {
        if (instruction.kind == InstructionKind::kFree) again.erase(instruction.inputs[0]);
        if (instruction.kind != InstructionKind::kRun) continue;
        const Subgraph& subgraph = rank.program.subgraphs[instruction.subgraph.index()];
        if (subgraph.recomputation) {
          for (BufferId id : instruction.outputs) again[id] = {instruction.stage, instruction.microbatch};
          ++runs;
        }
        if (subgraph.phase == Phase::kForward && !subgraph.recomputation && !schedule.starts_with("zb")) {
          EXPECT_TRUE(again.empty()) << schedule << ": " << describeInstruction(rank.program, instruction);
        }
      }
      EXPECT_TRUE(again.empty());
      EXPECT_EQ(runs, 4 * chunksOf(schedule)) << schedule;
    }
  }
}

// Two stages of four layers of two nodes: of a stage's backward pass, what one layer makes is there at a
// time, but for what halved passes leave for later.
TEST(EveryScheduleEmitted, RecomputesLayerByLayer) {
  TrainingBuilder builder(4);
  ValueId made = builder.input("x");
  for (int node = 0; node < 16; ++node) {
    const std::string number = std::to_string(node);
    made = node % 5 == 2 ? builder.stateful("h" + number, {made})
                         : builder.op("h" + number, {made, builder.parameter("w" + number)});
  }
  const TrainingGraph training = builder.finish({made});
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    Plan plan = planOf(training, {schedule, 2, 4}, "layers");
    plan.layers.clear();
    for (int64_t layer = 0; layer < 8; ++layer)
      plan.layers.push_back({"", "", 2 * layer, layer == 7 ? 16 : 2 * layer + 1});
    plan.stages[StageId(0)].last_layer = LayerId(3);
    plan.stages[StageId(1)].first_layer = LayerId(4);
    plan.stages[StageId(1)].last_layer = LayerId(7);
    const std::vector<RankProgram> ranks = emitOneSize(training, plan);
    EXPECT_EQ(executePrograms(ranks, 2), executeDefinition(training, 2));
    for (const RankProgram& rank : ranks) {
      std::set<BufferId> again;
      int runs = 0;
      for (const Instruction& instruction : rank.program.instructions) {
        if (instruction.kind == InstructionKind::kFree) again.erase(instruction.inputs[0]);
        if (instruction.kind != InstructionKind::kRun) continue;
        if (!rank.program.subgraphs[instruction.subgraph.index()].recomputation) continue;
        EXPECT_TRUE(again.empty() || schedule == "zb-h1") << describeInstruction(rank.program, instruction);
        again.insert(instruction.outputs.begin(), instruction.outputs.end());
        ++runs;
      }
      EXPECT_TRUE(again.empty());
      EXPECT_EQ(runs, 4 * 4);
    }
  }
}

}  // namespace
}  // namespace pipeshard
