// Random training steps at any batch size, cut at random places and over random meshes: the Programs compute
// exactly what the definition says, and a mutated Program is refused or computes something else.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <set>
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
#include "partition/stages/partition_training.h"
#include "tests/partition/emit/modular_execution.h"
#include "tests/partition/schedules/random_schedule.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using Kind = TrainingBuilder::Kind;

// The same graph for every number of rows.
class RandomStep {
 public:
  // `rows_differ`: whatever is split depends on the input "x", so that no row is like another; no states,
  // whose nodes run for nothing else.
  RandomStep(unsigned seed, int64_t rows, int64_t microbatches, bool rows_differ)
      : random_(seed), builder_(microbatches, rows), rows_differ_(rows_differ) {}

  TrainingGraph make() {
    addSources();
    for (size_t nodes = 3 + random_() % 12; nodes > 0; --nodes) addNode();
    std::vector<ValueId> losses = {builder_.reduce("last", {pool(Kind::kSplit).back(), any(Kind::kSplit)})};
    for (size_t i = random_() % 3; i > 0 && !pool(Kind::kSum).empty(); --i) losses.push_back(any(Kind::kSum));
    if (random_() % 3 == 0) losses.push_back(any(Kind::kInvariant));
    return builder_.finish(losses, random_() % 3);
  }

 private:
  std::vector<ValueId>& pool(Kind kind) { return pools_[kind]; }
  ValueId any(Kind kind) { return pool(kind)[random_() % pool(kind).size()]; }
  void add(ValueId id) { pool(builder_.kind(id)).push_back(id); }

  // The newest more often, so that chains grow.
  ValueId recent(Kind kind) { return random_() % 2 ? pool(kind).back() : any(kind); }

  void addSources() {
    add(builder_.input("x"));
    if (random_() % 2) add(builder_.input("y", 1));
    add(builder_.input("mask", -1));
    add(builder_.constant("c"));
    add(builder_.weight("frozen"));
    if (random_() % 2) add(builder_.total("count", any(Kind::kSplit)));
    if (random_() % 3 == 0 && !rows_differ_)
      add(builder_.growingConstant("ones" + std::to_string(random_() % 3)));
  }

  ValueId parameter() {
    if (!parameters_.empty() && random_() % 3 == 0) return parameters_[random_() % parameters_.size()];
    const std::string name = "w" + std::to_string(parameters_.size());
    parameters_.push_back(random_() % 2 ? builder_.parameter(name) : builder_.smallParameter(name));
    return parameters_.back();
  }

  std::vector<ValueId> with(std::vector<ValueId> inputs, Kind others) {
    for (size_t i = random_() % 3; i > 0; --i)
      inputs.push_back(any(random_() % 2 ? others : Kind::kInvariant));
    if (random_() % 2) inputs.push_back(parameter());
    if (rows_differ_ && others == Kind::kSplit) inputs.push_back(pool(Kind::kSplit).front());
    std::shuffle(inputs.begin(), inputs.end(), random_);
    return inputs;
  }

