#include "runtime/execute/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "runtime/execute/block_placement.h"

namespace pipeshard {
namespace {

TEST(PlaceBlocks, ReusesMemoryOfBlocksThatEnded) {
  const std::vector<LiveBlock> blocks{{1000, 0, 2}, {1000, 2, 4}, {1000, 4, 6}};
  const Placement placement = placeBlocks(blocks);
  EXPECT_EQ(placement.total_bytes, 1024);
  EXPECT_EQ(placement.offsets, (std::vector<int64_t>{0, 0, 0}));
}

TEST(PlaceBlocks, KeepsBlocksOfOneMomentApart) {
  const std::vector<LiveBlock> blocks{{64, 0, 3}, {1, 1, 2}, {65, 2, 3}};
  const Placement placement = placeBlocks(blocks);
  verifyPlacement(blocks, placement);
  EXPECT_EQ(placement.total_bytes, 192);
}

TEST(PlaceBlocks, GivesNothingToEmptyBlocks) {
  const std::vector<LiveBlock> blocks{{0, 0, 9}, {64, 3, 3}, {64, 0, 9}};
  EXPECT_EQ(placeBlocks(blocks).total_bytes, 64);
}

TEST(PlaceBlocks, IsNearTheLowerBoundOnRandomIntervals) {
  std::mt19937 random(3);
  double worst = 1;
  double sum = 0;
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<LiveBlock> blocks;
    const int64_t horizon = 5 + random() % 200;
    for (size_t b = 0; b < 10 + random() % 200; ++b) {
      const int64_t begin = random() % horizon;
      blocks.push_back(
          {static_cast<int64_t>(random() % 5000), begin, begin + 1 + static_cast<int64_t>(random() % 20)});
    }
    const Placement placement = placeBlocks(blocks);
    verifyPlacement(blocks, placement);
    const int64_t bound = liveLowerBound(blocks);
    ASSERT_GE(placement.total_bytes, bound);
    ASSERT_EQ(placeBlocks(blocks).offsets, placement.offsets);
    const double ratio = static_cast<double>(placement.total_bytes) / static_cast<double>(bound);
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  EXPECT_LT(worst, 1.35);
  EXPECT_LT(sum / kRounds, 1.12);
}

enum class Fit { kFirst, kBest };

// The same search, block by block.
int64_t fitAmong(Fit fit, const std::vector<LiveBlock>& placed, const std::vector<int64_t>& offsets,
                 int64_t bytes, const Times& times) {
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (size_t b = 0; b < placed.size(); ++b) {
    const bool together = std::ranges::any_of(times.starts, [&](int64_t start) {
      return placed[b].begin < start + times.end && start + times.begin < placed[b].end;
    });
    if (together) taken.emplace_back(offsets[b], offsets[b] + placed[b].bytes);
  }
  std::sort(taken.begin(), taken.end());
  int64_t top = 0, best = -1, best_gap = 0;
  for (const auto& [from, to] : taken) {
    const int64_t gap = from - top;
    if (gap >= bytes && (best < 0 || (fit == Fit::kBest && gap < best_gap))) {
      best = top;
      best_gap = gap;
    }
    top = std::max(top, to);
  }
  return best < 0 ? top : best;
}

TEST(OccupiedMemory, FindsTheGapThatASearchOfAllBlocksFinds) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const int64_t horizon = 1 + random() % 70;
    std::vector<int64_t> moments;
    for (int64_t t = 0; t <= horizon; ++t) moments.push_back(3 * t);
    OccupiedMemory occupied(moments);
    std::vector<LiveBlock> placed;
    std::vector<int64_t> offsets;
    const int sizes = 1 + random() % 5;
    for (int b = 0; b < 150; ++b) {
      const int64_t length = 1 + random() % horizon;
      std::vector<int64_t> starts;  // of one that comes again and again
      for (int64_t start = random() % length; start + length <= horizon; start += length + random() % 20)
        starts.push_back(3 * start);
      if (starts.empty()) continue;
      if (random() % 2 == 0) starts.resize(1);
      const int64_t bytes = 64 * static_cast<int64_t>(1 + random() % sizes);
      const Times times{0, 3 * length, starts};
      const int64_t offset = occupied.firstFit(bytes, times);
      ASSERT_EQ(offset, fitAmong(Fit::kFirst, placed, offsets, bytes, times));
      occupied.occupy({offset, offset + bytes}, times);
      for (const int64_t start : starts) {
        placed.push_back({bytes, start, start + 3 * length});
        offsets.push_back(offset);
      }
    }
  }
}

