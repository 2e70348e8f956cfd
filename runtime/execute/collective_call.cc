#include "runtime/execute/collective_call.h"

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {

void runCollective(Communicator& communicator, const Group& group, const CollectiveCall& call) {
  PIPESHARD_CHECK(call.members == 0 || call.members == group.size(),
                  "a collective for {} members over group {} of {}", call.members, call.group, group.size());
  switch (call.kind) {
    case CollectiveCall::Kind::kAllReduce:
      return communicator.allReduce(group, call.type, call.reduction, call.input, call.output, call.count);
    case CollectiveCall::Kind::kAllGather:
      return communicator.allGather(group, call.type, call.input, call.output, call.count);
    case CollectiveCall::Kind::kReduceScatter:
      return communicator.reduceScatter(group, call.type, call.reduction, call.input, call.output,
                                        call.count);
    case CollectiveCall::Kind::kAllToAll:
      return communicator.allToAll(group, call.type, call.input, call.output, call.count);
  }
  PIPESHARD_CHECK(false, "collective {}", static_cast<int>(call.kind));
}

}  // namespace pipeshard