  void addNode() {
    const std::string name = "h" + std::to_string(nodes_++);
    const bool has_sum = !pool(Kind::kSum).empty();
    switch (random_() % (rows_differ_ ? 10 : 12)) {
      case 0: return add(builder_.op(name, with({parameter()}, Kind::kInvariant)));
      case 1: return add(builder_.bias(name, builder_.op(name + "_in", {parameter()}), parameter()));
      case 2: return add(builder_.reduce(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
      case 3: return add(builder_.share(name, with({parameter()}, Kind::kInvariant)));
      case 4:
      case 5:
        if (has_sum) return add(builder_.op(name, with({recent(Kind::kSum)}, Kind::kSum)));
        return add(builder_.reduce(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
      case 6: return add(builder_.reshape(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
      case 10: return add(builder_.stateful(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
      case 11: return add(builder_.expand(name, with({parameter()}, Kind::kInvariant)));
      default: return add(builder_.op(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
    }
  }

  std::mt19937 random_;
  TrainingBuilder builder_;
  const bool rows_differ_;
  std::map<Kind, std::vector<ValueId>> pools_;
  std::vector<ValueId> parameters_;
  size_t nodes_ = 0;
};

// A batch, microbatches, stages and meshes that fit a random step.
struct Job {
  TrainingFamily::Maker maker;
  int64_t batch = 1;
  int64_t microbatches = 1;
  Plan plan;

  TrainingFamily family() const { return TrainingFamily(batch, microbatches, maker); }
  std::vector<Rows> parts() const {
    std::vector<Rows> parts;
    for (int64_t k = 0; k < microbatches; ++k) parts.push_back(shareOf({0, batch}, k, microbatches));
    return parts;
  }
};

constexpr std::pair<int, int> kMeshes[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {1, 3}, {2, 2}};

// At most so many stages at random cuts. `rows_differ`: never before a sum over rows, to which it does not
// matter which device has which of them.
void cutAtRandom(Job& job, size_t most_stages, bool rows_differ, std::mt19937& random) {
  const TrainingFamily family = job.family();
  const TrainingGraph& training = family.base();
  std::vector<std::string> names;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const std::string& name = training.graph.value(training.graph.nodes[n].outputs[0]).name;
    if (training.node_phase[n] == Phase::kForward && !(rows_differ && name.ends_with("_in")))
      names.push_back(name);
  }
  const size_t stages = 1 + random() % std::min(names.size(), most_stages);
  std::vector<size_t> cuts(names.size() - 1);
  std::iota(cuts.begin(), cuts.end(), 0);
  std::shuffle(cuts.begin(), cuts.end(), random);
  cuts.resize(stages - 1);
  std::sort(cuts.begin(), cuts.end());
  PartitionOptions options;
  options.cluster = uniformCluster(1, stages);
  options.stages = uniformStages(stages);
  for (size_t cut : cuts) options.boundaries.push_back(names[cut]);
  partitionTraining(training, options, job.plan);
}

// Gives each group of stages a random mesh of random devices; `along_data`: so that nobody does the same as
// another.
void placeAtRandom(Job& job, const std::vector<int>& groups, bool along_data, std::mt19937& random) {
  const size_t count = static_cast<size_t>(*std::max_element(groups.begin(), groups.end())) + 1;
  std::vector<std::pair<int, int>> meshes;
  for (size_t g = 0; g < count; ++g) {
    std::pair<int, int> mesh = kMeshes[random() % std::size(kMeshes)];
    if (along_data) mesh.second = 1;
    if (mesh.first > job.batch / job.microbatches) mesh = {1, mesh.second};
    meshes.push_back(mesh);
  }
  int devices = 0;
  for (const auto& [data, model] : meshes) devices += data * model;
  std::vector<RankId> numbers = idsBelow<RankId>(devices);
  std::shuffle(numbers.begin(), numbers.end(), random);
  auto next = numbers.begin();
  for (size_t g = 0; g < count; ++g) {
    const auto end = next + meshes[g].first * meshes[g].second;
    for (size_t s = 0; s < groups.size(); ++s) {
      if (groups[s] != static_cast<int>(g)) continue;
      job.plan.stages[StageId(s)].mesh_shape = {meshes[g].first, meshes[g].second};
      job.plan.stages[StageId(s)].devices.assign(next, end);
    }
    next = end;
  }
}

void cutAndPlace(Job& job, bool along_data, std::mt19937& random) {
  cutAtRandom(job, 4, along_data, random);
  std::vector<int> groups(job.plan.stages.size());
  std::iota(groups.begin(), groups.end(), 0);
  placeAtRandom(job, groups, along_data, random);
}

// Cut nowhere yet.
Job wholeJob(unsigned seed, bool rows_differ, std::mt19937& random) {
  Job job;
  job.microbatches = 1 + static_cast<int64_t>(random() % 4);
  job.batch =
      job.microbatches * (1 + static_cast<int64_t>(random() % 5)) + static_cast<int64_t>(random() % 4);
  job.maker = [seed, rows_differ, microbatches = job.microbatches](int64_t rows) {
    return RandomStep(seed, rows, microbatches, rows_differ).make();
  };
  job.plan.microbatches = job.microbatches;
  job.plan.given.bucket_bytes = std::array<int64_t, 4>{0, 1, 1000, kDefaultBucketBytes}[seed % 4];
  job.plan.given.overlap_receives = seed / 4 % 2 == 0 ? OverlapReceives::kOn : OverlapReceives::kOff;
  return job;
}

// `rows_differ`: without repetitions, so that every mistake shows.
Job randomJob(unsigned seed, bool rows_differ = false) {
  std::mt19937 random(seed);
  Job job = wholeJob(seed, rows_differ, random);
  cutAndPlace(job, rows_differ, random);
  return job;
}

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
    Job job = wholeJob(seed, false, random);
    cutAtRandom(job, 8, false, random);
    const Schedule schedule =
        randomSchedule(job.plan.stages.size(), 1 + static_cast<int>(random() % 4), job.microbatches, random);
    std::vector<int> groups;
    for (const PipelineRankId rank : schedule.rank_of_stage) groups.push_back(rank.index());
    placeAtRandom(job, groups, false, random);
    recomputeAtRandom(job.plan, random);
    try {
      ASSERT_EQ(executeFamilyPrograms(emitPrograms(job.family(), job.plan, schedule), 2),
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
      std::erase_if(given.program.instructions, [](const Instruction& instruction) {
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
        if (ranks_[r].program.instructions[i].kind == kind) places.push_back({r, i});
      }
    }
    return places;
  }
  const Instruction& at(Place place) const {
    return ranks_[place.rank].program.instructions[place.instruction];
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
        instructions.erase(instructions.begin() + place.instruction);
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
      const bool is_loss = mutations.program(place).buffer(mutations.at(place).inputs[0]).name == "loss";
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