TEST(MemoryInOrder, FindsTheGapThatASearchOfAllBlocksFinds) {
  std::mt19937 random(12);
  int in_gaps = 0;
  for (int round = 0; round < 200; ++round) {
    const int64_t horizon = 1 + random() % 70;
    const int sizes = 1 + random() % 5;
    std::vector<LiveBlock> blocks;
    for (int b = 0; b < 150; ++b) {
      const int64_t begin = random() % horizon;
      blocks.push_back({64 * static_cast<int64_t>(1 + random() % sizes), begin,
                        begin + 1 + static_cast<int64_t>(random() % horizon)});
    }
    std::stable_sort(blocks.begin(), blocks.end(),
                     [](const LiveBlock& a, const LiveBlock& b) { return a.begin < b.begin; });
    MemoryInOrder memory;
    std::vector<LiveBlock> placed;
    std::vector<int64_t> offsets;
    int64_t top = 0;
    for (const LiveBlock& block : blocks) {
      const int64_t offset = memory.place(block.bytes, block.begin, block.end);
      ASSERT_EQ(offset, fitAmong(Fit::kBest, placed, offsets, block.bytes, {block.begin, block.end}));
      placed.push_back(block);
      offsets.push_back(offset);
      in_gaps += offset + block.bytes < top;
      top = std::max(top, offset + block.bytes);
    }
  }
  EXPECT_GT(in_gaps, 1000);
}

TEST(VerifyPlacement, FindsEveryOverlap) {
  std::mt19937 random(5);
  int overlaps = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<LiveBlock> blocks;
    Placement placement;
    placement.total_bytes = 64 * 20;
    for (size_t b = 0; b < 6; ++b) {
      const int64_t begin = random() % 10;
      blocks.push_back(
          {static_cast<int64_t>(1 + random() % 200), begin, begin + 1 + static_cast<int64_t>(random() % 3)});
      placement.offsets.push_back(64 * static_cast<int64_t>(random() % 16));
    }
    bool is_bad = false;
    for (size_t a = 0; a < blocks.size(); ++a) {
      for (size_t b = a + 1; b < blocks.size(); ++b) {
        const bool in_time = blocks[a].begin < blocks[b].end && blocks[b].begin < blocks[a].end;
        const bool in_space = placement.offsets[a] < placement.offsets[b] + blocks[b].bytes &&
                              placement.offsets[b] < placement.offsets[a] + blocks[a].bytes;
        is_bad |= in_time && in_space;
      }
    }
    overlaps += is_bad;
    if (is_bad) {
      EXPECT_THROW(verifyPlacement(blocks, placement), Error);
    } else {
      EXPECT_NO_THROW(verifyPlacement(blocks, placement));
    }
  }
  EXPECT_GT(overlaps, 200);
  EXPECT_LT(overlaps, 1800);
}

Program twoMicrobatches() {
  Program program;
  const auto add = [&](const char* name, BufferKind kind, int64_t elements) {
    program.buffers.push_back(
        {name, kind, DataType::kFloat32, {elements}, name, std::nullopt, DataType::kUndefined});
    return BufferId(program.buffers.size() - 1);
  };
  const BufferId w = add("w", BufferKind::kParameter, 100);
  const BufferId a0 = add("a@0", BufferKind::kActivation, 1000);
  const BufferId a1 = add("a@1", BufferKind::kActivation, 1000);
  const BufferId g = add("g", BufferKind::kGradient, 100);
  const auto instruct = [&](InstructionKind kind, std::vector<BufferId> inputs,
                            std::vector<BufferId> outputs) {
    Instruction instruction;
    instruction.kind = kind;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    instruction.overwrite = true;
    program.instructions.push_back(instruction);
  };
  instruct(InstructionKind::kRun, {w}, {a0});
  instruct(InstructionKind::kFree, {a0}, {});
  instruct(InstructionKind::kRun, {w}, {a1});
  instruct(InstructionKind::kAccumulate, {w}, {g});
  instruct(InstructionKind::kFree, {a1}, {});
  return program;
}

using Runs = std::vector<const RunMemory*>;

// Nothing is known of what runs do.
Runs unknown(const Program& program) { return Runs(program.instructions.size()); }

FineIntervals coarse(const Program& program, const Accumulation& accumulation) {
  return fineIntervals(program, accumulation, unknown(program));
}

