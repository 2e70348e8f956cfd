// Waits between ranks: matching of messages, and progress of all ranks together.
#include "ir/program/program_verify_waits.h"

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <set>

#include "ir/base/ids_format.h"
#include "ir/base/tensor_box.h"
#include "ir/program/background.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify_failure.h"

namespace pipeshard {
namespace {

using Pair = std::pair<RankId, RankId>;                // sender, receiver
using Channels = std::map<Pair, std::vector<size_t>>;  // instruction positions, in order

// Positions of all sends (by the sender's program) or receives (by the receiver's), per ordered pair.
Channels channelsOf(const std::vector<Program>& programs, InstructionKind kind) {
  Channels channels;
  for (const Program& program : programs) {
    size_t next = 0;
    for (const Instruction& instruction : program.instructions) {
      const size_t i = next++;
      if (instruction.kind != kind) continue;
      const bool sends = kind == InstructionKind::kSend;
      channels[sends ? Pair{program.rank, instruction.peer} : Pair{instruction.peer, program.rank}].push_back(
          i);
    }
  }
  return channels;
}

Buffer sentBuffer(const Program& program, const InstructionReader& instructions, size_t at) {
  return program.buffers.copyAt(instructions[at].inputs[0].index());
}

std::string partText(const Buffer& buffer) {
  if (!buffer.part) return fmt::format("all of a tensor {}", shapeToString(buffer.shape));
  return fmt::format("{} of a tensor {}", printBox(boxOf(buffer)), shapeToString(buffer.part->whole));
}

void verifyChannel(const Program& sender, const std::vector<size_t>& sends, const Program& receiver,
                   const std::vector<size_t>& receives) {
  const InstructionReader sending(sender.instructions), receiving(receiver.instructions);
  const LoopedList<Buffer>::Reader of_sender(sender.buffers), of_receiver(receiver.buffers);
  const auto sentBy = [&](size_t at) -> const Buffer& { return of_sender[sending[at].inputs[0].index()]; };
  const auto receivedBy = [&](size_t at) -> const Buffer& {
    return of_receiver[receiving[at].outputs[0].index()];
  };
  std::set<std::string> sent_names, received_names;
  for (size_t at : sends) sent_names.insert(sentBy(at).name);
  for (size_t at : receives) received_names.insert(receivedBy(at).name);
  for (size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
    const Buffer& sent = sentBy(sends[i]);
    const Buffer& received = receivedBy(receives[i]);
    const bool name_is_shared = received_names.count(sent.name) > 0 || sent_names.count(received.name) > 0;
    if (sent.name != received.name && name_is_shared) {
      failVerification(describeAt(receiver, receives[i]),
                       fmt::format("message {} on this way is \"{}\" of {}: the orders of sends and receives "
                                   "differ, or one is missing",
                                   i, sent.name, describeAt(sender, sends[i])));
    }
    if (sent.name == received.name && sent.part != received.part) {
      failVerification(describeAt(receiver, receives[i]),
                       fmt::format("it expects {}, but {} gives {}", partText(received),
                                   describeAt(sender, sends[i]), partText(sent)));
    }
    if (sent.data_type != received.data_type || sent.shape != received.shape) {
      failVerification(describeAt(receiver, receives[i]),
                       fmt::format("it expects {}{}, but {} gives {}{}", dataTypeName(received.data_type),
                                   shapeToString(received.shape), describeAt(sender, sends[i]),
                                   dataTypeName(sent.data_type), shapeToString(sent.shape)));
    }
  }
  if (sends.size() > receives.size()) {
    failVerification(describeAt(sender, sends[receives.size()]),
                     fmt::format("rank {} never receives it", receiver.rank));
  }
  if (receives.size() > sends.size()) {
    failVerification(describeAt(receiver, receives[sends.size()]),
                     fmt::format("rank {} never sends it", sender.rank));
  }
}

// Who does instructions: a rank's own thread, or its background lane.
struct Actor {
  RankId rank;
  bool lane = false;
  friend auto operator<=>(const Actor&, const Actor&) = default;
};

// Runs all programs with the semantics on top of program.h, without data: an actor goes on as long as
// waitsFor() finds nothing; when no actor can go on, every rank's own thread must be at its end.
//
// One order of events is enough: whatever else happens first, each actor goes through the same instructions
// and waits for the same events. For all that one actor sees of another are counters that only grow (messages
// sent and received per ordered pair, instructions that a lane has done, collectives per actor and group), so
// a wait that is over stays over.
//
// A collective is passed by its members one at a time: the first may pass when all have arrived at it with
// equal turns (turns_: how many collectives of this group the actor has passed); the others then see that
// turn behind the first one and follow. A background receive counts as received when the first instruction
// that needs it runs (ir/program/background.h).
//
//   rank 0: receive from 1, send to 1;  rank 1: receive from 0, send to 0
//   Nobody moves: "rank 0 ... waits for a message from rank 1; rank 1 ... waits for a message from rank 0;
//   and so back to rank 0". With the sends first both end, as a send waits for nobody.
class ProgressSimulator {
 public:
  explicit ProgressSimulator(const std::vector<Program>& programs) : programs_(programs) {
    for (const Program& program : programs) {
      Rank& rank = ranks_.emplace_back(InstructionReader(program.instructions));
      rank.waits = backgroundWaits(program);
      rank.in_flight.resize(program.buffers.size());
      std::map<RankId, size_t> messages;
      for (const Instruction& instruction : program.instructions) {
        rank.message.push_back(instruction.kind == InstructionKind::kReceive ? messages[instruction.peer]++
                                                                             : 0);
        if (instruction.kind == InstructionKind::kAllReduce)
          rank.summed.insert(program.nameOf(instruction.inputs[0]));
      }
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const Program& program : programs_) {
        for (const bool lane : {false, true}) {
          const Actor actor{program.rank, lane};
          while (!isIdle(actor) && !waitsFor(actor)) {
            execute(actor);
            moved = true;
          }
        }
      }
    }
    for (const Program& program : programs_) {
      if (!isIdle({program.rank, false})) failStuck({program.rank, false});
    }
  }

