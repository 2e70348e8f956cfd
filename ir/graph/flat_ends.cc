#include "ir/graph/flat_ends.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr const char* kFlatMark = "pipeshard.flat_ends";

}  // namespace

bool hasFlatEnds(const Node& node) {
  return node.is("Clip") && std::any_of(node.metadata.begin(), node.metadata.end(),
                                        [](const auto& entry) { return entry.first == kFlatMark; });
}

void makeEndsFlat(Node& clip) {
  PIPESHARD_CHECK(clip.is("Clip"), "the ends of a Clip are flat, not those of {}", clip.op_type);
  clip.metadata.emplace_back(kFlatMark, "range");
}

}  // namespace pipeshard
