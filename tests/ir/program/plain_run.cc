#include "tests/ir/program/plain_run.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace pipeshard {
namespace {

struct Fault {
  std::string text;
};

// Buffers are known by rank and number.
struct Message {
  const Program* sender = nullptr;
  BufferId buffer;
};

bool alike(const Buffer& a, const Buffer& b) { return a.data_type == b.data_type && a.shape == b.shape; }

void require(bool holds, const Program& program, const std::string& text) {
  if (!holds) throw Fault{fmt::format("rank {}: {}", program.rank.index(), text)};
}

bool has(const std::vector<BufferId>& ids, BufferId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// One collective of an instruction: the ranks that meet in it, as the rank knows them.
std::vector<std::vector<RankId>> meetingsOf(const Program& program, const Instruction& instruction) {
  if (instruction.kind == InstructionKind::kAllReduce) return {program.groups[instruction.group]};
  std::vector<std::vector<RankId>> meetings;
  if (instruction.subgraph.valid()) {
    for (const GroupId group : program.subgraphs[instruction.subgraph.index()].collectives)
      meetings.push_back(program.groups[group]);
  }
  return meetings;
}

class PlainRun {
 public:
  explicit PlainRun(std::vector<Program> programs)
      : programs_(std::move(programs)), ranks_(programs_.size()) {
    for (Program& program : programs_) {
      program.buffers.unrolled();
      program.instructions.unrolled();
    }
  }

  void run() {
    for (const Program& program : programs_) lookAt(program);
    findNames();
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < programs_.size(); ++rank) {
        while (goOn(rank, ranks_[rank].own)) moved = true;
        while (goOn(rank, ranks_[rank].lane)) moved = true;
      }
    }
    for (const Program& program : programs_) {
      const Rank& rank = ranks_[program.rank.index()];
      require(rank.ended, program, fmt::format("stands at instruction {} for ever", rank.own.at));
    }
    for (const auto& [way, queue] : queues_)
      require(queue.empty(), programs_[way.first.index()],
              fmt::format("rank {} leaves messages", way.second.index()));
    paintResults();
  }

 private:
  using Way = std::pair<RankId, RankId>;  // from, to

  // A thread of a rank. Of the lane `at` counts in Rank::posted.
  struct Thread {
    bool is_lane = false;
    size_t at = 0;
    size_t met = 0;  // of the instruction's meetings: those that are over
    bool waits_in_meeting = false;
  };
  struct Rank {
    Thread own;
    Thread lane{true};
    std::vector<size_t> posted;                    // instructions given to the lane
    std::map<RankId, std::deque<size_t>> to_come;  // by peer: background receives that nobody has needed yet
    std::map<BufferId, std::vector<Way>> under_way;  // of a buffer: its messages that have not been taken
    bool ended = false;
  };
  // Those who have come to a meeting: of every rank the instruction.
  struct Meeting {
    std::map<RankId, size_t> came;
  };

  // ---- what a program says alone ----

  void lookAt(const Program& program) const {
    const auto exists = [&](RankId rank) { return rank.valid() && rank.index() < programs_.size(); };
    for (const std::vector<RankId>& group : program.groups) {
      require(std::is_sorted(group.begin(), group.end()) &&
                  std::set<RankId>(group.begin(), group.end()).size() == group.size() &&
                  std::all_of(group.begin(), group.end(), exists) &&
                  std::count(group.begin(), group.end(), program.rank) == 1,
              program, "a group of ranks out of order, or without this one");
    }
    for (const Buffer& buffer : program.buffers) {
      if (!buffer.part) continue;
      for (size_t axis = 0; axis < buffer.shape.size(); ++axis) {
        const int64_t start = buffer.part->start.at(axis);
        require(start >= 0 && start + buffer.shape[axis] <= buffer.part->whole.at(axis), program,
                buffer.name + " is outside of its tensor");
      }
    }
    for (const Instruction& instruction : program.instructions) {
      if (instruction.peer.valid())
        require(exists(instruction.peer) && instruction.peer != program.rank, program, "a peer that is none");
      if (instruction.kind == InstructionKind::kSlice) lookAtSlice(program, instruction);
      if (instruction.kind != InstructionKind::kAccumulate && instruction.kind != InstructionKind::kAllReduce)
        continue;
      const Buffer& from = program.buffer(instruction.inputs.at(0));
      const Buffer& to = program.buffer(instruction.outputs.at(0));
      require(alike(from, to) && (!from.part || !to.part || *from.part == *to.part), program,
              from.name + " is added to another part");
    }
  }