// Every buffer has memory of its own.
Accumulation separate(const Program& program) {
  return {std::vector<BufferId>(program.buffers.size()), std::vector<bool>(program.buffers.size()),
          std::vector<bool>(program.instructions.size())};
}

TEST(PlanMemory, GivesMicrobatchesOneAfterAnotherTheSamePlace) {
  const Program program = twoMicrobatches();
  const MemoryPlan plan =
      planMemory(program, separate(program), coarse(program, separate(program)), unknown(program), 500);
  EXPECT_EQ(plan.offsets[0], 0);
  EXPECT_EQ(plan.offsets[1], plan.offsets[2]);
  EXPECT_NE(plan.offsets[2], plan.offsets[3]);
  EXPECT_EQ(plan.total_bytes, 448 + 4032 + 448 + 512);
  EXPECT_EQ(plan.parts.parameters, 400);
  EXPECT_EQ(plan.parts.activations, 4000);
  EXPECT_EQ(plan.parts.gradients, 400);
  EXPECT_EQ(plan.parts.workspace, 500);
  EXPECT_EQ(plan.parts.total(), plan.total_bytes);
  EXPECT_EQ(plan.lane_offset + 512, plan.total_bytes);
}

TEST(PlanMemory, RefusesABufferThatIsNeverWritten) {
  Program program = twoMicrobatches();
  program.instructions.unrolled().erase(program.instructions.begin());
  EXPECT_THROW(coarse(program, separate(program)), Error);
}

// The header's example: two activations, and the gradients of two weights.
class FineIntervalsOfABackwardPass : public ::testing::Test {
 protected:
  FineIntervalsOfABackwardPass() {
    w_ = add("w", BufferKind::kParameter);
    h0_ = add("h0", BufferKind::kActivation);
    h1_ = add("h1", BufferKind::kActivation);
    dw0_ = add("dw0", BufferKind::kGradient);
    dw1_ = add("dw1", BufferKind::kGradient);
    instruct(InstructionKind::kRun, {w_}, {h0_, h1_});
    instruct(InstructionKind::kRun, {h1_, h0_, w_}, {dw1_, dw0_});
    instruct(InstructionKind::kFree, {h0_}, {});
    instruct(InstructionKind::kFree, {h1_}, {});
    instruct(InstructionKind::kAccumulate, {dw0_}, {dw1_});
  }

  BufferId add(const char* name, BufferKind kind) {
    program_.buffers.push_back(
        {name, kind, DataType::kFloat32, {256}, name, std::nullopt, DataType::kUndefined});
    return BufferId(program_.buffers.size() - 1);
  }
  Instruction& instruct(InstructionKind kind, std::vector<BufferId> inputs, std::vector<BufferId> outputs) {
    Instruction instruction;
    instruction.kind = kind;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    program_.instructions.push_back(instruction);
    return program_.instructions.unrolled().back();
  }

  MemoryPlan plan() const {
    const Runs runs = {nullptr, &backward_, nullptr, nullptr, nullptr};
    const Accumulation accumulation = separate(program_);
    return planMemory(program_, accumulation, fineIntervals(program_, accumulation, runs), runs);
  }
  int64_t offset(const MemoryPlan& plan, BufferId id) const { return plan.offsets[id.index()]; }

  RunMemory backward_ = {5, {2, 4, 5}, {1, 3}, {}, {}};
  Program program_;
  BufferId w_, h0_, h1_, dw0_, dw1_;
};

TEST_F(FineIntervalsOfABackwardPass, LetWhatIsMadeLastLieWhereWhatIsReadFirstWas) {
  const MemoryPlan made = plan();
  EXPECT_EQ(offset(made, dw0_), offset(made, h1_));
  for (const BufferId other : {h0_, dw0_, h1_}) EXPECT_NE(offset(made, dw1_), offset(made, other));
  EXPECT_EQ(made.total_bytes, 4 * 1024);
  const Accumulation accumulation = separate(program_);
  EXPECT_EQ(planMemory(program_, accumulation, coarse(program_, accumulation), unknown(program_)).total_bytes,
            5 * 1024);
}

