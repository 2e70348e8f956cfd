#include "runtime/checkpoint/save_shares.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/tensor_box.h"
#include "runtime/checkpoint/rank_state.h"

namespace pipeshard {
namespace {

constexpr int64_t kLeastPiece = 4096;  // bytes

struct Holder {
  RankId rank;
  BufferId buffer;
};

// A box of a tensor that one rank lists as a result.
struct Part {
  Shard box;
  int64_t bytes = 0;
  std::vector<Holder> holders;  // who lists it, then those with copies on the same disk
};

// Of several axes the first with more than one entry; shape.size() where there is none.
size_t rowAxis(const Shape& shape) {
  return std::ranges::find_if(shape, [](int64_t size) { return size > 1; }) - shape.begin();
}

int64_t rowsIn(const Shape& shape) {
  const size_t axis = rowAxis(shape);
  return axis < shape.size() ? shape[axis] : 1;
}

using PartKey = std::tuple<std::string, Shape, Shape>;  // tensor, start, size

PartKey keyOf(const std::string& tensor, const Shard& box) { return {tensor, box.start, box.size}; }

class Sharing {
 public:
  Sharing(const ProgramSet& programs, const IdVector<RankId, std::string>& disks)
      : programs_(programs), disks_(disks) {
    for (const ProgramKind& kind : programs.kinds) {
      std::vector<std::string>& names = names_.emplace_back();
      for (const Buffer& buffer : kind.program.buffers) names.push_back(stateTensorName(buffer));
    }
  }

  SaveShares run() {
    for (const RankId rank : programs_.ranks.ids()) findParts(rank);
    for (const RankId rank : programs_.ranks.ids()) findCopies(rank);
    share();
    requireWhole();
    return std::move(shares_);
  }

 private:
  const ProgramKind& kindOf(RankId rank) const { return programs_.kinds[programs_.ranks[rank].kind]; }
  const std::string& nameOf(RankId rank, BufferId buffer) const {
    return names_[programs_.ranks[rank].kind][buffer.index()];
  }
  Shard boxAt(RankId rank, BufferId buffer) const {
    return boxOf(kindOf(rank), programs_.ranks[rank], buffer);
  }

  void findParts(RankId rank) {
    const Program& program = kindOf(rank).program;
    for (const BufferId id : resultBuffers(program)) {
      const Buffer& buffer = program.buffer(id);
      const std::string& name = nameOf(rank, id);
      const Shard box = boxAt(rank, id);
      Part& part = parts_[keyOf(name, box)];
      PIPESHARD_CHECK(part.holders.empty(), "two ranks list {} of '{}'", printBox(box), name);
      part = {box, static_cast<int64_t>(byteCount(buffer.data_type, box.size)), {{rank, id}}};
      CheckpointTensor& tensor = tensors_[name];
      tensor.name = name;
      tensor.data_type = buffer.data_type;
      tensor.shape = wholeShape(buffer);
    }
  }

  void findCopies(RankId rank) {
    const std::vector<std::string>& names = names_[programs_.ranks[rank].kind];
    for (size_t b = 0; b < names.size(); ++b) {
      if (names[b].empty()) continue;
      const auto found = parts_.find(keyOf(names[b], boxAt(rank, BufferId(b))));
      if (found == parts_.end()) continue;
      std::vector<Holder>& holders = found->second.holders;
      const RankId lister = holders.front().rank;
      if (rank == lister || rank == holders.back().rank || disks_[rank] != disks_[lister]) continue;
      holders.push_back({rank, BufferId(b)});
    }
  }

  void share() {
    std::vector<std::pair<const PartKey, Part>*> by_size;
    for (auto& part : parts_) by_size.push_back(&part);
    std::ranges::stable_sort(by_size, [](const auto* a, const auto* b) {
      const bool is_shared = a->second.holders.size() > 1, other_is = b->second.holders.size() > 1;
      return std::tuple(is_shared, -a->second.bytes) < std::tuple(other_is, -b->second.bytes);
    });
    loads_.assign(programs_.ranks.size(), 0);
    shares_.buffers.resize(programs_.ranks.size());
    std::map<std::vector<RankId>, int64_t> left;  // bytes, by who holds them
    for (const auto* entry : by_size) left[ranksOf(entry->second)] += entry->second.bytes;
    for (const auto* entry : by_size) {
      const Part& part = entry->second;
      int64_t& bytes = left[ranksOf(part)];
      int64_t in_all = bytes;
      for (const Holder& holder : part.holders) in_all += loads_[holder.rank];
      sharePart(std::get<0>(entry->first), part, in_all / std::ssize(part.holders));
      bytes -= part.bytes;
    }
    for (std::vector<SavedBuffer>& buffers : shares_.buffers)
      std::ranges::sort(buffers, {}, &SavedBuffer::buffer);
  }

  static std::vector<RankId> ranksOf(const Part& part) {
    std::vector<RankId> ranks;
    for (const Holder& holder : part.holders) ranks.push_back(holder.rank);
    std::ranges::sort(ranks);
    return ranks;
  }

