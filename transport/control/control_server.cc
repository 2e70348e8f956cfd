#include "transport/control/control_server.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "transport/control/control.h"
#include "transport/control/control_endpoint.h"
#include "transport/control/control_gate.h"
#include "transport/control/control_link.h"
#include "transport/control/control_socket.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostForgotten = 1024;  // peers that are remembered as no strangers

class Server : public ControlServer {
 public:
  explicit Server(const ControlServerOptions& options)
      : options_(options),
        listening_(listeningEndpoint(options.endpoint)),
        socket_(zmq::socket_type::router, "", listening_) {
    if (!options.keys && !options.allow_insecure && !isLocalEndpoint(listening_)) {
      fail(ErrorCode::kConfiguration,
           "control: '{}' can be reached from other hosts and would let anybody in: give the job keys, "
           "listen on 127.0.0.1, or allow it as insecure",
           options.endpoint);
    }
    raiseDescriptorLimit();
    if (options.keys) socket_.useKeys(*options.keys);
    gate_.emplace(socket_, options.keys ? ControlGate::Keys::kNeeded : ControlGate::Keys::kNone);
    if (options.keys) gate_->allow(options.keys->client_public);
    try {
      socket_.socket().bind(listening_);
      endpoint_ = socket_.socket().get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& error) {
      failToListen(error);
    }
    if (options.keys) requireRefusal(endpoint_, options.keys->server_public);
    gate_->watch();
  }

  const std::string& endpoint() const override { return endpoint_; }
  const ControlCounters& counters() const override {
    counters_.handshakes = gate_->failedHandshakes();
    return counters_;
  }
  bool isRegistered(int rank) const override { return workers_.count(rank) > 0; }
  void forget(int rank) override {
    const auto worker = workers_.find(rank);
    if (worker == workers_.end()) return;
    forgotten_.push_back(worker->second.identity);
    if (forgotten_.size() > kMostForgotten) forgotten_.pop_front();
    ranks_.erase(worker->second.identity);
    workers_.erase(worker);
  }
  void allow(const std::string& public_key, const std::string& user) override {
    if (options_.keys) gate_->allow(public_key, user);
  }
  void reserve(int rank, const std::string& user) override { users_[rank] = user; }
  std::string peerAddress(int rank) const override {
    const auto worker = workers_.find(rank);
    return worker == workers_.end() ? "" : worker->second.address;
  }
  std::optional<std::string> takeNotice() override;

  std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) override {
    return poll(timeout, {}).message;
  }

  ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) override {
    return pollWith(socket_, timeout, descriptors,
                    [this](const ReceivedFrames& received) { return take(received); });
  }

  void send(int rank, std::string_view type, nlohmann::json body,
            std::span<const std::byte> payload) override {
    const auto worker = workers_.find(rank);
    if (worker == workers_.end())
      fail(ErrorCode::kPeerUnavailable, "control: '{}' for rank {}, which has not registered", type, rank);
    if (!sendTo(worker->second.identity, worker->second.numbering.sent + 1, type, std::move(body),
                /*patience=*/true, payload)) {
      fail(ErrorCode::kPeerUnavailable,
           "control: rank {} is gone or does not take messages any more; '{}' was not sent", rank, type);
    }
    ++worker->second.numbering.sent;
  }

 private:
  struct Worker {
    std::string identity;
    Numbering numbering;
    std::string address;
    double allowance = 0;  // messages that it may still send now
    Clock::time_point counted;
    bool cut_off = false;  // it sent too fast
  };

  [[noreturn]] void failToListen(const zmq::error_t& error) const;
  bool sendTo(const std::string& identity, uint64_t sequence, std::string_view type, nlohmann::json body,
              bool patience, std::span<const std::byte> payload = {}) {
    const ControlMessage message{kControlVersion, options_.job_id,   options_.generation, kCoordinatorRank,
                                 sequence,        std::string(type), std::move(body)};
    return sendMessage(socket_, identity, message, payload, patience);
  }

  // Never waits for a stranger that does not read.
  void reject(const std::string& identity, ErrorCode code, const std::string& reason) {
    // It may be gone already; then nobody needs the answer.
    (void)sendTo(identity, 1, kReject, {{"code", static_cast<int>(code)}, {"message", reason}},
                 /*patience=*/false);
  }

  std::nullopt_t drop(uint64_t& counter, std::string reason);
  std::optional<ControlMessage> take(const ReceivedFrames& received);
  bool wasForgotten(const std::string& identity) const {
    return std::find(forgotten_.begin(), forgotten_.end(), identity) != forgotten_.end();
  }
  bool isOurs(const std::string& identity, const std::string& address, const ControlMessage& message);
  bool mayPass(Worker& worker) const;
  std::optional<ControlMessage> blame(int rank, uint64_t& counter, const std::string& why);
  std::optional<ControlMessage> registerWorker(const ReceivedFrames& received, ControlMessage message);
  bool hasItsPlace(const ReceivedFrames& received, int rank) const;

  ControlServerOptions options_;
  std::string listening_;  // what it binds to: names are addresses there
  std::string endpoint_;   // what became of it: with its port
  ControlSocket socket_;
  std::optional<ControlGate> gate_;
  mutable ControlCounters counters_;
  std::string last_reason_ = {};  // for takeNotice()
  NoticeRate notices_;
  std::map<int, Worker> workers_;
  std::map<std::string, int> ranks_;        // of registered identities
  std::deque<std::string> forgotten_ = {};  // identities that were registered
  std::map<int, std::string> users_;        // reserved ranks
};

