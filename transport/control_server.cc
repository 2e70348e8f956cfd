#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "ir/error.h"
#include "transport/control.h"
#include "transport/control_endpoint.h"
#include "transport/control_link.h"
#include "transport/control_socket.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

// Of a sender that has not registered: its REGISTER is small, and nobody parses a stranger's megabytes.
constexpr size_t kMaxStrangerBytes = 64 << 10;

class Server : public ControlServer {
 public:
  explicit Server(const ControlServerOptions& options) : options_(options), socket_(zmq::socket_type::router, "") {
    if (!options.keys && !options.allow_insecure && !isLocalEndpoint(options.endpoint)) {
      fail(ErrorCode::kConfiguration,
           "control: '{}' can be reached from other hosts and would let anybody in: give the job keys, listen on 127.0.0.1, or allow it "
           "as insecure",
           options.endpoint);
    }
    if (options.keys) socket_.useKeys(*options.keys);
    try {
      socket_.socket().bind(options.endpoint);
      endpoint_ = socket_.socket().get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& error) {
      const ErrorCode code = error.num() == EADDRINUSE ? ErrorCode::kAddressInUse : ErrorCode::kConfiguration;
      failControl(error, code, fmt::format("cannot listen on '{}'; port * takes a free one", options.endpoint));
    }
  }

  const std::string& endpoint() const override { return endpoint_; }
  const ControlCounters& counters() const override { return counters_; }
  bool isRegistered(int rank) const override { return workers_.count(rank) > 0; }
  void forget(int rank) override {
    const auto worker = workers_.find(rank);
    if (worker == workers_.end()) return;
    ranks_.erase(worker->second.identity);
    workers_.erase(worker);
  }
  std::string peerAddress(int rank) const override {
    const auto worker = workers_.find(rank);
    return worker == workers_.end() ? "" : worker->second.address;
  }
  std::optional<std::string> takeNotice() override { return std::nullopt; }

  std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) override { return poll(timeout, {}).message; }

  ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) override {
    return pollWith(socket_, timeout, descriptors, [this](const ReceivedFrames& received) { return take(received); });
  }

  void send(int rank, std::string_view type, nlohmann::json body) override {
    const auto worker = workers_.find(rank);
    if (worker == workers_.end()) fail(ErrorCode::kPeerUnavailable, "control: '{}' for rank {}, which has not registered", type, rank);
    if (!sendTo(worker->second.identity, worker->second.numbering.sent + 1, type, std::move(body), /*patience=*/true)) {
      fail(ErrorCode::kPeerUnavailable, "control: rank {} is gone or does not take messages any more; '{}' was not sent", rank, type);
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
    bool flooding = false;
  };

  bool sendTo(const std::string& identity, uint64_t sequence, std::string_view type, nlohmann::json body, bool patience) {
    const ControlMessage message{kControlVersion, options_.job_id,   options_.generation, kCoordinatorRank,
                                 sequence,        std::string(type), std::move(body),     0};
    const std::string text = encodeControlMessage(message);
    return socket_.send({identity, text}, patience);
  }

  // Never waits for a stranger that does not read.
  void reject(const std::string& identity, ErrorCode code, const std::string& reason) {
    // It may be gone already; then nobody needs the answer.
    (void)sendTo(identity, 1, kReject, {{"code", static_cast<int>(code)}, {"message", reason}}, /*patience=*/false);
  }

  std::optional<ControlMessage> take(const ReceivedFrames& received);
  bool isOurs(const std::string& identity, const ControlMessage& message);
  std::optional<ControlMessage> takeRegular(Worker& worker, ControlMessage message);
  std::optional<ControlMessage> registerWorker(const std::string& identity, const std::string& address, ControlMessage message);
  bool mayPass(Worker& worker);

  ControlServerOptions options_;
  std::string endpoint_;
  ControlSocket socket_;
  ControlCounters counters_;
  std::map<int, Worker> workers_;
  std::map<std::string, int> ranks_;  // of registered identities
};

