#include "planning/programs/kept_tensors.h"

namespace pipeshard {

KeptTensors keptTensors(const ProgramSet& set, RankId rank) {
  const RankBinding& binding = set.ranks[rank];
  const ProgramKind& kind = set.kinds[binding.kind];
  KeptTensors kept;
  size_t next = 0;
  for (const Buffer& buffer : kind.program.buffers) {
    const BufferId id(next++);
    if (!isPersistent(buffer.kind)) continue;
    const Shard box = boxOf(kind, binding, id);
    kept.emplace(buffer.name, std::tuple(buffer.data_type, wholeShape(buffer), box.start, box.size));
  }
  return kept;
}

}  // namespace pipeshard
