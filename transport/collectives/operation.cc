#include "transport/collectives/operation.h"

#include <algorithm>
#include <functional>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {

std::string_view operationName(Operation operation) {
  switch (operation) {
    case Operation::kSend: return "send";
    case Operation::kAllReduce: return "allReduce";
    case Operation::kAllGather: return "allGather";
    case Operation::kReduceScatter: return "reduceScatter";
    case Operation::kAllToAll: return "allToAll";
    case Operation::kBroadcast: return "broadcast";
    case Operation::kBarrier: return "barrier";
  }
  return "unknown operation";
}

void checkGroup(RankId rank, int size, const Group& group, DataType type) {
  const bool ascending =
      std::adjacent_find(group.begin(), group.end(), std::greater_equal<>()) == group.end();
  const bool inside = !group.empty() && group.back() < RankId(size);
  if (!ascending || !inside || !std::binary_search(group.begin(), group.end(), rank)) {
    fail(ErrorCode::kInternal, "rank {} of {}: group [{}] must be ascending ranks that contain the caller",
         rank, size, fmt::join(group, ", "));
  }
  if (dataTypeSize(type) == 0)
    fail(ErrorCode::kInternal, "a collective of {}, which has no size in bytes", dataTypeName(type));
}

void checkRoot(RankId rank, const Group& group, int root) {
  if (root >= 0 && root < std::ssize(group)) return;
  fail(ErrorCode::kInternal, "rank {}: broadcast from member {} of a group of {}", rank, root, group.size());
}

}  // namespace pipeshard
