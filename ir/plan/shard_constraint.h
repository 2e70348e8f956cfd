// A value's kept spec, given by people: --shard "NAME=S0,R". As a value, with its text and back.
#pragma once

#include <string>
#include <string_view>

#include "ir/base/sharding_spec.h"

namespace pipeshard {

struct ShardConstraint {
  std::string pattern;  // a name, in which * and ? stand for any characters and any one
  ShardingSpec spec;
};
// Errors: kUsage for another form, kConfiguration for a spec that is none.
ShardConstraint parseShardConstraint(std::string_view text);
std::string shardConstraintToString(const ShardConstraint& constraint);  // parse gives the same constraint

}  // namespace pipeshard