TEST_F(FineIntervalsOfABackwardPass, KeepWhatIsReadOrSentBehindIt) {
  instruct(InstructionKind::kSend, {h1_}, {});
  std::swap(program_.instructions.unrolled()[3], program_.instructions.unrolled()[5]);
  const Runs runs = {nullptr, &backward_, nullptr, nullptr, nullptr, nullptr};
  const Accumulation accumulation = separate(program_);
  const FineIntervals fine = fineIntervals(program_, accumulation, runs);
  EXPECT_EQ(fine.stride, 5);
  EXPECT_EQ(fine.blocks[h0_.index()].end, 5 + 4);
  EXPECT_EQ(fine.blocks[h1_.index()].end, 5 * 5);  // its kFree
  EXPECT_EQ(fine.blocks[dw1_.index()].begin, 5 + 1);
}

// An accumulator that holds something before the run begins before it, wherever the run writes to it.
TEST_F(FineIntervalsOfABackwardPass, BeginWithTheFirstThatWrites) {
  Accumulation accumulation = separate(program_);
  accumulation.place[dw0_.index()] = dw1_;
  const Runs runs = {nullptr, &backward_, nullptr, nullptr, nullptr};
  EXPECT_EQ(fineIntervals(program_, accumulation, runs).blocks[dw1_.index()].begin, 5 + 1);
  Instruction zero;
  zero.kind = InstructionKind::kZero;
  zero.outputs = {dw1_};
  program_.instructions.unrolled().insert(program_.instructions.unrolled().begin(), zero);
  const Runs later = {nullptr, nullptr, &backward_, nullptr, nullptr, nullptr};
  EXPECT_EQ(fineIntervals(program_, accumulation, later).blocks[dw1_.index()].begin, 0);
}

TEST_F(FineIntervalsOfABackwardPass, TellTheMostThatIsLiveDuringEachInstruction) {
  const Runs runs = {nullptr, &backward_, nullptr, nullptr, nullptr};
  const Accumulation accumulation = separate(program_);
  const FineIntervals fine = fineIntervals(program_, accumulation, runs);
  std::vector<int64_t> most;
  for (const LivePeak& peak : livePeaks(fine, runs)) most.push_back(peak.bytes);
  EXPECT_EQ(most, (std::vector<int64_t>{3072, 4096, 3072, 3072, 3072}));
}

// What a run makes for itself lies among the buffers, where there is room then: the backward pass needs h1 in
// its first two steps, dw1 and dw0 from the second and the fourth on.
TEST_F(FineIntervalsOfABackwardPass, LeaveRoomForTemporaries) {
  backward_.temporaries = {{1024, 0, 1}, {1024, 2, 3}, {1000, 4, 5}};
  backward_.apart = placeBlocks(backward_.temporaries);
  EXPECT_EQ(backward_.apart.total_bytes, 1024);
  const MemoryPlan made = plan();
  EXPECT_EQ(made.total_bytes, 4 * 1024);
  const std::vector<int64_t>& temporaries = made.run_offsets[made.run_of[1]];
  EXPECT_EQ(made.run_base + temporaries[0], offset(made, dw1_));
  EXPECT_EQ(made.run_base + temporaries[1], offset(made, h1_));
  EXPECT_EQ(made.parts.workspace, 1024);
  EXPECT_EQ(made.parts.total(), made.total_bytes);
}

// A random program of many runs: nothing overlaps that is needed at one moment.
class ManyRuns {
 public:
  ManyRuns(std::mt19937& random, int count) {
    for (RunMemory& run : kinds_) {
      run.count = 1 + random() % 6;
      for (size_t t = 0; t < random() % 5; ++t) {
        const int64_t begin = random() % run.count;
        run.temporaries.push_back({static_cast<int64_t>(random() % 3000), begin,
                                   begin + 1 + static_cast<int64_t>(random() % (run.count - begin))});
      }
      run.apart = placeBlocks(run.temporaries);
    }
    for (int i = 0; i < count; ++i) {
      Instruction instruction;
      instruction.kind = InstructionKind::kRun;
      program_.buffers.push_back({fmt::format("a{}", i),
                                  BufferKind::kActivation,
                                  DataType::kFloat32,
                                  {1 + static_cast<int64_t>(random() % 1000)},
                                  "",
                                  std::nullopt,
                                  DataType::kUndefined});
      instruction.outputs = {BufferId(i)};
      program_.instructions.push_back(instruction);
      const RunMemory& run = kinds_[random() % kinds_.size()];
      runs_.push_back(&run);
      const int64_t begin = 6 * i + static_cast<int64_t>(random() % run.count);
      intervals_.blocks.push_back(
          {4 * program_.buffers[i].shape[0], begin, begin + 1 + static_cast<int64_t>(random() % 40)});
    }
    intervals_.stride = 6;
  }

