#include "ir/program/communication_order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/program/background.h"
#include "ir/program/program_print.h"

namespace pipeshard {
namespace {

using Vertex = size_t;
constexpr int64_t kPass = 1000;  // how long a pass takes, where everything else takes 1

// Something that begins when all that has an edge to it has ended: an instruction (in the compute queue), a
// message, a collective, or the lane's beginning of an instruction.
struct Event {
  enum class Kind : uint8_t { kInstruction, kLane, kMessage, kCollective };
  Kind kind = Kind::kInstruction;
  // Of the first rank that has it. Of a message `peer` is the other.
  RankId rank;
  size_t instruction = 0;
  int64_t length = 1;
  RankId peer = {};
  size_t at_peer = 0;
};

// All steps of communication of one rank.
struct RankSteps {
  std::vector<CommunicationStep> steps;  // in the order of the program
  std::vector<Vertex> vertices;
};

class WaitGraph {
 public:
  WaitGraph(const std::vector<Program>& programs, const BufferPlaces& places)
      : programs_(programs), places_(places), ranks_(programs.size()) {
    for (const Program& program : programs) addRank(program);
    for (const auto& [key, meeting] : meetings_) requireAll(key, meeting);
    for (const auto& [key, message] : messages_) {
      const Event& event = events_[message];
      if (!event.peer.valid())
        failHere(event, fmt::format("rank {} has no counterpart to it",
                                    programOf(event).instructions.form(event.instruction).peer));
    }
  }

  const RankSteps& of(size_t rank) const { return ranks_[rank]; }