 private:
  struct Rank {
    explicit Rank(InstructionReader instructions) : instructions(std::move(instructions)) {}
    InstructionReader instructions;
    BackgroundWaits waits;
    std::set<std::string> summed;  // names of buffers, by all_reduce
    // the next instruction; their number: the end of the step
    size_t at = 0;
    size_t posted = 0;  // of the lane's instructions
    size_t done = 0;    // of them
    // of the instruction at which the thread, or the lane, stands
    size_t collectives_done[2] = {};
    std::vector<std::vector<std::pair<RankId, size_t>>> in_flight;  // by buffer: receiver, message number
    // by instruction, of receives: which of the peer's messages it takes
    std::vector<size_t> message;
  };

  // Why an actor cannot go on: the one that it waits for, and what for.
  struct Wait {
    Actor actor;
    std::string reason;
  };

  const Program& programOf(const Actor& actor) const { return programs_[actor.rank.index()]; }
  const Rank& of(RankId rank) const { return ranks_[rank]; }
  Rank& of(RankId rank) { return ranks_[rank]; }

  // Nothing is to be done: the step has ended, or, of a lane, nothing is posted.
  bool isIdle(const Actor& actor) const {
    const Rank& rank = of(actor.rank);
    return actor.lane ? rank.done == rank.posted : rank.at > programOf(actor).instructions.size();
  }

  size_t position(const Actor& actor) const {
    return actor.lane ? of(actor.rank).waits.lane[of(actor.rank).done] : of(actor.rank).at;
  }
  const Instruction& current(const Actor& actor) const {
    return of(actor.rank).instructions[position(actor)];
  }

  bool isAtEnd(const Actor& actor) const {
    return !actor.lane && of(actor.rank).at == programOf(actor).instructions.size();
  }
  std::string describe(const Actor& actor) const {
    return isAtEnd(actor) ? fmt::format("rank {}, the end of the step", actor.rank)
                          : describeAt(programOf(actor), position(actor));
  }

  std::optional<Wait> waitsFor(const Actor& actor) const {
    if (actor.lane) return currentGroup(actor) == nullptr ? std::nullopt : waitsForGroup(actor);
    if (auto wait = waitsForBackground(actor)) return wait;
    if (isAtEnd(actor)) return std::nullopt;
    const Instruction& instruction = current(actor);
    if (instruction.kind == InstructionKind::kReceive && !instruction.background)
      return waitsForMessage(programOf(actor), position(actor));
    if (auto wait = waitsForSends(programOf(actor), instruction)) return wait;
    if (instruction.background) return std::nullopt;  // the thread only posts it
    return currentGroup(actor) == nullptr ? std::nullopt : waitsForGroup(actor);
  }

  // What a rank's own thread stands at waits for some of the background instructions.
  std::optional<Wait> waitsForBackground(const Actor& actor) const {
    const Rank& rank = of(actor.rank);
    const Program& program = programOf(actor);
    if (const size_t before = rank.waits.before[rank.at]; rank.done < before) {
      const Instruction& awaited = rank.instructions[rank.waits.lane[before - 1]];
      return Wait{{actor.rank, true}, fmt::format("its {}", describeInstruction(program, awaited))};
    }
    for (size_t receive : rank.waits.receives[rank.at]) {
      if (auto wait = waitsForMessage(program, receive)) return wait;
    }
    return std::nullopt;
  }

