// Background receives of a rank in the interpreters of Programs: what is posted, and which of it an
// instruction needs first.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

class PostedMessages {
 public:
  struct Message {
    RankId peer;
    BufferId buffer;
  };

  void post(const Instruction& receive) { posted_.push_back({receive.peer, receive.outputs[0]}); }
  bool empty() const { return posted_.empty(); }

  // The next message that must have come before the instruction begins: the first one of a peer, up to that
  // in a buffer that it has to do with, or all where it receives from the peer itself. Nothing: it may begin.
  std::optional<Message> neededBy(const Instruction& instruction) const {
    const bool receives = instruction.kind == InstructionKind::kReceive && !instruction.background;
    for (const Message& message : posted_) {
      const auto has = [&](const std::vector<BufferId>& ids) {
        return std::find(ids.begin(), ids.end(), message.buffer) != ids.end();
      };
      if (!has(instruction.inputs) && !has(instruction.outputs) &&
          !(receives && message.peer == instruction.peer))
        continue;
      return *firstOf(message.peer);
    }
    return std::nullopt;
  }
  void takeFirstOf(RankId peer) { posted_.erase(firstOf(peer)); }

 private:
  std::vector<Message>::const_iterator firstOf(RankId peer) const {
    return std::find_if(posted_.begin(), posted_.end(),
                        [&](const Message& message) { return message.peer == peer; });
  }

  std::vector<Message> posted_;  // in order
};

}  // namespace pipeshard
