// What both sides of control share: numbering, and the loop of a wait. Internal to transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "transport/control/control.h"
#include "transport/control/control_socket.h"

namespace pipeshard {

// Of a sender that has not registered: nobody parses a stranger's megabytes.
inline constexpr size_t kMaxRegisterBytes = size_t{64} << 10;

// Numbers what is sent to one peer and checks the numbers of what comes from it.
struct Numbering {
  uint64_t sent = 0;
  uint64_t received = 0;
};

// The message, with its payload behind it, to the peer of this identity ("": the only one). As
// ControlSocket::send. Error(kInternal) where a frame is longer than kMaxControlBytes.
bool sendMessage(ControlSocket& socket, const std::string& identity, const ControlMessage& message,
                 std::span<const std::byte> payload, bool patience);

// When a line for the log about what was dropped is due: at the first, then once a minute while there is
// more.
class NoticeRate {
 public:
  // `dropped`: so far. True: say it now.
  bool isDue(uint64_t dropped);

 private:
  uint64_t noticed_ = 0;
  std::optional<std::chrono::steady_clock::time_point> time_;
};

// False for a duplicate. Fills in lost_before.
bool acceptSequence(Numbering& numbering, ControlMessage& message, ControlCounters& counters);

// The loop of both sides: `take` looks at one message that is there and says what of it concerns the caller.
template <typename Take>
ControlEvent pollWith(ControlSocket& socket, std::chrono::milliseconds timeout,
                      std::span<const int> descriptors, Take&& take) {
  constexpr int kDrainedAtDeadline = 100;  // messages that are there but do not concern the caller
  const Deadline deadline(timeout);
  ControlEvent event;
  for (int looks = 0;; ++looks) {
    bool has_message = false;
    event.ready = socket.wait(deadline, descriptors, has_message);
    if (has_message) {
      if (auto received = socket.receiveNow()) event.message = take(*received);
    }
    if (event.message || !event.ready.empty()) return event;
    if (deadline.left() == std::chrono::milliseconds(0) && (!has_message || looks >= kDrainedAtDeadline))
      return event;
  }
}

}  // namespace pipeshard
