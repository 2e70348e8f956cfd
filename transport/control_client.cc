#include <algorithm>
#include <random>
#include <utility>

#include "ir/error.h"
#include "transport/control.h"
#include "transport/control_link.h"
#include "transport/control_socket.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

// Unique among all workers that ever connect; kept over reconnects, so the server knows the worker again.
std::string makeIdentity(int rank) {
  std::random_device random;
  return fmt::format("rank{}-{:08x}{:08x}", rank, random(), random());
}

class Client : public ControlClient {
 public:
  Client(const std::string& endpoint, const std::string& job_id, int rank, const ControlClientOptions& options)
      : endpoint_(endpoint),
        job_id_(options.any_job ? "" : job_id),
        rank_(rank),
        generation_(options.any_job ? 0 : options.generation),
        options_(options),
        adopts_job_(options.any_job),
        socket_(zmq::socket_type::dealer, makeIdentity(rank)) {
    if (options.keys) socket_.useKeys(*options.keys);
    try {
      socket_.socket().connect(endpoint);
    } catch (const zmq::error_t& error) {
      failControl(error, ErrorCode::kConfiguration,
                  fmt::format("cannot connect to '{}'; expected something like tcp://127.0.0.1:40123", endpoint));
    }
  }

  int rank() const override { return rank_; }
  const std::string& job() const override { return job_id_; }
  uint64_t generation() const override { return generation_; }
  const ControlCounters& counters() const override { return counters_; }

  void registerAt(std::chrono::milliseconds timeout) {
    const Deadline deadline(timeout);
    const std::string text = encodeControlMessage(makeMessage(std::string(kRegister), options_.body));
    numbering_.sent = 1;
    socket_.socket().set(zmq::sockopt::sndtimeo, 0);
    while (deadline.left() > 0ms) {
      const bool sent = socket_.send({text});
      auto answer = receive(std::min<std::chrono::milliseconds>(deadline.left(), sent ? 500ms : 10ms));
      if (!answer) continue;
      socket_.socket().set(zmq::sockopt::sndtimeo, kControlSendTimeout);
      // Any answer of the job shows that the server knows this worker; WELCOME itself may be lost.
      if (answer->type != kWelcome) early_ = std::move(answer);
      return;
    }
    fail(ErrorCode::kPeerUnavailable, "control: rank {} got no answer from the coordinator{} at '{}' within {} ms; is it running?", rank_,
         job_id_.empty() ? "" : fmt::format(" of job '{}'", job_id_), endpoint_, timeout.count());
  }

  void send(std::string_view type, nlohmann::json body) override {
    const std::string text = encodeControlMessage(makeMessage(std::string(type), std::move(body)));
    if (!socket_.send({text})) {
      fail(ErrorCode::kPeerUnavailable, "control: rank {} cannot send '{}': the coordinator at '{}' is gone or does not take messages",
           rank_, type, endpoint_);
    }
    ++numbering_.sent;
  }

  std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) override { return poll(timeout, {}).message; }

  ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) override {
    if (early_) return {std::exchange(early_, std::nullopt), {}};
    return pollWith(socket_, timeout, descriptors, [this](const ReceivedFrames& received) { return take(received.frames); });
  }

 private:
  ControlMessage makeMessage(std::string type, nlohmann::json body) const {
    return {kControlVersion, job_id_, generation_, rank_, numbering_.sent + 1, std::move(type), std::move(body), 0};
  }

  std::optional<ControlMessage> take(const std::vector<std::string>& frames);
  [[noreturn]] void failRejected(const ControlMessage& message) const;

  std::string endpoint_;
  std::string job_id_;
  int rank_;
  uint64_t generation_;
  ControlClientOptions options_;
  bool adopts_job_;  // until the first answer
  ControlSocket socket_;
  ControlCounters counters_;
  Numbering numbering_;
  std::optional<ControlMessage> early_;
};

std::optional<ControlMessage> Client::take(const std::vector<std::string>& frames) {
  std::optional<ControlMessage> message;
  if (frames.size() == 1) message = decodeControlMessage(frames[0]);
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
  if (const auto fault = controlFault(options_.schema, message->type, message->body)) {
    ++counters_.garbage;
    return makeFault(*message, *fault);
  }
  return message;
}

void Client::failRejected(const ControlMessage& message) const {
  const bool has_code =
      message.body.is_object() && message.body.contains("code") && message.body["code"] == static_cast<int>(ErrorCode::kVersionMismatch);
  const bool mismatch = has_code || message.version != kControlVersion;
  const bool has_text = message.body.is_object() && message.body.contains("message") && message.body["message"].is_string();
  fail(mismatch ? ErrorCode::kVersionMismatch : ErrorCode::kConfiguration, "control: the coordinator at '{}' rejects rank {}: {}",
       endpoint_, rank_,
       has_text ? message.body["message"].get<std::string>()
                : fmt::format("it speaks version {}, this worker {}", message.version, kControlVersion));
}

}  // namespace

std::unique_ptr<ControlClient> ControlClient::connect(const std::string& endpoint, const std::string& job_id, int rank,
                                                      std::chrono::milliseconds timeout, const ControlClientOptions& options) {
  auto client = std::make_unique<Client>(endpoint, job_id, rank, options);
  client->registerAt(timeout);
  return client;
}

}  // namespace pipeshard
