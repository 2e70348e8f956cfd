// What communicators have in common below their interface: which operation a message belongs to, and what a wait is for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ir/data_type.h"
#include "transport/communicator.h"

namespace pipeshard {

// Travels with every message, so that ranks that disagree about what they are doing find out.
enum class Operation : uint32_t { kSend = 0, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kBarrier };

std::string_view operationName(Operation operation);

// What a wait is for: makes the message when it fails. `members` are the ranks whose death ends it (at least `peer`).
struct Waiting {
  Operation operation;
  std::string_view action;  // "waits for", "sends to"
  int peer;
  size_t bytes;
  std::span<const int> members;
};

// Error(kInternal) unless the group is ascending ranks of 0..size-1 that contain `rank`, and the type has a size in bytes.
void checkGroup(int rank, int size, const Group& group, DataType type);
// Error(kInternal) unless `root` is an index into the group.
void checkRoot(int rank, const Group& group, int root);

}  // namespace pipeshard