  // Messages of each pair of ranks, in their order.
  void addPairs() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::map<std::pair<RankId, InstructionKind>, Vertex> last;
      forMessages(r, [&](Vertex message, const Instruction& instruction) {
        const auto [before, first] = last.try_emplace({instruction.peer, instruction.kind}, message);
        if (!first) add(std::exchange(before->second, message), message);
      });
    }
  }
  void addOneQueue() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::optional<Vertex> last;
      forMessages(r, [&](Vertex message, const Instruction&) {
        if (last) add(*last, message);
        last = message;
      });
    }
  }
  void addQueue(size_t rank, const std::vector<CommunicationStep>& steps) {
    std::map<std::pair<size_t, size_t>, Vertex> left;
    for (size_t s = 0; s < ranks_[rank].steps.size(); ++s) {
      const CommunicationStep& step = ranks_[rank].steps[s];
      left[{step.instruction, step.collective}] = ranks_[rank].vertices[s];
    }
    std::optional<Vertex> last;
    for (const CommunicationStep& step : steps) {
      const auto found = left.find({step.instruction, step.collective});
      PIPESHARD_CHECK(found != left.end(), "rank {}: instruction {} has no such step, or it comes twice",
                      rank, step.instruction);
      if (last) add(*last, found->second);
      last = found->second;
      left.erase(found);
    }
    PIPESHARD_CHECK(left.empty(), "rank {}: {} steps are missing in an order", rank, left.size());
  }

  // By vertex: when it begins. Error(kConfiguration) where some never do.
  std::vector<int64_t> beginnings() const {
    std::vector<size_t> first(events_.size() + 1, 0), open(events_.size(), 0);
    for (const auto& [from, to] : edges_) {
      ++first[from + 1];
      ++open[to];
    }
    for (size_t v = 0; v < events_.size(); ++v) first[v + 1] += first[v];
    std::vector<Vertex> next(edges_.size());
    std::vector<size_t> filled(first.begin(), first.end() - 1);
    for (const auto& [from, to] : edges_) next[filled[from]++] = to;
    std::vector<int64_t> begin(events_.size(), 0);
    std::vector<Vertex> ready;
    for (Vertex v = 0; v < events_.size(); ++v) {
      if (open[v] == 0) ready.push_back(v);
    }
    for (size_t done = 0; done < ready.size(); ++done) {
      const Vertex v = ready[done];
      for (size_t e = first[v]; e < first[v + 1]; ++e) {
        begin[next[e]] = std::max(begin[next[e]], begin[v] + events_[v].length);
        if (--open[next[e]] == 0) ready.push_back(next[e]);
      }
    }
    if (ready.size() < events_.size()) failCircle(open);
    return begin;
  }

 private:
  // A collective: the group, in the background or not, and which of them it is.
  using Meeting = std::tuple<std::vector<RankId>, bool, size_t>;
  struct Arrivals {
    Vertex vertex = 0;
    size_t count = 0;
  };

  // Of the rank that is being added.
  struct Adding {
    std::map<std::pair<std::vector<RankId>, bool>, size_t> turns;
    std::map<std::pair<RankId, InstructionKind>, size_t> messages;
    std::vector<Vertex> of_instruction;          // the message of a send or receive
    std::vector<std::vector<Vertex>> under_way;  // by place: messages that are sent from it
    std::vector<Vertex> lane_ends;               // of its instructions, so far
    Vertex before = 0;                           // what the next instruction is behind
  };

  Vertex add(const Event& event) {
    events_.push_back(event);
    return events_.size() - 1;
  }
  void add(Vertex from, Vertex to) { edges_.emplace_back(from, to); }

  BufferId placeOf(const Program& program, BufferId id) const {
    return places_.empty() ? id : places_.at(program.rank.index()).at(id.index());
  }

  void addRank(const Program& program) {
    const BackgroundWaits waits = backgroundWaits(program, [&](BufferId id) { return placeOf(program, id); });
    Adding adding;
    adding.of_instruction.resize(program.instructions.size());
    adding.under_way.resize(program.buffers.size());
    const InstructionReader instructions(program.instructions);
    for (size_t i = 0; i <= instructions.size(); ++i) {
      const bool is_end = i == instructions.size();
      const Vertex begin = add({Event::Kind::kInstruction, program.rank, i});
      if (i > 0) add(adding.before, begin);
      if (waits.before[i] > 0) add(adding.lane_ends.at(waits.before[i] - 1), begin);
      for (const size_t receive : waits.receives[i]) add(adding.of_instruction[receive], begin);
      if (is_end) {
        for (std::vector<Vertex>& messages : adding.under_way) awaitSends(messages, begin);
        continue;
      }
      const Instruction& instruction = instructions[i];
      awaitSends(program, instruction, adding, begin);
      adding.before = begin;
      addInstruction(program, instruction, i, adding, begin);
    }
  }

  void awaitSends(std::vector<Vertex>& messages, Vertex begin) {
    for (const Vertex message : messages) add(message, begin);
    messages.clear();
  }
  // Of what it writes or frees.
  void awaitSends(const Program& program, const Instruction& instruction, Adding& adding, Vertex begin) {
    if (instruction.kind == InstructionKind::kFree)
      awaitSends(adding.under_way[placeOf(program, instruction.inputs[0]).index()], begin);
    for (const BufferId id : instruction.outputs)
      awaitSends(adding.under_way[placeOf(program, id).index()], begin);
  }

  void addInstruction(const Program& program, const Instruction& instruction, size_t i, Adding& adding,
                      Vertex begin) {
    if (instruction.kind == InstructionKind::kSend || instruction.kind == InstructionKind::kReceive)
      return addMessage(program, instruction, i, adding, begin);
    const bool of_lane = isOfLane(instruction);
    Vertex last = begin;
    if (of_lane) {
      last = add({Event::Kind::kLane, program.rank, i});
      add(begin, last);
      if (!adding.lane_ends.empty()) add(adding.lane_ends.back(), last);
    }
    if (instruction.subgraph.valid()) events_[last].length = kPass;
    std::vector<GroupId> groups;
    if (instruction.kind == InstructionKind::kAllReduce) groups = {instruction.group};
    if (instruction.subgraph.valid()) groups = program.subgraphs[instruction.subgraph.index()].collectives;
    for (size_t c = 0; c < groups.size(); ++c) {
      const std::vector<RankId>& members = program.groups[groups[c]];
      const Vertex meeting = meet(program.rank, i, members, of_lane, adding);
      add(std::exchange(last, meeting), meeting);
      remember(program.rank, {i, c}, meeting);
    }
    (of_lane ? adding.lane_ends.emplace_back() : adding.before) = last;
  }

  Vertex meet(RankId rank, size_t i, const std::vector<RankId>& members, bool of_lane, Adding& adding) {
    const size_t turn = adding.turns[{members, of_lane}]++;
    const auto [found, first] = meetings_.try_emplace({members, of_lane, turn});
    if (first) found->second.vertex = add({Event::Kind::kCollective, rank, i});
    ++found->second.count;
    return found->second.vertex;
  }

  void addMessage(const Program& program, const Instruction& instruction, size_t i, Adding& adding,
                  Vertex begin) {
    const bool sends = instruction.kind == InstructionKind::kSend;
    const RankId from = sends ? program.rank : instruction.peer;
    const RankId to = sends ? instruction.peer : program.rank;
    const size_t number = adding.messages[{instruction.peer, instruction.kind}]++;
    const auto [found, first] = messages_.try_emplace({from, to, number});
    if (first) {
      found->second = add({Event::Kind::kMessage, program.rank, i});
    } else {
      events_[found->second].peer = program.rank;
      events_[found->second].at_peer = i;
    }
    const Vertex message = found->second;
    add(begin, message);
    remember(program.rank, {i, 0}, message);
    adding.of_instruction[i] = message;
    if (sends)
      adding.under_way[placeOf(program, instruction.inputs[0]).index()].push_back(message);
    else if (!instruction.background)
      adding.before = message;
  }

  void remember(RankId rank, CommunicationStep step, Vertex vertex) {
    ranks_[rank.index()].steps.push_back(step);
    ranks_[rank.index()].vertices.push_back(vertex);
  }

  template <typename Use>
  void forMessages(size_t rank, const Use& use) {
    for (size_t s = 0; s < ranks_[rank].steps.size(); ++s) {
      const Instruction& instruction = programs_[rank].instructions.form(ranks_[rank].steps[s].instruction);
      if (instruction.peer.valid()) use(ranks_[rank].vertices[s], instruction);
    }
  }

  void requireAll(const Meeting& key, const Arrivals& arrivals) const {
    const std::vector<RankId>& members = std::get<0>(key);
    const Event& event = events_[arrivals.vertex];
    if (arrivals.count < members.size()) {
      failHere(event, fmt::format("of the {} ranks of its collective {} never come", members.size(),
                                  members.size() - arrivals.count));
    }
  }

  const Program& programOf(const Event& event) const { return programs_[event.rank.index()]; }

  [[noreturn]] void failHere(const Event& event, const std::string& what) const {
    fail(ErrorCode::kConfiguration, "the step does not end: {}: {}",
         describeAt(programOf(event), event.instruction), what);
  }

  std::string describe(Vertex vertex) const {
    const Event& event = events_[vertex];
    const Program& program = programOf(event);
    if (event.instruction == program.instructions.size())
      return fmt::format("rank {}, the end of the step", event.rank);
    const std::string place = describeAt(program, event.instruction);
    if (event.kind == Event::Kind::kCollective) return "the collective of " + place;
    if (event.kind != Event::Kind::kMessage) return place;
    return fmt::format("the message of {} and {}", place,
                       describeAt(programs_[event.peer.index()], event.at_peer));
  }

  // `open`: by vertex, how much of what it waits for never ends.
  [[noreturn]] void failCircle(const std::vector<size_t>& open) const {
    std::map<Vertex, Vertex> waits_for;  // each for one that never ends
    for (const auto& [from, to] : edges_) {
      if (open[from] > 0 && open[to] > 0) waits_for.try_emplace(to, from);
    }
    Vertex at = waits_for.begin()->first;
    for (size_t i = 0; i < events_.size(); ++i) at = waits_for.at(at);  // inside a circle now
    const auto is_plain = [&](Vertex v) { return events_[v].kind == Event::Kind::kInstruction; };
    while (is_plain(at)) at = waits_for.at(at);
    std::string text = describe(at);
    Vertex last = at;
    do {
      const Vertex behind = std::exchange(last, waits_for.at(last));
      // Of instructions of one rank that are behind each other, the first and the last are said.
      if (is_plain(behind) && is_plain(last) && is_plain(waits_for.at(last))) continue;
      if (last != at) text += fmt::format("{} waits for {}", behind == at ? "" : "; that", describe(last));
    } while (last != at);
    text += "; and that for the first of these";
    fail(ErrorCode::kConfiguration, "the step does not end, for waits form a circle: {}", text);
  }

  const std::vector<Program>& programs_;
  const BufferPlaces& places_;
  std::vector<RankSteps> ranks_;
  std::vector<Event> events_;
  std::vector<std::pair<Vertex, Vertex>> edges_;
  std::map<std::tuple<RankId, RankId, size_t>, Vertex> messages_;  // sender, receiver, number
  std::map<Meeting, Arrivals> meetings_;
};

}  // namespace

