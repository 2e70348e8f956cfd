#include "planning/programs/kept_tensors.h"

namespace pipeshard {

KeptTensors keptTensors(const ProgramSet& set, RankId rank) {
  const RankBinding& binding = set.ranks[rank];
  const ProgramKind& kind = set.kinds[binding.kind];
  KeptTensors kept;
  for (size_t b = 0; b < kind.program.buffers.size(); ++b) {
    const Buffer& buffer = kind.program.buffers[b];
    if (!isPersistent(buffer.kind)) continue;
    const Shard box = boxOf(kind, binding, BufferId(b));
    kept.emplace(buffer.name, std::tuple(buffer.data_type, wholeShape(buffer), box.start, box.size));
  }
  return kept;
}

}  // namespace pipeshard
