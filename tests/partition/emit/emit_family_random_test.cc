// Random training steps at any batch size, cut at random places and over random meshes: the Programs compute
// exactly what the definition says, and a mutated Program is refused or computes something else.
#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/graph_print.h"
#include "ir/plan/plan_json.h"
#include "ir/program/program_json.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify.h"
#include "partition/cut/cut_training.h"
#include "partition/cut/layout.h"
#include "partition/cut/stage_shardings.h"
#include "partition/emit/emit_programs.h"
#include "partition/emit/emit_rank.h"
#include "partition/emit/sharded_pieces.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule.h"
#include "tests/partition/emit/modular_execution.h"
#include "tests/partition/emit/random_job.h"
#include "tests/partition/schedules/random_schedule.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

std::vector<RankProgram> emit(const Job& job, const std::string& schedule) {
  Plan plan = job.plan;
  plan.schedule = parseSchedule(schedule);
  return emitPrograms(job.family(), plan);
}

TEST(RandomTrainingFamilies, ProgramsComputeExactlyTheDefinitionOnAnyMeshesUnderEverySchedule) {
  std::map<InstructionKind, int> used;
  int in_background = 0, posted = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Job job = randomJob(seed);
    const std::vector<Symbols> expected = executeDefinition(job.maker, job.parts(), 2);
    for (const std::string schedule : {"sequential", "gpipe", "1f1b"}) {
      const std::vector<RankProgram> ranks = emit(job, schedule);
      try {
        ASSERT_EQ(executeFamilyPrograms(ranks, 2), expected) << schedule << "\n" << planToJson(job.plan);
      } catch (const std::runtime_error& error) {
        FAIL() << schedule << ": " << error.what() << "\n" << planToJson(job.plan);
      }
      for (const RankProgram& rank : ranks) {
        for (const Instruction& instruction : rank.program.instructions) {
          ++used[instruction.kind];
          if (instruction.background)
            ++(instruction.kind == InstructionKind::kReceive ? posted : in_background);
        }
      }
    }
  }
  for (InstructionKind kind : {InstructionKind::kAllReduce, InstructionKind::kSlice,
                               InstructionKind::kConcatenate, InstructionKind::kZero})
    EXPECT_GT(used[kind], 200) << instructionKindName(kind);
  EXPECT_GT(in_background, 200);
  EXPECT_GT(posted, 200);
}

TEST(RandomTrainingFamilies,
     ProgramsComputeExactlyTheDefinitionWithAnyStagesOnADeviceInAnyOrderAndAnyRecomputation) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Job job = wholeJob(seed, false, 0, random);
    cutAtRandom(job, 8, false, random);
    const Schedule schedule =
        randomSchedule(job.plan.stages.size(), 1 + static_cast<int>(random() % 4), job.microbatches, random);
    std::vector<int> groups;
    for (const PipelineRankId rank : schedule.rank_of_stage) groups.push_back(rank.index());
    placeAtRandom(job, groups, false, random);
    recomputeAtRandom(job.plan, random);
    try {
      ASSERT_EQ(executeFamilyPrograms(emitForSchedule(job.family(), job.plan, schedule), 2),
                executeDefinition(job.maker, job.parts(), 2))
          << planToJson(job.plan);
    } catch (const std::runtime_error& error) {
      FAIL() << error.what() << "\n" << planToJson(job.plan);
    }
  }
}

