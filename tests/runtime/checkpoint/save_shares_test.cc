#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/rank_state.h"
#include "runtime/checkpoint/save_shares.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Held {
  std::string name;
  Shape shape;
  bool is_listed = false;
  std::optional<BufferPart> part = {};
};

Program programOf(int rank, int ranks, const std::vector<Held>& held) {
  Program program;
  program.rank = RankId(rank);
  program.world_size = ranks;
  for (const Held& one : held) {
    Buffer& buffer = program.buffers.emplace_back();
    buffer.name = buffer.value = one.name;
    buffer.kind = BufferKind::kParameter;
    buffer.data_type = DataType::kFloat32;
    buffer.shape = one.shape;
    buffer.part = one.part;
    if (!one.is_listed) continue;
    program.results.push_back({Result::Kind::kParameter, one.name, "", BufferId(program.buffers.size() - 1)});
  }
  return program;
}

// As data-parallel replicas are: rank 0 lists all that both hold.
ProgramSet replicas(int count) {
  std::vector<Program> programs;
  for (int rank = 0; rank < count; ++rank) {
    const bool first = rank == 0;
    programs.push_back(programOf(rank, count, {{"a", {8}, first}, {"b", {6}, first}, {"c", {4}, first}}));
  }
  return setOf(std::move(programs));
}

std::vector<size_t> filesOf(const SaveShares& shares, size_t tensor) {
  std::vector<size_t> files;
  for (const CheckpointSlice& slice : shares.tensors.at(tensor).slices) files.push_back(slice.file);
  return files;
}

std::vector<BufferId> wholeOf(const std::vector<SavedBuffer>& buffers) {
  std::vector<BufferId> ids;
  for (const SavedBuffer& saved : buffers) {
    EXPECT_FALSE(saved.rows);
    ids.push_back(saved.buffer);
  }
  return ids;
}

TEST(SaveShares, ReplicasShareTheWork) {
  const SaveShares shares = shareSaves(replicas(2), {"", ""});
  EXPECT_THAT(wholeOf(shares.buffers[RankId(0)]), ElementsAre(BufferId(0)));
  EXPECT_THAT(wholeOf(shares.buffers[RankId(1)]), ElementsAre(BufferId(1), BufferId(2)));
  ASSERT_EQ(shares.tensors.size(), 3U);
  EXPECT_EQ(shares.tensors[1].name, "parameter/b");
  EXPECT_EQ(shares.tensors[1].shape, Shape{6});
  EXPECT_THAT(filesOf(shares, 0), ElementsAre(0));
  EXPECT_THAT(filesOf(shares, 1), ElementsAre(1));
  EXPECT_THAT(filesOf(shares, 2), ElementsAre(1));
}

// Stages that share a weight, as the embedding of tied ones: who has less of its own saves it.
TEST(SaveShares, WhatOneRankAloneHoldsCountsFirst) {
  const SaveShares shares = shareSaves(setOf({programOf(0, 2, {{"tied", {8}, true}, {"own", {4}, true}}),
                                              programOf(1, 2, {{"other", {3}, true}, {"tied", {8}}})}),
                                       {"", ""});
  EXPECT_THAT(wholeOf(shares.buffers[RankId(0)]), ElementsAre(BufferId(1)));
  EXPECT_THAT(wholeOf(shares.buffers[RankId(1)]), ElementsAre(BufferId(0), BufferId(1)));
}

// Else a host that is lost would take a part of every checkpoint with it.
TEST(SaveShares, ReplicasOnAnotherHostsDiskSaveNothing) {
  const SaveShares shares = shareSaves(replicas(3), {"a", "b", "a"});
  EXPECT_THAT(wholeOf(shares.buffers[RankId(0)]), ElementsAre(BufferId(0)));
  EXPECT_THAT(shares.buffers[RankId(1)], IsEmpty());
  EXPECT_THAT(wholeOf(shares.buffers[RankId(2)]), ElementsAre(BufferId(1), BufferId(2)));
}

// Rank 2 holds all of w, of which ranks 0 and 1 save a half each: no copy of either.
TEST(SaveShares, OnlyCopiesOfTheSameBoxAreShared) {
  const auto half = [](int64_t start) { return BufferPart{{8}, {start}}; };
  const SaveShares shares = shareSaves(
      setOf({programOf(0, 4, {{"w", {4}, true, half(0)}}), programOf(1, 4, {{"w", {4}, true, half(4)}}),
             programOf(2, 4, {{"w", {8}}}), programOf(3, 4, {{"w", {4}, false, half(4)}, {"v", {1}, true}})}),
      {"", "", "", ""});
  EXPECT_THAT(wholeOf(shares.buffers[RankId(0)]), ElementsAre(BufferId(0)));
  EXPECT_THAT(wholeOf(shares.buffers[RankId(1)]), ElementsAre(BufferId(0)));
  EXPECT_THAT(shares.buffers[RankId(2)], IsEmpty());
  EXPECT_THAT(wholeOf(shares.buffers[RankId(3)]), ElementsAre(BufferId(1)));
}

