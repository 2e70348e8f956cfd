#include "runtime/job/node_pool.h"

#include <algorithm>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/identity/build_identity.h"
#include "runtime/job/host_name.h"
#include "runtime/job/worker_placement.h"
#include "runtime/machine/limits.h"
#include "runtime/messages/control_types.h"
#include "transport/control/control_endpoint.h"
#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// For daemons to end their workers, of which some may be hard to kill.
constexpr std::chrono::seconds kRollCall{30};
// For daemons to say goodbye.
constexpr milliseconds kFarewell{1'000};
// For a job that is just ending to give up its key file.
constexpr milliseconds kPatienceForKeyFile{1'000};

// Two jobs with one key file would have their nodes refused, or joined to the other. Where files cannot be
// locked, as on some network file systems, nothing tells.
FolderLock lockKeyFile(const std::string& path) try {
  return {path + ".lock", path, "another job has its keys in", kPatienceForKeyFile};
} catch (const Error& error) {
  if (error.code() == ErrorCode::kAddressInUse) throw;
  return {};
}

}  // namespace

NodePool::NodePool(const NodePoolOptions& options) : options_(options), nodes_(options.count) {
  requireLimits({0, 1, options.count});
  std::random_device random;
  job_ = fmt::format("{:08x}{:08x}", random(), random());
  if (!options_.key_file.empty()) keys_ = makeJobKeys();
  if (!keys_ && !options_.insecure && !isLocalEndpoint(options_.listen)) {
    fail(ErrorCode::kConfiguration,
         "{} can be reached from other machines, and without keys whoever reaches it could take part; add "
         "--key-file FILE (in a folder that all hosts share), or --insecure on a network that you trust",
         options_.listen);
  }
  if (keys_) key_lock_ = lockKeyFile(options_.key_file);
  ControlServerOptions server;
  server.job_id = job_;
  server.generation = options_.generation;
  server.endpoint = options_.listen;
  server.keys = keys_;
  server.allow_insecure = options_.insecure;
  server.open_registration = true;
  server.schema = workerMessages();
  for (const ControlForm& form : nodeMessages()) server.schema.push_back(form);
  server_ = ControlServer::bind(server);
  const bool any = isAnyAddress(server_->endpoint());
  endpoint_ = withHost(server_->endpoint(), !options_.advertise.empty() ? options_.advertise
                                            : any                       ? hostName()
                                                                        : "");
  if (!keys_) return;
  JobTicket ticket;
  ticket.job_id = job_;
  ticket.generation = options_.generation;
  ticket.endpoint = endpoint_;
  ticket.server_public = keys_->server_public;
  ticket.client_public = keys_->client_public;
  ticket.client_secret = keys_->client_secret;
  writeJobTicket(options_.key_file, ticket);
}

NodePool::~NodePool() {
  if (keys_) removeJobTicket(options_.key_file, job_);
  try {
    dismiss(static_cast<int>(ErrorCode::kInternal), "the job ended without a word");
  } catch (const std::exception&) {
    // A node that is gone already needs no farewell.
  }
}

std::string NodePool::joinCommand() const {
  return fmt::format("pipeshard node --join {}{}", endpoint_,
                     keys_                        ? fmt::format(" --key-file {}", options_.key_file)
                     : isLocalEndpoint(endpoint_) ? ""
                                                  : " --insecure");
}

std::optional<int> NodePool::numberOf(int control_rank) const {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const JoinedNode& node) { return node.control_rank == control_rank; });
  if (control_rank < 0 || found == nodes_.end()) return std::nullopt;
  return static_cast<int>(found - nodes_.begin());
}

std::string NodePool::nameOf(int number) const {
  return fmt::format("node {} (host {}, pid {})", number, hostOf(number), nodes_.at(number).pid);
}

std::string NodePool::hostOf(int number) const {
  const JoinedNode& node = nodes_.at(number);
  const bool is_ambiguous = std::any_of(nodes_.begin(), nodes_.end(), [&](const JoinedNode& other) {
    return other.host == node.host && other.address != node.address && !other.address.empty();
  });
  return is_ambiguous ? fmt::format("{} at {}", node.host, node.address) : node.host;
}

int NodePool::devicesOf(int number) const {
  if (number < std::ssize(options_.devices)) return options_.devices[number];
  return options_.devices.empty() ? 1 : *std::max_element(options_.devices.begin(), options_.devices.end());
}