  void expectApart(const MemoryPlan& plan) const {
    std::vector<LiveBlock> blocks = intervals_.blocks;
    Placement placement{plan.offsets, plan.total_bytes};
    for (size_t i = 0; i < runs_.size(); ++i) {
      const int64_t start = intervals_.stride * static_cast<int64_t>(i);
      for (size_t t = 0; t < runs_[i]->temporaries.size(); ++t) {
        const LiveBlock& temporary = runs_[i]->temporaries[t];
        blocks.push_back({temporary.bytes, start + temporary.begin, start + temporary.end});
        placement.offsets.push_back(plan.run_base + plan.run_offsets[plan.run_of[i]][t]);
      }
    }
    EXPECT_NO_THROW(verifyPlacement(blocks, placement));
    const int64_t bound = liveLowerBound(blocks);
    EXPECT_GE(plan.total_bytes, bound);
    EXPECT_LE(static_cast<double>(plan.total_bytes), 1.25 * static_cast<double>(bound));
    int64_t most = 0;
    for (const LivePeak& peak : livePeaks(intervals_, runs_, kMemoryAlignment))
      most = std::max(most, peak.bytes);
    EXPECT_EQ(most, bound);
  }

  MemoryPlan plan() const { return planMemory(program_, separate(program_), intervals_, runs_); }
  size_t kinds() const { return kinds_.size(); }

 private:
  std::array<RunMemory, 3> kinds_;
  Program program_;
  Runs runs_;
  FineIntervals intervals_;
};

TEST(PlanMemory, PlacesTemporariesAmongBuffers) {
  std::mt19937 random(21);
  for (int round = 0; round < 30; ++round) {
    const ManyRuns few(random, 5 + random() % 60);
    few.expectApart(few.plan());
  }
}

// Of very many runs those that are alike have their temporaries in the same places, so that they are one
// action.
TEST(PlanMemory, GivesRunsThatAreAlikeTheSamePlaces) {
  std::mt19937 random(22);
  const ManyRuns many(random, 600);
  const MemoryPlan plan = many.plan();
  many.expectApart(plan);
  EXPECT_EQ(plan.run_offsets.size(), many.kinds());
}

TEST(LastReads, AreRunsBehindWhichNobodyNeedsABuffer) {
  Program program;
  const auto add = [&](const char* name, BufferKind kind) {
    program.buffers.push_back(
        {name, kind, DataType::kFloat32, {4}, name, std::nullopt, DataType::kUndefined});
    return BufferId(program.buffers.size() - 1);
  };
  const auto instruct = [&](InstructionKind kind, std::vector<BufferId> inputs,
                            std::vector<BufferId> outputs) -> Instruction& {
    Instruction instruction;
    instruction.kind = kind;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    program.instructions.push_back(instruction);
    return program.instructions.back();
  };
  const auto kind = BufferKind::kActivation;
  const BufferId w = add("w", BufferKind::kParameter), a = add("a", kind), b = add("b", kind);
  const BufferId sent = add("sent", kind), result = add("result", kind), summed = add("summed", kind);
  const BufferId reduced = add("reduced", kind), again = add("again", kind), guard = add("guard", kind);
  program.guard = guard;
  program.results.push_back({Result::Kind::kOutput, "result", "", result});
  instruct(InstructionKind::kRun, {w}, {a, b, sent, result, summed, reduced, again, guard});
  instruct(InstructionKind::kSend, {sent}, {});
  instruct(InstructionKind::kAllReduce, {reduced}, {reduced}).background = true;
  instruct(InstructionKind::kRun, {a, b}, {});
  instruct(InstructionKind::kRun, {w, a, sent, result, summed, reduced, again, guard}, {});
  instruct(InstructionKind::kAccumulate, {summed}, {summed});
  instruct(InstructionKind::kZero, {}, {again});
  instruct(InstructionKind::kFree, {a}, {});
  const std::vector<size_t> last = lastReads(program);
  const size_t none = program.instructions.size();
  EXPECT_EQ(last[a.index()], 4u);
  EXPECT_EQ(last[b.index()], 3u);
  for (const BufferId kept : {w, sent, result, summed, reduced, again, guard}) {
    EXPECT_EQ(last[kept.index()], none) << program.nameOf(kept);
  }
}

}  // namespace
}  // namespace pipeshard
