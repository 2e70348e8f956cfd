#include "transport/control/control_client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "ir/base/error.h"
#include "transport/control/control_link.h"
#include "transport/control/control_monitor.h"
#include "transport/control/control_socket.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// A server closes at once when it cannot decrypt what was encrypted for another key; a slow one takes longer,
// a dying one does not come back for more.
constexpr auto kClosedAtOnce = 1s;
constexpr int kClosedHandshakes = 3;

// Unique among all workers that ever connect; kept over reconnects, so the server knows the worker again.
std::string makeIdentity(int rank) {
  std::random_device random;
  return fmt::format("rank{}-{:08x}{:08x}", rank, random(), random());
}

class Client : public ControlClient {
 public:
  Client(const std::string& endpoint, const std::string& job_id, int rank,
         const ControlClientOptions& options)
      : endpoint_(endpoint),
        job_id_(options.any_job ? "" : job_id),
        rank_(rank),
        generation_(options.any_job ? 0 : options.generation),
        options_(options),
        adopts_job_(options.any_job),
        socket_(zmq::socket_type::dealer, makeIdentity(rank), endpoint) {
    if (options.keys) socket_.useKeys(*options.keys);
    monitor_.emplace(socket_.context(), socket_.socket());
    try {
      socket_.socket().connect(endpoint);
    } catch (const zmq::error_t& error) {
      failControl(
          error, ErrorCode::kConfiguration,
          fmt::format("cannot connect to '{}'; expected something like tcp://127.0.0.1:40123", endpoint));
    }
  }

  int rank() const override { return rank_; }
  const std::string& job() const override { return job_id_; }
  uint64_t generation() const override { return generation_; }
  const ControlCounters& counters() const override { return counters_; }

  void registerAt(std::chrono::milliseconds timeout);

  void send(std::string_view type, nlohmann::json body, std::span<const std::byte> payload) override {
    if (!sendMessage(socket_, "", makeMessage(std::string(type), std::move(body)), payload,
                     /*patience=*/true)) {
      fail(ErrorCode::kPeerUnavailable,
           "control: rank {} cannot send '{}': the coordinator at '{}' is gone or does not take messages",
           rank_, type, endpoint_);
    }
    ++numbering_.sent;
  }

  std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) override {
    return poll(timeout, {}).message;
  }

  ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) override {
    if (early_) return {std::exchange(early_, std::nullopt), {}};
    return pollWith(socket_, timeout, descriptors,
                    [this](const ReceivedFrames& received) { return take(received.frames); });
  }

 private:
  ControlMessage makeMessage(std::string type, nlohmann::json body) const {
    return {kControlVersion,     job_id_,         generation_,    rank_,
            numbering_.sent + 1, std::move(type), std::move(body)};
  }

  std::optional<ControlMessage> take(const std::vector<std::string>& frames);
  [[noreturn]] void failRejected(const ControlMessage& message) const;
  void checkHandshakes();
  [[noreturn]] void failAuthentication(std::string_view why) const;

  std::string endpoint_;
  std::string job_id_;
  int rank_;
  uint64_t generation_;
  ControlClientOptions options_;
  bool adopts_job_;  // until the first answer
  ControlSocket socket_;
  std::optional<ControlMonitor> monitor_;  // until registered
  Clock::time_point connected_;
  int connections_ = 0;
  int closed_handshakes_ = 0;  // one after the other
  ControlCounters counters_;
  Numbering numbering_;
  std::optional<ControlMessage> early_;
};

void Client::registerAt(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  const std::string text = encodeControlMessage(makeMessage(std::string(kRegister), options_.body));
  if (text.size() > kMaxRegisterBytes) {
    fail(ErrorCode::kInternal, "control: the body of REGISTER makes it {} bytes long, at most {} are allowed",
         text.size(), kMaxRegisterBytes);
  }
  numbering_.sent = 1;
  std::chrono::milliseconds pause = 1ms;
  for (Clock::time_point repeat = Clock::now(); deadline.left() > 0ms;) {
    if (Clock::now() >= repeat && socket_.send({text}, /*patience=*/false)) repeat = Clock::now() + 500ms;
    auto answer = receive(std::min(deadline.left(), pause));
    if (!answer) {
      pause = std::min<std::chrono::milliseconds>(pause * 2, 20ms);
      checkHandshakes();
      continue;
    }
    // Any answer of the job shows that the server knows this worker; WELCOME itself may be lost.
    if (answer->type != kWelcome) early_ = std::move(answer);
    monitor_.reset();
    return;
  }
  fail(ErrorCode::kPeerUnavailable,
       "control: rank {} got no answer from the coordinator{} at '{}' within {} ms; {}", rank_,
       job_id_.empty() ? "" : fmt::format(" of job '{}'", job_id_), endpoint_, timeout.count(),
       connections_ == 0 ? "nothing listens there: is it running, and is no firewall in between?"
                         : "something listens there: is it a coordinator, and not stopped?");
}