std::vector<std::vector<CommunicationStep>> communicationOrder(const std::vector<Program>& programs,
                                                               TransferQueues queues,
                                                               const BufferPlaces& places) {
  WaitGraph graph(programs, places);
  graph.addPairs();
  if (queues == TransferQueues::kOne) graph.addOneQueue();
  const std::vector<int64_t> beginnings = graph.beginnings();
  std::vector<std::vector<CommunicationStep>> orders;
  for (size_t r = 0; r < programs.size(); ++r) {
    const RankSteps& own = graph.of(r);
    std::vector<std::tuple<int64_t, Vertex, CommunicationStep>> sorted;
    for (size_t s = 0; s < own.steps.size(); ++s)
      sorted.emplace_back(beginnings[own.vertices[s]], own.vertices[s], own.steps[s]);
    // Along every edge beginnings grow, and vertices are the same on all ranks: one order of all.
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return std::pair(std::get<0>(a), std::get<1>(a)) < std::pair(std::get<0>(b), std::get<1>(b));
    });
    std::vector<CommunicationStep>& order = orders.emplace_back();
    for (const auto& [begin, vertex, step] : sorted) order.push_back(step);
  }
  return orders;
}

void verifyCommunicationOrder(const std::vector<Program>& programs,
                              const std::vector<std::vector<CommunicationStep>>& steps,
                              const BufferPlaces& places) {
  PIPESHARD_CHECK(programs.size() == steps.size(), "{} orders of {} programs", steps.size(), programs.size());
  WaitGraph graph(programs, places);
  graph.addPairs();
  for (size_t r = 0; r < programs.size(); ++r) graph.addQueue(r, steps[r]);
  graph.beginnings();
}

}  // namespace pipeshard
