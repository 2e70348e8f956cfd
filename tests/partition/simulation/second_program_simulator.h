// A second opinion on the times and the memory of Programs without a background lane, written differently
// from partition/simulation/program_simulation.h: every instruction of the list by itself, none left out, and
// times by what each waits for. No events, no clock: a rank goes on for as long as all that it waits for is
// known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "partition/simulation/program_simulation.h"

namespace pipeshard {

class SecondProgramSimulator {
 public:
  struct Times {
    Ticks start = 0, begun = 0, end = 0;
    friend bool operator==(const Times&, const Times&) = default;
  };
  struct Rank {
    std::vector<Times> instructions;
    std::vector<std::pair<Ticks, int64_t>> memory;  // what changes it, in the order of the program
  };

  explicit SecondProgramSimulator(const ProgramSimulationRequest& request) : request_(request) {
    for (const Program& program : request.programs) {
      State& rank = states_.emplace_back();
      rank.sends.resize(program.buffers.size());
      rank.arrivals.resize(program.buffers.size());
      rank.held.resize(program.buffers.size());
      for (size_t b = 0; b < program.buffers.size(); ++b)
        rank.held[b] = isPersistent(program.buffers.plain()[b].kind);
    }
  }

  std::vector<Rank> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < states_.size(); ++rank) {
        while (advance(rank)) moved = true;
      }
    }
    std::vector<Rank> ranks;
    for (size_t rank = 0; rank < states_.size(); ++rank) {
      State& state = states_[rank];
      for (size_t i = 0; i < state.result.instructions.size(); ++i) {
        if (const std::optional<Times> message = ofMessage(rank, i)) state.result.instructions[i] = *message;
      }
      ranks.push_back(std::move(state.result));
    }
    return ranks;
  }

 private:
  struct Message {
    std::optional<Ticks> posted, wanted, started, arrived;
  };
  struct State {
    Ticks now = 0;
    bool entered = false;  // the next instruction has begun, and waits for others
    Rank result;
    std::vector<std::vector<size_t>> sends;     // by buffer: those under way, instructions
    std::vector<std::vector<size_t>> arrivals;  // by buffer: the background receives into it
    std::vector<bool> held;                     // by buffer
    std::map<RankId, std::vector<size_t>> receives;
    std::map<size_t, std::tuple<size_t, size_t, size_t>> message;  // by instruction: from, to, number
  };

  const Program& programOf(size_t rank) const { return request_.programs[rank]; }

  std::optional<Times> ofMessage(size_t rank, size_t instruction) const {
    const auto key = states_[rank].message.find(instruction);
    if (key == states_[rank].message.end()) return std::nullopt;
    const auto found = messages_.find(key->second);
    if (found == messages_.end() || !found->second.arrived || !found->second.wanted) return std::nullopt;
    const Message& message = found->second;
    const Ticks end = std::max(*message.arrived, *message.wanted);
    if (std::get<0>(key->second) == rank) return Times{*message.posted, *message.posted, end};
    return Times{*message.wanted, std::clamp(*message.started, *message.wanted, end), end};
  }

  // When all of these messages have ended, but not before `time`; nothing: not known yet.
  std::optional<Ticks> behind(size_t rank, const std::set<size_t>& instructions, Ticks time) const {
    for (const size_t i : instructions) {
      const std::optional<Times> message = ofMessage(rank, i);
      if (!message) return std::nullopt;
      time = std::max(time, message->end);
    }
    return time;
  }

  std::set<size_t> awaited(size_t rank, const Instruction& instruction) const {
    const State& state = states_[rank];
    std::set<size_t> waits;
    const auto add = [&](const std::vector<size_t>& list) { waits.insert(list.begin(), list.end()); };
    for (const BufferId id : instruction.inputs) {
      add(state.arrivals[id.index()]);
      if (instruction.kind == InstructionKind::kFree) add(state.sends[id.index()]);
    }
    for (const BufferId id : instruction.outputs) {
      add(state.arrivals[id.index()]);
      add(state.sends[id.index()]);
    }
    const auto before = state.receives.find(instruction.peer);
    if (instruction.kind == InstructionKind::kReceive && !instruction.background &&
        before != state.receives.end())
      add(before->second);
    return waits;
  }

  bool advance(size_t rank) {
    State& state = states_[rank];
    const size_t at = state.result.instructions.size();
    if (at >= programOf(rank).instructions.size()) return false;
    const Instruction& instruction = programOf(rank).instructions.plain()[at];
    if (!state.entered) {
      const std::optional<Ticks> start = behind(rank, awaited(rank, instruction), state.now);
      if (!start) return false;
      state.now = *start;
      state.entered = true;
      enter(rank, at, instruction);
    }
    const std::optional<Ticks> end = endOf(rank, at, instruction);
    if (!end) return false;
    const Ticks begun = instruction.kind == InstructionKind::kAllReduce ? *end - exchange_ : state.now;
    state.result.instructions.push_back({state.now, begun, *end});
    state.now = *end;
    state.entered = false;
    return true;
  }

  void enter(size_t rank, size_t at, const Instruction& instruction) {
    State& state = states_[rank];
    int64_t change = 0;
    for (const BufferId id : instruction.outputs) {
      if (!state.held[id.index()]) change += bytesOf(rank, id);
      state.held[id.index()] = true;
    }
    const bool send = instruction.kind == InstructionKind::kSend;
    if (send || instruction.kind == InstructionKind::kReceive) {
      const size_t peer = instruction.peer.index();
      const size_t from = send ? rank : peer, to = send ? peer : rank;
      const std::tuple key(from, to, counts_[{from, to, send}]++);
      state.message[at] = key;
      (send ? messages_[key].posted : messages_[key].wanted) = state.now;
      if (send) {
        state.sends[instruction.inputs[0].index()].push_back(at);
        bytes_[key] = bytesOf(rank, instruction.inputs[0]);
      } else {
        if (instruction.background) state.arrivals[instruction.outputs[0].index()].push_back(at);
        if (!instruction.background) state.receives[instruction.peer].clear();
        state.receives[instruction.peer].push_back(at);
      }
      transfer(from, to);
    }
    if (instruction.kind == InstructionKind::kAllReduce) {
      const std::vector<RankId>& group = programOf(rank).groups[instruction.group];
      meetings_[{group, turns_[{group, rank}]}].emplace_back(
          state.now, request_.costs[RankId(rank)].instructions[at][0].exchange);
    }
    if (instruction.kind == InstructionKind::kFree) {
      const size_t buffer = instruction.inputs[0].index();
      change -= bytesOf(rank, instruction.inputs[0]);
      state.held[buffer] = false;
      state.sends[buffer].clear();
      state.arrivals[buffer].clear();
    }
    if (change != 0) state.result.memory.emplace_back(state.now, change);
  }

  std::optional<Ticks> endOf(size_t rank, size_t at, const Instruction& instruction) {
    State& state = states_[rank];
    if (instruction.kind == InstructionKind::kSend) return state.now;
    if (instruction.kind == InstructionKind::kReceive) {
      if (instruction.background) return state.now;
      const std::optional<Times> times = ofMessage(rank, at);
      return times ? std::optional(times->end) : std::nullopt;
    }
    if (instruction.kind == InstructionKind::kAllReduce) {
      const std::vector<RankId>& group = programOf(rank).groups[instruction.group];
      const auto& members = meetings_[{group, turns_[{group, rank}]}];
      if (members.size() < group.size()) return std::nullopt;
      ++turns_[{group, rank}];
      Ticks begun = 0;
      exchange_ = 0;
      for (const auto& [start, exchange] : members) {
        begun = std::max(begun, start);
        exchange_ = std::max(exchange_, exchange);
      }
      return begun + exchange_;
    }
    Ticks time = state.now;
    for (const WorkPart& part : request_.costs[RankId(rank)].instructions[at]) time += part.compute;
    return time;
  }

  // Messages between two ranks travel in order.
  void transfer(size_t from, size_t to) {
    for (size_t& number = travelled_[{from, to}];; ++number) {
      const auto found = messages_.find({from, to, number});
      if (found == messages_.end() || !found->second.posted) return;
      Message& message = found->second;
      if (request_.rendezvous && !message.wanted) return;
      Ticks& free = free_[{from, to}];
      message.started = std::max({*message.posted, request_.rendezvous ? *message.wanted : 0, free});
      const Ticks time = linkTime(request_.link, static_cast<double>(bytes_[{from, to, number}]));
      message.arrived = *message.started + time;
      free = *message.arrived - request_.link.latency_ns;
    }
  }

  int64_t bytesOf(size_t rank, BufferId id) const {
    const Buffer& buffer = programOf(rank).buffer(id);
    return byteCount(buffer.data_type, buffer.shape);
  }

  const ProgramSimulationRequest& request_;
  std::vector<State> states_;
  using Key = std::tuple<size_t, size_t, size_t>;
  std::map<Key, Message> messages_;  // from, to, number
  std::map<Key, int64_t> bytes_;
  std::map<std::tuple<size_t, size_t, bool>, size_t> counts_;
  std::map<std::pair<size_t, size_t>, size_t> travelled_;
  std::map<std::pair<size_t, size_t>, Ticks> free_;
  std::map<std::pair<std::vector<RankId>, size_t>, size_t> turns_;
  std::map<std::pair<std::vector<RankId>, size_t>, std::vector<std::pair<Ticks, Ticks>>> meetings_;
  Ticks exchange_ = 0;
};

}  // namespace pipeshard
