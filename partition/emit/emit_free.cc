#include "partition/emit/emit_free.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
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
  explicit Causality(const std::vector<Program>& programs)
      : programs_(programs), known_(programs.size()), arrived_(programs.size()) {
    for (const Program& program : programs) waits_.push_back(backgroundWaits(program).receives);
    IdVector<RankId, size_t> at(programs.size());
    IdVector<RankId, Clock> clocks(programs.size(), Clock(programs.size()));
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
    return programs_[rank.index()].instructions;
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
    const std::vector<size_t>& awaited = waits_[rank][at];
    for (; arrived_[rank] < awaited.size(); ++arrived_[rank]) {
      if (!take(rank, awaited[arrived_[rank]], at, clock)) return false;
    }
    if (receives && !take(rank, at, at, clock)) return false;
    arrived_[rank] = 0;
    clock[rank] = at + 1;
    if (receives || !awaited.empty()) known_[rank].push_back({at, clock});
    if (at < instructions.size() && instructions[at].kind == InstructionKind::kSend) {
      posted_[{rank, instructions[at].peer}].push_back({at, clock});
    }
    return true;
  }

  // The message of a receive has come, and the rank knows at instruction `at`.
  bool take(RankId rank, size_t receive, size_t at, Clock& clock) {
    const RankId peer = instructionsOf(rank)[receive].peer;
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
  const std::vector<Program>& programs_;
  IdVector<RankId, std::vector<Knowledge>> known_;
  IdVector<RankId, std::vector<std::vector<size_t>>> waits_;  // BackgroundWaits::receives
  IdVector<RankId, size_t> arrived_;            // how many of those at its instruction have come
  std::map<Pair, std::vector<Posted>> posted_;  // by sender and receiver
  std::map<Pair, size_t> taken_;
  std::map<Place, Place> received_by_;  // by the send: where the receiver knows of it
};

void insertFrees(Program& program, const Causality& causality) {
  const size_t count = program.instructions.size();
  std::vector<size_t> last_use(program.buffers.size(), count);
  std::vector<std::vector<size_t>> sends(program.buffers.size());
  for (size_t i = 0; i < count; ++i) {
    for (BufferId id : program.instructions[i].inputs) last_use[id.index()] = i;
    for (BufferId id : program.instructions[i].outputs) last_use[id.index()] = i;
    if (program.instructions[i].kind == InstructionKind::kSend)
      sends[program.instructions[i].inputs[0].index()].push_back(i);
  }
  // Right behind a background instruction the free would wait for it: what awaits it anyway comes first.
  const BackgroundWaits waits = backgroundWaits(program);
  for (size_t& use : last_use) {
    if (use == count || !isOfLane(program.instructions[use])) continue;
    const size_t number = std::lower_bound(waits.lane.begin(), waits.lane.end(), use) - waits.lane.begin();
    while (use + 1 < count && waits.before[use] <= number) ++use;
  }
  std::vector<bool> stays(program.buffers.size());
  for (const Result& result : program.results) stays[result.buffer.index()] = true;
  if (program.guard.valid()) stays[program.guard.index()] = true;
  // behind each instruction; the last: at the end of the step
  std::vector<std::vector<BufferId>> frees(count + 1);
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (stays[b] || isPersistent(program.buffers[b].kind) || last_use[b] == count) continue;
    frees[sends[b].empty() ? last_use[b] : causality.provenAfter(program.rank, sends[b], last_use[b])]
        .emplace_back(b);
  }
  std::vector<Instruction> instructions;
  for (size_t i = 0; i <= count; ++i) {
    if (i < count) instructions.push_back(std::move(program.instructions[i]));
    for (BufferId id : frees[i]) {
      Instruction free;
      free.kind = InstructionKind::kFree;
      free.inputs = {id};
      instructions.push_back(std::move(free));
    }
  }
  program.instructions = std::move(instructions);
}

}  // namespace

void insertFrees(std::vector<Program>& programs) {
  const std::vector<Program> without_frees = programs;
  const Causality causality(without_frees);
  for (Program& program : programs) insertFrees(program, causality);
}

}  // namespace pipeshard
