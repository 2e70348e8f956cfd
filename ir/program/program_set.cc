#include "ir/program/program_set.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"

namespace pipeshard {
namespace {

// Collections of ranks, by union of those that send to each other.
class Collections {
 public:
  explicit Collections(const ProgramSet& set) : parent_(set.ranks.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
    for (const RankId rank : set.ranks.ids()) {
      for (const RankId peer : set.ranks[rank].peers) parent_[find(peer.index())] = find(rank.index());
    }
    std::map<size_t, size_t> number;
    for (const RankId rank : set.ranks.ids()) {
      const auto [found, is_new] = number.try_emplace(find(rank.index()), lists_.size());
      if (is_new) lists_.emplace_back();
      lists_[found->second].push_back(rank);
    }
  }

  const std::vector<std::vector<RankId>>& lists() const { return lists_; }  // each ascending

 private:
  size_t find(size_t rank) {
    while (parent_[rank] != rank) rank = parent_[rank] = parent_[parent_[rank]];
    return rank;
  }

  std::vector<size_t> parent_;
  std::vector<std::vector<RankId>> lists_;
};

// What a collection does, in terms of its own ranks: kinds, and peers by place.
std::string shapeOf(const ProgramSet& set, const std::vector<RankId>& ranks,
                    const std::function<std::string(RankId)>& label) {
  std::string text;
  for (const RankId rank : ranks) {
    const RankBinding& binding = set.ranks[rank];
    text += fmt::format("{}:", binding.kind);
    for (const RankId peer : binding.peers)
      text += fmt::format("{},", std::lower_bound(ranks.begin(), ranks.end(), peer) - ranks.begin());
    if (label) text += ":" + label(rank);
    text += ';';
  }
  return text;
}

// Which collections are alike: by what they do, and by whom they meet. A collection is told from another one
// of the same shape when the members of its groups are of other classes, or at other places of them, until
// nothing changes: replicas of a stage of 2 x 2 devices whose first speaks for the others are four classes.
std::vector<size_t> classesOf(const ProgramSet& set, const std::vector<std::vector<RankId>>& lists,
                              const std::function<std::string(RankId)>& label) {
  std::vector<size_t> classes;
  std::map<std::string, size_t> of_shape;
  for (const std::vector<RankId>& list : lists)
    classes.push_back(of_shape.try_emplace(shapeOf(set, list, label), of_shape.size()).first->second);
  IdVector<RankId, std::pair<size_t, size_t>> where(set.ranks.size());  // collection, and place in it
  for (size_t c = 0; c < lists.size(); ++c) {
    for (size_t i = 0; i < lists[c].size(); ++i) where[lists[c][i]] = {c, i};
  }
  for (size_t count = of_shape.size(), before = 0; count != before;) {
    std::map<std::set<std::pair<size_t, size_t>>, size_t> images;
    std::vector<size_t> image_of;  // by group
    for (const std::vector<RankId>& group : set.groups) {
      std::set<std::pair<size_t, size_t>> members;
      for (const RankId member : group) members.emplace(classes[where[member].first], where[member].second);
      image_of.push_back(images.try_emplace(std::move(members), images.size()).first->second);
    }
    std::map<std::vector<size_t>, size_t> finer;
    for (size_t c = 0; c < lists.size(); ++c) {
      std::vector<size_t> key = {classes[c]};
      for (const RankId rank : lists[c]) {
        for (const size_t group : set.ranks[rank].groups) key.push_back(image_of[group]);
      }
      classes[c] = finer.try_emplace(std::move(key), finer.size()).first->second;
    }
    before = std::exchange(count, finer.size());
  }
  return classes;
}

// The groups of the sample: of each rank's groups those who stand for the members. And the proof that they
// do: when the group of a rank in the sample has met, so have those of all ranks that it stands for.
class SampledGroups {
 public:
  SampledGroups(const ProgramSet& set, const RankSample& sample) : set_(set), sample_(sample) {
    for (const std::vector<RankId>& group : set.groups) {
      std::set<RankId> places;
      for (const RankId member : group) places.insert(RankId(sample.place[member]));
      images_.emplace_back(places.begin(), places.end());
    }
  }

  const std::vector<RankId>& image(size_t group) const { return images_[group]; }

  bool standForAll() const {
    const IdRange<RankId> ranks = set_.ranks.ids();
    return std::all_of(ranks.begin(), ranks.end(), [&](RankId rank) { return holdsFor(rank); });
  }

 private:
  const std::vector<size_t>& groupsOf(RankId rank) const { return set_.ranks[rank].groups; }
  RankId standIn(RankId rank) const { return sample_.ranks[sample_.place[rank]]; }

