// The programs of random jobs, a kind of rank at a time, with something changed in what is a rank's own: the
// verifier, which looks at a sample of ranks, refuses it exactly where all ranks' programs do not fit
// together when they are run in full, by rules of their own (tests/ir/program/plain_run.h).
#include <array>
#include <map>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "ir/program/program_set_json.h"
#include "ir/program/program_set_verify.h"
#include "ir/program/program_verify.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/plan_schedule.h"
#include "tests/expect_error.h"
#include "tests/ir/program/plain_run.h"
#include "tests/partition/emit/random_job.h"

namespace pipeshard {
namespace {

ProgramSet setOfJob(const Job& job, const std::string& schedule) {
  Plan plan = job.plan;
  plan.schedule = parseSchedule(schedule);
  return emitProgramSet(job.family(), plan, scheduleOf(plan)).set;
}

// Stages of rows x columns devices, which add something up along their row and along their column, and send
// to their counterparts of the next stage: so every rank has two groups.
class Meshes {
 public:
  explicit Meshes(unsigned seed) : random_(seed) {
    stages_ = 1 + any(3);
    rows_ = 2 + any(2);
    columns_ = 2 + any(2);
  }

  ProgramSet make() {
    ProgramSet set;
    for (size_t stage = 0; stage < stages_; ++stage) addGroups(stage, set);
    for (size_t stage = 0; stage < stages_; ++stage) {
      for (size_t place = 0; place < devices(); ++place) {
        RankBinding binding{KindId(stage), {}, {rowGroup(stage, place), columnGroup(stage, place)}, {}};
        if (stage > 0) binding.peers.push_back(rankAt(stage - 1, place));
        if (stage + 1 < stages_) binding.peers.push_back(rankAt(stage + 1, place));
        binding.starts = {{static_cast<int64_t>(2 * place), 0}};
        if (place == 0) set.kinds.push_back(kindOf(stage, binding, set));
        set.ranks.push_back(std::move(binding));
      }
    }
    return set;
  }

 private:
  size_t any(size_t count) { return random_() % count; }
  size_t devices() const { return rows_ * columns_; }
  RankId rankAt(size_t stage, size_t place) const { return RankId(stage * devices() + place); }
  size_t rowGroup(size_t stage, size_t place) const { return stage * (rows_ + columns_) + place / columns_; }
  size_t columnGroup(size_t stage, size_t place) const {
    return stage * (rows_ + columns_) + rows_ + place % columns_;
  }

  void addGroups(size_t stage, ProgramSet& set) const {
    set.groups.resize(set.groups.size() + rows_ + columns_);
    for (size_t place = 0; place < devices(); ++place) {
      set.groups[rowGroup(stage, place)].push_back(rankAt(stage, place));
      set.groups[columnGroup(stage, place)].push_back(rankAt(stage, place));
    }
  }

  Buffer rowsBuffer(const std::string& name) const {
    Buffer buffer;
    buffer.name = name + boxText({0, 0}, {2, 6});
    buffer.data_type = DataType::kFloat32;
    buffer.shape = {2, 6};
    buffer.value = name;
    buffer.part = BufferPart{{static_cast<int64_t>(2 * devices()), 6}, {0, 0}};
    return buffer;
  }