  static void lookAtSlice(const Program& program, const Instruction& slice) {
    const Buffer& from = program.buffer(slice.inputs.at(0));
    const Buffer& to = program.buffer(slice.outputs.at(0));
    require(slice.offset >= 0 && slice.offset + to.shape.at(slice.axis) <= from.shape.at(slice.axis), program,
            to.name + " is no slice of " + from.name);
  }

  // Names that both sides of a way know mean the same there.
  void findNames() {
    for (const Program& program : programs_) {
      for (const Instruction& instruction : program.instructions) {
        if (instruction.kind == InstructionKind::kSend)
          sent_[{program.rank, instruction.peer}].insert(program.buffer(instruction.inputs.at(0)).name);
        if (instruction.kind == InstructionKind::kReceive)
          received_[{instruction.peer, program.rank}].insert(program.buffer(instruction.outputs.at(0)).name);
        if (instruction.kind == InstructionKind::kAllReduce)
          summed_[program.rank].insert(program.buffer(instruction.inputs.at(0)).name);
      }
    }
  }

  // ---- one step of a thread ----

  // False: it has to wait, or is at its end.
  bool goOn(size_t number, Thread& thread) {
    Rank& rank = ranks_[number];
    const Program& program = programs_[number];
    if (thread.waits_in_meeting || rank.ended) return false;
    if (thread.is_lane) {
      if (thread.at == rank.posted.size()) return false;
      if (enterMeeting(program, thread, rank.posted[thread.at])) return true;
      ++thread.at;
      return true;
    }
    if (thread.at == program.instructions.size()) {
      if (rank.lane.at != rank.posted.size() || !areThere(program, allToCome(rank))) return false;
      takeToCome(program, allToCome(rank));
      rank.ended = true;
      return true;
    }
    const Instruction& instruction = program.instructions.plain()[thread.at];
    if (thread.met == 0 && !mayBegin(program, instruction)) return false;
    if (!instruction.background && enterMeeting(program, thread, thread.at)) return true;
    takeToCome(program, neededFor(program, instruction));
    begin(program, thread.at);
    ++thread.at;
    return true;
  }

  void begin(const Program& program, size_t at) {
    const Instruction& instruction = program.instructions.plain()[at];
    Rank& rank = ranks_[program.rank.index()];
    const bool receives = instruction.kind == InstructionKind::kReceive;
    if (instruction.background && receives) return rank.to_come[instruction.peer].push_back(at);
    if (instruction.background) return rank.posted.push_back(at);
    if (receives) return take(program, at);
    if (instruction.kind != InstructionKind::kSend) return;
    const Way way{program.rank, instruction.peer};
    queues_[way].push_back({&program, instruction.inputs.at(0)});
    rank.under_way[instruction.inputs.at(0)].push_back(way);
  }

  // What runs in the background and touches the instruction's buffers is over, and what it changes is not on
  // its way to anybody.
  bool mayBegin(const Program& program, const Instruction& instruction) {
    Rank& rank = ranks_[program.rank.index()];
    const bool frees = instruction.kind == InstructionKind::kFree;
    const auto touches = [&](BufferId id) {
      return has(instruction.inputs, id) || has(instruction.outputs, id);
    };
    const auto changes = [&](BufferId id) {
      return has(instruction.outputs, id) || (frees && has(instruction.inputs, id));
    };
    if (!instruction.background || instruction.kind == InstructionKind::kReceive) {
      for (size_t i = rank.lane.at; i < rank.posted.size(); ++i) {
        const Instruction& posted = program.instructions.plain()[rank.posted[i]];
        if (std::any_of(posted.outputs.begin(), posted.outputs.end(), touches) ||
            std::any_of(posted.inputs.begin(), posted.inputs.end(), changes))
          return false;
      }
    }
    std::map<RankId, size_t> messages = neededFor(program, instruction);
    if (instruction.kind == InstructionKind::kReceive && !instruction.background)
      ++messages[instruction.peer];
    if (!areThere(program, messages)) return false;
    for (const auto& [buffer, ways] : rank.under_way) {
      if (!ways.empty() && changes(buffer)) return false;
    }
    return true;
  }

