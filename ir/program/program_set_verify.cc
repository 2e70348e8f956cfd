// verifyProgramSet: a sample is verified as programs are, and what it leaves open is shown for every binding:
// that the parts that meet, in messages and in sums, are the same parts there, too, and that the parts of
// results are together the whole. A set of which this cannot be shown is verified rank by rank, so that what
// is accepted, and what is said of what is not, is what verifyPrograms says of all programs.
#include "ir/program/program_set_verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "ir/base/tensor_box.h"
#include "ir/program/program_verify.h"
#include "ir/program/program_verify_failure.h"

namespace pipeshard {
namespace {

// What it writes is the same part of a tensor as what it reads.
bool copies(const Instruction& instruction) {
  return instruction.kind == InstructionKind::kAccumulate || instruction.kind == InstructionKind::kAllReduce;
}

// What the bindings of a kind's ranks must fit, each thing once: a steady state says the same of every
// microbatch.
class KindDemands {
 public:
  explicit KindDemands(const ProgramKind& kind) : peers(peersOf(kind.program)), kind_(kind) {
    const size_t buffers = kind.program.buffers.size();
    if (kind.start_slots.size() != buffers) return;  // which BindingVerifier says
    for (size_t b = 0; b < buffers; ++b) {
      if (kind.start_slots[b] >= 0) addPlaced(b);
    }
    for (const Instruction& instruction : kind.program.instructions) {
      if (instruction.kind == InstructionKind::kSlice) addMove(instruction, slices);
      if (copies(instruction)) addMove(instruction, copied);
    }
  }

  std::vector<RankId> peers;
  std::vector<size_t> placed;  // buffers of which the binding says where they begin
  std::vector<Instruction> slices, copied;

 private:
  using Slots = std::pair<int, int>;

  bool alike(size_t a, size_t b) const {
    const Buffer &one = kind_.program.buffer(BufferId(a)), &other = kind_.program.buffer(BufferId(b));
    return kind_.start_slots[a] == kind_.start_slots[b] && one.part == other.part && one.shape == other.shape;
  }

  void addPlaced(size_t buffer) {
    std::vector<size_t>& others = of_slot_[kind_.start_slots[buffer]];
    if (std::any_of(others.begin(), others.end(), [&](size_t other) { return alike(buffer, other); })) return;
    others.push_back(buffer);
    placed.push_back(buffer);
  }

  // What goes from one buffer to another.
  void addMove(const Instruction& move, std::vector<Instruction>& moves) {
    if (move.inputs.size() != 1 || move.outputs.size() != 1)
      failVerification(fmt::format("rank {}", kind_.program.rank), "a copy needs an input and an output");
    const size_t from = move.inputs[0].index(), to = move.outputs[0].index();
    const auto like = [&](const Instruction& other) {
      return move.kind == other.kind && move.axis == other.axis && move.offset == other.offset &&
             alike(from, other.inputs[0].index()) && alike(to, other.outputs[0].index());
    };
    std::vector<Instruction>& others = of_slots_[{kind_.start_slots[from], kind_.start_slots[to]}];
    if (std::any_of(others.begin(), others.end(), like)) return;
    others.push_back(move);
    moves.push_back(move);
  }

  const ProgramKind& kind_;
  std::unordered_map<int, std::vector<size_t>> of_slot_;
  std::map<Slots, std::vector<Instruction>> of_slots_;
};

class BindingVerifier {
 public:
  BindingVerifier(const std::vector<std::vector<RankId>>& groups, size_t ranks, RankId rank,
                  const RankBinding& binding)
      : groups_(groups), ranks_(ranks), rank_(rank), binding_(binding) {}

  void run(const ProgramKind& kind, const KindDemands& demands) const {
    const Program& program = kind.program;
    if (kind.start_slots.size() != program.buffers.size() || kind.boxed.size() != program.buffers.size())
      failHere("its kind does not say of every buffer what is the rank's own");
    verifyPeers(demands.peers.size());
    verifyGroups(program);
    for (const size_t b : demands.placed) verifyBuffer(kind, b);
    for (const Instruction& slice : demands.slices) verifySlice(kind, slice);
    for (const Instruction& copy : demands.copied) verifyCopy(kind, copy);
    for (const OwnConstant& own : kind.own_constants) {
      if (own.subgraph.index() >= program.subgraphs.size() || own.slot >= binding_.constants.size())
        failHere(fmt::format("nothing says what constant \"{}\" is", own.value));
    }
  }