// Says what to do where that follows from the reason.
void Server::failToListen(const zmq::error_t& error) const {
  const int reason = error.num();
  std::string advice;
  if (reason == EADDRINUSE) advice = "; port * takes a free one";
  if (reason == EADDRNOTAVAIL || reason == ENODEV)
    advice = fmt::format("; write an address of this machine, or * for all of them, as {}",
                         withHost(listening_, "*"));
  if (reason == EINVAL) advice = "; expected tcp://ADDRESS:PORT, as tcp://10.0.0.1:7000";
  failControl(error, reason == EADDRINUSE ? ErrorCode::kAddressInUse : ErrorCode::kConfiguration,
              fmt::format("cannot listen on '{}'{}", options_.endpoint, advice));
}

// Counts a message that is dropped; the reason is for the next notice.
std::nullopt_t Server::drop(uint64_t& counter, std::string reason) {
  ++counter;
  last_reason_ = std::move(reason);
  return std::nullopt;
}

std::optional<ControlMessage> Server::take(const ReceivedFrames& received) {
  const std::string& identity = received.frames.front();
  const auto known = ranks_.find(identity);
  Worker* const worker = known == ranks_.end() ? nullptr : &workers_.at(known->second);
  const std::string& address = worker ? worker->address : received.address;
  if (worker && worker->cut_off)
    return drop(counters_.flooded, fmt::format("rank {} goes on sending too fast", known->second));
  if (worker && !mayPass(*worker)) {
    worker->cut_off = true;
    return blame(known->second, counters_.flooded,
                 fmt::format("more than {} messages a second", options_.limits.messages_per_second));
  }
  const std::span<const std::string> frames = std::span(received.frames).subspan(1);
  const bool may_be_ours = worker || (frames.size() == 1 && frames[0].size() <= kMaxRegisterBytes);
  std::optional<ControlMessage> message = may_be_ours ? decodeControlFrames(frames) : std::nullopt;
  // What a node says after it was sent away, say. It may register again.
  if (!worker && !(message && message->type == kRegister) && wasForgotten(identity)) {
    ++counters_.late;
    return std::nullopt;
  }
  if (!message || message->type == kFault) {
    if (worker) return blame(known->second, counters_.garbage, "not a control message");
    return drop(counters_.garbage, fmt::format("not a control message, from {}", address));
  }
  if (!isOurs(identity, address, *message)) return std::nullopt;
  if (message->type == kRegister) return registerWorker(received, std::move(*message));
  if (!worker)
    return drop(counters_.unregistered, fmt::format("of somebody who has not registered, from {}", address));
  if (message->rank != known->second) {
    return drop(counters_.unregistered, fmt::format("of rank {} in the name of rank {}, from {}",
                                                    known->second, message->rank, address));
  }
  if (!acceptSequence(worker->numbering, *message, counters_)) return std::nullopt;
  if (const auto fault = controlFault(options_.schema, message->type, message->body, message->payload.size()))
    return blame(known->second, counters_.garbage, *fault);
  return message;
}

// Of this version, job and generation; whoever is not is told why.
bool Server::isOurs(const std::string& identity, const std::string& address, const ControlMessage& message) {
  const auto refuse = [&](uint64_t& counter, const std::string& reason) {
    drop(counter, fmt::format("{}, from {}", reason, address));
    reject(identity, ErrorCode::kVersionMismatch, reason);
    return false;
  };
  if (message.version != kControlVersion) {
    return refuse(
        counters_.other_version,
        fmt::format(
            "the worker speaks control version {}, the coordinator {}; install one version everywhere",
            message.version, kControlVersion));
  }
  if (options_.open_registration && message.type == kRegister && message.job_id.empty()) return true;
  if (message.job_id != options_.job_id) {
    if (message.job_id.empty()) {
      return refuse(counters_.other_job,
                    fmt::format("job '{}' is joined by its key file or its id only", options_.job_id));
    }
    return refuse(counters_.other_job, fmt::format("job '{}' is not here; this is job '{}'",
                                                   printableBeginning(message.job_id), options_.job_id));
  }
  if (message.generation != options_.generation) {
    return refuse(counters_.stale, fmt::format("generation {} of job '{}' is over; this is generation {}",
                                               message.generation, options_.job_id, options_.generation));
  }
  return true;
}

