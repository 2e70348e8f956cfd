#include "ir/plan/shard_constraint.h"

#include "ir/base/error.h"

namespace pipeshard {

ShardConstraint parseShardConstraint(std::string_view text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    fail(ErrorCode::kUsage,
         "--shard {}: expected NAME=SPEC with a value's name or pattern and a sharding spec, e.g. "
         "\"w1=R,S0\" or \"*.weight=S0,R\"",
         text);
  }
  return {std::string(text.substr(0, equals)), parseSpec(text.substr(equals + 1))};
}

std::string shardConstraintToString(const ShardConstraint& constraint) {
  return constraint.pattern + "=" + printSpec(constraint.spec);
}

}  // namespace pipeshard
