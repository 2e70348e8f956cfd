// What the messages of a job look like, as a table: the transport checks every message against it before its
// caller sees it.
//
//   const ControlSchema kFromWorkers = {
//       {"heartbeat", {{"where", ControlType::kString}}},
//       {"piece", {{"offset", ControlType::kCount}}, ControlPayload::kAllowed},
//       {"step", {{"step", ControlType::kInteger}, {"loss", ControlType::kNumber, kOptional | kNullable}}}};
//   controlFault(kFromWorkers, "step", body);  // nothing, or "'step': no field 'step'"
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace pipeshard {

enum class ControlType {
  kBoolean,
  kInteger,   // fits int64_t
  kCount,     // an integer that is not negative and fits int64_t
  kInt,       // fits int: what is read as one must be, or would be cut
  kIntCount,  // an integer that is not negative and fits int: also of ids, which have 32 bits
  kNumber,    // integer or not
  kString,
  kObject,  // with `inner` as its fields; anything where `inner` is empty
  kArray,   // of elements like inner[0] (its name does not matter); of anything where `inner` is empty
  kAny,
};

inline constexpr unsigned kOptional = 1;  // may be missing
inline constexpr unsigned kNullable = 2;  // may be null

struct ControlField {
  std::string_view name;
  ControlType type;
  unsigned flags = 0;
  std::vector<ControlField> inner = {};
};

enum class ControlPayload { kNone, kAllowed };

struct ControlForm {
  std::string_view type;
  // no others are allowed; a message without fields has {} or null as its body
  std::vector<ControlField> fields;
  ControlPayload payload = ControlPayload::kNone;
};

// Empty: nothing is checked.
using ControlSchema = std::vector<ControlForm>;

// Why `body`, with so many bytes of payload, is not a message of `type` under `schema`: unknown type;
// missing, surplus or wrongly typed field; a payload that the type may not have. Nothing when it is.
std::optional<std::string> controlFault(const ControlSchema& schema, std::string_view type,
                                        const nlohmann::json& body, size_t payload_bytes = 0);

// What a peer sent, fit for a log line: its first 40 bytes, with '?' for what is not printable ASCII.
std::string printableBeginning(std::string_view text);

}  // namespace pipeshard
