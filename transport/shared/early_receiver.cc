#include "transport/shared/early_receiver.h"

#include <signal.h>

#include <algorithm>
#include <cstring>

#include "ir/base/ids_format.h"

namespace pipeshard::shm {
namespace {

using namespace std::chrono_literals;

// Between two blocks the caller can take the message over.
constexpr size_t kBlockBytes = 1 << 20;
// A rung doorbell ends a sleep; this only bounds what a lost ring could cost.
constexpr auto kLongestSleep = 100ms;

}  // namespace

EarlyReceiver::~EarlyReceiver() {
  if (!thread_.joinable()) return;
  {
    const Lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  ring(endpoint_.view_.rank(endpoint_.rank_));
  thread_.join();
}

void EarlyReceiver::post(EarlyMessage& message) {
  {
    const Lock lock(mutex_);
    posted_.push_back(&message);
  }
  wake();
  if (thread_.joinable()) return;
  // Signals are for the threads of the program.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void EarlyReceiver::wake() {
  changed_.notify_all();
  ring(endpoint_.view_.rank(endpoint_.rank_));
}

void EarlyReceiver::takeOver(EarlyMessage& message) {
  const Lock lock(mutex_);
  const auto first = std::find_if(posted_.begin(), posted_.end(),
                                  [&](const EarlyMessage* of) { return of->source == message.source; });
  if (first == posted_.end() || *first != &message) {
    fail(ErrorCode::kInternal,
         "rank {} waits for a posted receive from rank {} before it has waited for the last one",
         endpoint_.name(endpoint_.rank_), endpoint_.name(message.source));
  }
  message.taken_over = true;
}

void EarlyReceiver::release(EarlyMessage& message) {
  bool more = false;
  {
    const Lock lock(mutex_);
    std::erase(posted_, &message);
    more = std::any_of(posted_.begin(), posted_.end(),
                       [&](const EarlyMessage* of) { return of->source == message.source; });
  }
  if (more) wake();
}

bool EarlyReceiver::expects(RankId source) {
  const Lock lock(mutex_);
  return std::any_of(posted_.begin(), posted_.end(),
                     [&](const EarlyMessage* message) { return message->source == source; });
}

void EarlyReceiver::run() {
  RankState& self = endpoint_.view_.rank(endpoint_.rank_);
  Lock lock(mutex_);
  const auto open = [this](const EarlyMessage* message) { return isNext(*message); };
  while (!closing_) {
    if (std::none_of(posted_.begin(), posted_.end(), open)) {
      changed_.wait(lock);
      continue;
    }
    if (copyAll()) {
      lock.unlock();
      lock.lock();
      continue;
    }
    const Sleeper sleeper(self);
    const uint32_t bell = self.doorbell.load(std::memory_order_seq_cst);
    if (copyAll()) continue;
    lock.unlock();
    sleepOn(self, bell, kLongestSleep);
    lock.lock();
  }
}

// The first of its source that is not there, and one for this thread.
bool EarlyReceiver::isNext(const EarlyMessage& message) const {
  if (message.finished) return false;
  const auto first = std::find_if(posted_.begin(), posted_.end(), [&](const EarlyMessage* of) {
    return of->source == message.source && !of->finished;
  });
  return *first == &message && !message.refused && !message.taken_over;
}

bool EarlyReceiver::copyAll() {
  bool copied = false;
  for (EarlyMessage* message : posted_) copied = (isNext(*message) && copySome(*message)) || copied;
  return copied;
}

// A block of it, if one is there.
bool EarlyReceiver::copySome(EarlyMessage& message) {
  Mailbox& mailbox = endpoint_.view_.mailbox(Channel::kPointToPoint, message.source, endpoint_.rank_);
  const uint64_t number = mailbox.completed.load(std::memory_order_relaxed);
  if (mailbox.posted.load(std::memory_order_acquire) <= number) return false;
  const Descriptor descriptor = mailbox.descriptors[number % kDescriptors];
  message.refused = descriptor.operation != Operation::kSend || descriptor.bytes != message.to.size();
  if (message.refused) return false;
  if (message.position < message.to.size() && !copyBlock(message, mailbox, descriptor)) return false;
  if (message.position == message.to.size()) {
    mailbox.completed.store(number + 1, std::memory_order_release);
    ring(endpoint_.view_.rank(message.source));
    message.finished = true;
  }
  return true;
}

bool EarlyReceiver::copyBlock(EarlyMessage& message, Mailbox& mailbox, const Descriptor& descriptor) {
  std::byte* to = message.to.data() + message.position;
  const size_t rest = message.to.size() - message.position;
  if (descriptor.route == Route::kArena) {
    const std::byte* from = nullptr;
    try {
      from = endpoint_.findPeerArena(message.source, descriptor.offset, descriptor.bytes);
    } catch (const Error&) {
      // The caller meets it again.
    }
    message.refused = from == nullptr;
    if (message.refused) return false;
    const size_t bytes = std::min(rest, kBlockBytes);
    std::memcpy(to, from + message.position, bytes);
    message.position += bytes;
    return true;
  }
  const uint64_t slot = mailbox.released.load(std::memory_order_relaxed);
  if (mailbox.filled.load(std::memory_order_acquire) <= slot) return false;
  const size_t bytes = std::min(rest, kSlotBytes);
  std::memcpy(to, endpoint_.view_.slot(Channel::kPointToPoint, message.source, endpoint_.rank_, slot), bytes);
  mailbox.released.store(slot + 1, std::memory_order_release);
  ring(endpoint_.view_.rank(message.source));
  message.position += bytes;
  return true;
}

}  // namespace pipeshard::shm