// Kinds are a matter of time and memory only: what is bound is what the rank's own emission makes, up to
// frees, which follow from all ranks together.
TEST(RandomTrainingFamilies, EveryRankGetsTheProgramOfItsOwnEmission) {
  size_t bound = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Job job = randomJob(seed);
    Plan plan = job.plan;
    plan.schedule = parseSchedule("1f1b");
    plan.given.bucket_bytes = 0;
    plan.given.overlap_receives = OverlapReceives::kOff;
    const TrainingFamily family = job.family();
    const Schedule schedule = scheduleOf(plan);
    const EmittedPrograms made = emitProgramSet(family, plan, schedule);
    const Layout layout(plan, family);
    const Cut cut = cutTraining(family.base(), plan);
    const WeightVersions versions(schedule, cut.owners);
    const Messages messages(cut, schedule);
    const StageShardings shardings(family, plan, cut, false);
    ShardedPieces pieces(shardings);
    EmissionContext context{family, layout, plan.stages, cut, schedule, versions, messages, shardings, "@"};
    context.pieces = &pieces;
    for (const RankId rank : layout.rankIds()) {
      const RankProgram own = emitRank(context, rank).rank;
      RankProgram given = made.of(rank);
      std::erase_if(given.program.instructions.unrolled(), [](const Instruction& instruction) {
        return instruction.kind == InstructionKind::kFree;
      });
      ASSERT_EQ(programToJson(given.program), programToJson(own.program));
      ASSERT_EQ(given.subgraphs.size(), own.subgraphs.size());
      for (size_t i = 0; i < own.subgraphs.size(); ++i)
        ASSERT_EQ(printGraph(given.subgraphs[i]), printGraph(own.subgraphs[i]));
    }
    for (const ProgramKind& kind : made.set.kinds) {
      const ProgramKind read = kindFromJson(kindToJson(kind));
      ASSERT_EQ(programToJson(read.program), programToJson(kind.program));
      ASSERT_EQ(read.start_slots, kind.start_slots);
    }
    bound += made.set.ranks.size() - made.set.kinds.size();
  }
  EXPECT_GT(bound, 50u);
}

// Without states the passes of a microbatch do not depend on each other: all microbatches together are one.
TEST(RandomTrainingFamilies, TheDefinitionDoesNotDependOnTheMicrobatches) {
  int compared = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Job job = randomJob(seed);
    if (!job.maker(job.batch).forward_states.empty()) continue;
    EXPECT_EQ(executeDefinition(job.maker, job.parts(), 2), executeDefinition(job.maker, {{0, job.batch}}, 2))
        << "seed " << seed;
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

// Changes emitted programs and sees whether anybody notices.
class Mutations {
 public:
  explicit Mutations(unsigned seed) {
    const Job job = randomJob(seed, true);
    ranks_ = emit(job, scheduleNames()[seed % 3]);
    expected_ = executeFamilyPrograms(ranks_, 1);
    name_ = "seed " + std::to_string(seed);
  }

  struct Place {
    size_t rank;
    size_t instruction;
  };
  std::vector<Place> find(InstructionKind kind) const {
    std::vector<Place> places;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (size_t i = 0; i < ranks_[r].program.instructions.size(); ++i) {
        if (ranks_[r].program.instructions.plain()[i].kind == kind) places.push_back({r, i});
      }
    }
    return places;
  }
  const Instruction& at(Place place) const {
    return ranks_[place.rank].program.instructions.plain()[place.instruction];
  }
  const Program& program(Place place) const { return ranks_[place.rank].program; }
  std::string describe(Place place) const {
    return name_ + " rank " + std::to_string(place.rank) + ": " +
           describeInstruction(program(place), at(place));
  }

  template <typename Change>
  bool isNoticed(const Change& change) const {
    std::vector<RankProgram> mutated = ranks_;
    change(mutated);
    std::vector<Program> programs;
    for (const RankProgram& rank : mutated) programs.push_back(rank.program);
    try {
      verifyPrograms(programs);
      return executeFamilyPrograms(mutated, 1) != expected_;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInternal;
    } catch (const std::runtime_error&) {
      return true;
    }
  }

  bool isErasureNoticed(const std::vector<Place>& places) const {
    return isNoticed([&](std::vector<RankProgram>& ranks) {
      for (Place place : places) {
        auto& instructions = ranks[place.rank].program.instructions;
        instructions.unrolled().erase(instructions.begin() + place.instruction);
      }
    });
  }

  // The all_reduce that meets this one, on all ranks of its group.
  std::vector<Place> partners(Place place) const {
    const std::vector<Place> all = find(InstructionKind::kAllReduce);
    const auto of = [&](size_t rank) {
      std::vector<Place> own;
      std::copy_if(all.begin(), all.end(), std::back_inserter(own), [&](Place p) { return p.rank == rank; });
      return own;
    };
    const std::vector<Place> mine = of(place.rank);
    const auto turn =
        std::find_if(mine.begin(), mine.end(), [&](Place p) { return p.instruction == place.instruction; }) -
        mine.begin();
    std::vector<Place> result;
    for (RankId rank : program(place).groups[at(place).group]) result.push_back(of(rank.index())[turn]);
    return result;
  }

 private:
  std::vector<RankProgram> ranks_;
  std::vector<Symbols> expected_;
  std::string name_;
};

constexpr unsigned kMutatedSeeds = 60;

