// The programs of random jobs, a kind of rank at a time, with something changed in what is a rank's own: the
// verifier, which looks at a sample of ranks, refuses it exactly where all ranks' programs do not fit
// together when they are run in full, by rules of their own (tests/ir/program/plain_run.h).
#include <array>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program_set_json.h"
#include "ir/program/program_set_verify.h"
#include "ir/program/program_verify.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/plan_schedule.h"
#include "tests/ir/program/plain_run.h"
#include "tests/partition/emit/random_job.h"

namespace pipeshard {
namespace {

ProgramSet setOfJob(const Job& job, const std::string& schedule) {
  Plan plan = job.plan;
  plan.schedule = parseSchedule(schedule);
  return emitProgramSet(job.family(), plan, scheduleOf(plan)).set;
}

ProgramSet randomSet(unsigned seed) {
  const Job job = seed % 4 == 0 ? randomJob(seed) : replicatedJob(seed);
  return setOfJob(job, std::array{"sequential", "gpipe", "1f1b"}[seed % 3]);
}

bool isRefused(const std::function<void()>& verify) {
  try {
    verify();
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
    return true;
  }
}

// Changes of one set. Those of a pair of ranks keep more sets sound than those of one number.
class Mutator {
 public:
  Mutator(ProgramSet& set, unsigned seed) : set_(set), random_(seed) {}

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
  for (const auto& [name, of] : counts) EXPECT_GT(of.refused, 0) << name;
  EXPECT_GT(all.refused, 1000);
  EXPECT_GT(all.accepted_sampled, 300);
  EXPECT_GT(all.sampled - all.accepted_sampled, 100);
}

}  // namespace
}  // namespace pipeshard