  // Of the background receives, those of which it needs what came, and the ones before these from that peer.
  std::map<RankId, size_t> neededFor(const Program& program, const Instruction& instruction) const {
    std::map<RankId, size_t> needed;
    for (const auto& [peer, receives] : ranks_[program.rank.index()].to_come) {
      for (size_t i = 0; i < receives.size(); ++i) {
        const BufferId into = program.instructions.plain()[receives[i]].outputs.at(0);
        if (has(instruction.inputs, into) || has(instruction.outputs, into)) needed[peer] = i + 1;
      }
      const bool follows = instruction.kind == InstructionKind::kReceive && !instruction.background;
      if (follows && instruction.peer == peer) needed[peer] = receives.size();
    }
    return needed;
  }

  static std::map<RankId, size_t> allToCome(const Rank& rank) {
    std::map<RankId, size_t> all;
    for (const auto& [peer, receives] : rank.to_come) all[peer] = receives.size();
    return all;
  }

  bool areThere(const Program& program, const std::map<RankId, size_t>& messages) {
    return std::all_of(messages.begin(), messages.end(), [&](const auto& from) {
      return queues_[{from.first, program.rank}].size() >= from.second;
    });
  }

  void takeToCome(const Program& program, const std::map<RankId, size_t>& messages) {
    for (auto [peer, count] : messages) {
      std::deque<size_t>& receives = ranks_[program.rank.index()].to_come[peer];
      for (; count > 0; --count, receives.pop_front()) take(program, receives.front());
    }
  }

  // The next message of the peer, which is there.
  void take(const Program& program, size_t receive) {
    const Way way{program.instructions.plain()[receive].peer, program.rank};
    std::deque<Message>& queue = queues_[way];
    const Message message = queue.front();
    queue.pop_front();
    std::vector<Way>& under_way = ranks_[way.first.index()].under_way[message.buffer];
    under_way.erase(std::find(under_way.begin(), under_way.end(), way));
    const Buffer& sent = message.sender->buffer(message.buffer);
    const Buffer& into = program.buffer(program.instructions.plain()[receive].outputs.at(0));
    require(alike(sent, into), program, into.name + " gets something of another shape");
    if (sent.name == into.name)
      require(sent.part == into.part, program, into.name + " gets another part");
    else
      require(!received_[way].contains(sent.name) && !sent_[way].contains(into.name), program,
              fmt::format("{} comes where {} is waited for", sent.name, into.name));
  }

  // ---- meetings ----

  // True: the thread has come to the next meeting of an instruction; false: there is none any more.
  bool enterMeeting(const Program& program, Thread& thread, size_t at) {
    const auto meetings = meetingsOf(program, program.instructions.plain()[at]);
    if (thread.met == meetings.size()) {
      thread.met = 0;
      return false;
    }
    const std::vector<RankId>& group = meetings[thread.met];
    Meeting& meeting = meetings_[{group, thread.is_lane}];
    for (const auto& [other, their] : meeting.came) lookAtPair(program, at, programs_[other.index()], their);
    meeting.came[program.rank] = at;
    thread.waits_in_meeting = true;
    if (meeting.came.size() < group.size()) return true;
    for (const RankId member : group) {
      Rank& rank = ranks_[member.index()];
      Thread& freed = thread.is_lane ? rank.lane : rank.own;
      freed.waits_in_meeting = false;
      ++freed.met;
    }
    meeting.came.clear();
    return true;
  }

  static std::vector<std::string> inputNames(const Program& program, const Instruction& instruction) {
    std::vector<std::string> names;
    for (const BufferId id : instruction.inputs) names.push_back(program.buffer(id).name);
    return names;
  }

