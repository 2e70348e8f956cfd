// Kinds of ranks and their bindings: what is instantiated, whom a sample leaves out, and that every mutation
// of a binding is refused exactly where the instantiated programs are.
#include "ir/program/program_set.h"
#include "ir/program/program_set_verify.h"

#include <random>

#include <gtest/gtest.h>

#include "ir/program/program_json.h"
#include "ir/program/program_verify.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

constexpr int kWidth = 4;

Buffer rowsBuffer(const std::string& name, BufferKind kind, bool boxed) {
  Buffer buffer;
  buffer.name = boxed ? name + boxText({0, 0}, {2, 6}) : name;
  buffer.kind = kind;
  buffer.data_type = DataType::kFloat32;
  buffer.shape = {2, 6};
  buffer.value = name;
  buffer.part = BufferPart{{2 * kWidth, 6}, {0, 0}};
  return buffer;
}

Instruction instruction(InstructionKind kind, std::vector<size_t> inputs, std::vector<size_t> outputs) {
  Instruction made;
  made.kind = kind;
  made.microbatch = 0;
  for (size_t id : inputs) made.inputs.emplace_back(id);
  for (size_t id : outputs) made.outputs.emplace_back(id);
  return made;
}

// Of two stages of kWidth devices that share rows: the first sends its rows to its counterpart, and all of a
// stage add something up.
Program stageProgram(RankId rank, RankId peer, bool sends, const std::vector<RankId>& group) {
  Program program;
  program.rank = rank;
  program.world_size = 2 * kWidth;
  program.groups.push_back(group);
  program.buffers = {rowsBuffer("h@0", BufferKind::kActivation, true),
                     rowsBuffer("out", BufferKind::kAccumulator, false)};
  Buffer sum;
  sum.name = "sum";
  sum.data_type = DataType::kFloat32;
  sum.kind = BufferKind::kAccumulator;
  program.buffers.push_back(sum);
  program.instructions.push_back(
      instruction(sends ? InstructionKind::kZero : InstructionKind::kReceive, {}, {0}));
  if (!sends) program.instructions.back().peer = peer;
  program.instructions.push_back(instruction(InstructionKind::kAccumulate, {0}, {1}));
  program.instructions.back().overwrite = true;
  program.instructions.push_back(instruction(InstructionKind::kZero, {}, {2}));
  program.instructions.push_back(instruction(InstructionKind::kAllReduce, {2}, {2}));
  program.instructions.back().group = GroupId(0);
  program.instructions.back().microbatch = -1;
  if (sends) {
    program.instructions.push_back(instruction(InstructionKind::kSend, {0}, {}));
    program.instructions.back().peer = peer;
  }
  program.instructions.push_back(instruction(InstructionKind::kFree, {0}, {}));
  program.instructions.push_back(instruction(InstructionKind::kFree, {2}, {}));
  if (sends) program.instructions.push_back(instruction(InstructionKind::kFree, {1}, {}));
  if (!sends) program.results.push_back({Result::Kind::kGradient, "out", "", BufferId(1)});
  return program;
}

ProgramSet twoStages() {
  ProgramSet set;
  set.groups = {idsAt<RankId>({0, 1, 2, 3}), idsAt<RankId>({4, 5, 6, 7})};
  set.kinds.push_back(
      {stageProgram(RankId(0), RankId(4), true, set.groups[0]), {0, 0, -1}, {true, false, false}});
  set.kinds.push_back(
      {stageProgram(RankId(4), RankId(0), false, set.groups[1]), {0, 0, -1}, {true, false, false}});
  for (int rank = 0; rank < 2 * kWidth; ++rank) {
    const int peer = (rank + kWidth) % (2 * kWidth);
    const size_t stage = rank / kWidth;
    set.ranks.push_back({KindId(stage), {RankId(peer)}, {stage}, {{2 * (rank % kWidth), 0}}});
  }
  return set;
}

std::vector<Program> allPrograms(const ProgramSet& set) {
  std::vector<Program> programs;
  for (const RankId rank : set.ranks.ids()) programs.push_back(instantiate(set, rank));
  return programs;
}

TEST(ProgramSet, GivesEveryRankItsPeersGroupsAndParts) {
  const ProgramSet set = twoStages();
  EXPECT_EQ(programToJson(instantiate(set, RankId(4))), programToJson(set.kinds[KindId(1)].program));
  const Program program = instantiate(set, RankId(6));
  EXPECT_EQ(program.rank, RankId(6));
  EXPECT_EQ(program.instructions.plain()[0].peer, RankId(2));
  EXPECT_EQ(program.buffers.plain()[0].name, "h@0[4:6,0:6]");
  EXPECT_EQ(program.buffers.plain()[1].name, "out");
  EXPECT_EQ(program.buffers.plain()[1].part->start, (Shape{4, 0}));
  EXPECT_EQ(program.groups[GroupId(0)], set.groups[1]);
}

