#include "transport/control/control_link.h"

#include "ir/base/error.h"

namespace pipeshard {

bool sendMessage(ControlSocket& socket, const std::string& identity, const ControlMessage& message,
                 std::span<const std::byte> payload, bool patience) {
  if (payload.size() > kMaxControlBytes) {
    fail(ErrorCode::kInternal, "control message '{}' has a payload of {} bytes, at most {} are allowed",
         message.type, payload.size(), kMaxControlBytes);
  }
  const std::string text = encodeControlMessage(message);
  std::vector<std::string_view> frames;
  if (!identity.empty()) frames.push_back(identity);
  frames.push_back(text);
  if (!payload.empty()) frames.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
  return socket.send(frames, patience);
}

bool NoticeRate::isDue(uint64_t dropped) {
  const auto now = std::chrono::steady_clock::now();
  if (dropped == noticed_ || (time_ && now - *time_ < std::chrono::minutes(1))) return false;
  noticed_ = dropped;
  time_ = now;
  return true;
}

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

}  // namespace pipeshard