  std::optional<Wait> waitsForMessage(const Program& program, size_t receive) const {
    const RankId peer = program.instructions.form(receive).peer;
    if (of(program.rank).message[receive] < count(sent_, {peer, program.rank})) return std::nullopt;
    return Wait{{peer, false}, fmt::format("a message from rank {}", peer)};
  }

  // What an instruction writes or frees may not be on its way to another rank any more.
  std::optional<Wait> waitsForSends(const Program& program, const Instruction& instruction) const {
    if (instruction.kind == InstructionKind::kFree) return waitsForSends(program, instruction.inputs[0]);
    for (BufferId id : instruction.outputs) {
      if (auto wait = waitsForSends(program, id)) return wait;
    }
    return std::nullopt;
  }

  std::optional<Wait> waitsForSends(const Program& program, BufferId id) const {
    for (const auto& [receiver, message] : of(program.rank).in_flight[id.index()]) {
      if (count(received_, {program.rank, receiver}) <= message) {
        return Wait{{receiver, false},
                    fmt::format("rank {} to receive \"{}\"", receiver, program.nameOf(id))};
      }
    }
    return std::nullopt;
  }

  // The ranks that the next collective of the instruction at which an actor stands goes over; nullptr if
  // there is none (any more).
  const std::vector<RankId>* currentGroup(const Actor& actor) const {
    if (isIdle(actor) || isAtEnd(actor)) return nullptr;
    const Program& program = programOf(actor);
    const Instruction& instruction = current(actor);
    if (instruction.background != actor.lane) return nullptr;
    const size_t done = of(actor.rank).collectives_done[actor.lane ? 1 : 0];
    if (instruction.kind == InstructionKind::kAllReduce)
      return done > 0 ? nullptr : &program.groups[instruction.group];
    if (!instruction.subgraph.valid()) return nullptr;
    const std::vector<GroupId>& collectives = program.subgraphs[instruction.subgraph.index()].collectives;
    return done < collectives.size() ? &program.groups[collectives[done]] : nullptr;
  }

  size_t turnOf(const Actor& actor, const std::vector<RankId>& group) const {
    const auto found = turns_.find({actor, group});
    return found == turns_.end() ? 0 : found->second;
  }

  // Does it stand at a collective over these ranks, with nothing else to wait for?
  bool hasArrived(const Actor& actor, const std::vector<RankId>& group) const {
    const std::vector<RankId>* own = currentGroup(actor);
    if (own == nullptr || *own != group) return false;
    if (actor.lane) return true;
    return !waitsForBackground(actor) && !waitsForSends(programOf(actor), current(actor));
  }

  // All ranks of the group must have begun the collective over the same ranks that is the same turn of the
  // group, all of them in the background or none.
  std::optional<Wait> waitsForGroup(const Actor& actor) const {
    const std::vector<RankId>& group = *currentGroup(actor);
    const size_t turn = turnOf(actor, group);
    for (RankId rank : group) {
      const Actor other{rank, actor.lane};
      if (turnOf(other, group) > turn) continue;  // it has passed this turn
      if (turnOf(other, group) < turn || !hasArrived(other, group)) {
        const char* what = current(actor).kind == InstructionKind::kAllReduce
                               ? "the all_reduce"
                               : "a collective of the subgraph";
        // A lane that has nothing to do waits for its rank to post something.
        const bool is_unposted = other.lane && isIdle(other);
        return Wait{is_unposted ? Actor{rank, false} : other,
                    fmt::format("rank {} to {} {}", rank, is_unposted ? "post" : "reach", what)};
      }
      verifyPartners(actor, other);
    }
    return std::nullopt;
  }

  static std::vector<std::string> namesOf(const Program& program, const std::vector<BufferId>& ids) {
    std::vector<std::string> names;
    for (BufferId id : ids) names.push_back(program.nameOf(id));
    return names;
  }

  bool sums(const Program& program, const std::string& name) const {
    return of(program.rank).summed.count(name) > 0;
  }

