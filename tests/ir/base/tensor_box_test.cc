#include "ir/base/tensor_box.h"

#include <random>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

int64_t below(std::mt19937_64& generator, int64_t limit) {
  return generator() % static_cast<uint64_t>(limit);
}

TEST(TensorBox, RunsAreTheElementsThatLoopsFind) {
  std::mt19937_64 generator(3);
  for (int round = 0; round < 400; ++round) {
    Shape whole;
    Shard box;
    for (int64_t rank = below(generator, 5); rank > 0; --rank) {
      whole.push_back(1 + below(generator, 4));
      const bool full = generator() % 3 == 0;
      box.start.push_back(full ? 0 : below(generator, whole.back()));
      box.size.push_back(full ? whole.back() : below(generator, whole.back() - box.start.back() + 1));
    }
    ASSERT_EQ(boxFault(whole, box), "");
    std::vector<int64_t> expected, found;
    const Shape strides = rowMajorStrides(whole);
    for (int64_t element = 0; element < elementCount(whole); ++element) {
      bool inside = true;
      for (size_t axis = 0; axis < whole.size(); ++axis) {
        const int64_t at = element / strides[axis] % whole[axis];
        inside = inside && at >= box.start[axis] && at < box.start[axis] + box.size[axis];
      }
      if (inside) expected.push_back(element);
    }
    forEachRun(whole, box, [&](int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) found.push_back(first + i);
    });
    EXPECT_EQ(found, expected) << shapeToString(whole) << " " << printBox(box);
  }
}

TEST(TensorBox, RunsAreAsLongAsTheyCanBe) {
  const auto runs = [](const Shape& whole, const Shard& box) {
    int count = 0;
    forEachRun(whole, box, [&](int64_t, int64_t) { ++count; });
    return count;
  };
  EXPECT_EQ(runs({4, 6, 5}, wholeBox({4, 6, 5})), 1);
  EXPECT_EQ(runs({4, 6, 5}, {{1, 0, 0}, {2, 6, 5}}), 1);
  EXPECT_EQ(runs({4, 6, 5}, {{0, 1, 0}, {4, 3, 5}}), 4);
  EXPECT_EQ(runs({4, 6, 5}, {{0, 0, 1}, {4, 6, 2}}), 24);
  EXPECT_EQ(runs({}, {{}, {}}), 1);
}

TEST(TensorBox, SaysWhatIsWrongWithABox) {
  EXPECT_EQ(boxFault({4, 6}, {{2, 1}, {2, 5}}), "");
  EXPECT_EQ(boxFault({4, 6}, {{2, 1}, {3, 5}}), "[3,5] from [2,1] on passes the end of axis 0 of [4,6]");
  EXPECT_EQ(boxFault({4, 6}, {{0, INT64_MAX}, {1, 5}}),
            "[1,5] from [0,9223372036854775807] on passes the end of axis 1 of [4,6]");
  EXPECT_EQ(boxFault({4, 6}, {{0, -1}, {1, 5}}), "start -1 and size 5 along axis 1: neither can be negative");
  EXPECT_EQ(boxFault({4, 6}, {{0}, {1}}), "[1] from [0] on has another number of axes than [4,6]");
}

TEST(TensorBox, EverySpecsShardsTile) {
  const LogicalMesh mesh{{2, 3}};
  const auto boxes = [&](const char* spec) {
    std::vector<Shard> shards;
    for (int device = 0; device < 6; ++device)
      shards.push_back(shardOf(parseSpec(spec), {7, 11}, mesh, DeviceId(device)));
    return shards;
  };
  for (const char* spec : {"S0,S1", "S1,S0", "S01,R", "R,S10"})
    EXPECT_EQ(tilingFault({7, 11}, boxes(spec)), "") << spec;
  EXPECT_EQ(tilingFault({7, 11}, boxes("S0,R")), "[3,11] from [0,0] on and [3,11] from [0,0] on overlap");
  std::vector<Shard> missing = boxes("S01,R");
  missing.pop_back();
  EXPECT_EQ(tilingFault({7, 11}, missing), "the parts hold 55 of the 77 elements of [7,11]");
  EXPECT_EQ(tilingFault({}, {{{}, {}}}), "");
  EXPECT_EQ(tilingFault({0, 3}, {}), "");
  constexpr int64_t kMany = int64_t{1} << 62;  // elements of a part: two are more than an int64 counts
  EXPECT_ERROR(tilingFault({2, kMany}, {{{0, 0}, {1, kMany}}, {{1, 0}, {1, kMany}}}), ErrorCode::kBadModel,
               "more than 2^62 elements");
  EXPECT_NE(tilingFault({}, {{{}, {}}, {{}, {}}}), "");
}

}  // namespace
}  // namespace pipeshard
