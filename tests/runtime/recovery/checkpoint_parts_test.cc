#include "runtime/recovery/checkpoint_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/files/content_hash.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Ranks 0 to 3 on hosts a, b, b and c; rank 1 has saved a copy's share of nothing. The coordinator is on a.
class CheckpointParts : public ::testing::Test {
 protected:
  void write(int64_t step) const {
    Checkpoint checkpoint;
    checkpoint.step = step;
    const char* const hosts[] = {"a", "b", "b", "c"};
    for (int rank = 0; rank < 4; ++rank) {
      checkpoint.files.push_back({checkpointFileName(RankId(rank)), 3, 0, hosts[rank]});
      if (rank != 1)
        checkpoint.tensors.push_back(
            {"parameter/" + std::to_string(rank), DataType::kFloat32, {1}, {{rank, {0}, {1}}}});
    }
    const std::string name = "saved/" + checkpointName(step), manifest = checkpointToJson(checkpoint);
    folder_.write(name + "/rank-0000.safetensors", "abc");
    folder_.write(name + "/" + kManifestFile, manifest);
    folder_.write(name + "/" + kCommitFile, hashText(contentHash(manifest)));
  }
  CheckpointSpec spec() const { return {.directory = folder_.file("saved")}; }

  TemporaryFolder folder_;
};

TEST_F(CheckpointParts, OnlyWhatHoldsAnythingAndIsNotHereIsElsewhere) {
  EXPECT_FALSE(nextCheckpoint(spec()));
  write(50);
  const auto next = nextCheckpoint(spec());
  ASSERT_TRUE(next);
  EXPECT_EQ(next->checkpoint.step, 50);
  EXPECT_THAT(next->elsewhere, ElementsAre(2, 3));
  EXPECT_THAT(lackedWith(*next, {"b", "c"}), IsEmpty());
  EXPECT_THAT(lackedWith(*next, {"c"}), ElementsAre(2));
  EXPECT_THAT(
      describeLacked(next->checkpoint, {2, 3}),
      HasSubstr("step-000050 is in part on the own disk of host b alone (rank-0002.safetensors), host c "
                "alone (rank-0003.safetensors)"));
}

TEST_F(CheckpointParts, WhatWasGivenUpOrCannotBeReadIsNotGoneOnFrom) {
  write(50);
  write(100);
  EXPECT_EQ(nextCheckpoint(spec())->checkpoint.step, 100);
  CheckpointSpec before = spec();
  before.before = 100;
  EXPECT_EQ(nextCheckpoint(before)->checkpoint.step, 50);
  folder_.write("saved/step-000100/COMMIT", "0");
  EXPECT_EQ(nextCheckpoint(spec())->checkpoint.step, 50);
}

}  // namespace
}  // namespace pipeshard