  // Two ranks that meet in a collective mean the same one, as far as programs show: of one microbatch and
  // phase, or two all_reduce of equal tensors.
  void verifyPartners(const Actor& actor, const Actor& other_actor) const {
    const Program& program = programOf(actor);
    const Program& other = programOf(other_actor);
    const size_t at = position(actor);
    const size_t other_at = position(other_actor);
    const InstructionReader &own = of(actor.rank).instructions, &others = of(other_actor.rank).instructions;
    const Instruction& mine = own[at];
    const Instruction& theirs = others[other_at];
    const auto phase = [](const Program& of, const Instruction& instruction) {
      return of.subgraphs[instruction.subgraph.index()].phase;
    };
    if (mine.kind != theirs.kind || mine.microbatch != theirs.microbatch ||
        (mine.subgraph.valid() && phase(program, mine) != phase(other, theirs))) {
      failVerification(describeAt(program, at),
                       fmt::format("its collective meets that of {}: the orders of collectives differ",
                                   describeAt(other, other_at)));
    }
    if (mine.kind != InstructionKind::kAllReduce) {
      if (mine.microbatch < 0 && namesOf(program, mine.inputs) != namesOf(other, theirs.inputs)) {
        failVerification(describeAt(program, at), fmt::format("it meets {}, which is about other tensors",
                                                              describeAt(other, other_at)));
      }
      return;
    }
    const Buffer my_buffer = sentBuffer(program, own, at);
    const Buffer their_buffer = sentBuffer(other, others, other_at);
    if (my_buffer.data_type != their_buffer.data_type || my_buffer.shape != their_buffer.shape) {
      failVerification(
          describeAt(program, at),
          fmt::format("its tensor differs in type or shape from that of {}", describeAt(other, other_at)));
    }
    if (my_buffer.name != their_buffer.name &&
        (sums(other, my_buffer.name) || sums(program, their_buffer.name))) {
      failVerification(
          describeAt(program, at),
          fmt::format("it meets {}, which is about another tensor: the orders of collectives differ",
                      describeAt(other, other_at)));
    }
    if (my_buffer.name == their_buffer.name && my_buffer.part != their_buffer.part) {
      failVerification(describeAt(program, at),
                       fmt::format("it sums {}, but {} sums {}", partText(my_buffer),
                                   describeAt(other, other_at), partText(their_buffer)));
    }
  }

  void execute(const Actor& actor) {
    Rank& rank = of(actor.rank);
    size_t& collectives_done = rank.collectives_done[actor.lane ? 1 : 0];
    if (const std::vector<RankId>* group = currentGroup(actor)) {
      ++turns_[{actor, *group}];
      ++collectives_done;
      if (currentGroup(actor) != nullptr) return;  // the subgraph goes on to its next collective
    }
    collectives_done = 0;
    if (actor.lane) {
      ++rank.done;
      return;
    }
    const Program& program = programOf(actor);
    for (size_t receive : rank.waits.receives[rank.at])
      ++received_[{program.instructions.form(receive).peer, actor.rank}];
    if (!isAtEnd(actor)) begin(actor, rank.instructions[rank.at]);
    ++rank.at;
  }

  void begin(const Actor& actor, const Instruction& instruction) {
    Rank& rank = of(actor.rank);
    if (instruction.kind == InstructionKind::kSend) {
      const size_t message = sent_[{actor.rank, instruction.peer}]++;
      rank.in_flight[instruction.inputs[0].index()].emplace_back(instruction.peer, message);
    } else if (isOfLane(instruction)) {
      ++rank.posted;
    } else if (instruction.kind == InstructionKind::kReceive && !instruction.background) {
      ++received_[{instruction.peer, actor.rank}];
    }
  }

  [[noreturn]] void failStuck(Actor actor) const {
    std::string text;
    std::set<Actor> seen;
    while (true) {
      if (isIdle(actor)) {
        text += fmt::format("; rank {} has finished", actor.rank);
        break;
      }
      if (!seen.insert(actor).second) {
        text += fmt::format("; and so back to rank {}", actor.rank);
        break;
      }
      const Wait wait = *waitsFor(actor);
      text += fmt::format("{}{} waits for {}", text.empty() ? "" : "; ", describe(actor), wait.reason);
      actor = wait.actor;
    }
    failVerification("a cycle of waits", text);
  }

  static size_t count(const std::map<Pair, size_t>& counts, Pair pair) {
    const auto found = counts.find(pair);
    return found == counts.end() ? 0 : found->second;
  }

  const std::vector<Program>& programs_;
  IdVector<RankId, Rank> ranks_;
  std::map<Pair, size_t> sent_, received_;
  std::map<std::pair<Actor, std::vector<RankId>>, size_t> turns_;  // by actor and group: collectives done
};

}  // namespace

void verifyMessages(const std::vector<Program>& programs) {
  const Channels sends = channelsOf(programs, InstructionKind::kSend);
  const Channels receives = channelsOf(programs, InstructionKind::kReceive);
  std::set<Pair> pairs;
  for (const auto& [pair, positions] : sends) pairs.insert(pair);
  for (const auto& [pair, positions] : receives) pairs.insert(pair);
  const std::vector<size_t> none;
  for (const Pair& pair : pairs) {
    const auto sent = sends.find(pair);
    const auto received = receives.find(pair);
    verifyChannel(programs[pair.first.index()], sent == sends.end() ? none : sent->second,
                  programs[pair.second.index()], received == receives.end() ? none : received->second);
  }
}

void verifyProgress(const std::vector<Program>& programs) { ProgressSimulator(programs).run(); }

}  // namespace pipeshard
