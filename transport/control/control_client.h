// A worker's end of control; transport/control/control.h describes both ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "transport/control/control.h"
#include "transport/control/control_message.h"
#include "transport/control/control_schema.h"
#include "transport/control/job_keys.h"

namespace pipeshard {

struct ControlClientOptions {
  uint64_t generation = 0;
  nlohmann::json body = nlohmann::json::object();  // of REGISTER; 64 KiB with everything at most
  std::optional<ClientKeys> keys = std::nullopt;
  // For a client that does not know its job yet: job id ("") and generation are adopted from WELCOME.
  bool any_job = false;
  ControlSchema schema = {};  // of what the server sends
};

class ControlClient {
 public:
  // Registers and waits for WELCOME. Errors: kPeerUnavailable when none comes within `timeout`;
  // kAuthentication as soon as the key is refused (or is missing, or the server has none); kVersionMismatch
  // or kConfiguration when the server rejects.
  static std::unique_ptr<ControlClient> connect(const std::string& endpoint, const std::string& job_id,
                                                int rank, std::chrono::milliseconds timeout,
                                                const ControlClientOptions& options = {});
  virtual ~ControlClient() = default;

  virtual int rank() const = 0;
  virtual const std::string& job() const = 0;
  virtual uint64_t generation() const = 0;
  // Error(kPeerUnavailable) when the server is gone or takes no messages.
  virtual void send(std::string_view type, nlohmann::json body, std::span<const std::byte> payload = {}) = 0;
  // As those of the server. Error(kVersionMismatch) when the server says that this generation is over.
  virtual std::optional<ControlMessage> receive(std::chrono::milliseconds timeout) = 0;
  virtual ControlEvent poll(std::chrono::milliseconds timeout, std::span<const int> descriptors) = 0;
  virtual const ControlCounters& counters() const = 0;
};

}  // namespace pipeshard
