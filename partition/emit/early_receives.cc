#include "partition/emit/early_receives.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace pipeshard {
namespace {

// Passes of one action of the schedule: stage, microbatch, forward.
using ActionKey = std::tuple<StageId, int, bool>;

class ReceiveHoister {
 public:
  ReceiveHoister(Program& program, const std::function<bool(RankId)>& from)
      : program_(program), from_(from), target_(program.instructions.size()) {}

  void run() {
    first_touch_.assign(program_.buffers.size(), target_.size());
    for (size_t i = target_.size(); i-- > 0;) {
      target_[i] = i;
      for (BufferId id : at(i).inputs) first_touch_[id.index()] = i;
      for (BufferId id : at(i).outputs) first_touch_[id.index()] = i;
    }
    std::map<RankId, Sender> senders;
    for (size_t i = 0; i < target_.size(); ++i) {
      if (at(i).kind != InstructionKind::kReceive) continue;
      Sender& sender = senders[at(i).peer];
      const std::optional<ActionKey> action = actionOf(i);
      if (action != sender.action || !action) {
        sender.earliest = sender.next;
        sender.action = action;
      }
      if (!at(i).background && at(i).microbatch >= 0 && from_(at(i).peer))
        target_[i] = targetOf(i, action, std::max(sender.earliest, firstFree(i)));
      if (target_[i] == i) sender.earliest = i + 1;  // those behind it stay behind it
      sender.earliest = std::max(sender.earliest, target_[i]);
      sender.next = arrivedAt(i);
    }
    rewrite();
  }

 private:
  struct Sender {
    std::optional<ActionKey> action;  // that its last message is for
    size_t earliest = 0;              // where the next message for the same action may be posted
    // and one for another: where the last message, and so all before it, are there anyway
    size_t next = 0;
  };

  const Instruction& at(size_t i) const { return program_.instructions.plain()[i]; }

  std::optional<ActionKey> passAt(size_t i) const {
    const Instruction& instruction = at(i);
    if (instruction.kind != InstructionKind::kRun || instruction.background || instruction.microbatch < 0)
      return std::nullopt;
    const Subgraph& subgraph = program_.subgraphs[instruction.subgraph.index()];
    if (subgraph.phase == Phase::kPrologue || subgraph.phase == Phase::kUpdate) return std::nullopt;
    return ActionKey{instruction.stage, instruction.microbatch,
                     subgraph.phase == Phase::kForward && !subgraph.recomputation};
  }

  bool touches(size_t i, BufferId id) const {
    const auto has = [&](const std::vector<BufferId>& ids) {
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    return has(at(i).inputs) || has(at(i).outputs);
  }

  // The first instruction before which the message must have come.
  size_t arrivedAt(size_t receive) const {
    size_t i = receive + 1;
    if (target_[receive] == receive && !at(receive).background) return i;
    while (i < target_.size() && !touches(i, at(receive).outputs[0])) ++i;
    return i;
  }

  // That a message is received for.
  std::optional<ActionKey> actionOf(size_t receive) const {
    for (size_t i = receive + 1; i < target_.size(); ++i) {
      if (const std::optional<ActionKey> pass = passAt(i)) return pass;
    }
    return std::nullopt;
  }

  // Behind whatever else has to do with the receive's buffer before.
  size_t firstFree(size_t receive) const {
    if (first_touch_[at(receive).outputs[0].index()] == receive) return 0;
    for (size_t i = receive; i > 0; --i) {
      if (touches(i - 1, at(receive).outputs[0])) return i;
    }
    return 0;
  }

  size_t targetOf(size_t receive, const std::optional<ActionKey>& own, size_t earliest) const {
    size_t target = receive;
    std::optional<ActionKey> crossed;
    int crossings = 0;
    for (size_t i = receive; i-- > earliest;) {
      const std::optional<ActionKey> pass = passAt(i);
      if (!pass) continue;
      if (pass != own && pass != crossed && ++crossings > kPassesAhead) break;
      if (pass != own) crossed = pass;
      target = i;
    }
    return target;
  }

  void rewrite() {
    std::vector<std::vector<size_t>> posted(target_.size());  // before each instruction
    for (size_t i = 0; i < target_.size(); ++i) {
      if (target_[i] < i) posted[target_[i]].push_back(i);
    }
    std::vector<Instruction> instructions;
    for (size_t i = 0; i < target_.size(); ++i) {
      for (size_t receive : posted[i]) {
        instructions.push_back(at(receive));
        instructions.back().background = true;
      }
      if (target_[i] == i) instructions.push_back(at(i));
    }
    program_.instructions = std::move(instructions);
  }

  Program& program_;
  const std::function<bool(RankId)>& from_;
  std::vector<size_t> first_touch_;  // by buffer
  // by instruction: the one that it comes before, in the order as it was; itself: it stays
  std::vector<size_t> target_;
};

}  // namespace

void postReceivesEarly(Program& program, const std::function<bool(RankId)>& from) {
  ReceiveHoister(program, from).run();
}

}  // namespace pipeshard
