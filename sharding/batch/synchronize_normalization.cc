#include "sharding/batch/synchronize_normalization.h"

#include <algorithm>
#include <utility>

#include "ir/base/error.h"
#include "sharding/specs/cost_model.h"
#include "sharding/spmd/batch_moments.h"

namespace pipeshard {
namespace {

// Elements per channel of all devices together.
int64_t countTogether(const Graph& piece, const Node& node, int64_t rows_here, int64_t rows_together) {
  const Shape& x = piece.shape(node.inputs[node.domain.empty() ? 0 : 1]);
  const int64_t here = elementCount(x) / (x.size() > 1 ? x[1] : 1);
  PIPESHARD_CHECK(here * rows_together % rows_here == 0, "{}: {} elements per channel in {} of {} rows",
                  describeNode(node), here, rows_here, rows_together);
  return here * rows_together / rows_here;
}

}  // namespace

std::vector<GroupId> synchronizeBatchNormalization(Graph& piece, int64_t rows_here, int64_t rows_together,
                                                   GroupId group) {
  PIPESHARD_CHECK(1 <= rows_here && rows_here <= rows_together, "{} of {} rows", rows_here, rows_together);
  if (rows_here == rows_together || std::none_of(piece.nodes.begin(), piece.nodes.end(), needsBatchMoments))
    return {};
  const std::vector<Node> nodes = std::exchange(piece.nodes, {});
  GraphBuilder builder(piece);
  EmittedValues emitted;
  for (const Node& node : nodes) {
    if (!needsBatchMoments(node)) {
      piece.nodes.push_back(node);
      continue;
    }
    const BatchTogether together{{group}, countTogether(piece, node, rows_here, rows_together)};
    const std::string name = piece.value(node.inputs[node.domain.empty() ? 0 : 1]).name;
    NodeEmitter emit(builder, node, name, node.outputs, &emitted);
    emitBatchNormalization(emit, node, node.inputs, together);
  }
  std::erase_if(piece.functions, [&](const Function& function) {
    return function.domain == kPipeshardDomain && (function.name == "BatchNormalizationInputGrad" ||
                                                   function.name == "BatchNormalizationWeightGrad");
  });
  return collectiveGroups(piece);
}

}  // namespace pipeshard