 private:
  [[noreturn]] void failHere(const std::string& message) const {
    failVerification(fmt::format("rank {}", rank_), message);
  }

  void verifyPeers(size_t of_kind) const {
    if (binding_.peers.size() != of_kind)
      failHere(fmt::format("it has {} peers, its kind {}", binding_.peers.size(), of_kind));
    std::set<RankId> seen;
    for (const RankId peer : binding_.peers) {
      if (!peer.valid() || peer.index() >= ranks_ || peer == rank_ || !seen.insert(peer).second)
        failHere(fmt::format("its peer {} does not exist, is itself, or is named twice", peer));
    }
  }

  void verifyGroups(const Program& program) const {
    if (binding_.groups.size() != program.groups.size())
      failHere(fmt::format("it has {} groups, its kind {}", binding_.groups.size(), program.groups.size()));
    for (const size_t group : binding_.groups) {
      if (group >= groups_.size()) failHere("one of its groups does not exist");
      const std::vector<RankId>& members = groups_[group];
      const bool ascending =
          std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
      if (!ascending || members.empty() || members.back().index() >= ranks_ ||
          !std::binary_search(members.begin(), members.end(), rank_))
        failHere(
            fmt::format("group {} must list existing ranks in ascending order, this rank among them", group));
    }
  }

  void verifyBuffer(const ProgramKind& kind, size_t b) const {
    const Buffer buffer = kind.program.buffers.copyAt(b);
    if (!buffer.part || kind.start_slots[b] >= std::ssize(binding_.starts))
      failHere(fmt::format("nothing says where its part of \"{}\" begins", buffer.name));
    const std::string fault =
        boxFault(buffer.part->whole, {binding_.starts[kind.start_slots[b]], buffer.shape});
    if (!fault.empty()) failHere(fmt::format("buffer \"{}\" is no part of a tensor: {}", buffer.name, fault));
  }

  // The kind's program has been verified, so its slice is a range of its source.
  void verifySlice(const ProgramKind& kind, const Instruction& slice) const {
    const std::vector<int64_t> shift = sliceShift(kind, binding_, slice);
    const Buffer& from = kind.program.buffer(slice.inputs[0]);
    const Buffer& to = kind.program.buffer(slice.outputs[0]);
    for (int axis = 0; axis < std::ssize(shift); ++axis) {
      const int64_t offset = slice.offset + shift[axis];
      const bool fits =
          axis == slice.axis ? offset >= 0 && offset <= from.shape[axis] - to.shape[axis] : shift[axis] == 0;
      if (!fits)
        failHere(fmt::format("\"{}\" is no part of \"{}\"", kind.program.nameOf(slice.outputs[0]),
                             kind.program.nameOf(slice.inputs[0])));
    }
  }

  void verifyCopy(const ProgramKind& kind, const Instruction& copy) const {
    const BufferId from = copy.inputs[0], to = copy.outputs[0];
    const bool parts = kind.program.buffer(from).part && kind.program.buffer(to).part;
    if (parts && boxOf(kind, binding_, from) != boxOf(kind, binding_, to))
      failHere(fmt::format("\"{}\" and \"{}\" are different parts of a tensor", kind.program.nameOf(from),
                           kind.program.nameOf(to)));
  }

  const std::vector<std::vector<RankId>>& groups_;
  const size_t ranks_;
  const RankId rank_;
  const RankBinding& binding_;
};

// The entries of RankBinding::starts that two buffers of ranks have; -1: none.
using StartSlots = std::pair<int, int>;

class SampleProof {
 public:
  SampleProof(const ProgramSet& set, const RankSample& sample) : set_(set), sample_(sample) {}

  bool holds() const {
    for (const RankId rank : set_.ranks.ids()) {
      if (!messagesMeet(rank)) return false;
    }
    return sumsMeet();
  }

 private:
  const ProgramKind& kindOf(RankId rank) const { return set_.kinds[set_.ranks[rank].kind]; }
  int slotOf(RankId rank, BufferId buffer) const { return kindOf(rank).start_slots[buffer.index()]; }
  Shape startOf(RankId rank, int slot) const { return slot < 0 ? Shape() : set_.ranks[rank].starts[slot]; }

