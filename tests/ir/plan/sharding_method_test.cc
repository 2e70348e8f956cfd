#include "ir/plan/sharding_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

TEST(ShardingMethod, EveryTextIsAMethodAndBack) {
  const std::vector<std::pair<std::string, ShardingMethod>> methods = {
      {"auto", {ShardingKind::kAuto}},
      {"data-parallel", {ShardingKind::kDataParallel}},
      {"zero2", {ShardingKind::kZero2}},
      {"zero3", {ShardingKind::kZero3}},
      {"tensor-parallel", {ShardingKind::kTensorParallel}},
      {"manual", {ShardingKind::kManual}},
      {"megatron:2,4", {ShardingKind::kMegatron, 2, 4}},
      {"megatron-zero2:1,2147483647", {ShardingKind::kMegatronZero2, 1, 2147483647}},
      {"exhaustive", {ShardingKind::kExhaustive}}};
  for (const auto& [text, method] : methods) {
    EXPECT_EQ(parseShardingMethod(text), method) << text;
    EXPECT_EQ(parseSearchedMethod(text), method) << text;
    EXPECT_EQ(shardingMethodToString(method), text);
    EXPECT_FALSE(method.isAnyGrid()) << text;
  }
}

TEST(ShardingMethod, WithoutNumbersIsAnyGridOfASearch) {
  for (const std::string text : {"megatron", "megatron-zero2"}) {
    const ShardingMethod method = parseSearchedMethod(text);
    EXPECT_TRUE(method.isAnyGrid()) << text;
    EXPECT_EQ(shardingMethodToString(method), text);
    EXPECT_ERROR(parseShardingMethod(text), ErrorCode::kConfiguration,
                 "there is no sharding method \"" + text + "\"; did you mean megatron");
  }
}

TEST(ShardingMethod, IsRefusedByName) {
  const auto refuse = [](const char* text, const char* message) {
    EXPECT_ERROR(parseShardingMethod(text), ErrorCode::kConfiguration, message);
    EXPECT_ERROR(parseSearchedMethod(text), ErrorCode::kConfiguration, message);
  };
  refuse("magic",
         "there is no sharding method \"magic\"; the methods are auto, data-parallel, zero2, zero3, "
         "tensor-parallel, manual, megatron:DP,TP, megatron-zero2:DP,TP, exhaustive");
  refuse("data-paralel", "\"data-paralel\"; did you mean data-parallel?; the methods are");
  refuse("", "there is no sharding method \"\"");
  refuse("Auto", "there is no sharding method \"Auto\"");
  refuse("zero2:2,4", "there is no sharding method \"zero2:2,4\"");
  refuse("replicated", "there is no sharding method \"replicated\"");  // a word of stage files
  for (const char* text : {"megatron:", "megatron:2", "megatron:2,", "megatron:0,4", "megatron:2,-4",
                           "megatron:2,4,1", "megatron:2, 4", "megatron:2,9999999999"})
    refuse(text, "\": expected megatron:DP,TP with two numbers of devices, as in megatron:2,4");
  refuse("megatron-zero2:a,b",
         "method \"megatron-zero2:a,b\": expected megatron-zero2:DP,TP with two numbers of devices, as in "
         "megatron-zero2:2,4");
}

TEST(ShardingMethod, SaysWhatItCutsTheBatchOver) {
  EXPECT_EQ(parseShardingMethod("auto").batchAxes(), BatchAxes::kFree);
  EXPECT_EQ(parseShardingMethod("zero3").batchAxes(), BatchAxes::kAll);
  EXPECT_EQ(parseShardingMethod("megatron:2,2").batchAxes(), BatchAxes::kFirst);
  EXPECT_EQ(parseShardingMethod("tensor-parallel").batchAxes(), BatchAxes::kNone);
}

}  // namespace
}  // namespace pipeshard