bool Server::mayPass(Worker& worker) const {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - worker.counted).count();
  worker.counted = now;
  worker.allowance =
      std::min(options_.limits.burst, worker.allowance + seconds * options_.limits.messages_per_second);
  worker.allowance -= 1;
  return worker.allowance >= 0;
}

std::optional<ControlMessage> Server::blame(int rank, uint64_t& counter, const std::string& why) {
  drop(counter, fmt::format("rank {}: {}", rank, why));
  ControlMessage fault;
  fault.job_id = options_.job_id;
  fault.generation = options_.generation;
  fault.rank = rank;
  fault.type = kFault;
  fault.body = {{"message", why}};
  return fault;
}

// Whether this rank may be registered with the key that the message came by.
bool Server::hasItsPlace(const ReceivedFrames& received, int rank) const {
  const auto reserved = users_.find(rank);
  return !options_.keys || reserved == users_.end() || reserved->second == received.user;
}

std::optional<ControlMessage> Server::registerWorker(const ReceivedFrames& received, ControlMessage message) {
  const std::string& identity = received.frames.front();
  const std::string& address = received.address;
  const auto known = ranks_.find(identity);
  if (message.rank < 0 || (known != ranks_.end() && known->second != message.rank)) {
    return drop(counters_.garbage, fmt::format("REGISTER as rank {}, from {}", message.rank, address));
  }
  const auto refuse = [&](const std::string& reason, ErrorCode code = ErrorCode::kConfiguration) {
    reject(identity, code, reason);
    return std::nullopt;
  };
  if (!hasItsPlace(received, message.rank)) {
    drop(counters_.garbage,
         fmt::format("REGISTER as rank {} by another host's key, from {}", message.rank, address));
    return refuse(fmt::format("rank {} is not a rank of the host whose key this is", message.rank),
                  ErrorCode::kAuthentication);
  }
  const bool has_form = std::any_of(options_.schema.begin(), options_.schema.end(),
                                    [](const ControlForm& form) { return form.type == kRegister; });
  if (has_form) {
    if (const auto fault = controlFault(options_.schema, kRegister, message.body)) {
      drop(counters_.garbage, fmt::format("{}, from {}", *fault, address));
      return refuse(*fault);
    }
  }
  const auto [worker, is_new] =
      workers_.try_emplace(message.rank, Worker{identity, {}, address, options_.limits.burst, Clock::now()});
  if (worker->second.identity != identity) {
    return refuse(fmt::format("rank {} of job '{}' has registered already", message.rank, options_.job_id));
  }
  // A client repeats REGISTER until it is answered; only the first one goes to the caller.
  if (!is_new) ++counters_.duplicate;
  ranks_[identity] = message.rank;
  Numbering& numbering = worker->second.numbering;
  if (is_new) numbering = {1, message.sequence};
  if (numbering.sent == 1 && !sendTo(identity, 1, kWelcome, nlohmann::json::object(), /*patience=*/false)) {
    forget(message.rank);
    return std::nullopt;
  }
  return is_new ? std::optional(std::move(message)) : std::nullopt;
}

std::optional<std::string> Server::takeNotice() {
  const ControlCounters& now = counters();
  const uint64_t messages =
      now.garbage + now.other_version + now.other_job + now.stale + now.unregistered + now.flooded;
  if (!notices_.isDue(messages + now.handshakes)) return std::nullopt;
  std::vector<std::string> dropped;
  if (messages > 0) dropped.push_back(counted(static_cast<int64_t>(messages), "message") + " dropped");
  if (now.handshakes > 0)
    dropped.push_back(counted(static_cast<int64_t>(now.handshakes), "connection") + " refused");
  std::string text = fmt::format("control at {}: {} so far", endpoint_, fmt::join(dropped, " and "));
  if (messages > 0) text += fmt::format("; last message: {}", last_reason_);
  if (const std::string failure = gate_->lastFailure(); now.handshakes > 0 && !failure.empty())
    text += fmt::format("; last connection: {}", failure);
  return text;
}

}  // namespace

std::unique_ptr<ControlServer> ControlServer::bind(const ControlServerOptions& options) {
  return std::make_unique<Server>(options);
}

}  // namespace pipeshard
