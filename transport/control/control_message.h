// Control messages: one JSON object in a ZeroMQ frame, and nothing else in it.
//
//   {"version": 2, "job": "a3f1", "generation": 0, "rank": 2, "sequence": 7,
//    "type": "step_done", "body": {...}}
//
// A message of a type that may have one (ControlForm::payload) can have a second frame: its payload, bytes
// that this transport does not look into. One without bytes has no second frame.
//
// `version` is read first: messages of other versions are never interpreted further. REJECT keeps its form
// {"version", "type", "body": {"code", "message"}} in all versions, so that an old worker can say what went
// wrong. Messages of another job, of another generation (raised whenever a job is restarted), or without this
// form are counted and ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace pipeshard {

inline constexpr int kControlVersion = 2;
// Of each frame. Results travel by files and tensors by communicators; a longer one is refused by its sender.
inline constexpr size_t kMaxControlBytes = size_t{1} << 20;
inline constexpr int kMaxControlDepth = 64;  // of nested arrays and objects
inline constexpr int kCoordinatorRank = -1;

// Types that the transport itself uses; all others belong to the runtime.
inline constexpr std::string_view kRegister = "REGISTER";
inline constexpr std::string_view kWelcome = "WELCOME";
inline constexpr std::string_view kReject = "REJECT";
// Made by the receiver for a registered peer that broke the rules; refused as garbage when a peer sends it.
inline constexpr std::string_view kFault = "FAULT";

struct ControlMessage {
  int version = kControlVersion;
  std::string job_id;
  uint64_t generation = 0;
  int rank = kCoordinatorRank;  // of the sender
  uint64_t sequence = 0;        // per sender and receiver: 1, 2, 3, ...
  std::string type;
  nlohmann::json body;
  // Filled in by the receiver: messages of this sender just before this one that never came (its connection
  // broke).
  uint64_t lost_before = 0;
  std::vector<std::byte> payload = {};
};

// Error(kInternal) when the message is longer than kMaxControlBytes. Bytes that are not UTF-8 are replaced.
std::string encodeControlMessage(const ControlMessage& message);

// Nothing when `bytes` is not a control message of any version. Of another version, only `version`, and
// `type` and `body` where they have the right form, are filled in.
std::optional<ControlMessage> decodeControlMessage(std::string_view bytes);
// The same of all frames of a message, with its payload. Nothing when there are others than these two, or
// when the transport's own types have a payload.
std::optional<ControlMessage> decodeControlFrames(std::span<const std::string> frames);

}  // namespace pipeshard
