// Waits between ranks: matching of messages, and progress of all ranks together.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ir/program_verify.h"
#include "ir/tensor_box.h"

namespace pipeshard {
namespace {

using Pair = std::pair<int, int>;                      // sender, receiver
using Channels = std::map<Pair, std::vector<size_t>>;  // instruction positions, in order

// Positions of all sends (by the sender's program) or receives (by the receiver's), per ordered pair.
Channels channelsOf(const std::vector<Program>& programs, InstructionKind kind) {
  Channels channels;
  for (const Program& program : programs) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      if (instruction.kind != kind) continue;
      const bool sends = kind == InstructionKind::kSend;
      channels[sends ? Pair{program.rank, instruction.peer} : Pair{instruction.peer, program.rank}].push_back(i);
    }
  }
  return channels;
}

const Buffer& sentBuffer(const Program& program, size_t at) { return program.buffer(program.instructions[at].inputs[0]); }
const Buffer& receivedBuffer(const Program& program, size_t at) { return program.buffer(program.instructions[at].outputs[0]); }

std::string partText(const Buffer& buffer) {
  if (!buffer.part) return fmt::format("all of a tensor {}", shapeToString(buffer.shape));
  return fmt::format("{} of a tensor {}", printBox(boxOf(buffer)), shapeToString(buffer.part->whole));
}

void verifyChannel(const Program& sender, const std::vector<size_t>& sends, const Program& receiver, const std::vector<size_t>& receives) {
  std::set<std::string> sent_names, received_names;
  for (size_t at : sends) sent_names.insert(sentBuffer(sender, at).name);
  for (size_t at : receives) received_names.insert(receivedBuffer(receiver, at).name);
  for (size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
    const Buffer& sent = sentBuffer(sender, sends[i]);
    const Buffer& received = receivedBuffer(receiver, receives[i]);
    const bool name_is_shared = received_names.count(sent.name) > 0 || sent_names.count(received.name) > 0;
    if (sent.name != received.name && name_is_shared) {
      failVerification(describeAt(receiver, receives[i]),
                       fmt::format("message {} on this way is \"{}\" of {}: the orders of sends and receives differ, or one is missing", i,
                                   sent.name, describeAt(sender, sends[i])));
    }
    if (sent.name == received.name && sent.part != received.part) {
      failVerification(describeAt(receiver, receives[i]),
                       fmt::format("it expects {}, but {} gives {}", partText(received), describeAt(sender, sends[i]), partText(sent)));
    }
    if (sent.data_type != received.data_type || sent.shape != received.shape) {
      failVerification(describeAt(receiver, receives[i]),
                       fmt::format("it expects {}{}, but {} gives {}{}", dataTypeName(received.data_type), shapeToString(received.shape),
                                   describeAt(sender, sends[i]), dataTypeName(sent.data_type), shapeToString(sent.shape)));
    }
  }
  if (sends.size() > receives.size()) {
    failVerification(describeAt(sender, sends[receives.size()]), fmt::format("rank {} never receives it", receiver.rank));
  }
  if (receives.size() > sends.size()) {
    failVerification(describeAt(receiver, receives[sends.size()]), fmt::format("rank {} never sends it", sender.rank));
  }
}

