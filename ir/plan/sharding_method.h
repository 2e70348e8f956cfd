// A sharding method: how the operators of a stage are shared out over its devices. As a value, with its text
// and back; sharding/stage/shard_stage.h says what each method means.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace pipeshard {

enum class ShardingKind : uint8_t {
  kAuto,
  kDataParallel,
  kZero2,
  kZero3,
  kTensorParallel,
  kManual,
  kMegatron,
  kMegatronZero2,
  kExhaustive,
};

// Over which axes of its mesh a method cuts the batch.
enum class BatchAxes : uint8_t {
  kFree,   // as is cheapest
  kAll,    // over all, and it cuts nothing else there: one axis is as good as several
  kFirst,  // over the first of two
  kNone,
};

struct ShardingMethod {
  ShardingKind kind = ShardingKind::kAuto;
  // Of a method with a grid, its mesh: the batch over `data` devices, products over `tensor`. 0: any grid, of
  // which a search tries all.
  int data = 0;
  int tensor = 0;

  BatchAxes batchAxes() const;
  // Its mesh has two axes (megatron, megatron-zero2).
  bool hasGrid() const;
  bool isAnyGrid() const { return hasGrid() && data == 0; }
  friend auto operator<=>(const ShardingMethod&, const ShardingMethod&) = default;
};

// "auto", "zero2", "megatron:2,4". Error(kConfiguration) that lists the methods, the nearest first.
ShardingMethod parseShardingMethod(std::string_view text);
// What a search may be limited to: also "megatron" and "megatron-zero2" on any grid. Errors likewise.
ShardingMethod parseSearchedMethod(std::string_view text);
std::string shardingMethodToString(const ShardingMethod& method);  // parse gives the same method

}  // namespace pipeshard
