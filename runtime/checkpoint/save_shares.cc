#include "runtime/checkpoint/save_shares.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/checkpoint/rank_state.h"

namespace pipeshard {
namespace {

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
    IdVector<RankId, int64_t> loads(programs_.ranks.size(), 0);
    shares_.buffers.resize(programs_.ranks.size());
    for (const auto* entry : by_size) {
      const Part& part = entry->second;
      const Holder& saver = *std::ranges::min_element(
          part.holders, [&](const Holder& a, const Holder& b) { return loads[a.rank] < loads[b.rank]; });
      loads[saver.rank] += part.bytes;
      shares_.buffers[saver.rank].push_back(saver.buffer);
      tensors_[std::get<0>(entry->first)].slices.push_back(
          {static_cast<int>(saver.rank.index()), part.box.start, part.box.size});
    }
    for (std::vector<BufferId>& buffers : shares_.buffers) std::ranges::sort(buffers);
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
  SaveShares shares_;
};

}  // namespace

SaveShares shareSaves(const ProgramSet& programs, const IdVector<RankId, std::string>& disks) {
  return Sharing(programs, disks).run();
}

}  // namespace pipeshard