  // `even`: bytes that each of its holders has in the end, where all have the same.
  void sharePart(const std::string& tensor, const Part& part, int64_t even) {
    std::vector<Holder> holders = part.holders;
    std::ranges::stable_sort(holders, {}, [&](const Holder& holder) { return loads_[holder.rank]; });
    std::vector<int64_t> room = {0};  // of the first holders together
    for (size_t i = 0; i < holders.size() && room.back() < part.bytes; ++i) {
      const int64_t free = even - loads_[holders[i].rank];
      if (free < kLeastPiece) break;
      room.push_back(room.back() + free);
    }
    const int64_t rows = rowsIn(part.box.size);
    const bool fits = loads_[holders.front().rank] + part.bytes <= even + even / 8;
    if (fits || room.size() <= 2 || rows == 1) return give(tensor, part, holders.front(), std::nullopt);
    int64_t first = 0;
    for (size_t i = 1; i < room.size(); ++i) {
      const double until = static_cast<double>(room[i]) / static_cast<double>(room.back());
      const int64_t end = i + 1 == room.size() ? rows : std::llround(until * static_cast<double>(rows));
      if (end > first) give(tensor, part, holders[i - 1], RowRange{first, end - first});
      first = std::max(first, end);
    }
  }

  void give(const std::string& tensor, const Part& part, const Holder& saver,
            const std::optional<RowRange>& rows) {
    const Shard box = boxOfRows(part.box.size, rows);
    Shape start = part.box.start;
    for (size_t axis = 0; axis < start.size(); ++axis) start[axis] += box.start[axis];
    loads_[saver.rank] += rows ? part.bytes / rowsIn(part.box.size) * rows->count : part.bytes;
    shares_.buffers[saver.rank].push_back({saver.buffer, rows});
    tensors_[tensor].slices.push_back({static_cast<int>(saver.rank.index()), start, box.size});
  }

  void requireWhole() {
    for (auto& [name, tensor] : tensors_) {
      std::vector<Shard> boxes;
      for (const CheckpointSlice& slice : tensor.slices) boxes.push_back({slice.start, slice.shape});
      const std::string fault = tilingFault(tensor.shape, boxes);
      PIPESHARD_CHECK(fault.empty(), "ranks save '{}' in parts that are not the whole: {}", name, fault);
      std::ranges::sort(tensor.slices, {},
                        [](const CheckpointSlice& slice) { return std::tie(slice.file, slice.start); });
      shares_.tensors.push_back(std::move(tensor));
    }
  }

  const ProgramSet& programs_;
  const IdVector<RankId, std::string>& disks_;
  IdVector<KindId, std::vector<std::string>> names_;  // by buffer: stateTensorName
  std::map<PartKey, Part> parts_;
  std::map<std::string, CheckpointTensor> tensors_;
  IdVector<RankId, int64_t> loads_;  // bytes so far
  SaveShares shares_;
};

}  // namespace

Shard boxOfRows(const Shape& shape, const std::optional<RowRange>& rows) {
  Shard box = wholeBox(shape);
  if (!rows) return box;
  const size_t axis = rowAxis(shape);
  box.start.at(axis) = rows->first;
  box.size[axis] = rows->count;
  return box;
}

nlohmann::json savedBuffersJson(const std::vector<SavedBuffer>& buffers) {
  nlohmann::json json = nlohmann::json::array();
  for (const SavedBuffer& saved : buffers) {
    nlohmann::json& entry = json.emplace_back(nlohmann::json{{"buffer", saved.buffer.index()}});
    if (saved.rows) entry.update({{"first", saved.rows->first}, {"count", saved.rows->count}});
  }
  return json;
}

std::vector<SavedBuffer> savedBuffersFromJson(const nlohmann::json& json) {
  std::vector<SavedBuffer> buffers;
  for (const nlohmann::json& entry : json) {
    SavedBuffer& saved = buffers.emplace_back(SavedBuffer{BufferId(entry.at("buffer").get<size_t>())});
    if (entry.contains("count"))
      saved.rows = {entry.at("first").get<int64_t>(), entry.at("count").get<int64_t>()};
  }
  return buffers;
}

void requireSaved(const Program& program, const std::vector<SavedBuffer>& buffers) {
  for (const SavedBuffer& saved : buffers) {
    bool is_kept = saved.buffer.index() < program.buffers.size();
    is_kept = is_kept && !stateTensorName(program.buffer(saved.buffer)).empty();
    if (is_kept && saved.rows) {
      const Shape& shape = program.buffer(saved.buffer).shape;
      const auto& [first, count] = *saved.rows;
      is_kept = rowAxis(shape) < shape.size() && first >= 0 && count > 0 && first <= rowsIn(shape) - count;
    }
    if (is_kept) continue;
    fail(ErrorCode::kVersionMismatch,
         "rank {} is asked to save what its program does not keep (buffer {}): the programs are of another "
         "plan than that which it has loaded",
         program.rank, saved.buffer.index());
  }
}

SaveShares shareSaves(const ProgramSet& programs, const IdVector<RankId, std::string>& disks) {
  if (programs.ranks.size() != disks.size()) {
    fail(ErrorCode::kVersionMismatch,
         "a checkpoint of {} ranks is asked for, and the programs are of {}: they are of another plan",
         disks.size(), programs.ranks.size());
  }
  return Sharing(programs, disks).run();
}

}  // namespace pipeshard