  // Of the first rank of a stage: the sums in some order, the messages before and behind them.
  ProgramKind kindOf(size_t stage, const RankBinding& binding, const ProgramSet& set) {
    Program program;
    program.rank = rankAt(stage, 0);
    program.world_size = static_cast<int>(stages_ * devices());
    for (const size_t group : binding.groups) program.groups.push_back(set.groups[group]);
    program.buffers = {rowsBuffer(fmt::format("h{}@0", stage)), rowsBuffer(fmt::format("h{}@0", stage + 1)),
                       Buffer{}};
    program.buffers.back().name = "sum";
    program.buffers.back().kind = BufferKind::kAccumulator;
    program.buffers.back().data_type = DataType::kFloat32;
    const BufferId received(0), sent(1), sum(2);
    const auto add = [&](InstructionKind kind, std::vector<BufferId> inputs, std::vector<BufferId> outputs) {
      Instruction& made = program.instructions.emplace_back();
      made.kind = kind;
      made.inputs = std::move(inputs);
      made.outputs = std::move(outputs);
      return &made;
    };
    add(stage > 0 ? InstructionKind::kReceive : InstructionKind::kZero, {}, {received})->peer =
        stage > 0 ? binding.peers.front() : RankId();
    add(InstructionKind::kZero, {}, {sum});
    for (size_t sums = 2 + any(3), first = any(2), i = 0; i < sums; ++i)
      add(InstructionKind::kAllReduce, {sum}, {sum})->group = GroupId((first + i) % 2);
    add(InstructionKind::kZero, {}, {sent});
    if (stage + 1 < stages_) add(InstructionKind::kSend, {sent}, {})->peer = binding.peers.back();
    for (const BufferId id : {received, sent, sum}) add(InstructionKind::kFree, {id}, {});
    return {std::move(program), {0, 0, -1}, {true, true, false}};
  }

  std::mt19937 random_;
  size_t stages_ = 1, rows_ = 2, columns_ = 2;
};

ProgramSet randomSet(unsigned seed) {
  if (seed % 4 == 1) return Meshes(seed).make();
  const Job job = seed % 4 == 0 ? randomJob(seed) : replicatedJob(seed);
  return setOfJob(job, std::array{"sequential", "gpipe", "1f1b"}[seed % 3]);
}

// Changes of one set. Those of a pair of ranks keep more sets sound than those of one number.
class Mutator {
 public:
  Mutator(ProgramSet& set, unsigned seed) : set_(set), random_(seed) {}

  static size_t kinds() { return changes().size(); }

  // The name of what was changed; "": there is nothing of the kind.
  std::string mutate() {
    const auto& [name, change] = changes()[any(changes().size())];
    return (this->*change)() ? name : "";
  }

 private:
  using Change = std::pair<const char*, bool (Mutator::*)()>;
  static const std::vector<Change>& changes() {
    static const std::vector<Change> all = {
        {"another peer", &Mutator::anotherPeer},
        {"peers in another order", &Mutator::otherOrderOfPeers},
        {"peers of another rank", &Mutator::peersOfAnother},
        {"counterparts change places", &Mutator::counterpartsChangePlaces},
        {"another group", &Mutator::anotherGroup},
        {"groups in another order", &Mutator::otherOrderOfGroups},
        {"groups of another rank", &Mutator::groupsOfAnother},
        {"another member", &Mutator::anotherMember},
        {"a member less", &Mutator::aMemberLess},
        {"a member more", &Mutator::aMemberMore},
        {"members change groups", &Mutator::membersChangeGroups},
        {"another start", &Mutator::anotherStart},
        {"starts of another rank", &Mutator::startsOfAnother},
        {"a start of another rank", &Mutator::aStartOfAnother},
        {"another kind", &Mutator::anotherKind},
        {"bindings change places", &Mutator::bindingsChangePlaces},
        {"another slot", &Mutator::anotherSlot},
        {"a name with or without its box", &Mutator::anotherNaming}};
    return all;
  }

  size_t any(size_t count) { return random_() % count; }
  template <typename T>
  T& anyOf(std::vector<T>& list) {
    return list[any(list.size())];
  }
  RankId anyRank() { return RankId(any(set_.ranks.size())); }
  RankBinding& anyBinding() { return set_.ranks[anyRank()]; }
  // Another one of the same kind, if there is one.
  RankBinding& alike(const RankBinding& binding) {
    std::vector<RankBinding*> found;
    for (RankBinding& other : set_.ranks) {
      if (other.kind == binding.kind && &other != &binding) found.push_back(&other);
    }
    return found.empty() ? anyBinding() : *anyOf(found);
  }

