#include "partition/emit/emit_free.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "ir/program/background.h"

namespace pipeshard {
namespace {

// By rank: how many of its instructions are known to be complete.
using Clock = IdVector<RankId, size_t>;

struct Knowledge {
  size_t instruction = 0;  // a receive, or one that waits for a receive in the background
  Clock clock;             // what the rank knows behind it
};

class Causality {
 public:
  // `waits`: of each rank's program.
  Causality(const IdVector<RankId, FreedRank>& ranks, const IdVector<RankId, BackgroundWaits>& waits)
      : ranks_(ranks), waits_(waits), known_(ranks.size()), arrived_(ranks.size()) {
    IdVector<RankId, size_t> at(ranks.size());
    IdVector<RankId, Clock> clocks(ranks.size(), Clock(ranks.size()));
    for (bool moved = true; moved;) {
      moved = false;
      for (RankId rank : at.ids()) {
        while (at[rank] <= instructionsOf(rank).size() && step(rank, at[rank], clocks[rank])) {
          ++at[rank];
          moved = true;
        }
      }
    }
    for (RankId rank : at.ids()) {
      PIPESHARD_CHECK(at[rank] > instructionsOf(rank).size(), "rank {} cannot go on at instruction {}", rank,
                      at[rank]);
    }
  }

  // The first instruction of the rank, from `first` on, behind which it knows that all messages in `sends`
  // (instructions of the rank) have been received; the number of instructions if there is none.
  size_t provenAfter(RankId rank, const std::vector<size_t>& sends, size_t first) const {
    const auto lacks = [&](const Knowledge& knowledge) {
      return !std::all_of(sends.begin(), sends.end(), [&](size_t send) {
        const auto& [receiver, position] = received_by_.at({rank, send});
        return knowledge.clock[receiver] > position;
      });
    };
    // What is known is never forgotten.
    const auto found = std::partition_point(known_[rank].begin(), known_[rank].end(), lacks);
    return found == known_[rank].end() ? instructionsOf(rank).size() : std::max(first, found->instruction);
  }

 private:
  const std::vector<Instruction>& instructionsOf(RankId rank) const {
    return ranks_[rank].program->instructions.plain();
  }
  RankId peerOf(RankId rank, size_t instruction) const {
    const auto& peers = ranks_[rank].peers;
    const RankId of_kind = instructionsOf(rank)[instruction].peer;
    const auto found = std::lower_bound(peers.begin(), peers.end(), std::pair(of_kind, RankId(0)));
    PIPESHARD_CHECK(found != peers.end() && found->first == of_kind, "rank {} has no peer {}", rank, of_kind);
    return found->second;
  }

  struct Posted {
    size_t instruction = 0;
    Clock clock;
  };

  // The end of the step is one more instruction.
  bool step(RankId rank, size_t at, Clock& clock) {
    const std::vector<Instruction>& instructions = instructionsOf(rank);
    const bool receives = at < instructions.size() && instructions[at].kind == InstructionKind::kReceive &&
                          !instructions[at].background;
    const std::vector<size_t>& awaited = waits_[rank].receives[at];
    for (; arrived_[rank] < awaited.size(); ++arrived_[rank]) {
      if (!take(rank, awaited[arrived_[rank]], at, clock)) return false;
    }
    if (receives && !take(rank, at, at, clock)) return false;
    arrived_[rank] = 0;
    clock[rank] = at + 1;
    if (receives || !awaited.empty()) known_[rank].push_back({at, clock});
    if (at < instructions.size() && instructions[at].kind == InstructionKind::kSend) {
      posted_[{rank, peerOf(rank, at)}].push_back({at, clock});
    }
    return true;
  }

