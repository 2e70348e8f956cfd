#include "transport/control.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <utility>

#include "ir/error.h"
#include "transport/control_socket.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

// Numbers what is sent to one peer and checks the numbers of what comes from it.
struct Numbering {
  uint64_t sent = 0;
  uint64_t received = 0;
};

// False for a duplicate.
bool acceptSequence(Numbering& numbering, ControlMessage& message, ControlCounters& counters) {
  if (message.sequence <= numbering.received) {
    ++counters.duplicate;
    return false;
  }
  message.lost_before = message.sequence - numbering.received - 1;
  counters.lost += message.lost_before;
  numbering.received = message.sequence;
  return true;
}

// The loop of both sides: `take` looks at one message that is there and says what of it concerns the caller.
template <typename Take>
ControlEvent pollWith(ControlSocket& socket, std::chrono::milliseconds timeout, std::span<const int> descriptors, Take&& take) {
  constexpr int kDrainedAtDeadline = 100;  // messages that are there but do not concern the caller
  const Deadline deadline(timeout);
  ControlEvent event;
  for (int looks = 0;; ++looks) {
    bool has_message = false;
    event.ready = socket.wait(deadline, descriptors, has_message);
    if (has_message) {
      if (auto frames = socket.receiveNow()) event.message = take(*frames);
    }
    if (event.message || !event.ready.empty()) return event;
    if (deadline.left() == 0ms && (!has_message || looks >= kDrainedAtDeadline)) return event;
  }
}

class Server : public ControlServer {
 public:
  Server(const std::string& job_id, uint64_t generation, const std::string& endpoint)
      : job_id_(job_id), generation_(generation), socket_(zmq::socket_type::router, "") {
    try {
      socket_.socket().bind(endpoint);
      endpoint_ = socket_.socket().get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& error) {
      const ErrorCode code = error.num() == EADDRINUSE ? ErrorCode::kAddressInUse : ErrorCode::kConfiguration;
      failControl(error, code, fmt::format("cannot listen on '{}'; port * takes a free one", endpoint));
    }
  }

  const std::string& endpoint() const override { return endpoint_; }
  const ControlCounters& counters() const override { return counters_; }
  bool isRegistered(int rank) const override { return workers_.count(rank) > 0; }
  void forget(int rank) override { workers_.erase(rank); }

  std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) override { return poll(timeout, {}).message; }

  ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) override {
    return pollWith(socket_, timeout, descriptors, [this](const std::vector<std::string>& frames) { return take(frames); });
  }

  void send(int rank, std::string_view type, nlohmann::json body) override {
    const auto worker = workers_.find(rank);
    if (worker == workers_.end()) fail(ErrorCode::kPeerUnavailable, "control: '{}' for rank {}, which has not registered", type, rank);
    if (!sendTo(worker->second.identity, worker->second.numbering.sent + 1, type, std::move(body))) {
      fail(ErrorCode::kPeerUnavailable, "control: rank {} is gone or does not take messages any more; '{}' was not sent", rank, type);
    }
    ++worker->second.numbering.sent;
  }

 private:
  struct Worker {
    std::string identity;
    Numbering numbering;
  };

  bool sendTo(const std::string& identity, uint64_t sequence, std::string_view type, nlohmann::json body) {
    const ControlMessage message{kControlVersion, job_id_, generation_, kCoordinatorRank, sequence, std::string(type), std::move(body), 0};
    const std::string text = encodeControlMessage(message);
    return socket_.send({identity, text});
  }

  void reject(const std::string& identity, ErrorCode code, const std::string& reason) {
    // It may be gone already; then nobody needs the answer.
    (void)sendTo(identity, 1, kReject, {{"code", static_cast<int>(code)}, {"message", reason}});
  }

  std::optional<ControlMessage> take(const std::vector<std::string>& frames) {
    std::optional<ControlMessage> message;
    if (frames.size() == 2) message = decodeControlMessage(frames[1]);
    if (!message) {
      ++counters_.garbage;
      return std::nullopt;
    }
    const std::string& identity = frames[0];
    if (message->version != kControlVersion) {
      ++counters_.other_version;
      if (message->type == kRegister) {
        reject(identity, ErrorCode::kVersionMismatch,
               fmt::format("the worker speaks control version {}, the coordinator {}; install one version everywhere", message->version,
                           kControlVersion));
      }
      return std::nullopt;
    }
    if (message->job_id != job_id_ || message->generation != generation_) {
      ++(message->job_id != job_id_ ? counters_.other_job : counters_.stale);
      return std::nullopt;
    }
    return message->type == kRegister ? registerWorker(identity, std::move(*message)) : takeRegular(identity, std::move(*message));
  }

  std::optional<ControlMessage> takeRegular(const std::string& identity, ControlMessage message) {
    const auto worker = workers_.find(message.rank);
    if (worker == workers_.end() || worker->second.identity != identity) {
      ++counters_.unregistered;
      return std::nullopt;
    }
    if (!acceptSequence(worker->second.numbering, message, counters_)) return std::nullopt;
    return message;
  }

  std::optional<ControlMessage> registerWorker(const std::string& identity, ControlMessage message) {
    if (message.rank < 0) {
      ++counters_.garbage;
      return std::nullopt;
    }
    const auto [worker, is_new] = workers_.try_emplace(message.rank, Worker{identity, {}});
    if (worker->second.identity != identity) {
      reject(identity, ErrorCode::kConfiguration, fmt::format("rank {} of job '{}' has registered already", message.rank, job_id_));
      return std::nullopt;
    }
    // A client repeats REGISTER until it is answered; only the first one goes to the caller.
    if (!is_new) ++counters_.duplicate;
    Numbering& numbering = worker->second.numbering;
    if (is_new) numbering = {1, message.sequence};
    const bool welcomed = numbering.sent > 1 || sendTo(identity, 1, kWelcome, nlohmann::json::object());
    if (!welcomed) workers_.erase(worker);
    return welcomed && is_new ? std::optional(std::move(message)) : std::nullopt;
  }

  std::string job_id_;
  uint64_t generation_;
  std::string endpoint_;
  ControlSocket socket_;
  ControlCounters counters_;
  std::map<int, Worker> workers_;
};