// Nothing, and why, for one that cannot be taken.
std::optional<int> NodePool::numberFor(const ControlMessage& registration, std::string& refusal) {
  const int wanted = registration.body.value("index", -1);
  const auto is_free = [](const JoinedNode& node) { return node.control_rank < 0; };
  if (wanted >= options_.count && !options_.takes_spares) {
    refusal = fmt::format("this is node {}, but the plan's cluster has {} nodes; they count from 0", wanted,
                          options_.count);
    return std::nullopt;
  }
  if (wanted >= 0 && wanted < std::ssize(nodes_) && is_free(nodes_[wanted])) return wanted;
  const auto free = std::find_if(nodes_.begin(), nodes_.end(), is_free);
  if (wanted < 0 && free != nodes_.end()) return static_cast<int>(free - nodes_.begin());
  if (options_.takes_spares) {
    const auto spare = std::find_if(nodes_.begin() + options_.count, nodes_.end(), is_free);
    const auto number = static_cast<int>(spare - nodes_.begin());
    if (spare == nodes_.end()) nodes_.emplace_back();
    return number;
  }
  refusal = wanted < 0 ? fmt::format("the job has its {} nodes already", options_.count)
                       : fmt::format(
                             "node {} has joined already, from host {}, pid {}; give every node an index of "
                             "its own",
                             wanted, nodes_[wanted].host, nodes_[wanted].pid);
  return std::nullopt;
}

std::optional<std::string> NodePool::admit(const ControlMessage& registration,
                                           const JobProgressCallback& progress) {
  const auto host = registration.body.at("host").get<std::string>();
  const int pid = registration.body.at("pid").get<int>();
  const std::string address = server_->peerAddress(registration.rank);
  visitors_.insert(fmt::format("{} {} {}", host, address, pid));
  if (farewell_) {
    sayFarewell(registration.rank);
    return std::nullopt;
  }
  const auto send_away = [&](ErrorCode code, const std::string& why) {
    server_->send(registration.rank, control::kStop, {{"code", static_cast<int>(code)}, {"message", why}});
    server_->forget(registration.rank);
  };
  if (const std::optional<std::string> other = findBuildDifference(registration.body)) {
    send_away(ErrorCode::kVersionMismatch, fmt::format("this node: {}", *other));
    std::string text = fmt::format("the node on host {}, pid {}: {}", host, pid, *other);
    if (progress) progress({.kind = JobProgress::Kind::kNotice, .text = text});
    return text;
  }
  const std::string key = registration.body.value("key", "");
  if (keys_ && !isJobKey(key)) {
    send_away(ErrorCode::kAuthentication, "the node gave no key for its workers");
    return std::nullopt;
  }
  // A node whose first try to join was answered too late, or that has lost this coordinator, comes again:
  // what it had is gone.
  for (JoinedNode& node : nodes_) {
    if (node.control_rank >= 0 && node.pid == pid && node.host == host && node.address == address) {
      server_->forget(node.control_rank);
      node.control_rank = -1;
    }
  }
  std::string refusal;
  const std::optional<int> number = numberFor(registration, refusal);
  if (!number) {
    send_away(ErrorCode::kConfiguration, refusal);
    return std::nullopt;
  }
  const int devices = registration.body.value("devices", 0);
  const std::string user = fmt::format("node-{}", registration.rank);
  if (keys_) server_->allow(key, user);
  nodes_[*number] = {registration.rank, host, address, pid, devices > 0 ? devices : devicesOf(*number), user,
                     Clock::now(),      true};
  sayAlive(*number);  // how patient the job is counts from here on
  if (progress) progress({.kind = JobProgress::Kind::kNodeJoined, .node = *number, .pid = pid, .host = host});
  return std::nullopt;
}

void NodePool::hear(int number) { nodes_.at(number).last_heard = Clock::now(); }

void NodePool::forgive(Clock::duration absence) {
  for (JoinedNode& node : nodes_) node.last_heard = std::min(Clock::now(), node.last_heard + absence);
}

Clock::duration NodePool::silenceOf(int number) const { return Clock::now() - nodes_.at(number).last_heard; }

void NodePool::send(int number, std::string_view type, nlohmann::json body,
                    std::span<const std::byte> payload) {
  if (!isHere(number)) return;
  try {
    server_->send(nodes_[number].control_rank, type, std::move(body), payload);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerUnavailable) throw;
  }
}

void NodePool::keepAlive() {
  if (Clock::now() - last_sent_ < kNodeHeartbeat) return;
  last_sent_ = Clock::now();
  for (int number = 0; number < std::ssize(nodes_); ++number) sayAlive(number);
}

void NodePool::sayAlive(int number) {
  send(number, control::kAlive, {{"patience", options_.patience.count()}});
}