// Of two ranks that have all of "h", each takes its own half out of it.
ProgramSet slicesOfTheirOwn() {
  Program program;
  program.rank = RankId(0);
  program.world_size = 2;
  program.buffers = {rowsBuffer("h", BufferKind::kActivation, false),
                     rowsBuffer("half", BufferKind::kActivation, false)};
  program.buffers[0].part.reset();
  program.buffers[0].shape = {4, 6};
  program.buffers[1].part = BufferPart{{4, 6}, {0, 0}};
  program.instructions.push_back(instruction(InstructionKind::kZero, {}, {0}));
  program.instructions.push_back(instruction(InstructionKind::kSlice, {0}, {1}));
  program.instructions.back().axis = 0;
  program.instructions.push_back(instruction(InstructionKind::kFree, {0}, {}));
  program.instructions.push_back(instruction(InstructionKind::kFree, {1}, {}));
  ProgramSet set;
  set.kinds.push_back({program, {-1, 0}, {false, false}});
  set.ranks.push_back({KindId(0), {}, {}, {{0, 0}}});
  set.ranks.push_back({KindId(0), {}, {}, {{2, 0}}});
  return set;
}

TEST(ProgramSet, ASliceBeginsWhereTheRanksPartBegins) {
  const ProgramSet set = slicesOfTheirOwn();
  EXPECT_NO_THROW(verifyProgramSet(set));
  EXPECT_EQ(instantiate(set, RankId(0)).instructions[1].offset, 0);
  EXPECT_EQ(instantiate(set, RankId(1)).instructions[1].offset, 2);
}

TEST(ProgramSet, ASliceOutsideOfItsSourceIsRefused) {
  ProgramSet set = slicesOfTheirOwn();
  set.kinds[KindId(0)].program.buffers[1].part->whole = {8, 6};
  set.ranks[RankId(1)].starts = {{3, 0}};
  EXPECT_TRUE(isRefused([&] { verifyBindings(set); }));
  EXPECT_TRUE(isRefused([&] { verifyPrograms(allPrograms(set)); }));
}

TEST(ProgramSet, GraphsGetTheConstantsOfTheirRank) {
  ProgramSet set = slicesOfTheirOwn();
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId start = builder.addConstant("start", makeConstant<int64_t>({1}, {0}));
  ProgramKind& kind = set.kinds[KindId(0)];
  kind.program.subgraphs.push_back({"take", "take.onnx", Phase::kForward, {}, {}});
  kind.own_constants = {{SubgraphId(0), "start", 1}};
  RankBinding& second = set.ranks[RankId(1)];
  EXPECT_TRUE(isRefused([&] { verifyBinding(kind, second, {}, RankId(1), 2); }));
  second.constants = {makeConstant<int64_t>({1}, {7}), makeConstant<int64_t>({1}, {2})};
  EXPECT_NO_THROW(verifyBinding(kind, second, {}, RankId(1), 2));
  std::vector<Graph> graphs = {graph};
  bindConstants(kind, second, graphs);
  EXPECT_EQ(*graphs[0].constant(start), (makeConstant<int64_t>({1}, {2})));
  second.constants[1] = makeConstant<int64_t>({2}, {2, 3});
  EXPECT_TRUE(isRefused([&] { bindConstants(kind, second, graphs); }));
}

TEST(ProgramSet, OneLineOfReplicasStandsForAll) {
  const ProgramSet set = twoStages();
  const RankSample sample = sampleOf(set);
  EXPECT_EQ(sample.ranks, idsAt<RankId>({0, 4}));
  EXPECT_EQ(sample.counts, (std::vector<int64_t>{4, 4}));
  const std::vector<Program> programs = samplePrograms(set, sample);
  ASSERT_EQ(programs.size(), 2u);
  EXPECT_EQ(programs[1].instructions.plain()[0].peer, RankId(0));
  EXPECT_EQ(programs[1].groups[GroupId(0)], idsAt<RankId>({1}));
  EXPECT_NO_THROW(verifyProgramSet(set));
}