// Unique among all workers that ever connect; kept over reconnects, so the server knows the worker again.
std::string makeIdentity(int rank) {
  std::random_device random;
  return fmt::format("rank{}-{:08x}{:08x}", rank, random(), random());
}

class Client : public ControlClient {
 public:
  Client(const std::string& endpoint, const std::string& job_id, int rank, const ControlClientOptions& options)
      : endpoint_(endpoint), job_id_(job_id), rank_(rank), options_(options), socket_(zmq::socket_type::dealer, makeIdentity(rank)) {
    try {
      socket_.socket().connect(endpoint);
    } catch (const zmq::error_t& error) {
      failControl(error, ErrorCode::kConfiguration,
                  fmt::format("cannot connect to '{}'; expected something like tcp://127.0.0.1:40123", endpoint));
    }
  }

  int rank() const override { return rank_; }
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
    fail(ErrorCode::kPeerUnavailable,
         "control: rank {} got no answer from the coordinator of job '{}' at '{}' within {} ms; is it running, and is it this job?", rank_,
         job_id_, endpoint_, timeout.count());
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
    return pollWith(socket_, timeout, descriptors, [this](const std::vector<std::string>& frames) { return take(frames); });
  }

 private:
  ControlMessage makeMessage(std::string type, nlohmann::json body) const {
    return {kControlVersion, job_id_, options_.generation, rank_, numbering_.sent + 1, std::move(type), std::move(body), 0};
  }

  std::optional<ControlMessage> take(const std::vector<std::string>& frames) {
    std::optional<ControlMessage> message;
    if (frames.size() == 1) message = decodeControlMessage(frames[0]);
    if (!message) {
      ++counters_.garbage;
      return std::nullopt;
    }
    if (message->type == kReject) failRejected(*message);
    if (message->version != kControlVersion) {
      ++counters_.other_version;
      return std::nullopt;
    }
    if (message->job_id != job_id_ || message->generation != options_.generation) {
      ++(message->job_id != job_id_ ? counters_.other_job : counters_.stale);
      return std::nullopt;
    }
    if (!acceptSequence(numbering_, *message, counters_)) return std::nullopt;
    return message;
  }

  [[noreturn]] void failRejected(const ControlMessage& message) const {
    const bool has_code =
        message.body.is_object() && message.body.contains("code") && message.body["code"] == static_cast<int>(ErrorCode::kVersionMismatch);
    const bool mismatch = has_code || message.version != kControlVersion;
    const bool has_text = message.body.is_object() && message.body.contains("message") && message.body["message"].is_string();
    fail(mismatch ? ErrorCode::kVersionMismatch : ErrorCode::kConfiguration, "control: the coordinator at '{}' rejects rank {}: {}",
         endpoint_, rank_,
         has_text ? message.body["message"].get<std::string>()
                  : fmt::format("it speaks version {}, this worker {}", message.version, kControlVersion));
  }

  std::string endpoint_;
  std::string job_id_;
  int rank_;
  ControlClientOptions options_;
  ControlSocket socket_;
  ControlCounters counters_;
  Numbering numbering_;
  std::optional<ControlMessage> early_;
};

}  // namespace

std::unique_ptr<ControlServer> ControlServer::bind(const std::string& job_id, uint64_t generation, const std::string& endpoint) {
  return std::make_unique<Server>(job_id, generation, endpoint);
}

std::unique_ptr<ControlClient> ControlClient::connect(const std::string& endpoint, const std::string& job_id, int rank,
                                                      std::chrono::milliseconds timeout, const ControlClientOptions& options) {
  auto client = std::make_unique<Client>(endpoint, job_id, rank, options);
  client->registerAt(timeout);
  return client;
}

}  // namespace pipeshard