  void lookAtPair(const Program& one, size_t at_one, const Program& two, size_t at_two) {
    const Instruction& mine = one.instructions.plain()[at_one];
    const Instruction& theirs = two.instructions.plain()[at_two];
    require(mine.kind == theirs.kind && mine.microbatch == theirs.microbatch, one, "meets something else");
    if (mine.subgraph.valid()) {
      require(one.subgraphs[mine.subgraph.index()].phase == two.subgraphs[theirs.subgraph.index()].phase, one,
              "meets another phase");
      require(mine.microbatch >= 0 || inputNames(one, mine) == inputNames(two, theirs), one,
              "meets another subgraph");
      return;
    }
    const Buffer& a = one.buffer(mine.inputs.at(0));
    const Buffer& b = two.buffer(theirs.inputs.at(0));
    require(alike(a, b), one, "adds up another shape");
    if (a.name == b.name)
      require(a.part == b.part, one, "adds up another part of " + a.name);
    else
      require(!summed_[two.rank].contains(a.name) && !summed_[one.rank].contains(b.name), one,
              fmt::format("{} meets {}", a.name, b.name));
  }

  // ---- results ----

  // Every element of a tensor once: each rank that lists it paints its box.
  void paintResults() const {
    using Key = std::tuple<Result::Kind, std::string, std::string, int, int>;
    struct Canvas {
      Shape whole;
      DataType data_type = DataType::kUndefined;
      std::map<int64_t, int> painted;  // by element
      int parts = 0, wholes = 0;
    };
    std::map<Key, Canvas> canvases;
    for (const Program& program : programs_) {
      for (const Result& result : program.results) {
        const Buffer& buffer = program.buffer(result.buffer);
        const Shape& whole = buffer.part ? buffer.part->whole : buffer.shape;
        const Key key{result.kind, result.name, result.state, result.update, result.microbatch};
        const auto [canvas, is_new] = canvases.try_emplace(key, Canvas{whole, buffer.data_type, {}});
        require(canvas->second.whole == whole && canvas->second.data_type == buffer.data_type, program,
                result.name + " is another tensor elsewhere");
        ++(buffer.part ? canvas->second.parts : canvas->second.wholes);
        require(canvas->second.wholes == 0 || canvas->second.wholes + canvas->second.parts == 1, program,
                result.name + " is there twice");
        paint(whole, buffer, canvas->second.painted);
      }
    }
    for (const auto& [key, canvas] : canvases) {
      int64_t elements = 1;
      for (const int64_t size : canvas.whole) elements *= size;
      const bool once = std::all_of(canvas.painted.begin(), canvas.painted.end(),
                                    [](const auto& element) { return element.second == 1; });
      if (!once || std::ssize(canvas.painted) != elements)
        throw Fault{std::get<1>(key) + " is not there as a whole, once"};
    }
  }

  static void paint(const Shape& whole, const Buffer& buffer, std::map<int64_t, int>& painted) {
    int64_t count = 1;
    for (const int64_t size : buffer.shape) count *= size;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, element = 0, stride = 1;
      for (size_t axis = whole.size(); axis-- > 0;) {
        const int64_t start = buffer.part ? buffer.part->start[axis] : 0;
        element += stride * (start + rest % buffer.shape[axis]);
        rest /= buffer.shape[axis];
        stride *= whole[axis];
      }
      ++painted[element];
    }
  }

  std::vector<Program> programs_;
  std::vector<Rank> ranks_;
  std::map<Way, std::deque<Message>> queues_;
  std::map<Way, std::set<std::string>> sent_, received_;
  std::map<RankId, std::set<std::string>> summed_;
  std::map<std::pair<std::vector<RankId>, bool>, Meeting> meetings_;
};

// How much further a rank's part of a buffer begins than the first rank's.
int64_t moved(const ProgramKind& kind, const RankBinding& own, BufferId id, size_t axis) {
  const int slot = kind.start_slots[id.index()];
  return slot < 0 ? 0 : own.starts[slot][axis] - kind.program.buffer(id).part->start[axis];
}

