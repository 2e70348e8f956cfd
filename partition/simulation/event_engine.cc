#include "partition/simulation/event_engine.h"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using Kind = EngineOperation::Kind;

constexpr size_t kNowhere = -1;

struct Event {
  Ticks time = 0;
  int64_t order = 0;
  bool arrival = false;  // of a message; else the end of an operation
  size_t rank = 0;
  size_t operation = 0;  // or message
  bool operator>(const Event& other) const {
    return std::pair(time, order) > std::pair(other.time, other.order);
  }
};

struct Place {
  size_t rank = kNowhere;
  size_t operation = 0;
  bool known() const { return rank != kNowhere; }
};

struct Message {
  size_t from = kNowhere;  // the rank that sends it
  size_t to = kNowhere;    // the rank that receives it
  size_t link = kNowhere;  // between them
  Place sender, receiver;  // as far as they have come
  bool arrived = false;
  size_t record = 0;  // in EngineResult::messages
};

struct Rank {
  size_t next = 0;            // of the foreground
  size_t running = kNowhere;  // foreground operation that the stream waits for
  std::deque<size_t> queue;   // background operations that the foreground has passed
  size_t beside = kNowhere;   // background operation under way
  std::vector<char> ended;    // by operation
  bool computing = false;     // in the foreground
  bool touched = false;       // is in touched_
  // With exposed messages:
  int travelling = 0;          // messages that keep it from computing
  std::deque<size_t> offered;  // messages that wait until it computes nothing
  int64_t held = 0;
};