// Runs all programs with the semantics on top of program.h, without data.
class ProgressSimulator {
 public:
  explicit ProgressSimulator(const std::vector<Program>& programs)
      : programs_(programs), at_(programs.size()), collectives_done_(programs.size()), in_flight_(programs.size()) {
    for (size_t rank = 0; rank < programs.size(); ++rank) in_flight_[rank].resize(programs[rank].buffers.size());
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const Program& program : programs_) {
        while (at_[index(program)] < program.instructions.size() && !waitsFor(program)) {
          execute(program, program.instructions[at_[index(program)]]);
          moved = true;
        }
      }
    }
    for (const Program& program : programs_) {
      if (at_[index(program)] < program.instructions.size()) failStuck(program);
    }
  }

 private:
  static size_t index(const Program& program) { return static_cast<size_t>(program.rank); }

  // Why a rank cannot go on: the rank that it waits for, and what for.
  struct Wait {
    int rank = -1;
    std::string reason;
  };

  std::optional<Wait> waitsFor(const Program& program) const {
    const Instruction& instruction = program.instructions[at_[index(program)]];
    if (instruction.kind == InstructionKind::kReceive) {
      const Pair pair{instruction.peer, program.rank};
      if (count(received_, pair) < count(sent_, pair)) return std::nullopt;
      return Wait{instruction.peer, fmt::format("a message from rank {}", instruction.peer)};
    }
    if (auto wait = waitsForSends(program, instruction)) return wait;
    return currentGroup(program) == nullptr ? std::nullopt : waitsForGroup(program, instruction);
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
    for (const auto& [receiver, message] : in_flight_[index(program)][id.index()]) {
      if (count(received_, {program.rank, receiver}) <= message) {
        return Wait{receiver, fmt::format("rank {} to receive \"{}\"", receiver, program.buffer(id).name)};
      }
    }
    return std::nullopt;
  }

  // The ranks that the next collective of the instruction at which a rank stands goes over; nullptr if there is none (any more).
  const std::vector<int>* currentGroup(const Program& program) const {
    if (at_[index(program)] >= program.instructions.size()) return nullptr;
    const Instruction& instruction = program.instructions[at_[index(program)]];
    const size_t done = collectives_done_[index(program)];
    if (instruction.kind == InstructionKind::kAllReduce)
      return done > 0 ? nullptr : &program.groups[static_cast<size_t>(instruction.group)];
    if (!instruction.subgraph.valid()) return nullptr;
    const std::vector<int>& collectives = program.subgraphs[instruction.subgraph.index()].collectives;
    return done < collectives.size() ? &program.groups[static_cast<size_t>(collectives[done])] : nullptr;
  }

  size_t turnOf(int rank, const std::vector<int>& group) const {
    const auto found = turns_.find({rank, group});
    return found == turns_.end() ? 0 : found->second;
  }

  // All ranks of the group must have begun the collective over the same ranks that is the same turn of the group.
  std::optional<Wait> waitsForGroup(const Program& program, const Instruction& instruction) const {
    const std::vector<int>& group = *currentGroup(program);
    const size_t turn = turnOf(program.rank, group);
    for (int rank : group) {
      if (turnOf(rank, group) > turn) continue;  // it has passed this turn
      const Program& other = programs_[static_cast<size_t>(rank)];
      const std::vector<int>* other_group = currentGroup(other);
      const bool has_arrived = turnOf(rank, group) == turn && other_group != nullptr && *other_group == group &&
                               !waitsForSends(other, other.instructions[at_[static_cast<size_t>(rank)]]);
      if (!has_arrived) {
        const char* what = instruction.kind == InstructionKind::kAllReduce ? "the all_reduce" : "a collective of the subgraph";
        return Wait{rank, fmt::format("rank {} to reach {}", rank, what)};
      }
      verifyPartners(program, other);
    }
    return std::nullopt;
  }

  // Two ranks that meet in a collective mean the same one, as far as programs show: of one microbatch and phase, or two
  // all_reduce of equal tensors.
  void verifyPartners(const Program& program, const Program& other) const {
    const size_t at = at_[index(program)];
    const size_t other_at = at_[index(other)];
    const Instruction& mine = program.instructions[at];
    const Instruction& theirs = other.instructions[other_at];
    const auto phase = [](const Program& of, const Instruction& instruction) { return of.subgraphs[instruction.subgraph.index()].phase; };
    if (mine.kind != theirs.kind || mine.microbatch != theirs.microbatch ||
        (mine.subgraph.valid() && phase(program, mine) != phase(other, theirs))) {
      failVerification(describeAt(program, at),
                       fmt::format("its collective meets that of {}: the orders of collectives differ", describeAt(other, other_at)));
    }
    if (mine.kind != InstructionKind::kAllReduce) return;
    const Buffer& my_buffer = sentBuffer(program, at);
    const Buffer& their_buffer = sentBuffer(other, other_at);
    if (my_buffer.data_type != their_buffer.data_type || my_buffer.shape != their_buffer.shape) {
      failVerification(describeAt(program, at),
                       fmt::format("its tensor differs in type or shape from that of {}", describeAt(other, other_at)));
    }
    if (my_buffer.name == their_buffer.name && my_buffer.part != their_buffer.part) {
      failVerification(describeAt(program, at),
                       fmt::format("it sums {}, but {} sums {}", partText(my_buffer), describeAt(other, other_at), partText(their_buffer)));
    }
  }

  void execute(const Program& program, const Instruction& instruction) {
    if (instruction.kind == InstructionKind::kSend) {
      const size_t message = sent_[{program.rank, instruction.peer}]++;
      in_flight_[index(program)][instruction.inputs[0].index()].emplace_back(instruction.peer, message);
    } else if (instruction.kind == InstructionKind::kReceive) {
      ++received_[{instruction.peer, program.rank}];
    } else if (const std::vector<int>* group = currentGroup(program)) {
      ++turns_[{program.rank, *group}];
      ++collectives_done_[index(program)];
      if (currentGroup(program) != nullptr) return;  // the subgraph goes on to its next collective
    }
    collectives_done_[index(program)] = 0;
    ++at_[index(program)];
  }

  [[noreturn]] void failStuck(const Program& first) const {
    std::string text;
    std::vector<bool> seen(programs_.size());
    int rank = first.rank;
    while (true) {
      const Program& program = programs_[static_cast<size_t>(rank)];
      const size_t at = at_[index(program)];
      if (at == program.instructions.size()) {
        text += fmt::format("; rank {} has finished", rank);
        break;
      }
      if (seen[index(program)]) {
        text += fmt::format("; and so back to rank {}", rank);
        break;
      }
      seen[index(program)] = true;
      const Wait wait = *waitsFor(program);
      text += fmt::format("{}{} waits for {}", text.empty() ? "" : "; ", describeAt(program, at), wait.reason);
      rank = wait.rank;
    }
    failVerification("a cycle of waits", text);
  }

  static size_t count(const std::map<Pair, size_t>& counts, Pair pair) {
    const auto found = counts.find(pair);
    return found == counts.end() ? 0 : found->second;
  }

  const std::vector<Program>& programs_;
  std::vector<size_t> at_;                                                   // by rank: the next instruction
  std::vector<size_t> collectives_done_;                                     // by rank: of the instruction at which it stands
  std::vector<std::vector<std::vector<std::pair<int, size_t>>>> in_flight_;  // by rank and buffer: receiver, message number
  std::map<Pair, size_t> sent_, received_;
  std::map<std::pair<int, std::vector<int>>, size_t> turns_;  // by rank and group: all-reduces done
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
    verifyChannel(programs[static_cast<size_t>(pair.first)], sent == sends.end() ? none : sent->second,
                  programs[static_cast<size_t>(pair.second)], received == receives.end() ? none : received->second);
  }
}

void verifyProgress(const std::vector<Program>& programs) { ProgressSimulator(programs).run(); }

}  // namespace pipeshard