int64_t bytesOf(const ProgramSet& programs, const std::vector<SavedBuffer>& buffers) {
  int64_t bytes = 0;
  for (const SavedBuffer& saved : buffers) {
    const Buffer& buffer = programs.kinds.front().program.buffer(saved.buffer);
    bytes += static_cast<int64_t>(byteCount(buffer.data_type, boxOfRows(buffer.shape, saved.rows).size));
  }
  return bytes;
}

// As GPT-2's embedding, of a third of all bytes: ten replicas save a tenth each, most of them rows of it.
TEST(SaveShares, ATensorLargerThanAnEvenShareIsCutByRows) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 10; ++rank) {
    std::vector<Held> held = {{"embedding", {1, 5000, 77}, rank == 0}};
    for (int layer = 0; layer < 12; ++layer)
      held.push_back({"layer" + std::to_string(layer), {80, 800}, rank == 0});
    programs.push_back(programOf(rank, 10, held));
  }
  const ProgramSet set = setOf(std::move(programs));
  const SaveShares shares = shareSaves(set, {10, std::string()});
  const double even = 4.0 * (5000 * 77 + 12 * 80 * 800) / 10;
  for (const RankId rank : shares.buffers.ids()) {
    EXPECT_LT(static_cast<double>(bytesOf(set, shares.buffers[rank])), 1.13 * even) << rank.index();
    EXPECT_EQ(savedBuffersFromJson(savedBuffersJson(shares.buffers[rank])), shares.buffers[rank]);
  }
  const CheckpointTensor& embedding = shares.tensors.at(0);
  EXPECT_EQ(embedding.name, "parameter/embedding");
  EXPECT_EQ(embedding.slices.size(), 4U);  // of as few as there is room on
  int64_t row = 0;
  for (const CheckpointSlice& slice : embedding.slices) {
    EXPECT_EQ(slice.start, (Shape{0, row, 0}));
    row += slice.shape.at(1);
  }
  EXPECT_EQ(row, 5000);
}

TEST(SaveShares, WhatHasNoRowsOrIsSmallIsNotCut) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 4; ++rank)
    programs.push_back(programOf(rank, 4, {{"a", {900}, rank == 0}, {"b", {}, rank == 0}}));
  const SaveShares shares = shareSaves(setOf(std::move(programs)), {4, std::string()});
  EXPECT_THAT(wholeOf(shares.buffers[RankId(0)]), ElementsAre(BufferId(0)));
  EXPECT_THAT(wholeOf(shares.buffers[RankId(1)]), ElementsAre(BufferId(1)));
}

TEST(SaveShares, RowsOfWhatIsAPartItselfBeginWhereItDoes) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 4; ++rank) {
    const int64_t half = rank % 2 * 4096;
    programs.push_back(programOf(rank, 4, {{"w", {4096, 2}, rank < 2, BufferPart{{8192, 2}, {half, 0}}}}));
  }
  const SaveShares shares = shareSaves(setOf(std::move(programs)), {4, std::string()});
  EXPECT_THAT(shares.buffers[RankId(3)], ElementsAre(SavedBuffer{BufferId(0), RowRange{2048, 2048}}));
  const std::vector<CheckpointSlice> slices = {{0, {0, 0}, {2048, 2}},
                                               {1, {4096, 0}, {2048, 2}},
                                               {2, {2048, 0}, {2048, 2}},
                                               {3, {6144, 0}, {2048, 2}}};
  EXPECT_EQ(shares.tensors.at(0).slices, slices);
}

TEST(SaveShares, ProgramsOfAnotherPlanAreRefused) {
  EXPECT_ERROR(shareSaves(replicas(2), {"", "", ""}), ErrorCode::kVersionMismatch, "of another plan");
  Program program = programOf(0, 1, {{"a", {8, 2}, true}});
  Buffer gradient = program.buffer(BufferId(0));
  gradient.kind = BufferKind::kGradient;
  program.buffers.emplace_back() = gradient;
  requireSaved(program, {{BufferId(0)}, {BufferId(0), RowRange{6, 2}}});
  for (const SavedBuffer& saved :
       {SavedBuffer{BufferId(1)}, SavedBuffer{BufferId(2)}, SavedBuffer{BufferId(0), RowRange{7, 2}}})
    EXPECT_ERROR(requireSaved(program, {saved}), ErrorCode::kVersionMismatch, "does not keep");
}

TEST(SaveShares, PartsThatAreNotTheWholeAreABug) {
  EXPECT_ERROR(shareSaves(setOf({programOf(0, 1, {{"w", {4}, true, BufferPart{{8}, {0}}}})}), {""}),
               ErrorCode::kInternal, "'parameter/w' in parts that are not the whole");
}

}  // namespace
}  // namespace pipeshard