  // The message of a receive has come, and the rank knows at instruction `at`.
  bool take(RankId rank, size_t receive, size_t at, Clock& clock) {
    const RankId peer = peerOf(rank, receive);
    const std::vector<Posted>& channel = posted_[{peer, rank}];
    size_t& taken = taken_[{peer, rank}];
    if (taken == channel.size()) return false;
    const Posted& message = channel[taken++];
    received_by_[{peer, message.instruction}] = {rank, at};
    for (RankId of : clock.ids()) clock[of] = std::max(clock[of], message.clock[of]);
    return true;
  }

  using Pair = std::pair<RankId, RankId>;
  using Place = std::pair<RankId, size_t>;  // of an instruction
  const IdVector<RankId, FreedRank>& ranks_;
  const IdVector<RankId, BackgroundWaits>& waits_;
  IdVector<RankId, std::vector<Knowledge>> known_;
  IdVector<RankId, size_t> arrived_;  // how many of BackgroundWaits::receives at its instruction have come
  std::map<Pair, std::vector<Posted>> posted_;  // by sender and receiver
  std::map<Pair, size_t> taken_;
  std::map<Place, Place> received_by_;  // by the send: where the receiver knows of it
};

Frees freesOf(RankId rank, const Program& program, const BackgroundWaits& waits, const Causality& causality) {
  const std::vector<Instruction>& instructions = program.instructions.plain();
  const size_t count = instructions.size();
  std::vector<size_t> last_use(program.buffers.size(), count);
  std::vector<std::vector<size_t>> sends(program.buffers.size());
  for (size_t i = 0; i < count; ++i) {
    for (BufferId id : instructions[i].inputs) last_use[id.index()] = i;
    for (BufferId id : instructions[i].outputs) last_use[id.index()] = i;
    if (instructions[i].kind == InstructionKind::kSend) sends[instructions[i].inputs[0].index()].push_back(i);
  }
  // Right behind a background instruction the free would wait for it: what awaits it anyway comes first.
  for (size_t& use : last_use) {
    if (use == count || !isOfLane(instructions[use])) continue;
    const size_t number = std::lower_bound(waits.lane.begin(), waits.lane.end(), use) - waits.lane.begin();
    while (use + 1 < count && waits.before[use] <= number) ++use;
  }
  std::vector<bool> stays(program.buffers.size());
  for (const Result& result : program.results) stays[result.buffer.index()] = true;
  if (program.guard.valid()) stays[program.guard.index()] = true;
  Frees frees;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (stays[b] || isPersistent(program.buffer(BufferId(b)).kind) || last_use[b] == count) continue;
    frees.emplace_back(sends[b].empty() ? last_use[b] : causality.provenAfter(rank, sends[b], last_use[b]),
                       BufferId(b));
  }
  std::sort(frees.begin(), frees.end());
  return frees;
}

}  // namespace

IdVector<RankId, Frees> findFrees(const IdVector<RankId, FreedRank>& ranks) {
  const auto forAll = [&](const std::function<void(RankId)>& work) {
    parallelFor(processorCount(), static_cast<int32_t>(ranks.size()), [&](int32_t i) { work(RankId(i)); });
  };
  IdVector<RankId, BackgroundWaits> waits(ranks.size());
  forAll([&](RankId rank) { waits[rank] = backgroundWaits(*ranks[rank].program); });
  const Causality causality(ranks, waits);
  IdVector<RankId, Frees> frees(ranks.size());
  forAll([&](RankId rank) { frees[rank] = freesOf(rank, *ranks[rank].program, waits[rank], causality); });
  return frees;
}

void insertFrees(const Frees& frees, Program& program) {
  std::vector<Instruction> instructions;
  instructions.reserve(program.instructions.size() + frees.size());
  auto next = frees.begin();
  for (size_t i = 0; i <= program.instructions.size(); ++i) {
    if (i < program.instructions.size()) instructions.push_back(std::move(program.instructions[i]));
    for (; next != frees.end() && next->first == i; ++next) {
      Instruction free;
      free.kind = InstructionKind::kFree;
      free.inputs = {next->second};
      instructions.push_back(std::move(free));
    }
  }
  program.instructions = std::move(instructions);
}

}  // namespace pipeshard
