#include "transport/shared/shared_endpoint.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "ir/base/ids_format.h"
#include "transport/shared/shared_arena.h"

namespace pipeshard::shm {
namespace {

using namespace std::chrono_literals;

// Where every rank has a core, a few times the cost of a futex wake-up (11 us on a virtual machine), which
// covers the copy of 1 MiB; next to nothing where ranks share cores, because there the spinner keeps the core
// from the rank that it waits for.
constexpr auto kSpinAlone = 50us;
constexpr auto kSpinShared = 1us;
// A rung doorbell ends a sleep; the slice only bounds what a lost ring could cost.
constexpr auto kSlice = 100ms;

std::chrono::nanoseconds spinTime(int ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool known = ::sched_getaffinity(0, sizeof(cores), &cores) == 0;
  return known && CPU_COUNT(&cores) >= ranks ? kSpinAlone : kSpinShared;
}

}  // namespace

Endpoint::Endpoint(SharedSegments segments, std::shared_ptr<Mapping> control, RankId rank,
                   std::chrono::milliseconds timeout, std::vector<RankId> names)
    : segments_(std::make_shared<SharedSegments>(std::move(segments))),
      control_(std::move(control)),
      rank_(rank),
      timeout_(timeout),
      names_(std::move(names)) {
  const int size = segments_->size();
  PIPESHARD_CHECK(names_.empty() || std::ssize(names_) == size, "{} names for {} ranks", names_.size(), size);
  if (rank >= RankId(size))
    fail(ErrorCode::kConfiguration, "rank {} opens a communicator of {} ranks", rank, size);
  view_ = ControlView(control_->data(), size);
  spin_ = spinTime(size);
  open();
}

Endpoint::Endpoint(const Endpoint& first, Lane lane)
    : segments_(first.segments_),
      control_(first.control_),
      view_(control_->data(), first.size(), lane),
      rank_(first.rank_),
      timeout_(first.timeout_),
      spin_(kSpinShared),  // the rank computes meanwhile
      arena_(first.arena_),
      names_(first.names_) {
  open();
  if (arena_) view_.rank(rank_).arena_bytes.store(arena_->bytes(), std::memory_order_release);
}

void Endpoint::open() {
  peer_arenas_.resize(size());
  for (auto& boxes : out_) boxes.resize(size());
  auto expected = static_cast<uint32_t>(Life::kAbsent);
  if (!view_.rank(rank_).life.compare_exchange_strong(expected, static_cast<uint32_t>(Life::kOpen))) {
    fail(ErrorCode::kInternal, "rank {} opens its communicator twice; a restarted job needs new segments",
         name(rank_));
  }
}

Endpoint::~Endpoint() {
  view_.rank(rank_).life.store(static_cast<uint32_t>(Life::kClosed), std::memory_order_seq_cst);
  for (RankId peer : idsBelow<RankId>(size())) ring(view_.rank(peer));
}

void Endpoint::interrupt() {
  interrupted_.store(true, std::memory_order_seq_cst);
  ring(view_.rank(rank_));
}

void Endpoint::giveUp(RankId peer) {
  if (!broken_)
    broken_.emplace(ErrorCode::kInternal,
                    fmt::format("rank {} gave up a posted receive from rank {}", name(rank_), name(peer)));
}

std::span<std::byte> Endpoint::createArena(size_t bytes) {
  checkUsable(rank_);
  if (arena_) breakWith(ErrorCode::kInternal, fmt::format("rank {} creates its arena twice", name(rank_)));
  arena_ = std::make_shared<Mapping>(populateArena(segments_->arenaDescriptor(rank_), bytes, view_, rank_));
  view_.rank(rank_).arena_bytes.store(bytes, std::memory_order_release);
  return arena_->span();
}

std::optional<uint64_t> Endpoint::arenaOffset(std::span<const std::byte> data) const {
  if (!arena_) return std::nullopt;
  const auto begin = reinterpret_cast<uintptr_t>(arena_->data());
  const auto address = reinterpret_cast<uintptr_t>(data.data());
  if (arena_->bytes() == 0 || address < begin || address - begin > arena_->bytes()) return std::nullopt;
  if (data.size() > arena_->bytes() - (address - begin)) return std::nullopt;
  return address - begin;
}

// Sending. A message stands in the local queue of its box (channel, peer) until it has *left*: its descriptor
// is in the mailbox and, if it is staged, all its bytes have been copied into slots. Only the front of a
// queue is pushed, so messages and slots come in order. What a mailbox holds is limited:
//   posted - completed    descriptors in use, at most kDescriptors
//   filled - released     slots in use, at most kSlots
// `active_` lists exactly the boxes whose queue is not empty. A staged message may be larger than all slots:
// it leaves bit by bit, in later calls of progress(), while the receiver empties slots.
Ticket Endpoint::post(Channel channel, RankId peer, Operation operation, std::span<const std::byte> data,
                      bool staged) {
  checkUsable(peer);
  const auto offset = staged ? std::nullopt : arenaOffset(data);
  const Route route = offset ? Route::kArena : Route::kStaged;
  OutBox& box = outBox(channel, peer);
  if (box.queue.empty()) active_.emplace_back(channel, peer);
  box.queue.push_back({data.data(), data.size(), operation, route, offset.value_or(0), 0, false});
  const Ticket ticket{channel, peer, box.next_sequence++, route};
  progress();
  return ticket;
}

bool Endpoint::completed(const Ticket& ticket) const {
  return view_.mailbox(ticket.channel, rank_, ticket.peer).completed.load(std::memory_order_acquire) >
         ticket.sequence;
}

bool Endpoint::settled(const Ticket& ticket) const {
  return ticket.route == Route::kArena ? completed(ticket)
                                       : outBox(ticket.channel, ticket.peer).left > ticket.sequence;
}

bool Endpoint::progress() {
  for (size_t i = 0; i < active_.size();) {
    const auto [channel, peer] = active_[i];
    pump(channel, peer);
    if (outBox(channel, peer).queue.empty()) {
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  return !active_.empty();
}

void Endpoint::pump(Channel channel, RankId peer) {
  OutBox& box = outBox(channel, peer);
  while (!box.queue.empty() && pushFront(channel, peer, box.queue.front())) {
    box.queue.pop_front();
    ++box.left;
  }
}

// True when the message has left: its descriptor is posted and, if staged, all its bytes are in slots.
bool Endpoint::pushFront(Channel channel, RankId peer, Outgoing& message) {
  Mailbox& mailbox = view_.mailbox(channel, rank_, peer);
  if (!message.posted) {
    const uint64_t number = mailbox.posted.load(std::memory_order_relaxed);
    if (number - mailbox.completed.load(std::memory_order_acquire) >= kDescriptors) return false;
    mailbox.descriptors[number % kDescriptors] = {message.bytes, message.offset, message.route,
                                                  message.operation};
    mailbox.posted.store(number + 1, std::memory_order_release);
    message.posted = true;
    // A staged message rings with its first slot, unless it has none or none is free.
    const bool slot_follows = message.route == Route::kStaged && message.bytes > 0;
    if (!slot_follows) ring(view_.rank(peer));
  }
  if (message.route == Route::kArena) return true;
  while (message.staged < message.bytes) {
    const uint64_t slot = mailbox.filled.load(std::memory_order_relaxed);
    if (slot - mailbox.released.load(std::memory_order_acquire) >= kSlots) return false;
    const size_t part = std::min(kSlotBytes, message.bytes - message.staged);
    std::memcpy(view_.slot(channel, rank_, peer, slot), message.data + message.staged, part);
    mailbox.filled.store(slot + 1, std::memory_order_release);
    message.staged += part;
    ring(view_.rank(peer));
  }
  return true;
}

const std::byte* Endpoint::findPeerArena(RankId peer, uint64_t offset, size_t bytes) {
  const std::lock_guard lock(peer_arenas_mutex_);
  Mapping& mapping = peer_arenas_[peer];
  if (mapping.bytes() == 0) {
    const size_t announced = view_.rank(peer).arena_bytes.load(std::memory_order_acquire);
    mapping = Mapping::map(segments_->arenaDescriptor(peer), announced, false,
                           fmt::format("the arena of rank {}", name(peer)));
  }
  if (offset > mapping.bytes() || bytes > mapping.bytes() - offset) return nullptr;
  return mapping.data() + offset;
}

const std::byte* Endpoint::peerArena(RankId peer, uint64_t offset, size_t bytes) {
  if (const std::byte* found = findPeerArena(peer, offset, bytes)) return found;
  breakWith(ErrorCode::kInternal,
            fmt::format("rank {} announces bytes {} to {} of an arena of {} bytes", name(peer), offset,
                        offset + bytes, view_.rank(peer).arena_bytes.load(std::memory_order_acquire)));
}

std::string Endpoint::describeWait(const Waiting& waiting) const {
  return fmt::format("rank {}: {} of {} bytes {} rank {}", name(rank_), operationName(waiting.operation),
                     waiting.bytes, waiting.action, name(waiting.peer));
}

std::optional<RankId> Endpoint::findLost(const Waiting& waiting) const {
  for (const RankId member : waiting.members) {
    if (view_.rank(member).dead.load(std::memory_order_seq_cst) != 0) return member;
  }
  const bool closed =
      view_.rank(waiting.peer).life.load(std::memory_order_seq_cst) == static_cast<uint32_t>(Life::kClosed);
  return closed ? std::optional(waiting.peer) : std::nullopt;
}

void Endpoint::breakLost(const Waiting& waiting, RankId lost) {
  const bool dead = view_.rank(lost).dead.load(std::memory_order_seq_cst) != 0;
  breakWith(
      ErrorCode::kPeerUnavailable,
      fmt::format("{}, but rank {} {}; look at that rank's log for the first cause", describeWait(waiting),
                  name(lost), dead ? "has died" : "has ended and closed its communicator"));
}

void Endpoint::breakInterrupted(const Waiting& waiting) {
  breakWith(ErrorCode::kPeerUnavailable,
            fmt::format("{}, but this rank has failed elsewhere and gives up", describeWait(waiting)));
}

std::chrono::nanoseconds Endpoint::checkDeadline(const Waiting& waiting, Clock::time_point start) {
  const auto waited = Clock::now() - start;
  if (waited >= timeout_) {
    const bool absent = view_.rank(waiting.peer).life.load() == static_cast<uint32_t>(Life::kAbsent);
    breakWith(ErrorCode::kHang, fmt::format("{}, and nothing came in {} ms; rank {} {}",
                                            describeWait(waiting), timeout_.count(), name(waiting.peer),
                                            absent ? "has not opened its communicator: did it start?"
                                                   : "is alive, but stuck or busy elsewhere"));
  }
  return std::min<std::chrono::nanoseconds>(kSlice, timeout_ - waited);
}

void Endpoint::checkUsable(RankId peer) const {
  if (broken_)
    throw Error(broken_->code(),
                fmt::format("the communicator is broken by an earlier error: {}", broken_->message()));
  if (peer >= RankId(size()))
    fail(ErrorCode::kInternal, "rank {}: peer {} of a communicator of {} ranks", name(rank_), peer, size());
}

void Endpoint::breakWith(ErrorCode code, std::string message) {
  broken_.emplace(code, std::move(message));
  throw *broken_;
}

IncomingMessage::IncomingMessage(Endpoint& endpoint, Channel channel, RankId source, Operation operation,
                                 size_t bytes, std::span<const RankId> members)
    : endpoint_(endpoint),
      channel_(channel),
      waiting_{operation, "waits for", source, bytes, members},
      mailbox_(endpoint.view_.mailbox(channel, source, endpoint.rank_)) {
  const uint64_t number = mailbox_.completed.load(std::memory_order_relaxed);
  const auto is_posted = [&] { return mailbox_.posted.load(std::memory_order_acquire) > number; };
  endpoint_.waited_.during(is_posted, [&] { endpoint_.await(waiting_, is_posted); });
  const Descriptor message = mailbox_.descriptors[number % kDescriptors];
  if (message.operation != operation) {
    endpoint_.breakWith(ErrorCode::kVersionMismatch,
                        fmt::format("rank {} does {} where rank {} does {} of {} bytes",
                                    endpoint_.name(source), operationName(message.operation),
                                    endpoint_.name(endpoint_.rank_), operationName(operation), bytes));
  }
  if (message.bytes != bytes) {
    endpoint_.breakWith(
        ErrorCode::kVersionMismatch,
        fmt::format("rank {} gives {} bytes to a {} where rank {} expects {} bytes", endpoint_.name(source),
                    message.bytes, operationName(operation), endpoint_.name(endpoint_.rank_), bytes));
  }
  if (message.route == Route::kArena) arena_ = endpoint_.peerArena(source, message.offset, bytes);
}

// A staged message's next slot is the first one that is not released. Slots of one mailbox hold its messages
// one behind the other, each beginning in a slot of its own; so the slot that a message reads is never
// another's.
std::span<const std::byte> IncomingMessage::view() {
  const size_t rest = waiting_.bytes - position_;
  if (rest == 0) return {};
  if (arena_ != nullptr) return {arena_ + position_, rest};
  const uint64_t slot = mailbox_.released.load(std::memory_order_relaxed);
  endpoint_.await(waiting_, [&] { return mailbox_.filled.load(std::memory_order_acquire) > slot; });
  return {endpoint_.view_.slot(channel_, waiting_.peer, endpoint_.rank_, slot), std::min(rest, kSlotBytes)};
}

void IncomingMessage::advance(size_t bytes) {
  position_ += bytes;
  if (arena_ != nullptr || bytes == 0) return;
  mailbox_.released.store(mailbox_.released.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  ring(endpoint_.view_.rank(waiting_.peer));
}

void IncomingMessage::finish() {
  PIPESHARD_CHECK(position_ == waiting_.bytes, "{} of {} bytes read", position_, waiting_.bytes);
  mailbox_.completed.store(mailbox_.completed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  ring(endpoint_.view_.rank(waiting_.peer));
}

void IncomingMessage::copyTo(std::byte* destination) {
  while (position_ < waiting_.bytes) {
    const auto part = view();
    std::memcpy(destination + position_, part.data(), part.size());
    advance(part.size());
    endpoint_.progress();
  }
  finish();
}

}  // namespace pipeshard::shm