// Of a slice, a rank's part may lie elsewhere than on the first rank along the slice's axis only.
bool movesAlongItsAxis(const ProgramKind& kind, const RankBinding& own, const Instruction& slice) {
  for (size_t axis = 0; axis < kind.program.buffer(slice.outputs.at(0)).shape.size(); ++axis) {
    const bool equal =
        moved(kind, own, slice.inputs.at(0), axis) == moved(kind, own, slice.outputs.at(0), axis);
    if (!equal && static_cast<int>(axis) != slice.axis) return false;
  }
  return true;
}

// A rank's own program: the kind's, with what its binding says in the place of what is the first rank's.
Program expanded(const ProgramSet& set, RankId rank) {
  const RankBinding& own = set.ranks[rank];
  const ProgramKind& kind = set.kinds[own.kind];
  Program program = kind.program;
  program.rank = rank;
  for (size_t g = 0; g < own.groups.size(); ++g) program.groups[GroupId(g)] = set.groups[own.groups[g]];
  std::map<RankId, RankId> peers;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction of_kind = kind.program.instructions.copyAt(i);
    Instruction& instruction = program.instructions[i];
    if (of_kind.peer.valid()) {
      const size_t known = peers.size();
      if (!peers.contains(of_kind.peer)) peers[of_kind.peer] = own.peers.at(known);
      instruction.peer = peers.at(of_kind.peer);
    }
    if (of_kind.kind == InstructionKind::kSlice)
      instruction.offset += moved(kind, own, of_kind.outputs.at(0), of_kind.axis) -
                            moved(kind, own, of_kind.inputs.at(0), of_kind.axis);
  }
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (kind.start_slots[b] < 0) continue;
    Buffer& buffer = program.buffers[b];
    const std::string box = boxText(buffer.part->start, buffer.shape);
    buffer.part->start = own.starts[kind.start_slots[b]];
    if (!kind.boxed[b]) continue;
    buffer.name.resize(buffer.name.size() - box.size());
    buffer.name += boxText(buffer.part->start, buffer.shape);
  }
  return program;
}

// Are there programs of all ranks? What a rank has must be as many as its kind needs, and exist.
bool hasPrograms(const ProgramSet& set) {
  for (const KindId kind : set.kinds.ids()) {
    if (set.ranks[set.kinds[kind].program.rank].kind != kind) return false;
  }
  for (const RankId rank : set.ranks.ids()) {
    const RankBinding& own = set.ranks[rank];
    if (!own.kind.valid() || own.kind.index() >= set.kinds.size()) return false;
    const ProgramKind& kind = set.kinds[own.kind];
    std::set<RankId> peers_of_kind;
    for (const Instruction& instruction : kind.program.instructions) {
      if (instruction.peer.valid()) peers_of_kind.insert(instruction.peer);
    }
    if (own.peers.size() != peers_of_kind.size()) return false;
    if (std::set<RankId>(own.peers.begin(), own.peers.end()).size() != own.peers.size()) return false;
    if (own.groups.size() != kind.program.groups.size()) return false;
    for (const size_t group : own.groups) {
      if (group >= set.groups.size()) return false;
    }
    for (size_t b = 0; b < kind.program.buffers.size(); ++b) {
      const int slot = kind.start_slots[b];
      if (slot < 0) continue;
      const Buffer& buffer = kind.program.buffer(BufferId(b));
      if (!buffer.part || slot >= std::ssize(own.starts)) return false;
      if (own.starts[slot].size() != buffer.shape.size()) return false;
    }
    for (const OwnConstant& constant : kind.own_constants) {
      if (constant.slot >= own.constants.size()) return false;
    }
    for (const Instruction& instruction : kind.program.instructions) {
      if (instruction.kind == InstructionKind::kSlice && !movesAlongItsAxis(kind, own, instruction))
        return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::string> plainRunFault(const std::vector<Program>& programs) {
  try {
    PlainRun(programs).run();
    return std::nullopt;
  } catch (const Fault& fault) {
    return fault.text;
  }
}

std::optional<std::string> plainRunFault(const ProgramSet& set) {
  if (!hasPrograms(set)) return "there are no such programs";
  std::vector<Program> programs;
  for (const RankId rank : set.ranks.ids()) programs.push_back(expanded(set, rank));
  return plainRunFault(programs);
}

}  // namespace pipeshard