// Ends a registration that cannot succeed.
void Client::checkHandshakes() {
  using Kind = HandshakeEvent::Kind;
  while (const auto event = monitor_->next()) {
    switch (event->kind) {
      case Kind::kConnected:
        connected_ = Clock::now();
        ++connections_;
        break;
      case Kind::kSucceeded: closed_handshakes_ = 0; break;
      case Kind::kRefused: failAuthentication("refused this key");
      case Kind::kMismatch:
        failAuthentication(options_.keys ? "uses no keys" : "asks for a key, and there is none");
      case Kind::kMalformed:
      case Kind::kEnded: break;
      case Kind::kBroken:
        closed_handshakes_ = Clock::now() - connected_ < kClosedAtOnce ? closed_handshakes_ + 1 : 0;
        // Without a key, too: a server that asks for one may close before its greeting has been read.
        if (closed_handshakes_ >= kClosedHandshakes) {
          failAuthentication(
              options_.keys
                  ? "refused this key, or uses no keys (it closes the connection at the first encrypted word)"
                  : "closes the connection at once, as one that asks for a key does, and there is none");
        }
    }
  }
}

void Client::failAuthentication(std::string_view why) const {
  fail(ErrorCode::kAuthentication,
       "control: authentication failed: the coordinator at '{}' {}; use the key file of this job", endpoint_,
       why);
}

std::optional<ControlMessage> Client::take(const std::vector<std::string>& frames) {
  std::optional<ControlMessage> message = decodeControlFrames(frames);
  if (!message || message->type == kFault) {
    ++counters_.garbage;
    return std::nullopt;
  }
  if (message->type == kReject) failRejected(*message);
  if (message->version != kControlVersion) {
    ++counters_.other_version;
    return std::nullopt;
  }
  if (adopts_job_) {
    job_id_ = message->job_id;
    generation_ = message->generation;
    adopts_job_ = false;
  }
  if (message->job_id != job_id_ || message->generation != generation_) {
    ++(message->job_id != job_id_ ? counters_.other_job : counters_.stale);
    return std::nullopt;
  }
  if (!acceptSequence(numbering_, *message, counters_)) return std::nullopt;
  if (message->type == kWelcome) return message;
  if (const auto fault =
          controlFault(options_.schema, message->type, message->body, message->payload.size())) {
    ++counters_.garbage;
    message->type = kFault;
    message->body = {{"message", *fault}};
  }
  return message;
}

void Client::failRejected(const ControlMessage& message) const {
  const auto has_code = [&](ErrorCode code) {
    return message.body.is_object() && message.body.contains("code") &&
           message.body["code"] == static_cast<int>(code);
  };
  const bool mismatch = has_code(ErrorCode::kVersionMismatch) || message.version != kControlVersion;
  const ErrorCode other =
      has_code(ErrorCode::kAuthentication) ? ErrorCode::kAuthentication : ErrorCode::kConfiguration;
  const bool has_text =
      message.body.is_object() && message.body.contains("message") && message.body["message"].is_string();
  fail(mismatch ? ErrorCode::kVersionMismatch : other, "control: the coordinator at '{}' rejects rank {}: {}",
       endpoint_, rank_,
       has_text ? message.body["message"].get<std::string>()
                : fmt::format("it speaks version {}, this worker {}", message.version, kControlVersion));
}

}  // namespace

std::unique_ptr<ControlClient> ControlClient::connect(const std::string& endpoint, const std::string& job_id,
                                                      int rank, std::chrono::milliseconds timeout,
                                                      const ControlClientOptions& options) {
  auto client = std::make_unique<Client>(endpoint, job_id, rank, options);
  client->registerAt(timeout);
  return client;
}

}  // namespace pipeshard