std::optional<ControlMessage> Server::take(const ReceivedFrames& received) {
  const auto drop = [](uint64_t& counter) {
    ++counter;
    return std::nullopt;
  };
  if (received.frames.size() != 2) return drop(counters_.garbage);
  const std::string& identity = received.frames[0];
  const std::string& bytes = received.frames[1];
  const auto known = ranks_.find(identity);
  const bool is_known = known != ranks_.end();
  if (!is_known && bytes.size() > kMaxStrangerBytes) return drop(counters_.garbage);
  Worker* const worker = is_known ? &workers_.at(known->second) : nullptr;
  const bool was_flooding = is_known && worker->flooding;
  if (is_known && !mayPass(*worker)) {
    ++counters_.flooded;
    if (was_flooding) return std::nullopt;
    ControlMessage flood;
    flood.rank = known->second;
    return makeFault(flood, fmt::format("sends more than {} control messages a second", options_.limits.messages_per_second));
  }
  std::optional<ControlMessage> message = decodeControlMessage(bytes);
  if (!message || message->type == kFault) return drop(counters_.garbage);
  if (!isOurs(identity, *message)) return std::nullopt;
  if (message->type == kRegister) return registerWorker(identity, received.address, std::move(*message));
  if (!is_known || message->rank != known->second) return drop(counters_.unregistered);
  return takeRegular(*worker, std::move(*message));
}

// Of this version, job and generation; whoever is not is told why, where it can make use of that.
bool Server::isOurs(const std::string& identity, const ControlMessage& message) {
  if (message.version != kControlVersion) {
    ++counters_.other_version;
    if (message.type == kRegister) {
      reject(identity, ErrorCode::kVersionMismatch,
             fmt::format("the worker speaks control version {}, the coordinator {}; install one version everywhere", message.version,
                         kControlVersion));
    }
    return false;
  }
  if (options_.open_registration && message.type == kRegister && message.job_id.empty()) return true;
  if (message.job_id != options_.job_id) {
    ++counters_.other_job;
    if (message.type == kRegister) {
      reject(identity, ErrorCode::kVersionMismatch,
             message.job_id.empty() ? fmt::format("this is job '{}', which a node joins by its key file only", options_.job_id)
                                    : fmt::format("job '{}' is not here; this is job '{}'", message.job_id, options_.job_id));
    }
    return false;
  }
  if (message.generation != options_.generation) {
    ++counters_.stale;
    reject(
        identity, ErrorCode::kVersionMismatch,
        fmt::format("generation {} of job '{}' is over; this is generation {}", message.generation, options_.job_id, options_.generation));
    return false;
  }
  return true;
}

bool Server::mayPass(Worker& worker) {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - worker.counted).count();
  worker.counted = now;
  worker.allowance = std::min(options_.limits.burst, worker.allowance + seconds * options_.limits.messages_per_second);
  if (worker.allowance >= 1) {
    worker.allowance -= 1;
    return !worker.flooding;
  }
  worker.flooding = true;
  return false;
}

std::optional<ControlMessage> Server::takeRegular(Worker& worker, ControlMessage message) {
  if (!acceptSequence(worker.numbering, message, counters_)) return std::nullopt;
  if (const auto fault = controlFault(options_.schema, message.type, message.body)) {
    ++counters_.garbage;
    return makeFault(message, *fault);
  }
  return message;
}

std::optional<ControlMessage> Server::registerWorker(const std::string& identity, const std::string& address, ControlMessage message) {
  const auto known = ranks_.find(identity);
  if (message.rank < 0 || (known != ranks_.end() && known->second != message.rank)) {
    ++counters_.garbage;
    return std::nullopt;
  }
  const bool has_form =
      std::any_of(options_.schema.begin(), options_.schema.end(), [](const ControlForm& form) { return form.type == kRegister; });
  if (const auto fault = controlFault(options_.schema, kRegister, message.body); has_form && fault) {
    ++counters_.garbage;
    reject(identity, ErrorCode::kConfiguration, *fault);
    return std::nullopt;
  }
  const auto [worker, is_new] = workers_.try_emplace(message.rank, Worker{identity, {}, address, options_.limits.burst, Clock::now()});
  if (worker->second.identity != identity) {
    reject(identity, ErrorCode::kConfiguration, fmt::format("rank {} of job '{}' has registered already", message.rank, options_.job_id));
    return std::nullopt;
  }
  // A client repeats REGISTER until it is answered; only the first one goes to the caller.
  if (!is_new) ++counters_.duplicate;
  Numbering& numbering = worker->second.numbering;
  if (is_new) numbering = {1, message.sequence};
  const bool welcomed = numbering.sent > 1 || sendTo(identity, 1, kWelcome, nlohmann::json::object(), /*patience=*/false);
  if (!welcomed) {
    forget(message.rank);
    return std::nullopt;
  }
  ranks_[identity] = message.rank;
  return is_new ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace

std::unique_ptr<ControlServer> ControlServer::bind(const ControlServerOptions& options) { return std::make_unique<Server>(options); }

}  // namespace pipeshard