  // The entry of a rank's groups whose image this is; none, or several: they cannot be told apart.
  std::optional<size_t> slotWith(RankId rank, const std::vector<RankId>& image) const {
    std::optional<size_t> found;
    for (size_t slot = 0; slot < groupsOf(rank).size(); ++slot) {
      if (images_[groupsOf(rank)[slot]] != image) continue;
      if (found) return std::nullopt;
      found = slot;
    }
    return found;
  }

  bool holdsFor(RankId rank) const {
    for (size_t slot = 0; slot < groupsOf(rank).size(); ++slot) {
      const size_t group = groupsOf(rank)[slot];
      const std::vector<RankId>& image = images_[group];
      if (image != images_[groupsOf(standIn(rank))[slot]]) return false;
      // The members come to it from the same entry where they are of one place, and from the only one that
      // it can be where they are of others.
      for (const RankId member : set_.groups[group]) {
        std::optional<size_t> theirs = slot;
        if (sample_.place[member] != sample_.place[rank]) theirs = slotWith(standIn(member), image);
        if (!theirs || *theirs >= groupsOf(member).size() || groupsOf(member)[*theirs] != group) return false;
      }
    }
    return true;
  }

  const ProgramSet& set_;
  const RankSample& sample_;
  std::vector<std::vector<RankId>> images_;  // by group of the set
};

}  // namespace

std::string boxText(const Shape& start, const Shape& size) {
  std::string text = "[";
  for (size_t axis = 0; axis < start.size(); ++axis)
    text += fmt::format("{}{}:{}", axis > 0 ? "," : "", start[axis], start[axis] + size[axis]);
  return text + "]";
}

std::vector<RankId> peersOf(const Program& program) {
  std::vector<RankId> peers;
  std::set<RankId> known;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.peer.valid() && known.insert(instruction.peer).second) peers.push_back(instruction.peer);
  }
  return peers;
}

ProgramSet setOf(std::vector<Program> programs) {
  ProgramSet set;
  for (Program& program : programs) {
    RankBinding binding{set.kinds.nextId(), peersOf(program), {}, {}};
    for (const std::vector<RankId>& group : program.groups) {
      const size_t index = std::find(set.groups.begin(), set.groups.end(), group) - set.groups.begin();
      if (index == set.groups.size()) set.groups.push_back(group);
      binding.groups.push_back(index);
    }
    set.ranks.push_back(std::move(binding));
    const size_t buffers = program.buffers.size();
    set.kinds.push_back({std::move(program), std::vector<int>(buffers, -1), std::vector<bool>(buffers)});
  }
  return set;
}

Shard boxOf(const ProgramKind& kind, const RankBinding& binding, BufferId buffer) {
  Shard box = boxOf(kind.program.buffer(buffer));
  const int slot = kind.start_slots[buffer.index()];
  if (slot >= 0) box.start = binding.starts.at(slot);
  return box;
}

std::vector<int64_t> sliceShift(const ProgramKind& kind, const RankBinding& binding,
                                const Instruction& slice) {
  const BufferId from = slice.inputs[0], to = slice.outputs[0];
  const Shape first_from = boxOf(kind.program.buffer(from)).start;
  const Shape first_to = boxOf(kind.program.buffer(to)).start;
  const Shape own_from = boxOf(kind, binding, from).start, own_to = boxOf(kind, binding, to).start;
  std::vector<int64_t> shift;
  for (size_t axis = 0; axis < own_to.size(); ++axis)
    shift.push_back((own_to[axis] - own_from.at(axis)) - (first_to[axis] - first_from[axis]));
  return shift;
}

Program instantiate(const ProgramSet& set, RankId rank) {
  const RankBinding& binding = set.ranks[rank];
  return instantiate(set.kinds[binding.kind], binding, set.groups, rank);
}

std::string copiedWeightsFile(RankId rank) { return fmt::format("weights/{:04}.safetensors", rank.index()); }