TEST(RandomTrainingFamilies, AMissingSliceConcatenationOrZeroIsFound) {
  std::map<InstructionKind, int> tried;
  for (unsigned seed = 0; seed < kMutatedSeeds; ++seed) {
    const Mutations mutations(seed);
    for (InstructionKind kind :
         {InstructionKind::kSlice, InstructionKind::kConcatenate, InstructionKind::kZero}) {
      for (const auto& place : mutations.find(kind)) {
        EXPECT_TRUE(mutations.isErasureNoticed({place})) << mutations.describe(place);
        ++tried[kind];
      }
    }
  }
  for (const auto& [kind, count] : tried) EXPECT_GT(count, 20) << instructionKindName(kind);
  EXPECT_EQ(tried.size(), 3u);
}

TEST(RandomTrainingFamilies, AWrongRowInASliceOrABatchInputIsFound) {
  int tried = 0;
  for (unsigned seed = 0; seed < kMutatedSeeds; ++seed) {
    const Mutations mutations(seed);
    for (InstructionKind kind : {InstructionKind::kSlice, InstructionKind::kLoadInput}) {
      for (const auto& place : mutations.find(kind)) {
        const Shape& shape = mutations.program(place).buffer(mutations.at(place).outputs[0]).shape;
        const int64_t per_row = shape.size() == 2 ? kTokens : 1;
        for (int64_t step : {-per_row, per_row}) {
          const bool is_noticed = mutations.isNoticed([&](std::vector<RankProgram>& ranks) {
            ranks[place.rank].program.instructions[place.instruction].offset += step;
          });
          EXPECT_TRUE(is_noticed) << mutations.describe(place) << " moved by " << step;
          ++tried;
        }
      }
    }
  }
  EXPECT_GT(tried, 500);
}

TEST(RandomTrainingFamilies, SwappedSlicesAreFound) {
  int tried = 0;
  for (unsigned seed = 0; seed < kMutatedSeeds; ++seed) {
    const Mutations mutations(seed);
    const auto slices = mutations.find(InstructionKind::kSlice);
    for (size_t i = 0; i + 1 < slices.size(); ++i) {
      const Instruction& a = mutations.at(slices[i]);
      const Instruction& b = mutations.at(slices[i + 1]);
      if (slices[i].rank != slices[i + 1].rank || a.inputs != b.inputs) continue;
      const bool is_noticed = mutations.isNoticed([&](std::vector<RankProgram>& ranks) {
        auto& instructions = ranks[slices[i].rank].program.instructions;
        std::swap(instructions[slices[i].instruction].offset, instructions[slices[i + 1].instruction].offset);
      });
      EXPECT_TRUE(is_noticed) << mutations.describe(slices[i]);
      ++tried;
    }
  }
  EXPECT_GT(tried, 50);
}

// One rank's alone, that of the whole group, and one that each rank of the group does by itself. (A loss, or
// now and then a gradient, of which one device has everything is complete without: that is no fault.)
TEST(RandomTrainingFamilies, AMissingAllReduceOrOneOverAnotherGroupIsFound) {
  std::map<bool, int> noticed, tried;  // by whether it is the loss
  for (unsigned seed = 0; seed < kMutatedSeeds; ++seed) {
    const Mutations mutations(seed);
    for (const auto& place : mutations.find(InstructionKind::kAllReduce)) {
      EXPECT_TRUE(mutations.isErasureNoticed({place})) << mutations.describe(place);
      const auto partners = mutations.partners(place);
      if (partners.front().rank != place.rank) continue;
      const bool alone_is_noticed = mutations.isNoticed([&](std::vector<RankProgram>& ranks) {
        for (const auto& [rank, instruction] : partners) {
          ranks[rank].program.instructions[instruction].group = ranks[rank].program.groups.nextId();
          ranks[rank].program.groups.push_back({RankId(rank)});
        }
      });
      const bool is_loss = mutations.program(place).nameOf(mutations.at(place).inputs[0]) == "loss";
      tried[is_loss] += 2;
      noticed[is_loss] += (mutations.isErasureNoticed(partners) ? 1 : 0) + (alone_is_noticed ? 1 : 0);
    }
  }
  EXPECT_GE(noticed[false] * 20, tried[false] * 19);
  EXPECT_GT(tried[false], 100);
  EXPECT_GT(noticed[true], tried[true] / 2);
}

}  // namespace
}  // namespace pipeshard
