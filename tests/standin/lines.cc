#include "tests/standin/lines.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "tests/standin/heap.h"
#include "tests/standin/host_guard.h"
#include "tests/standin/waits.h"

namespace standin {

struct Operation {
  OpId id = 0;
  Clock clock;
  std::string name;
  std::function<void()> work;
  std::function<bool()> ready;
};

struct Stream {
  uint32_t line = 0;
  Clock clock;  // of what is given to it next
  std::deque<std::shared_ptr<Operation>> queue;
  bool closing = false;
  bool asked = false;  // the host has begun to ask whether all is done, and goes on until it is
  std::thread worker;  // eager
};

using Time = std::chrono::steady_clock::time_point;

struct Event {
  Clock clock;
  uint32_t line = 0;  // of the stream that has recorded it
  bool timed = false;
  std::shared_ptr<Time> time;  // of the last record
  bool interprocess = false;
  std::shared_ptr<SharedEvent> shared;
};

namespace {

constexpr std::chrono::microseconds kPoll{50};

struct Record {
  uint32_t line;
  std::shared_ptr<const std::string> name;
  OpId outside = 0;  // of another process: its number there
};

// Never destroyed: streams may wait at exit.
struct State {
  std::recursive_mutex lock;
  std::condition_variable_any changed;
  std::vector<Record> records{{0, std::make_shared<const std::string>("nobody")}};
  std::vector<Stream*> streams;  // by line - 1; nullptr: destroyed, or a line of another process
  std::map<std::pair<int32_t, uint32_t>, uint32_t> lines_outside;  // by process and line there
  std::map<uint32_t, std::pair<int32_t, uint32_t>> outside_of;     // the other way round
  std::set<const Event*> events;
  Clock host{0};
  uint64_t done = 0;
};

State& state() {
  static State* const all = new State;
  return *all;
}

bool isLazy() {
  static const bool lazy = [] {
    const char* mode = std::getenv("STANDIN_MODE");
    return mode == nullptr || std::string_view(mode) != "eager";
  }();
  return lazy;
}

thread_local const Operation* now = nullptr;
thread_local uint32_t now_line = 0;

void merge(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

OpId newOp(uint32_t line, std::string name) {
  state().records.push_back({line, std::make_shared<const std::string>(std::move(name))});
  return static_cast<OpId>(state().records.size() - 1);
}

// What the host does from now on is another operation than before.
void hostMoves() {
  static const auto name = std::make_shared<const std::string>("the host");
  state().records.push_back({0, name});
  state().host[0] = static_cast<OpId>(state().records.size() - 1);
}

// False: it cannot be done yet.
bool perform(Stream& stream, const std::shared_ptr<Operation>& op) {
  const Operation* before = std::exchange(now, op.get());
  const uint32_t line_before = std::exchange(now_line, stream.line);
  const bool ready = !op->ready || op->ready();
  if (ready) op->work();
  now = before;
  now_line = line_before;
  state().done += ready ? 1 : 0;
  return ready;
}

bool isReady(const Operation& op, const Stream& of) {
  for (const Stream* other : state().streams) {
    if (other != nullptr && other != &of && other->line < op.clock.size() && !other->queue.empty() &&
        other->queue.front()->id <= op.clock[other->line])
      return false;
  }
  return true;
}

void serve(Stream* stream) {
  std::minstd_rand random(stream->line);
  std::unique_lock held(state().lock);
  while (true) {
    state().changed.wait(held, [&] { return stream->closing || !stream->queue.empty(); });
    if (stream->queue.empty()) return;
    held.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    held.lock();
    const auto op = stream->queue.front();
    state().changed.wait(held, [&] { return isReady(*op, *stream); });
    while (!perform(*stream, op)) state().changed.wait_for(held, kPoll);
    stream->queue.pop_front();
    state().changed.notify_all();
  }
}

// Lazy: only now, and only what must. False: an operation cannot be done yet.
bool force(Stream& stream, OpId until) {
  while (!stream.queue.empty() && stream.queue.front()->id <= until) {
    const auto op = stream.queue.front();
    for (size_t s = 0; s < state().streams.size(); ++s) {
      Stream* other = state().streams[s];
      if (other != nullptr && other != &stream && other->line < op->clock.size() &&
          !force(*other, op->clock[other->line]))
        return false;
    }
    if (!perform(stream, op)) return false;
    stream.queue.pop_front();
  }
  return true;
}

// Meanwhile another thread of the host may destroy a stream, when it has done all.
bool isPast(const Clock& clock) {
  bool past = true;
  for (size_t s = 0; s < state().streams.size() && s + 1 < clock.size(); ++s) {
    Stream* stream = state().streams[s];  // its line is s + 1
    if (stream == nullptr) continue;
    if (isLazy()) force(*stream, clock[s + 1]);
    past = past && (stream->queue.empty() || stream->queue.front()->id > clock[s + 1]);
  }
  return past;
}

void hostIsBehind(const Clock& clock) {
  merge(state().host, clock);
  openUntil(state().host);
  hostMoves();
}

// The host is not behind it by that.
void doUntil(const Clock& clock) {
  std::unique_lock held(state().lock);
  while (!isPast(clock)) {
    if (isLazy())
      state().changed.wait_for(held, kPoll);
    else
      state().changed.wait(held);
  }
}

void finishUntil(const Clock& clock) {
  doUntil(clock);
  const std::lock_guard held(state().lock);
  hostIsBehind(clock);
}

bool finishIfPast(const Clock& clock) {
  const std::lock_guard held(state().lock);
  if (!isPast(clock)) return false;
  hostIsBehind(clock);
  return true;
}

// Whoever has this clock is behind all of `clock`, but for the host's own line.
bool isBehind(const Clock& own, const Clock& clock) {
  for (size_t line = 1; line < clock.size(); ++line) {
    if (clock[line] > (line < own.size() ? own[line] : 0)) return false;
  }
  return true;
}

}  // namespace

std::recursive_mutex& lock() { return state().lock; }

bool onDevice() { return now != nullptr; }

Running running() {
  if (now != nullptr) return {now->id, now_line, &now->clock, &now->name};
  if (state().host[0] == 0) hostMoves();
  return {state().host[0], 0, &state().host, state().records[state().host[0]].name.get()};
}

bool isOrdered(OpId earlier, const Running& later) {
  const Record& record = state().records[earlier];
  if (record.line == later.line) return true;
  const OpId number = record.outside == 0 ? earlier : record.outside;
  return record.line < later.clock->size() && number <= (*later.clock)[record.line];
}

const std::string& nameOf(OpId op) { return *state().records[op].name; }
uint32_t lineOf(OpId op) { return state().records[op].line; }

Stream* makeStream() {
  const std::lock_guard held(state().lock);
  auto* stream = new Stream;
  stream->line = static_cast<uint32_t>(state().streams.size() + 1);
  state().streams.push_back(stream);
  if (!isLazy()) stream->worker = std::thread(serve, stream);
  return stream;
}

void requireWaitedFor(const Stream& stream) {
  const std::lock_guard held(state().lock);
  if (isBehind(state().host, stream.clock)) return;
  report("stream " + std::to_string(stream.line) +
         " is destroyed, and nobody has waited for what it was given");
}

void destroyStream(Stream* stream) {
  finish(*stream);
  {
    const std::lock_guard held(state().lock);
    stream->closing = true;
    state().changed.notify_all();
  }
  if (stream->worker.joinable()) stream->worker.join();
  const std::lock_guard held(state().lock);
  state().streams[stream->line - 1] = nullptr;
  delete stream;
}

bool isStream(const Stream* stream) {
  const std::lock_guard held(state().lock);
  return stream != nullptr && std::ranges::find(state().streams, stream) != state().streams.end();
}

Event* makeEvent(bool timed, bool interprocess) {
  const std::lock_guard held(state().lock);
  auto* event = new Event;
  event->timed = timed;
  event->interprocess = interprocess;
  state().events.insert(event);
  return event;
}

bool isInterprocess(const Event& event) { return event.interprocess; }
void share(Event& event, std::shared_ptr<SharedEvent> as) { event.shared = std::move(as); }

void destroyEvent(Event* event) {
  const std::lock_guard held(state().lock);
  state().events.erase(event);
  delete event;
}

bool isEvent(const Event* event) {
  const std::lock_guard held(state().lock);
  return state().events.contains(event);
}

Running enqueue(Stream& stream, const std::string& name, std::function<void()> work,
                std::function<bool()> ready) {
  const std::lock_guard held(state().lock);
  auto op = std::make_shared<Operation>();
  op->id = newOp(stream.line, name);
  op->name = name;
  op->work = std::move(work);
  op->ready = std::move(ready);
  merge(stream.clock, state().host);
  stream.clock.resize(std::max<size_t>(stream.clock.size(), stream.line + 1));
  op->clock = stream.clock;
  stream.clock[stream.line] = op->id;
  const Running given{op->id, stream.line, nullptr, state().records[op->id].name.get()};
  stream.queue.push_back(std::move(op));
  hostMoves();
  state().changed.notify_all();
  return given;
}

void recordEvent(Event& event, Stream& stream) {
  const std::lock_guard held(state().lock);
  if (event.timed) {
    event.time = std::make_shared<Time>();
    enqueue(stream, "an event's time", [time = event.time] { *time = std::chrono::steady_clock::now(); });
  }
  if (event.shared && !event.shared->isOwn())
    return report("an event of another process is recorded, which the stand-in does not have");
  if (event.shared) {
    const auto ticket = std::make_shared<uint64_t>();
    const Running given =
        enqueue(stream, "an event's record", [of = event.shared, ticket] { of->happen(*ticket); });
    *ticket = event.shared->record(stampsOf(stream.clock), stream.line, given.id);
  }
  event.clock = stream.clock;
  event.line = stream.line;
}

std::optional<float> between(const Event& from, const Event& to) {
  const std::lock_guard held(state().lock);
  for (const Event* event : {&from, &to}) {
    const char* wrong = !event->timed            ? "an event that keeps no time"
                        : event->time == nullptr ? "an event that was not recorded"
                                                 : nullptr;
    for (size_t line = 1; line < event->clock.size() && wrong == nullptr; ++line) {
      if (line >= state().host.size() || state().host[line] < event->clock[line])
        wrong = "an event that the host has not waited for";
    }
    if (wrong == nullptr) continue;
    report(std::string("cudaEventElapsedTime: ") + wrong);
    return std::nullopt;
  }
  return std::chrono::duration<float, std::milli>(*to.time - *from.time).count();
}

namespace {
// As with CUDA, for the last record that there was when it is called; none: it waits for nothing.
void awaitOutside(Stream& stream, const std::shared_ptr<SharedEvent>& event) {
  const auto last = event->last();
  const uint64_t ticket = last.first;
  const Clock clock = clockOf(last.second);
  if (ticket == 0 || isDropped("stream " + std::to_string(stream.line) + " for event " +
                                   std::to_string(event->number()) + " of another process",
                               isBehind(stream.clock, clock)))
    return;
  enqueue(
      stream, "a wait for another process", [] {}, [event, ticket] { return event->hasHappened(ticket); });
  merge(stream.clock, clock);
}
}  // namespace

void awaitEvent(Stream& stream, const Event& event) {
  const std::lock_guard held(state().lock);
  if (event.shared && !event.shared->isOwn()) return awaitOutside(stream, event.shared);
  const OpId last = event.line < event.clock.size() ? event.clock[event.line] : 0;
  if (isDropped("stream " + std::to_string(stream.line) + " for stream " + std::to_string(event.line) +
                    ", which has done " + nameOf(last),
                isBehind(stream.clock, event.clock)))
    return;
  merge(stream.clock, event.clock);
}

void joinStreams(Stream& later, const Stream& earlier) {
  const std::lock_guard held(state().lock);
  merge(later.clock, earlier.clock);
}

void advance(Stream& stream, OpId until) {
  const std::lock_guard held(state().lock);
  if (isLazy() && isStream(&stream)) force(stream, until);
}

void advanceLine(uint32_t line, OpId until) {
  const std::lock_guard held(state().lock);
  Stream* stream = line == 0 || line > state().streams.size() ? nullptr : state().streams[line - 1];
  if (stream != nullptr && isLazy()) force(*stream, until);
}

std::vector<Stamp> stampsOf(const Clock& clock) {
  std::vector<Stamp> stamps;
  for (uint32_t line = 0; line < clock.size(); ++line) {
    if (clock[line] == 0) continue;
    const auto outside = state().outside_of.find(line);
    if (outside == state().outside_of.end())
      stamps.push_back({::getpid(), line, clock[line]});
    else
      stamps.push_back({outside->second.first, outside->second.second, clock[line]});
  }
  return stamps;
}

namespace {
// The number of a line that another process has.
uint32_t lineOutside(int32_t process, uint32_t line) {
  const auto [found, is_new] = state().lines_outside.try_emplace({process, line});
  if (is_new) {
    state().streams.push_back(nullptr);
    found->second = static_cast<uint32_t>(state().streams.size());
    state().outside_of[found->second] = {process, line};
  }
  return found->second;
}
}  // namespace

Clock clockOf(const std::vector<Stamp>& stamps) {
  Clock clock{0};
  for (const Stamp& stamp : stamps) {
    const uint32_t line = stamp.process == ::getpid() ? stamp.line : lineOutside(stamp.process, stamp.line);
    if (clock.size() <= line) clock.resize(line + 1);
    clock[line] = std::max(clock[line], stamp.id);
  }
  return clock;
}

OpId operationOf(const Stamp& stamp, const std::string& name) {
  const OpId op = newOp(lineOutside(stamp.process, stamp.line), name);
  state().records[op].outside = stamp.id;
  return op;
}

void synchronize(Stream& stream) {
  {
    const std::lock_guard held(state().lock);
    if (isDropped("the host for stream " + std::to_string(stream.line), isBehind(state().host, stream.clock)))
      return;
  }
  finish(stream);
}

void finish(Stream& stream) {
  const Clock until = [&] {
    const std::lock_guard held(state().lock);
    return stream.clock;
  }();
  finishUntil(until);
}

void finish(const Event& event) {
  const Clock until = [&] {
    const std::lock_guard held(state().lock);
    return event.clock;
  }();
  finishUntil(until);
}

void finishAll() {
  const Clock until = [] {
    const std::lock_guard held(state().lock);
    Clock all;
    for (const Stream* stream : state().streams) {
      if (stream != nullptr) merge(all, stream->clock);
    }
    return all;
  }();
  waitsAreWatched() ? doUntil(until) : finishUntil(until);
}

uint64_t operationsDone() {
  const std::lock_guard held(lock());
  return state().done;
}

bool isFinished(Stream& stream) {
  const std::lock_guard held(state().lock);
  if (!stream.asked && isDropped("the host for stream " + std::to_string(stream.line) + ", by asking",
                                 isBehind(state().host, stream.clock)))
    return true;
  stream.asked = !finishIfPast(stream.clock);
  return !stream.asked;
}

bool isFinished(const Event& event) {
  const std::lock_guard held(state().lock);
  return waitsAreWatched() ? isPast(event.clock) : finishIfPast(event.clock);
}

void reportLeftLines() {
  const std::lock_guard held(state().lock);
  for (const Stream* stream : state().streams) {
    if (stream != nullptr) report("a stream is left at exit: stream " + std::to_string(stream->line));
  }
  if (!state().events.empty()) report(std::to_string(state().events.size()) + " events are left at exit");
}

}  // namespace standin
