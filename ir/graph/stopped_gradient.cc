#include "ir/graph/stopped_gradient.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr const char* kStopMark = "pipeshard.stops_gradient";

}  // namespace

bool stopsGradient(const Node& node) {
  return node.is("Identity") && std::any_of(node.metadata.begin(), node.metadata.end(),
                                            [](const auto& entry) { return entry.first == kStopMark; });
}

void stopGradientAt(Node& identity) {
  PIPESHARD_CHECK(identity.is("Identity"), "a gradient stops at an Identity, not at {}", identity.op_type);
  identity.metadata.emplace_back(kStopMark, "detach");
}

}  // namespace pipeshard