  bool anotherPeer() {
    RankBinding& binding = anyBinding();
    if (binding.peers.empty()) return false;
    anyOf(binding.peers) = RankId(any(set_.ranks.size() + 1));
    return true;
  }
  bool otherOrderOfPeers() {
    RankBinding& binding = anyBinding();
    if (binding.peers.size() < 2) return false;
    std::swap(anyOf(binding.peers), anyOf(binding.peers));
    return true;
  }
  bool peersOfAnother() {
    RankBinding& binding = anyBinding();
    std::swap(binding.peers, alike(binding).peers);
    return true;
  }
  // Whoever talked to one of two ranks of a kind talks to the other: they have changed their numbers for all
  // but their groups and parts.
  bool counterpartsChangePlaces() {
    const RankId rank = anyRank();
    RankBinding& other = alike(set_.ranks[rank]);
    const RankId second(static_cast<size_t>(&other - &set_.ranks[RankId(0)]));
    if (second == rank || set_.ranks[rank].peers.empty()) return false;
    std::swap(set_.ranks[rank].peers, other.peers);
    for (RankBinding& binding : set_.ranks) {
      for (RankId& peer : binding.peers) peer = peer == rank ? second : peer == second ? rank : peer;
    }
    return true;
  }
  bool anotherGroup() {
    RankBinding& binding = anyBinding();
    if (binding.groups.empty()) return false;
    anyOf(binding.groups) = any(set_.groups.size() + 1);
    return true;
  }
  bool otherOrderOfGroups() {
    RankBinding& binding = anyBinding();
    if (binding.groups.size() < 2) return false;
    std::swap(anyOf(binding.groups), anyOf(binding.groups));
    return true;
  }
  bool groupsOfAnother() {
    RankBinding& binding = anyBinding();
    std::swap(binding.groups, alike(binding).groups);
    return true;
  }
  std::vector<RankId>* anyGroup(size_t members) {
    if (set_.groups.empty()) return nullptr;
    std::vector<RankId>& group = anyOf(set_.groups);
    return group.size() < members ? nullptr : &group;
  }
  bool anotherMember() {
    std::vector<RankId>* group = anyGroup(1);
    if (group == nullptr) return false;
    anyOf(*group) = anyRank();
    if (any(2) == 0) std::sort(group->begin(), group->end());
    return true;
  }
  bool aMemberLess() {
    std::vector<RankId>* group = anyGroup(2);
    if (group == nullptr) return false;
    group->erase(group->begin() + static_cast<std::ptrdiff_t>(any(group->size())));
    return true;
  }
  bool aMemberMore() {
    std::vector<RankId>* group = anyGroup(1);
    if (group == nullptr) return false;
    group->push_back(anyRank());
    std::sort(group->begin(), group->end());
    return true;
  }
  // Two members of two groups, which know of it.
  bool membersChangeGroups() {
    const RankId rank = anyRank();
    RankBinding& other = alike(set_.ranks[rank]);
    const RankId second(static_cast<size_t>(&other - &set_.ranks[RankId(0)]));
    std::vector<size_t>&mine = set_.ranks[rank].groups, &theirs = other.groups;
    if (second == rank || mine.empty() || mine.size() != theirs.size()) return false;
    const size_t slot = any(mine.size());
    const size_t from = mine[slot], to = theirs[slot];
    if (from == to || from >= set_.groups.size() || to >= set_.groups.size()) return false;
    for (const auto& [group, leaves, comes] :
         {std::tuple(from, rank, second), std::tuple(to, second, rank)}) {
      std::vector<RankId>& members = set_.groups[group];
      std::replace(members.begin(), members.end(), leaves, comes);
      std::sort(members.begin(), members.end());
    }
    std::swap(mine[slot], theirs[slot]);
    return true;
  }
  bool anotherStart() {
    RankBinding& binding = anyBinding();
    if (binding.starts.empty()) return false;
    Shape& start = anyOf(binding.starts);
    if (start.empty()) return false;
    start[any(start.size())] += static_cast<int64_t>(any(7)) - 3;
    return true;
  }
  bool startsOfAnother() {
    RankBinding& binding = anyBinding();
    if (binding.starts.empty()) return false;
    std::swap(binding.starts, alike(binding).starts);
    return true;
  }
  bool aStartOfAnother() {
    RankBinding& binding = anyBinding();
    RankBinding& other = alike(binding);
    if (binding.starts.empty() || binding.starts.size() != other.starts.size()) return false;
    const size_t slot = any(binding.starts.size());
    std::swap(binding.starts[slot], other.starts[slot]);
    return true;
  }
  bool anotherKind() {
    anyBinding().kind = KindId(any(set_.kinds.size() + 1));
    return true;
  }
  bool bindingsChangePlaces() {
    RankBinding& binding = anyBinding();
    std::swap(binding, any(2) == 0 ? anyBinding() : alike(binding));
    return true;
  }
  bool anotherSlot() {
    ProgramKind& kind = set_.kinds[KindId(any(set_.kinds.size()))];
    const size_t buffer = any(kind.start_slots.size());
    if (!kind.program.buffers[buffer].part) return false;
    kind.start_slots[buffer] = static_cast<int>(any(5)) - 1;
    return true;
  }
  bool anotherNaming() {
    ProgramKind& kind = set_.kinds[KindId(any(set_.kinds.size()))];
    std::vector<size_t> boxed;
    for (size_t b = 0; b < kind.boxed.size(); ++b) {
      if (kind.boxed[b]) boxed.push_back(b);
    }
    if (boxed.empty()) return false;
    kind.boxed[anyOf(boxed)] = false;
    return true;
  }

