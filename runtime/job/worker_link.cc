#include "runtime/job/worker_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "runtime/files/hex.h"
#include "runtime/identity/build_identity.h"
#include "runtime/job/worker_arguments.h"
#include "runtime/machine/handover.h"
#include "runtime/messages/control_types.h"
#include "transport/control/control.h"
#include "transport/control/control_client.h"

namespace pipeshard {
namespace {

constexpr std::chrono::seconds kLinkTimeout{30};
constexpr std::chrono::milliseconds kHeartbeat{500};
// How soon a worker notices that its parent is gone.
constexpr std::chrono::milliseconds kLinkLookAround{250};

}  // namespace

WorkerLink::WorkerLink(const WorkerOptions& options) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_.valid()) fail(ErrorCode::kOutOfMemory, "cannot make an eventfd: {}", std::strerror(errno));
  thread_ = std::thread([this, options] { serve(options); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return registered_ || failure_; });
  if (!failure_) return;
  const Error failure = *failure_;
  lock.unlock();
  thread_.join();
  throw failure;
}

WorkerLink::~WorkerLink() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void WorkerLink::wake() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) {
    // The counter is at its limit: the thread is awake already.
  }
}

void WorkerLink::send(std::string_view type, nlohmann::json body) {
  {
    const std::lock_guard lock(mutex_);
    outgoing_.emplace_back(type, std::move(body));
  }
  wake();
}

void WorkerLink::setStatus(std::function<WorkerStatus()> status) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
}

ControlMessage WorkerLink::next() {
  std::optional<ControlMessage> message;
  while (!message) message = nextWithin(std::chrono::hours(1));
  return *message;
}

std::optional<ControlMessage> WorkerLink::nextWithin(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  idle_.store(true);
  changed_.wait_for(lock, timeout, [&] { return !incoming_.empty() || failure_; });
  idle_.store(false);
  if (!incoming_.empty()) {
    ControlMessage message = std::move(incoming_.front());
    incoming_.pop_front();
    return message;
  }
  if (failure_) throw *failure_;
  return std::nullopt;
}

void WorkerLink::store(const std::string& key, const std::string& bytes) {
  const std::string text = toHex(std::as_bytes(std::span(bytes)));
  {
    const std::lock_guard lock(mutex_);
    stored_[key] = bytes;
  }
  send(control::kStore, {{"key", key}, {"value", text}});
}

std::string WorkerLink::fetch(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return stored_.contains(key) || failure_; })) {
    fail(ErrorCode::kPeerUnavailable, "nobody has announced '{}' within {} ms", key, timeout.count());
  }
  if (failure_) throw *failure_;
  return stored_.at(key);
}

void WorkerLink::serve(const WorkerOptions& options) {
  bool registered = false;
  try {
    ControlClientOptions client_options;
    client_options.generation = options.generation;
    client_options.keys = options.keys;
    client_options.schema = workerCommands();
    client_options.body = {
        {"pid", ::getpid()}, {"build", buildJson(thisBuild())}, {"attempt", options.attempt}};
    const auto client = ControlClient::connect(options.endpoint, options.job, options.rank.index(),
                                               kLinkTimeout, client_options);
    {
      const std::lock_guard lock(mutex_);
      registered = registered_ = true;
    }
    changed_.notify_all();
    exchange(*client, options);
  } catch (const Error& error) {
    // Without a coordinator there is nobody to work for, whatever the other thread is doing.
    if (registered && error.code() == ErrorCode::kPeerUnavailable)
      ::_exit(static_cast<int>(ErrorCode::kPeerUnavailable));
    const std::lock_guard lock(mutex_);
    failure_ = error;
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = Error(ErrorCode::kInternal, error.what());
  }
  changed_.notify_all();
}

// True when the owner is done and everything has been sent.
bool WorkerLink::sendQueued(ControlClient& client) {
  while (true) {
    std::pair<std::string, nlohmann::json> message;
    {
      const std::lock_guard lock(mutex_);
      if (outgoing_.empty()) return closing_;
      message = std::move(outgoing_.front());
      outgoing_.pop_front();
    }
    client.send(message.first, std::move(message.second));
  }
}

void WorkerLink::take(ControlMessage message) {
  if (message.type == control::kAbort) ::_exit(static_cast<int>(ErrorCode::kPeerUnavailable));
  if (message.type == control::kStop) stop_requested_.store(true);
  {
    const std::lock_guard lock(mutex_);
    if (message.type == control::kStore) {
      const std::vector<std::byte> bytes = fromHex(message.body.at("value").get<std::string>());
      stored_[message.body.at("key").get<std::string>()] = {reinterpret_cast<const char*>(bytes.data()),
                                                            bytes.size()};
    } else {
      incoming_.push_back(std::move(message));
    }
  }
  changed_.notify_all();
}

void WorkerLink::beat(ControlClient& client) {
  std::function<WorkerStatus()> status;
  {
    const std::lock_guard lock(mutex_);
    status = status_;
  }
  const WorkerStatus now = status ? status() : WorkerStatus();
  client.send(control::kHeartbeat, {{"where", now.where},
                                    {"progress", now.progress},
                                    {"computing", now.computing},
                                    {"waiting", now.waiting},
                                    {"idle", idle_.load()}});
}

void WorkerLink::setInterrupt(std::function<void()> interrupt) {
  const std::lock_guard lock(mutex_);
  interrupt_ = std::move(interrupt);
  if (interrupt_ && hasLeft()) interrupt_();
}

void WorkerLink::leave() {
  const std::lock_guard lock(mutex_);
  left_.store(true);
  stop_requested_.store(true);
  incoming_.clear();
  outgoing_.clear();
  failure_ = Error(ErrorCode::kPeerUnavailable, "this attempt to run the job is over");
  if (interrupt_) interrupt_();
}

void WorkerLink::exchange(ControlClient& client, const WorkerOptions& options) {
  auto last_heartbeat = std::chrono::steady_clock::now();
  std::vector<int> descriptors{wake_.get()};
  if (options.attempts_descriptor >= 0) descriptors.push_back(options.attempts_descriptor);
  while (!sendQueued(client)) {
    // The kernel kills the worker with its parent; this is for a parent that died before that was asked for.
    if (::getppid() != options.parent) ::_exit(static_cast<int>(ErrorCode::kPeerUnavailable));
    ControlEvent event = client.poll(kLinkLookAround, descriptors);
    if (std::ranges::count(event.ready, options.attempts_descriptor) > 0) {
      const std::optional<Handover> word = takeHandover(options.attempts_descriptor);
      if (!word) ::_exit(static_cast<int>(ErrorCode::kPeerUnavailable));  // its parent has given it up
      if (word->text == kLeave) return leave();
    }
    if (!event.ready.empty()) {
      uint64_t count = 0;
      if (::read(wake_.get(), &count, sizeof count) < 0 && errno != EAGAIN)
        fail(ErrorCode::kInternal, "eventfd: {}", std::strerror(errno));
    }
    if (event.message) take(std::move(*event.message));
    const auto now = std::chrono::steady_clock::now();
    if (now - last_heartbeat < kHeartbeat) continue;
    last_heartbeat = now;
    beat(client);
  }
}

}  // namespace pipeshard