  // Of the messages from a kind's rank to each of its peers, or back, the buffers in order.
  using Channels = std::map<std::pair<RankId, bool>, std::vector<BufferId>>;
  const Channels& channelsOf(KindId id) const {
    const auto [found, is_new] = channels_.try_emplace(id);
    if (!is_new) return found->second;
    for (const Instruction& instruction : set_.kinds[id].program.instructions) {
      const bool sends = instruction.kind == InstructionKind::kSend;
      if (sends) found->second[{instruction.peer, true}].push_back(instruction.inputs[0]);
      if (instruction.kind == InstructionKind::kReceive)
        found->second[{instruction.peer, false}].push_back(instruction.outputs[0]);
    }
    return found->second;
  }

  std::vector<BufferId> channel(RankId rank, RankId peer, bool sends) const {
    const RankBinding& binding = set_.ranks[rank];
    const auto place = std::find(binding.peers.begin(), binding.peers.end(), peer) - binding.peers.begin();
    const std::vector<RankId>& peers = peersOfKind(binding.kind);
    if (place == std::ssize(peers)) return {};
    const Channels& channels = channelsOf(binding.kind);
    const auto found = channels.find({peers[place], sends});
    return found == channels.end() ? std::vector<BufferId>() : found->second;
  }

  const std::vector<RankId>& peersOfKind(KindId id) const {
    const auto [found, is_new] = peers_.try_emplace(id);
    if (is_new) found->second = peersOf(set_.kinds[id].program);
    return found->second;
  }

  // Which parts meet in the messages from a rank of the sample to another: every pair once.
  const std::set<StartSlots>& partsSent(RankId from, RankId to) const {
    const auto [found, is_new] = parts_sent_.try_emplace({from, to});
    if (!is_new) return found->second;
    const std::vector<BufferId> sent = channel(from, to, true), received = channel(to, from, false);
    for (size_t i = 0; i < std::min(sent.size(), received.size()); ++i) {
      const Buffer& mine = kindOf(from).program.buffer(sent[i]);
      const Buffer& theirs = kindOf(to).program.buffer(received[i]);
      const bool may_differ = unboxedName(from, sent[i]) != unboxedName(to, received[i]);
      if (!may_differ && (mine.part || theirs.part))
        found->second.emplace(slotOf(from, sent[i]), slotOf(to, received[i]));
    }
    return found->second;
  }

  // What all ranks call a buffer of a part.
  std::string unboxedName(RankId rank, BufferId id) const {
    const ProgramKind& kind = kindOf(rank);
    const Buffer buffer = kind.program.buffers.copyAt(id.index());
    if (!kind.boxed[id.index()]) return buffer.name;
    return buffer.name.substr(0, buffer.name.size() - boxText(buffer.part->start, buffer.shape).size());
  }

  bool messagesMeet(RankId rank) const {
    const RankId stand_in = sample_.ranks[sample_.place[rank]];
    for (size_t i = 0; i < set_.ranks[rank].peers.size(); ++i) {
      const RankId peer = set_.ranks[rank].peers[i], their = set_.ranks[stand_in].peers[i];
      for (const auto& [mine, theirs] : partsSent(stand_in, their)) {
        const bool known = mine >= 0 && theirs >= 0;
        if (mine != theirs && !known) return false;
        if (known && startOf(rank, mine) != startOf(peer, theirs)) return false;
      }
    }
    return true;
  }

  // The sums over a group are of the same parts on all its members, in order; of each thread by itself.
  bool sumsMeet() const {
    std::map<std::pair<size_t, bool>, std::pair<RankId, std::vector<int>>> first;
    for (const RankId rank : set_.ranks.ids()) {
      const RankBinding& binding = set_.ranks[rank];
      for (size_t slot = 0; slot < binding.groups.size(); ++slot) {
        for (const bool lane : {false, true}) {
          const std::vector<int>& own = sumsOf(binding.kind, slot, lane);
          const auto [found, is_new] =
              first.try_emplace(std::pair(binding.groups[slot], lane), std::pair(rank, own));
          if (is_new) continue;
          const auto& [other, theirs] = found->second;
          if (own.size() != theirs.size()) return false;
          for (size_t i = 0; i < own.size(); ++i) {
            if (startOf(rank, own[i]) != startOf(other, theirs[i])) return false;
          }
        }
      }
    }
    return true;
  }