// Time goes from event to event: the end of an operation, or the arrival of a message. All events of one time
// are handled first; then settle starts what can start on the ranks they touched, messages before compute.
//
// A rank has at most one operation that its foreground waits for (`running`) and one in the background
// (`beside`); posted ones hold up neither. A started operation has an event that ends it, or waits for its
// message or its meeting. So when no event is left and operations have not ended, the ranks wait for each
// other: EngineResult::stuck.
//
//   the example of event_engine.h: at 1 rank 1 has computed and wants the message; at 2 rank 0 has computed
//   and posts it, the link is taken until 3; at 6 it arrives, and ends the send and the receive
class Engine {
 public:
  explicit Engine(const EngineRequest& request) : request_(request), ranks_(request.ranks.size()) {
    result_.ranks.resize(ranks_.size());
    result_.memory.resize(ranks_.size());
    result_.peak_memory.resize(ranks_.size());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].ended.resize(request.ranks[rank].size());
      result_.ranks[rank].resize(request.ranks[rank].size());
      addMessages(rank);
    }
    std::map<std::pair<size_t, size_t>, size_t> links;
    for (Message& message : messages_)
      message.link = links.try_emplace({message.from, message.to}, links.size()).first->second;
    link_free_.resize(links.size());
  }

  EngineResult run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) touch(rank);
    settle();
    while (!events_.empty()) {
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        event.arrival ? arrive(messages_[event.operation]) : finish(event.rank, event.operation);
      }
      settle();
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      result_.stuck.push_back(firstUnfinished(ranks_[rank]));
    return std::move(result_);
  }

 private:
  const EngineOperation& at(size_t rank, size_t operation) const { return request_.ranks[rank][operation]; }

  void addMessages(size_t rank) {
    for (const EngineOperation& operation : request_.ranks[rank]) {
      if (operation.kind == Kind::kCollective)
        meetings_.resize(std::max(meetings_.size(), static_cast<size_t>(operation.meeting) + 1));
      if (operation.kind != Kind::kSend && operation.kind != Kind::kReceive) continue;
      messages_.resize(std::max(messages_.size(), static_cast<size_t>(operation.message) + 1));
      Message& message = messages_[operation.message];
      (operation.kind == Kind::kReceive ? message.to : message.from) = rank;
    }
  }

  void touch(size_t rank) {
    if (std::exchange(ranks_[rank].touched, true)) return;
    touched_.push_back(rank);
  }

  void push(Ticks time, bool arrival, size_t rank, size_t operation) {
    events_.push({time, order_++, arrival, rank, operation});
  }

  bool ready(const Rank& rank, const EngineOperation& operation) const {
    return std::all_of(operation.after.begin(), operation.after.end(),
                       [&](size_t before) { return rank.ended[before] != 0; });
  }

  // Starts what can start now. Messages first: what is posted at the moment when its receiver could begin to
  // compute goes before that.
  void settle() {
    std::vector<size_t> ranks = std::exchange(touched_, {});
    std::sort(ranks.begin(), ranks.end());
    for (const size_t rank : ranks) ranks_[rank].touched = false;
    for (const size_t rank : ranks) advance(rank, false);
    for (const size_t rank : ranks) advance(rank, true);
  }

  void advance(size_t index, bool may_compute) {
    Rank& rank = ranks_[index];
    const std::vector<EngineOperation>& operations = request_.ranks[index];
    bool moved = true;
    while (moved) {
      moved = false;
      while (rank.running == kNowhere && rank.next < operations.size()) {
        const EngineOperation& operation = operations[rank.next];
        const bool computes = operation.kind == Kind::kCompute && !operation.background;
        if (computes && (!may_compute || rank.travelling > 0)) break;
        if (!operation.background && !ready(rank, operation)) break;
        const size_t current = rank.next++;
        if (operation.background) {
          rank.queue.push_back(current);
          continue;
        }
        if (!operation.posted) rank.running = current;
        rank.computing = computes;
        start(index, current);
        moved = true;
      }
      if (rank.beside == kNowhere && !rank.queue.empty() && ready(rank, operations[rank.queue.front()])) {
        const size_t current = rank.queue.front();
        rank.queue.pop_front();
        if (!operations[current].posted) rank.beside = current;
        start(index, current);
        moved = true;
      }
    }
  }

  void start(size_t rank, size_t index) {
    const EngineOperation& operation = at(rank, index);
    OperationTimes& times = result_.ranks[rank][index];
    times.start = times.begun = now_;
    changeMemory(rank, operation.memory_at_start);
    switch (operation.kind) {
      case Kind::kCompute: push(now_ + operation.duration, false, rank, index); break;
      case Kind::kCollective: join(rank, index); break;
      case Kind::kSend: post(rank, index); break;
      case Kind::kReceive: want(rank, index); break;
    }
  }

  void join(size_t rank, size_t index) {
    const EngineOperation& operation = at(rank, index);
    std::vector<Place>& members = meetings_[operation.meeting];
    members.push_back({rank, index});
    if (std::ssize(members) < operation.meeting_size) return;
    Ticks duration = 0;
    for (const Place& member : members)
      duration = std::max(duration, at(member.rank, member.operation).duration);
    for (const Place& member : members) {
      result_.ranks[member.rank][member.operation].begun = now_;
      push(now_ + duration, false, member.rank, member.operation);
    }
  }

  size_t messageOf(size_t rank, size_t operation) const { return at(rank, operation).message; }

  void post(size_t rank, size_t index) {
    Message& message = messages_[messageOf(rank, index)];
    PIPESHARD_CHECK(!message.sender.known(), "message {} is sent twice", at(rank, index).message);
    PIPESHARD_CHECK(message.to != kNowhere, "message {} has no receiver", at(rank, index).message);
    message.sender = {rank, index};
    message.record = result_.messages.size();
    result_.messages.push_back({at(rank, index).message, rank, message.to, now_, now_, now_});
    if (request_.exposed) {
      ++ranks_[rank].travelling;
      ranks_[message.to].computing ? ranks_[message.to].offered.push_back(messageOf(rank, index))
                                   : transfer(message);
    } else if (!request_.rendezvous || message.receiver.known()) {
      transfer(message);
    }
  }

  void want(size_t rank, size_t index) {
    Message& message = messages_[messageOf(rank, index)];
    PIPESHARD_CHECK(!message.receiver.known(), "message {} is received twice", at(rank, index).message);
    message.receiver = {rank, index};
    if (message.arrived) {
      push(now_, true, rank, messageOf(rank, index));
    } else if (request_.rendezvous && message.sender.known()) {
      transfer(message);
    }
  }

  void transfer(Message& message) {
    const EngineOperation& send = at(message.sender.rank, message.sender.operation);
    MessageTimes& times = result_.messages[message.record];
    Ticks& free = link_free_[message.link];
    times.started = request_.contention ? std::max(now_, free) : now_;
    free = times.started + send.occupancy;
    times.arrived = free + send.latency;
    if (request_.exposed) ++ranks_[message.to].travelling;
    push(times.arrived, true, message.sender.rank, send.message);
  }

  void arrive(Message& message) {
    if (!message.arrived && request_.exposed) {
      for (const size_t rank : {message.sender.rank, message.to}) {
        --ranks_[rank].travelling;
        touch(rank);
      }
    }
    message.arrived = true;
    if (!message.receiver.known()) return;
    OperationTimes& times = result_.ranks[message.receiver.rank][message.receiver.operation];
    times.begun = std::clamp(result_.messages[message.record].started, times.start, now_);
    // The sender first: what it holds ends before the receiver's next operation begins.
    finish(message.sender.rank, message.sender.operation);
    finish(message.receiver.rank, message.receiver.operation);
  }

  void finish(size_t index, size_t operation) {
    Rank& rank = ranks_[index];
    rank.ended[operation] = 1;
    result_.ranks[index][operation].end = now_;
    result_.end = std::max(result_.end, now_);
    changeMemory(index, at(index, operation).memory_at_end);
    if (rank.running == operation) {
      rank.running = kNowhere;
      rank.computing = false;
      for (; !rank.offered.empty(); rank.offered.pop_front()) transfer(messages_[rank.offered.front()]);
    }
    if (rank.beside == operation) rank.beside = kNowhere;
    touch(index);
  }

  void changeMemory(size_t index, int64_t change) {
    if (change == 0) return;
    Rank& rank = ranks_[index];
    rank.held += change;
    result_.peak_memory[index] = std::max(result_.peak_memory[index], rank.held);
    std::vector<MemoryPoint>& points = result_.memory[index];
    if (!points.empty() && points.back().time == now_) points.pop_back();
    points.push_back({now_, rank.held});
  }

  static std::optional<size_t> firstUnfinished(const Rank& rank) {
    const auto found = std::find(rank.ended.begin(), rank.ended.end(), 0);
    if (found == rank.ended.end()) return std::nullopt;
    return found - rank.ended.begin();
  }

  const EngineRequest& request_;
  EngineResult result_;
  std::vector<Rank> ranks_;
  std::vector<Message> messages_;             // by number
  std::vector<std::vector<Place>> meetings_;  // by number: who has come
  std::vector<Ticks> link_free_;              // by link
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<size_t> touched_;  // ranks where something may start now
  int64_t order_ = 0;
  Ticks now_ = 0;
};

}  // namespace

bool EngineResult::complete() const {
  return std::none_of(stuck.begin(), stuck.end(),
                      [](const auto& operation) { return operation.has_value(); });
}

EngineResult runEngine(const EngineRequest& request) { return Engine(request).run(); }

}  // namespace pipeshard
