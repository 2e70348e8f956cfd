// Who comes before whom on the stand-in's device, and when work is done.
//
// A *line* is a stream, or the host (line 0: all its threads). Every operation has a number, ascending, and a
// clock: for each line, the last operation that is ordered before it. Two operations are ordered when the
// later one's clock has reached the earlier one. Streams, recorded and awaited events and synchronisation
// move clocks; nothing else does, however the operations happened to run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/standin/sharing.h"

namespace standin {

using OpId = uint32_t;            // 0: none
using Clock = std::vector<OpId>;  // by line

struct Running {
  OpId id = 0;
  uint32_t line = 0;
  const Clock* clock = nullptr;
  const std::string* name = nullptr;
};

// One thing at a time: calls of the runtime, and operations.
std::recursive_mutex& lock();

// What accesses memory now on this thread: an operation, or the host.
Running running();
bool onDevice();
bool isOrdered(OpId earlier, const Running& later);
const std::string& nameOf(OpId op);
uint32_t lineOf(OpId op);

struct Stream;
struct Event;

// All by calls of the runtime; errors are reports.
Stream* makeStream();
void destroyStream(Stream* stream);
Event* makeEvent(bool timed, bool interprocess = false);
bool isInterprocess(const Event& event);
// It is this process's, and others wait for it, or that of another one.
void share(Event& event, std::shared_ptr<SharedEvent> as);
void destroyEvent(Event* event);
bool isStream(const Stream* stream);
bool isEvent(const Event* event);
// The operation that was given; its clock and name are gone with the stand-in's lock. `ready` is asked, as
// the operation and without blocking, whenever its turn has come, until it says yes: then it works.
Running enqueue(Stream& stream, const std::string& name, std::function<void()> work,
                std::function<bool()> ready = {});
// What is given to `later` from now on is behind all that `earlier` was given.
void joinStreams(Stream& later, const Stream& earlier);
// Lazy: does now what must be done up to this operation, and can be without waiting. Eager: streams do it.
void advance(Stream& stream, OpId until);
void recordEvent(Event& event, Stream& stream);
void awaitEvent(Stream& stream, const Event& event);
void advanceLine(uint32_t line, OpId until);
// Of other processes: clocks for them, and of them; an operation of theirs is one more here.
std::vector<Stamp> stampsOf(const Clock& clock);
Clock clockOf(const std::vector<Stamp>& stamps);
OpId operationOf(const Stamp& stamp, const std::string& name);
// The host waits: because it is asked to (waits.h may leave it out), and because a call does.
void synchronize(Stream& stream);
void finish(Stream& stream);
void finish(const Event& event);
// As a call of CUDA that gives something back does: where waits are watched, nobody may build on it.
void finishAll();
// The host asks whether all is done, which is a wait if it is; it is forced as far as it can be. Asking for a
// stream until it is done is one wait, which waits.h may leave out. Where waits are watched an event tells,
// and orders nothing: who looks how far others are does not wait.
bool isFinished(Stream& stream);
bool isFinished(const Event& event);
// A report when the host does not know that all is done.
void requireWaitedFor(const Stream& stream);
// Milliseconds from one to the other; nothing, and a report, when one of them keeps no time, or was not
// recorded, or the host does not know that it has happened.
std::optional<float> between(const Event& from, const Event& to);
// Of all streams, since the process began.
uint64_t operationsDone();
void reportLeftLines();

}  // namespace standin