  // The start slots of what the kind sums over a group.
  const std::vector<int>& sumsOf(KindId id, size_t group, bool lane) const {
    const auto [found, is_new] = sums_.try_emplace(std::tuple(id, group, lane));
    if (!is_new) return found->second;
    const ProgramKind& kind = set_.kinds[id];
    for (const Instruction& instruction : kind.program.instructions) {
      if (instruction.kind == InstructionKind::kAllReduce && instruction.group == GroupId(group) &&
          instruction.background == lane)
        found->second.push_back(kind.start_slots[instruction.inputs[0].index()]);
    }
    return found->second;
  }

  const ProgramSet& set_;
  const RankSample& sample_;
  mutable std::map<KindId, Channels> channels_;
  mutable std::map<KindId, std::vector<RankId>> peers_;
  mutable std::map<std::pair<RankId, RankId>, std::set<StartSlots>> parts_sent_;
  mutable std::map<std::tuple<KindId, size_t, bool>, std::vector<int>> sums_;
};

// The buffers of results, with what verifyResults reads of them.
std::vector<Program> resultsOf(const ProgramSet& set) {
  std::vector<Program> programs;
  for (const RankId rank : set.ranks.ids()) {
    const RankBinding& binding = set.ranks[rank];
    const ProgramKind& kind = set.kinds[binding.kind];
    Program& program = programs.emplace_back();
    program.rank = rank;
    for (Result result : kind.program.results) {
      Buffer buffer = kind.program.buffer(result.buffer);
      buffer.source.reset();
      const int slot = kind.start_slots[result.buffer.index()];
      if (slot >= 0) buffer.part->start = binding.starts[slot];
      result.buffer = BufferId(program.buffers.size());
      program.buffers.push_back(std::move(buffer));
      program.results.push_back(std::move(result));
    }
  }
  return programs;
}

void verifyEveryRank(const ProgramSet& set) {
  std::vector<Program> programs;
  for (const RankId rank : set.ranks.ids()) programs.push_back(instantiate(set, rank));
  verifyPrograms(programs);
}

}  // namespace

void verifyBindings(const ProgramSet& set) {
  for (const KindId kind : set.kinds.ids()) {
    const RankId first = set.kinds[kind].program.rank;
    const bool its_own = first.valid() && first.index() < set.ranks.size() && set.ranks[first].kind == kind;
    if (!its_own) failVerification(fmt::format("kind {}", kind), "it is not that of its first rank");
  }
  IdVector<KindId, KindDemands> demands;
  for (const ProgramKind& kind : set.kinds) demands.emplace_back(kind);
  parallelFor(processorCount(), static_cast<int32_t>(set.ranks.size()), [&](int32_t index) {
    const RankId rank(index);
    const RankBinding& binding = set.ranks[rank];
    const bool has_kind = binding.kind.valid() && binding.kind.index() < set.kinds.size();
    if (!has_kind) failVerification(fmt::format("rank {}", rank), "it has no kind");
    BindingVerifier(set.groups, set.ranks.size(), rank, binding)
        .run(set.kinds[binding.kind], demands[binding.kind]);
  });
  for (const KindId id : set.kinds.ids()) {
    const ProgramKind& kind = set.kinds[id];
    const RankBinding& binding = set.ranks[kind.program.rank];
    bool same = binding.peers == demands[id].peers;
    for (size_t g = 0; g < binding.groups.size(); ++g)
      same = same && set.groups[binding.groups[g]] == kind.program.groups[GroupId(g)];
    for (size_t b = 0; b < kind.start_slots.size(); ++b) {
      if (kind.start_slots[b] >= 0)
        same = same && kind.program.buffer(BufferId(b)).part->start == binding.starts[kind.start_slots[b]];
    }
    if (!same)
      failVerification(fmt::format("rank {}", kind.program.rank), "its binding is not that of its program");
  }
}

void verifyBinding(const ProgramKind& kind, const RankBinding& binding,
                   const std::vector<std::vector<RankId>>& groups, RankId rank, size_t ranks) {
  BindingVerifier(groups, ranks, rank, binding).run(kind, KindDemands(kind));
}

void verifyProgramSet(const ProgramSet& set) {
  verifyBindings(set);
  const RankSample sample = sampleOf(set);
  if (sample.all() || !SampleProof(set, sample).holds()) return verifyEveryRank(set);
  try {
    verifySample(samplePrograms(set, sample));
    verifyResults(resultsOf(set));
  } catch (const Error&) {
    verifyEveryRank(set);  // says it of the ranks as they are
  }
}

}  // namespace pipeshard
