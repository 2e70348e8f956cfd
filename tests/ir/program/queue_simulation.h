// Devices as they are: queues of work, first in, first out, whose heads move in a random order until all is
// done, or nothing moves. Messages and collectives need all sides at once; while one is at the head of a
// queue and waits, it takes room on the device. An oracle for ir/program/communication_order.h: it knows of
// programs what is put into which queue, and nothing of orders.
#pragma once

#include <algorithm>
#include <climits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ir/program/background.h"
#include "ir/program/communication_order.h"
#include "ir/program/program.h"

namespace pipeshard {

class QueueSimulation {
 public:
  QueueSimulation(const std::vector<Program>& programs, TransferQueues queues) {
    for (const Program& program : programs) {
      const std::vector<Step> steps = addOrigins(program);
      for (const Step& step : steps) addStep(program, step, queueName(program, step, queues));
    }
  }
  // One queue for all communication, in this order.
  QueueSimulation(const std::vector<Program>& programs,
                  const std::vector<std::vector<CommunicationStep>>& orders) {
    for (const Program& program : programs) {
      std::vector<Step> steps = addOrigins(program);
      for (const CommunicationStep& next : orders[program.rank.index()]) {
        for (const Step& step : steps) {
          if (step.at == next) addStep(program, step, "all");
        }
      }
    }
  }

