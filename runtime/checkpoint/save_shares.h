// Which rank saves what. Every part of a tensor is saved once; where several ranks hold copies of it, as
// data-parallel replicas do, they share the work, so that what steps wait for (the copy) and what is written
// divide by the number of replicas.
//
//   two replicas that hold a (8 MB), b (6) and c (4):   rank 0 saves a, rank 1 saves b and c
//   four that hold a (8 MB) and b (4):                  each 3 MB; a is cut by rows, over three of them
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ir/base/ids.h"
#include "ir/base/sharding_spec.h"
#include "ir/program/program_set.h"
#include "runtime/checkpoint/checkpoint.h"

namespace pipeshard {

// Rows of a tensor: of the first axis with more than one entry, so that they lie one behind the other.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
  friend bool operator==(const RowRange&, const RowRange&) = default;
};
// The box of a tensor of this shape; of all rows where none are said.
Shard boxOfRows(const Shape& shape, const std::optional<RowRange>& rows);

struct SavedBuffer {
  BufferId buffer;
  std::optional<RowRange> rows = {};  // of what the buffer holds; nothing: all of it
  friend bool operator==(const SavedBuffer&, const SavedBuffer&) = default;
};
nlohmann::json savedBuffersJson(const std::vector<SavedBuffer>& buffers);
std::vector<SavedBuffer> savedBuffersFromJson(const nlohmann::json& json);
// A rank is asked to save them: Error(kVersionMismatch) where its program has no such buffer, keeps it not
// from step to step, or has fewer rows of it.
void requireSaved(const Program& program, const std::vector<SavedBuffer>& buffers);

struct SaveShares {
  IdVector<RankId, std::vector<SavedBuffer>> buffers;  // of each rank's program, in the order of its file
  // What CheckpointFile number r holds when rank r has written it, of all ranks; sorted by name.
  std::vector<CheckpointTensor> tensors;
};

// First what one rank alone holds, then the largest part first, each to the holder that has the least so
// far. A part that would give it an eighth more than an even share is cut by rows over as few holders as have
// room for it, in pieces of a page at least. `disks`: by rank, the host on whose disk it writes, equal ("")
// where all write into one folder. Copies on another disk than that of the rank that lists the part as a
// result (ir/program/program.h) take no share: a host that is lost would take a piece of every checkpoint
// with it, where one without had them whole. Equal input, equal shares. Errors: kVersionMismatch where the
// programs are not of as many ranks as there are disks; kInternal where the parts are not every element once.
SaveShares shareSaves(const ProgramSet& programs, const IdVector<RankId, std::string>& disks);

}  // namespace pipeshard