void NodePool::drop(int number) {
  JoinedNode& node = nodes_.at(number);
  if (node.control_rank >= 0) server_->forget(node.control_rank);
  node = {};
}

void NodePool::sendAway(int number, int exit_code, const std::string& message) {
  send(number, control::kStop, {{"code", exit_code}, {"message", message}});
  drop(number);
}

void NodePool::askToEnd(int number, int signal) {
  nodes_.at(number).is_ending = true;
  if (!request_to_end_) request_to_end_ = signal;
}

std::optional<int> NodePool::takeRequestToEnd() { return std::exchange(request_to_end_, std::nullopt); }

void NodePool::beginAttempt(int ranks) {
  ++attempt_;
  most_ranks_ = std::max(most_ranks_, ranks);
  for (int rank = 0; rank < most_ranks_; ++rank) {
    // Of a host that could not be reached: there is nothing left for it to do.
    try {
      if (server_->isRegistered(rank)) server_->send(rank, control::kAbort, nlohmann::json::object());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPeerUnavailable) throw;
    }
    server_->forget(rank);
  }
  for (JoinedNode& node : nodes_) node.last_heard = Clock::now();
}

void NodePool::callRoll(const std::string& why, const JobProgressCallback& progress) {
  for (JoinedNode& node : nodes_) node.is_resting = false;
  for (int number = 0; number < std::ssize(nodes_); ++number) {
    hear(number);  // the silence that counts begins with the question
    send(number, control::kRest, {{"message", why}});
  }
  const auto answered = [](const JoinedNode& node) { return node.control_rank < 0 || node.is_resting; };
  const Clock::time_point end = Clock::now() + kRollCall;
  while (!std::all_of(nodes_.begin(), nodes_.end(), answered) && Clock::now() < end)
    listen(milliseconds(50), progress);
  for (int number = 0; number < std::ssize(nodes_); ++number) {
    if (!answered(nodes_[number])) drop(number);
  }
}

void NodePool::listen(milliseconds time, const JobProgressCallback& progress, const Hear& others) {
  const Clock::time_point end = Clock::now() + time;
  do {
    keepAlive();
    const std::optional<ControlMessage> message = server_->receive(
        std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(end - Clock::now())));
    if (!message || !isNodeRank(message->rank)) continue;
    if (message->type == kRegister) admit(*message, progress);
    const std::optional<int> number = numberOf(message->rank);
    if (!number) continue;
    hear(*number);
    if (others) others(*number, *message);
    if (message->type == control::kRested) nodes_[*number].is_resting = true;
    if (message->type == control::kEnding)
      sendAway(*number, static_cast<int>(ErrorCode::kRequeue), "asked to end");
    if (message->type == control::kBye || message->type == control::kLeaving || message->type == kFault)
      drop(*number);
  } while (Clock::now() < end);
  for (int number = 0; number < std::ssize(nodes_); ++number) {
    if (isHere(number) && silenceOf(number) >= options_.patience) drop(number);
  }
}

void NodePool::dismiss(int exit_code, const std::string& message) {
  if (farewell_) return;
  farewell_.emplace(exit_code, message);
  for (int number = 0; number < std::ssize(nodes_); ++number)
    send(number, control::kStop, {{"code", exit_code}, {"message", message}});
  const Clock::time_point end = Clock::now() + kFarewell;
  const auto is_gone = [](const JoinedNode& node) { return node.control_rank < 0; };
  while (Clock::now() < end && !std::all_of(nodes_.begin(), nodes_.end(), is_gone))
    listen(milliseconds(50), {});
}

void NodePool::sayFarewell(int control_rank) {
  try {
    server_->send(control_rank, control::kStop, {{"code", farewell_->first}, {"message", farewell_->second}});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerUnavailable) throw;
  }
}

bool NodePool::awaitsMore() const {
  const int awaited = options_.awaited > 0 ? options_.awaited : options_.count;
  return std::ssize(visitors_) < awaited && Clock::now() < made_ + options_.late;
}

void NodePool::tellLateNodes(const std::function<bool()>& is_enough) {
  std::set<int> leaving;  // they were told, and have not said goodbye
  Clock::time_point end;
  while (!is_enough() && (awaitsMore() || (!leaving.empty() && Clock::now() < end))) {
    const std::optional<ControlMessage> message = server_->receive(milliseconds(100));
    if (!message || !isNodeRank(message->rank)) continue;
    if (message->type == control::kBye) leaving.erase(message->rank);
    if (message->type != kRegister) continue;
    admit(*message, {});
    leaving.insert(message->rank);
    end = Clock::now() + kFarewell;
  }
}

}  // namespace pipeshard
