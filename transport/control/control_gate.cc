#include "transport/control/control_gate.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "transport/control/control_endpoint.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

constexpr const char* kZapAddress = "inproc://zeromq.zap.01";  // fixed by ZeroMQ, one per context
constexpr const char* kZapDomain = "pipeshard";
// Refuses everybody should the handler be missing. Stable in the library, but in its headers among the drafts
// (4.3.4).
constexpr int kZapEnforceDomain = 93;
constexpr std::chrono::milliseconds kSelfTest{5000};
constexpr size_t kRawKey = 32;

std::string rawKey(const std::string& z85) {
  std::array<uint8_t, kRawKey> bytes{};
  if (!isJobKey(z85) || ::zmq_z85_decode(bytes.data(), z85.c_str()) == nullptr) {
    fail(ErrorCode::kAuthentication, "control: a public key is not a key of 40 characters");
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

ControlGate::ControlGate(ControlSocket& socket, Keys keys)
    : socket_(socket), needs_keys_(keys == Keys::kNeeded) {
  try {
    requests_ = zmq::socket_t(socket.context(), zmq::socket_type::rep);
    requests_.set(zmq::sockopt::linger, 0);
    requests_.bind(kZapAddress);
    socket.socket().set(zmq::sockopt::zap_domain, kZapDomain);
  } catch (const zmq::error_t& error) {
    failControl(error, ErrorCode::kConfiguration,
                "cannot make the socket that checks keys; check `ulimit -n`");
  }
  const int one = 1;
  // Missing in other builds of ZeroMQ; the self-test tells whether strangers are refused.
  (void)::zmq_setsockopt(socket.socket().handle(), kZapEnforceDomain, &one, sizeof one);
  if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0)
    fail(ErrorCode::kOutOfMemory, "control: cannot make a pipe: {}", std::strerror(errno));
  // A signal in the middle of an answer would leave it half sent, and nobody could be let in after it.
  sigset_t all;
  sigset_t previous;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  thread_ = std::thread([this] { serve(); });
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

ControlGate::~ControlGate() {
  // The monitor's events are taken until there are no more, or ZeroMQ would wait for that for ever.
  if (monitor_) ::zmq_socket_monitor(socket_.socket().handle(), nullptr, 0);
  stopping_.store(true);
  const char byte = 0;
  if (::write(wake_[1], &byte, 1) < 0) {
    // It is full, so the thread is awake.
  }
  thread_.join();
  ::close(wake_[0]);
  ::close(wake_[1]);
}

void ControlGate::allow(const std::string& public_key, const std::string& user) {
  std::string raw = rawKey(public_key);
  const std::lock_guard lock(mutex_);
  users_[std::move(raw)] = user;
}

void ControlGate::watch(std::function<void()> on_end) {
  on_end_ = std::move(on_end);
  noteFailure("");  // of requireRefusal
  monitor_.emplace(socket_.context(), socket_.socket());
  watching_.store(true);
  const char byte = 0;
  if (::write(wake_[1], &byte, 1) < 0)
    fail(ErrorCode::kInternal, "control: cannot wake a thread: {}", std::strerror(errno));
}

std::string ControlGate::lastFailure() const {
  const std::lock_guard lock(mutex_);
  return last_failure_;
}

void ControlGate::noteFailure(std::string what) {
  const std::lock_guard lock(mutex_);
  last_failure_ = std::move(what);
}

void ControlGate::serve() {
  while (!stopping_.load()) {
    std::vector<zmq::pollitem_t> items = {{nullptr, wake_[0], ZMQ_POLLIN, 0},
                                          {requests_.handle(), 0, ZMQ_POLLIN, 0}};
    if (watching_.load()) items.push_back({monitor_->socket().handle(), 0, ZMQ_POLLIN, 0});
    try {
      zmq::poll(items, -1ms);
      if (items[0].revents != 0) {
        std::array<char, 16> bytes{};
        if (::read(wake_[0], bytes.data(), bytes.size()) < 0 && errno != EAGAIN && errno != EINTR) return;
      }
      if (items[1].revents != 0) answerRequest();
      if (items.size() > 2 && items[2].revents != 0) countFailures();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) return;  // nobody is let in any more
    }
  }
}

// https://rfc.zeromq.org/spec/27: version, request, domain, address, identity, mechanism, credentials.
void ControlGate::answerRequest() {
  std::vector<std::string> frames;
  zmq::message_t frame;
  do {
    if (!requests_.recv(frame, zmq::recv_flags::dontwait)) return;
    frames.push_back(frame.to_string());
  } while (frame.more());
  const bool complete = frames.size() >= 6;
  const bool has_key = complete && frames[5] == "CURVE" && frames.size() == 7 && frames[6].size() == kRawKey;
  bool allowed = complete && frames[0] == "1.0" && (needs_keys_ ? has_key : frames[5] == "NULL");
  std::string user;
  if (allowed && needs_keys_) {
    const std::lock_guard lock(mutex_);
    const auto found = users_.find(frames[6]);
    allowed = found != users_.end();
    if (allowed) user = found->second;
  }
  if (!allowed && complete) noteFailure(fmt::format("unknown key from {}", frames[3]));
  const std::array<std::string, 6> answer = {"1.0",
                                             frames.size() > 1 ? frames[1] : "",
                                             allowed ? "200" : "400",
                                             allowed ? "OK" : "unknown key",
                                             user,
                                             ""};
  for (size_t i = 0; i < answer.size(); ++i) {
    requests_.send(zmq::buffer(answer[i]),
                   i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
}

void ControlGate::countFailures() {
  using Kind = HandshakeEvent::Kind;
  while (const auto event = monitor_->next()) {
    if (event->kind == Kind::kEnded && on_end_) on_end_();
    if (event->kind == Kind::kConnected || event->kind == Kind::kSucceeded || event->kind == Kind::kEnded)
      continue;
    ++failed_;
    if (event->kind == Kind::kMismatch)
      noteFailure(!needs_keys_ ? "somebody with a key; this job has none" : "somebody without a key");
    if (event->kind == Kind::kMalformed)
      noteFailure("bytes that are not ZeroMQ's, or encrypted for another key");
    if (event->kind == Kind::kBroken)
      noteFailure("a connection that ended or was silent during its handshake");
  }
}

void requireRefusal(const std::string& endpoint, const std::string& server_public) {
  const ClientKeys stranger = [&] {
    ClientKeys keys = makeJobKeys().clientKeys();
    keys.server_public = server_public;
    return keys;
  }();
  ControlSocket socket(zmq::socket_type::dealer, "stranger", endpoint);
  socket.useKeys(stranger);
  ControlMonitor monitor(socket.context(), socket.socket());
  try {
    socket.socket().connect(reachableHere(endpoint));
    for (const Deadline deadline(kSelfTest); deadline.left() > 0ms;) {
      std::vector<zmq::pollitem_t> items = {{monitor.socket().handle(), 0, ZMQ_POLLIN, 0}};
      try {
        zmq::poll(items, deadline.left());
      } catch (const zmq::error_t& error) {
        if (error.num() != EINTR) throw;  // a signal, which others look after
      }
      while (const auto event = monitor.next()) {
        if (event->kind == HandshakeEvent::Kind::kRefused) return;
        if (event->kind != HandshakeEvent::Kind::kSucceeded) continue;
        fail(ErrorCode::kAuthentication,
             "control: '{}' let in a stranger's key; this ZeroMQ cannot be trusted to check keys", endpoint);
      }
    }
  } catch (const zmq::error_t& error) {
    failControl(error, ErrorCode::kAuthentication,
                fmt::format("cannot test whether '{}' refuses strangers", endpoint));
  }
  fail(ErrorCode::kAuthentication,
       "control: '{}' did not refuse a stranger's key within {} ms; is a firewall before it?", endpoint,
       kSelfTest.count());
}

}  // namespace pipeshard