  // `room`: how many messages and collectives a device holds at once.
  bool ends(std::mt19937& random, int room = INT_MAX) {
    at_.assign(queues_.size(), 0);
    resident_.assign(queues_.size(), false);
    happened_.assign(events_, false);
    std::map<int, int> residents;  // by rank
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t tries = queues_.size() * 2, q = random(); tries > 0; --tries, ++q)
        moved |= move(q % queues_.size(), room, residents);
    }
    for (size_t q = 0; q < queues_.size(); ++q) {
      if (at_[q] < queues_[q].items.size()) return false;
    }
    return true;
  }

 private:
  struct Item {
    enum class Kind : uint8_t { kWait, kRecord, kMeet };
    Kind kind = Kind::kWait;
    size_t event = 0;     // kWait, kRecord
    std::string meeting;  // kMeet
  };
  struct Queue {
    int rank = 0;
    std::vector<Item> items;
  };
  struct Step {
    CommunicationStep at;
    std::string meeting;
    size_t posted = 0, done = 0;
    bool of_lane = false;
  };

  std::vector<Item>& queue(const Program& program, const std::string& name) {
    const auto [found, is_new] = names_.try_emplace({program.rank.index(), name}, queues_.size());
    if (is_new) queues_.push_back({static_cast<int>(program.rank.index()), {}});
    return queues_[found->second].items;
  }
  void wait(std::vector<Item>& items, size_t event) { items.push_back({Item::Kind::kWait, event, ""}); }
  size_t record(std::vector<Item>& items) {
    items.push_back({Item::Kind::kRecord, events_, ""});
    return events_++;
  }

  static std::string queueName(const Program& program, const Step& step, TransferQueues queues) {
    const Instruction& instruction = program.instructions.plain()[step.at.instruction];
    if (!instruction.peer.valid()) return step.of_lane ? "lane's" : "foreground";
    if (queues == TransferQueues::kOne) return "transfers";
    return std::string(instructionKindName(instruction.kind)) + std::to_string(instruction.peer.index());
  }
  void addStep(const Program& program, const Step& step, const std::string& name) {
    std::vector<Item>& items = queue(program, name);
    wait(items, step.posted);
    items.push_back({Item::Kind::kMeet, 0, step.meeting});
    items.push_back({Item::Kind::kRecord, step.done, ""});
  }

  // The queues that compute; what is to go into the others.
  std::vector<Step> addOrigins(const Program& program) {
    const BackgroundWaits waits = backgroundWaits(program);
    std::vector<Step> steps;
    std::map<std::string, int> numbers;
    std::map<size_t, std::vector<size_t>> sent;  // by buffer: ends of its messages
    std::map<size_t, size_t> received;           // by instruction
    std::vector<size_t> lane_ends;
    const auto communicate = [&](const std::string& name, size_t i, size_t c, const std::string& origin) {
      Step step{{i, c}, name + "#" + std::to_string(numbers[name]++), 0, 0, origin == "lane"};
      step.posted = record(queue(program, origin));
      step.done = events_++;
      steps.push_back(step);
      return step.done;
    };
    const auto before = [&](size_t i) {
      std::vector<Item>& compute = queue(program, "compute");
      if (waits.before[i] > 0) wait(compute, lane_ends[waits.before[i] - 1]);
      for (const size_t receive : waits.receives[i]) wait(compute, received.at(receive));
    };
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions.plain()[i];
      before(i);
      std::vector<BufferId> changed = instruction.outputs;
      if (instruction.kind == InstructionKind::kFree) changed = instruction.inputs;
      for (const BufferId id : changed) {
        for (const size_t end : sent[id.index()]) wait(queue(program, "compute"), end);
      }
      const std::string own = std::to_string(program.rank.index());
      const std::string peer = instruction.peer.valid() ? std::to_string(instruction.peer.index()) : "";
      if (instruction.kind == InstructionKind::kSend) {
        sent[instruction.inputs[0].index()].push_back(communicate(own + ">" + peer, i, 0, "compute"));
      } else if (instruction.kind == InstructionKind::kReceive) {
        received[i] = communicate(peer + ">" + own, i, 0, "compute");
        if (!instruction.background) wait(queue(program, "compute"), received[i]);
      }
      std::vector<GroupId> groups;
      if (instruction.group.valid()) groups = {instruction.group};
      if (instruction.subgraph.valid()) groups = program.subgraphs[instruction.subgraph.index()].collectives;
      const std::string origin = isOfLane(instruction) ? "lane" : "compute";
      if (isOfLane(instruction)) {
        const size_t posted = record(queue(program, "compute"));
        wait(queue(program, "lane"), posted);
      }
      for (size_t c = 0; c < groups.size(); ++c) {
        std::string name = origin;
        for (const RankId member : program.groups[groups[c]]) name += "," + std::to_string(member.index());
        const size_t done = communicate(name, i, c, origin);
        wait(queue(program, origin), done);
      }
      if (isOfLane(instruction)) lane_ends.push_back(record(queue(program, "lane")));
    }
    before(program.instructions.size());
    return steps;
  }

  bool move(size_t q, int room, std::map<int, int>& residents) {
    if (at_[q] == queues_[q].items.size()) return false;
    const Item& item = queues_[q].items[at_[q]];
    if (item.kind == Item::Kind::kWait && !happened_[item.event]) return false;
    if (item.kind != Item::Kind::kMeet) {
      if (item.kind == Item::Kind::kRecord) happened_[item.event] = true;
      ++at_[q];
      return true;
    }
    if (!resident_[q]) {
      if (residents[queues_[q].rank] >= room) return false;
      resident_[q] = true;
      ++residents[queues_[q].rank];
      return true;
    }
    std::vector<size_t> there;
    for (size_t other = 0; other < queues_.size(); ++other) {
      if (resident_[other] && queues_[other].items[at_[other]].meeting == item.meeting)
        there.push_back(other);
    }
    const size_t needed = item.meeting.find('>') != std::string::npos
                              ? 2
                              : std::count(item.meeting.begin(), item.meeting.end(), ',');
    if (there.size() < needed) return false;
    for (const size_t other : there) {
      resident_[other] = false;
      --residents[queues_[other].rank];
      ++at_[other];
    }
    return true;
  }

  std::vector<Queue> queues_;
  std::map<std::pair<size_t, std::string>, size_t> names_;
  size_t events_ = 0;
  std::vector<size_t> at_;
  std::vector<bool> resident_, happened_;
};

}  // namespace pipeshard