  ProgramSet& set_;
  std::mt19937 random_;
};

// A kind's program is its first rank's: what has changed there is said in it, too, where it can be.
void sayItOfFirstRanks(ProgramSet& set) {
  for (ProgramKind& kind : set.kinds) {
    const RankId first = kind.program.rank;
    const RankBinding& binding = set.ranks[first];
    if (!(binding.kind.valid() && &set.kinds[binding.kind] == &kind)) continue;
    if (isRefused([&] { verifyBinding(kind, binding, set.groups, first, set.ranks.size()); })) continue;
    ProgramKind of_nobody = kind;
    of_nobody.program.rank = RankId();
    kind.program = instantiate(of_nobody, binding, set.groups, first);
  }
}

struct Counts {
  int mutated = 0, refused = 0;
  int sampled = 0;           // a sample of ranks would stand for all
  int accepted_sampled = 0;  // and the set is accepted
};

TEST(MutatedBindings, AreRefusedExactlyWhereRunningAllRanksPlainlyRefusesThem) {
  std::map<std::string, Counts> counts;
  Counts all;
  for (unsigned seed = 0; all.mutated < 2000; ++seed) {
    const ProgramSet sound = randomSet(seed);
    ASSERT_EQ(plainRunFault(sound), std::nullopt) << "seed " << seed;
    ASSERT_FALSE(isRefused([&] { verifyProgramSet(sound); })) << "seed " << seed;
    for (unsigned change = 0; change < 12; ++change) {
      ProgramSet set = sound;
      Mutator mutator(set, 1000 * seed + change);
      const std::string name = mutator.mutate();
      if (name.empty()) continue;
      if (change % 4 == 3) mutator.mutate();
      sayItOfFirstRanks(set);
      SCOPED_TRACE(fmt::format("seed {}, change {}: {}", seed, change, name));
      const bool is_refused = isRefused([&] { verifyProgramSet(set); });
      const std::optional<std::string> fault = plainRunFault(set);
      EXPECT_EQ(is_refused, fault.has_value()) << fault.value_or("nothing is wrong");
      const bool sampled = !isRefused([&] { verifyBindings(set); }) && !sampleOf(set).all();
      for (Counts* of : {&counts[name], &all}) {
        ++of->mutated;
        of->refused += is_refused ? 1 : 0;
        of->sampled += sampled ? 1 : 0;
        of->accepted_sampled += sampled && !is_refused ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(counts.size(), Mutator::kinds());
  for (const auto& [name, of] : counts) EXPECT_GT(of.refused, 0) << name;
  EXPECT_GT(all.refused, 1000);
  EXPECT_GT(all.accepted_sampled, 300);
  EXPECT_GT(all.sampled - all.accepted_sampled, 100);
}

}  // namespace
}  // namespace pipeshard
