#include "tests/standin/nccl/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "tests/standin/heap.h"
#include "tests/standin/nccl/meeting.h"
#include "tests/standin/nccl/reduction.h"
#include "tests/standin/nccl/watch.h"

namespace standin::nccl {
namespace {

constexpr const char* kCallNames[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                      "ncclReduce",    "ncclSend",          "ncclRecv"};

int resident = 0;  // kernels of this process

}  // namespace

int mostResident() {
  static const int most = [] {
    const char* text = std::getenv("STANDIN_NCCL_RESIDENT");
    return text == nullptr ? 1 << 20 : std::atoi(text);
  }();
  return most;
}

namespace {

// STANDIN_NCCL_ERROR=RANK:N:CODE: the N-th launch of this rank, from 1 on, fails like that.
void failAsAsked(Communicator& communicator) {
  static int rank = -1, code = 0;
  static long number = 0;
  static const char* const text = std::getenv("STANDIN_NCCL_ERROR");
  if (text != nullptr && rank < 0 && std::sscanf(text, "%d:%ld:%d", &rank, &number, &code) != 3) std::abort();
  if (rank == communicator.rank && --number == 0)
    fail(communicator, static_cast<ncclResult_t>(code), "an error that STANDIN_NCCL_ERROR asked for");
}

void post(Launch& launch) {
  Communicator& communicator = *launch.communicator;
  for (Piece& piece : launch.pieces) {
    if (piece.from_bytes == 0) continue;
    access(piece.from, piece.from_bytes, false);
    piece.element.payload = makePayload(piece.from, piece.from_bytes);
  }
  const Held held(*communicator.block);
  Member& self = communicator.self();
  for (size_t i = 0; i < launch.pieces.size(); ++i) self.element[i] = launch.pieces[i].element;
  self.elements = static_cast<int32_t>(launch.pieces.size());
}

bool becomeResident(Launch& launch) {
  Communicator& communicator = *launch.communicator;
  launch.reached = true;
  if (communicator.launches.front().get() != &launch) {
    communicator.wanted = std::max(communicator.wanted, launch.number);
    return false;
  }
  if (resident >= mostResident()) return false;
  ++resident;
  launch.resident = true;
  moved();
  failAsAsked(communicator);
  if (!communicator.hasFailed()) post(launch);
  return true;
}

void leave(Launch& launch) {
  Communicator& communicator = *launch.communicator;
  if (launch.resident) {
    --resident;
    const Held held(*communicator.block);
    communicator.self().elements = 0;
  }
  for (Piece& piece : launch.pieces) {
    if (piece.element.payload >= 0) ::close(piece.element.payload);
    const Element& element = piece.element;
    if (element.call == Call::kSend)
      communicator.sends_done[element.peer] = element.index + 1;
    else if (element.call == Call::kRecv)
      communicator.receives_done[element.peer] = element.index + 1;
    else
      communicator.collectives_done = element.index + 1;
  }
  std::erase_if(communicator.launches, [&](const auto& other) { return other.get() == &launch; });
  moved();
}

// Asked by the stream, as the operation.
bool isReady(Launch& launch) {
  Communicator& communicator = *launch.communicator;
  if (communicator.aborted) {
    leave(launch);
    return true;
  }
  if (!launch.resident && !becomeResident(launch)) return false;
  if (communicator.hasFailed() || !meetAll(launch)) return false;
  leave(launch);
  return true;
}

void writeResults(Launch& launch) {
  for (Piece& piece : launch.pieces) {
    if (piece.to_bytes == 0) continue;
    access(piece.to, piece.to_bytes, true);
    if (launch.communicator->aborted)
      forget(piece.to, piece.to_bytes);
    else
      std::memcpy(piece.to, piece.result.data(), piece.to_bytes);
  }
}

void number(Communicator& communicator, Piece& piece) {
  Element& element = piece.element;
  piece.given.resize(communicator.ranks);
  piece.met.resize(communicator.ranks);
  if (element.call == Call::kSend)
    element.index = communicator.sends[element.peer]++;
  else if (element.call == Call::kRecv)
    element.index = communicator.receives[element.peer]++;
  else
    element.index = communicator.collectives++;
}

}  // namespace

Communicator::~Communicator() {
  for (const int process : processes) {
    if (process >= 0) ::close(process);
  }
  if (block != nullptr) closeBlock(block);
}

std::string describe(const Communicator& communicator) {
  return "rank " + std::to_string(communicator.rank) + " of " + communicator.name;
}

std::string describe(const Element& element) {
  std::string text = std::string(kCallNames[static_cast<int>(element.call)]) + " " +
                     std::to_string(element.index) + " of " + std::to_string(element.count) + " " +
                     nameOf(element.type);
  switch (element.call) {
    case Call::kSend: return text + " to rank " + std::to_string(element.peer);
    case Call::kRecv: return text + " from rank " + std::to_string(element.peer);
    case Call::kBroadcast: return text + " from root " + std::to_string(element.peer);
    case Call::kReduce:
      return text + " by " + nameOf(element.op) + " to root " + std::to_string(element.peer);
    case Call::kAllGather: return text;
    default: return text + " by " + nameOf(element.op);
  }
}

std::string describe(const Launch& launch) {
  std::string text;
  for (const Piece& piece : launch.pieces) text += (text.empty() ? "" : ", ") + describe(piece.element);
  return text;
}

void fail(Communicator& communicator, ncclResult_t code, const std::string& why) {
  if (communicator.hasFailed()) return;
  communicator.state = code;
  communicator.failed_at = std::chrono::steady_clock::now();
  communicator.last_error = describe(communicator) + ": " + why;
  std::fprintf(stderr, "stand-in NCCL: %s\n", communicator.last_error.c_str());
}

void launch(const std::shared_ptr<Communicator>& communicator, std::vector<Piece> pieces,
            const std::vector<Stream*>& streams) {
  auto launched = std::make_shared<Launch>();
  launched->communicator = communicator;
  launched->pieces = std::move(pieces);
  for (Piece& piece : launched->pieces) number(*communicator, piece);
  launched->stream = streams.front();
  launched->number = ++communicator->launched;
  communicator->launches.push_back(launched);
  for (Stream* other : streams) joinStreams(*streams.front(), *other);
  launched->operation = enqueue(
      *streams.front(), describe(*launched), [launched] { writeResults(*launched); },
      [launched] { return isReady(*launched); });
  for (Stream* other : streams) joinStreams(*other, *streams.front());
}

void abort(Communicator& communicator) {
  communicator.aborted = true;
  communicator.deferred = nullptr;
  communicator.setup = nullptr;
  if (communicator.entered) {
    const Held held(*communicator.block);
    communicator.self().phase = Phase::kAborted;
    communicator.self().elements = 0;
  }
  // Those on the device end now; eager streams see it by themselves.
  const auto launches = communicator.launches;
  for (const auto& launch : launches) {
    if (launch->resident) advance(*launch->stream, launch->operation.id);
  }
}

bool isQuiet(Communicator& communicator) { return communicator.launches.empty(); }

bool isWanted(Communicator& communicator) {
  if (communicator.launches.empty()) return false;
  const Launch& first = *communicator.launches.front();
  if (first.resident || communicator.finalizing || communicator.aborted ||
      communicator.wanted >= first.number)
    return true;
  const Held held(*communicator.block);
  for (int peer = 0; peer < communicator.ranks; ++peer) {
    const Member& member = communicator.block->members[peer];
    for (int i = 0; i < member.elements && peer != communicator.rank; ++i) {
      const Element& element = member.element[i];
      if (element.call == Call::kSend || element.call == Call::kRecv) {
        const bool sends = element.call == Call::kSend;
        const auto& issued = sends ? communicator.receives : communicator.sends;
        const auto& done = sends ? communicator.receives_done : communicator.sends_done;
        if (element.peer == communicator.rank && element.index < issued[peer] && element.index >= done[peer])
          return true;
      } else if (element.index < communicator.collectives && element.index >= communicator.collectives_done) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace standin::nccl