// 4 x 4 devices of one stage, which meet along rows and columns; the first of all, and the others of its row,
// are of kinds of their own. So the first column differs from the others in whom it meets.
TEST(ProgramSet, RanksOfAMeshStandForThoseThatMeetTheSame) {
  ProgramSet set;
  for (int line = 0; line < 4; ++line) {
    set.groups.push_back(idsAt<RankId>({4 * line, 4 * line + 1, 4 * line + 2, 4 * line + 3}));
    set.groups.push_back(idsAt<RankId>({line, 4 + line, 8 + line, 12 + line}));
  }
  for (const size_t first : {0, 1, 4}) {
    Program program;
    program.rank = RankId(first);
    program.world_size = 16;
    program.groups.push_back(set.groups[2 * (first / 4)]);
    program.groups.push_back(set.groups[2 * (first % 4) + 1]);
    set.kinds.push_back({program, {}, {}});
  }
  for (size_t rank = 0; rank < 16; ++rank)
    set.ranks.push_back({KindId(rank == 0  ? 0
                                : rank < 4 ? 1
                                           : 2),
                         {},
                         {2 * (rank / 4), 2 * (rank % 4) + 1},
                         {}});
  const RankSample sample = sampleOf(set);
  EXPECT_EQ(sample.ranks, idsAt<RankId>({0, 1, 4, 5}));
  EXPECT_EQ(sample.counts, (std::vector<int64_t>{1, 3, 3, 9}));
  EXPECT_NO_THROW(verifyProgramSet(set));
}

TEST(ProgramSet, RanksWithOtherLabelsStandForThemselves) {
  const ProgramSet set = twoStages();
  const auto label = [](RankId rank) { return rank == RankId(2) ? "slow" : "fast"; };
  EXPECT_EQ(sampleOf(set, label).ranks, idsAt<RankId>({0, 2, 4, 6}));
}

// Half a stage meets by itself: in terms of the sample nothing has changed, so the proof must see it.
TEST(ProgramSet, AGroupThatItsMembersDoNotShareLeavesNobodyOut) {
  ProgramSet set = twoStages();
  set.groups.push_back(idsAt<RankId>({1, 2}));
  set.ranks[RankId(1)].groups = {2};
  EXPECT_TRUE(sampleOf(set).all());
  EXPECT_TRUE(isRefused([&] { verifyProgramSet(set); }));
  set.ranks[RankId(2)].groups = {2};
  set.groups.push_back(idsAt<RankId>({0, 3}));
  set.ranks[RankId(0)].groups = set.ranks[RankId(3)].groups = {3};
  set.kinds[KindId(0)].program.groups[GroupId(0)] = set.groups[3];
  EXPECT_NO_THROW(verifyProgramSet(set));
}

// One number of one binding, or what a kind says of its buffers.
void mutate(ProgramSet& set, std::mt19937& random) {
  const auto any = [&](size_t count) { return random() % count; };
  RankBinding& binding = set.ranks[RankId(any(set.ranks.size()))];
  RankBinding& other = set.ranks[RankId(any(set.ranks.size()))];
  switch (any(9)) {
    case 0: binding.peers[0] = RankId(any(2 * kWidth + 1)); break;
    case 1: std::swap(binding.peers, other.peers); break;
    case 2: binding.groups[0] = any(set.groups.size() + 1); break;
    case 3: binding.starts[0][any(2)] = static_cast<int64_t>(any(2 * kWidth)); break;
    case 4: std::swap(binding.starts, other.starts); break;
    case 5: std::swap(binding, other); break;
    case 6: {
      std::vector<RankId>& group = set.groups[any(set.groups.size())];
      group[any(group.size())] = RankId(any(2 * kWidth));
      break;
    }
    case 7: binding.kind = KindId(any(3)); break;
    default: {
      std::vector<RankId>& group = set.groups[any(set.groups.size())];
      if (group.size() > 1) group.erase(group.begin() + static_cast<std::ptrdiff_t>(any(group.size())));
      break;
    }
  }
}

// Does the set name ranks, groups and parts that exist, so that there are programs at all?
bool canBeInstantiated(const ProgramSet& set) {
  return !isRefused([&] { verifyBindings(set); });
}

TEST(ProgramSet, AMutatedBindingIsRefusedWhereTheProgramsOfAllRanksAre) {
  int refused = 0, accepted = 0, without_programs = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ProgramSet set = twoStages();
    for (size_t count = 1 + random() % 3; count > 0; --count) mutate(set, random);
    const bool is_refused = isRefused([&] { verifyProgramSet(set); });
    if (!canBeInstantiated(set)) {
      EXPECT_TRUE(is_refused);
      ++without_programs;
      continue;
    }
    const bool should_be = isRefused([&] { verifyPrograms(allPrograms(set)); });
    EXPECT_EQ(is_refused, should_be);
    ++(should_be ? refused : accepted);
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(accepted, 100);
  EXPECT_GT(without_programs, 200);
}

}  // namespace
}  // namespace pipeshard