Program instantiate(const ProgramKind& kind, const RankBinding& binding,
                    const std::vector<std::vector<RankId>>& groups, RankId rank) {
  Program program = kind.program;
  if (program.rank == rank) return program;
  std::map<RankId, RankId> peers;
  const std::vector<RankId> of_kind = peersOf(program);
  for (size_t i = 0; i < of_kind.size(); ++i) peers[of_kind[i]] = binding.peers.at(i);
  for (Instruction& instruction : program.instructions.stored()) {
    if (instruction.peer.valid()) instruction.peer = peers.at(instruction.peer);
  }
  for (size_t g = 0; g < program.groups.size(); ++g)
    program.groups[GroupId(g)] = groups[binding.groups.at(g)];
  program.buffers.forEachStored([&](size_t b, Buffer& buffer) {
    if (buffer.own_copy) std::get<WeightReference>(*buffer.source).location = copiedWeightsFile(rank);
    if (kind.start_slots[b] < 0) return;
    const Shape& start = binding.starts.at(kind.start_slots[b]);
    if (kind.boxed[b]) {
      const size_t text = boxText(buffer.part->start, buffer.shape).size();
      buffer.name = buffer.name.substr(0, buffer.name.size() - text) + boxText(start, buffer.shape);
    }
    buffer.part->start = start;
  });
  for (Instruction& instruction : program.instructions.stored()) {
    if (instruction.kind == InstructionKind::kSlice)
      instruction.offset += sliceShift(kind, binding, instruction).at(instruction.axis);
  }
  program.rank = rank;
  return program;
}

void bindConstants(const ProgramKind& kind, const RankBinding& binding, std::vector<Graph>& subgraphs) {
  size_t s = subgraphs.size();
  std::map<std::string_view, ValueId> named;  // constants of subgraph s
  for (const OwnConstant& own : kind.own_constants) {
    Graph& graph = subgraphs.at(own.subgraph.index());
    if (s != own.subgraph.index()) {
      s = own.subgraph.index();
      named.clear();
      for (const auto& [value, initializer] : graph.initializers) {
        if (std::holds_alternative<Constant>(initializer)) named[graph.value(value).name] = value;
      }
    }
    const Constant& constant = binding.constants.at(own.slot);
    const auto found = named.find(own.value);
    const Constant* before = found == named.end() ? nullptr : graph.constant(found->second);
    if (before == nullptr || before->data_type != constant.data_type || before->shape != constant.shape)
      fail(ErrorCode::kInternal, "subgraph '{}' has no constant '{}' of type {} and shape {}", graph.name,
           own.value, dataTypeName(constant.data_type), shapeToString(constant.shape));
    graph.initializers.at(found->second) = constant;
  }
}

RankSample allRanks(const ProgramSet& set) {
  RankSample sample;
  for (const RankId rank : set.ranks.ids()) {
    sample.ranks.push_back(rank);
    sample.place.push_back(rank.index());
    sample.counts.push_back(1);
  }
  return sample;
}

RankSample sampleOf(const ProgramSet& set, const std::function<std::string(RankId)>& label) {
  const Collections collections(set);
  RankSample sample;
  sample.place.resize(set.ranks.size());
  const std::vector<size_t> classes = classesOf(set, collections.lists(), label);
  std::map<size_t, const std::vector<RankId>*> of_class;
  std::vector<std::pair<const std::vector<RankId>*, const std::vector<RankId>*>> stands;  // who, for whom
  for (size_t c = 0; c < classes.size(); ++c) {
    const std::vector<RankId>& list = collections.lists()[c];
    const auto [found, is_new] = of_class.try_emplace(classes[c], &list);
    if (is_new) sample.ranks.insert(sample.ranks.end(), list.begin(), list.end());
    stands.emplace_back(found->second, &list);
  }
  std::sort(sample.ranks.begin(), sample.ranks.end());
  sample.counts.assign(sample.ranks.size(), 0);
  for (const auto& [first, list] : stands) {
    for (size_t i = 0; i < list->size(); ++i) {
      const size_t place =
          std::lower_bound(sample.ranks.begin(), sample.ranks.end(), (*first)[i]) - sample.ranks.begin();
      sample.place[(*list)[i]] = place;
      ++sample.counts[place];
    }
  }
  return SampledGroups(set, sample).standForAll() ? sample : allRanks(set);
}

std::vector<Program> samplePrograms(const ProgramSet& set, const RankSample& sample) {
  const SampledGroups groups(set, sample);
  std::vector<Program> programs(sample.ranks.size());
  parallelFor(processorCount(), static_cast<int32_t>(programs.size()), [&](int32_t place) {
    const RankId rank = sample.ranks[place];
    Program& program = programs[place] = instantiate(set, rank);
    program.rank = RankId(place);
    program.world_size = static_cast<int>(sample.ranks.size());
    for (Instruction& instruction : program.instructions.stored()) {
      if (instruction.peer.valid()) instruction.peer = RankId(sample.place[instruction.peer]);
    }
    for (size_t g = 0; g < program.groups.size(); ++g)
      program.groups[GroupId(g)] = groups.image(set.ranks[rank].groups[g]);
  });
  return programs;
}

}  // namespace pipeshard
