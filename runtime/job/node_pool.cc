#include "runtime/job/node_pool.h"

#include <unistd.h>

#include <random>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "runtime/job/control_types.h"
#include "runtime/job/host_name.h"
#include "runtime/job/worker_placement.h"
#include "transport/control/control_endpoint.h"
#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

constexpr std::chrono::milliseconds kPoolFarewell{1'500};

// "tcp://0.0.0.0:7000" with host "a" is "tcp://a:7000".
std::string withHost(const std::string& endpoint, const std::string& host) {
  const size_t begin = endpoint.find("://");
  const size_t colon = endpoint.rfind(':');
  if (host.empty() || begin == std::string::npos || colon <= begin) return endpoint;
  return endpoint.substr(0, begin + 3) + host + endpoint.substr(colon);
}

bool isAnyAddress(const std::string& endpoint) {
  return endpoint.starts_with("tcp://0.0.0.0:") || endpoint.starts_with("tcp://*:");
}

}  // namespace

NodePool::NodePool(const NodePoolOptions& options) : options_(options) {
  std::random_device random;
  job_ = fmt::format("{:08x}{:08x}", random(), random());
  if (!options_.key_file.empty()) keys_ = makeJobKeys();
  if (!keys_ && !options_.insecure && !isLocalEndpoint(options_.listen)) {
    fail(ErrorCode::kConfiguration,
         "{} can be reached from other machines, and without keys whoever reaches it could take part; add "
         "--key-file FILE (in a folder that all hosts share), or --insecure on a network that you trust",
         options_.listen);
  }
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
  if (keys_) ::unlink(options_.key_file.c_str());
  if (released_) return;
  try {
    const auto end = std::chrono::steady_clock::now() + kPoolFarewell;
    while (std::chrono::steady_clock::now() < end) {
      const std::optional<ControlMessage> message = server_->receive(std::chrono::milliseconds(100));
      if (!message || message->rank < kFirstNodeRank) continue;
      server_->send(message->rank, "stop",
                    {{"code", 0}, {"message", "the command ended before it began a job"}});
    }
  } catch (const std::exception&) {
    // A node that is gone already needs no farewell.
  }
}

std::string NodePool::joinCommand() const {
  return fmt::format("pipeshard node --join {}{}", endpoint_,
                     keys_ ? fmt::format(" --key-file {}", options_.key_file) : "");
}

}  // namespace pipeshard
