#include "transport/control/control_message.h"

#include <limits>
#include <type_traits>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// Brackets outside of strings, counted before the parser builds anything: 16 MiB of '[' would cost it a
// gigabyte.
bool isTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxControlDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

template <typename T>
bool read(const nlohmann::json& object, const char* key, T& value) {
  const auto found = object.find(key);
  if (found == object.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else if constexpr (std::is_unsigned_v<T>) {
    if (!found->is_number_unsigned()) return false;
  } else {
    if (!found->is_number_integer() || *found > std::numeric_limits<T>::max() ||
        *found < std::numeric_limits<T>::min())
      return false;
  }
  value = found->get<T>();
  return true;
}

}  // namespace

std::string encodeControlMessage(const ControlMessage& message) {
  const nlohmann::json object = {
      {"version", message.version}, {"job", message.job_id},        {"generation", message.generation},
      {"rank", message.rank},       {"sequence", message.sequence}, {"type", message.type},
      {"body", message.body}};
  std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxControlBytes) {
    fail(ErrorCode::kInternal,
         "control message '{}' has {} bytes, at most {} are allowed; big results travel by files",
         message.type, text.size(), kMaxControlBytes);
  }
  return text;
}

std::optional<ControlMessage> decodeControlMessage(std::string_view bytes) {
  if (bytes.size() > kMaxControlBytes || isTooDeep(bytes)) return std::nullopt;
  nlohmann::json object = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  ControlMessage message;
  if (!object.is_object() || !read(object, "version", message.version)) return std::nullopt;
  const bool has_type = read(object, "type", message.type);
  const auto body = object.find("body");
  if (body != object.end()) message.body = std::move(*body);
  if (message.version != kControlVersion) return message;
  const bool complete = has_type && body != object.end() && read(object, "job", message.job_id) &&
                        read(object, "generation", message.generation) &&
                        read(object, "rank", message.rank) && read(object, "sequence", message.sequence);
  if (!complete) return std::nullopt;
  return message;
}

std::optional<ControlMessage> decodeControlFrames(std::span<const std::string> frames) {
  if (frames.empty() || frames.size() > 2) return std::nullopt;
  std::optional<ControlMessage> message = decodeControlMessage(frames[0]);
  if (!message || frames.size() == 1) return message;
  const std::span<const std::byte> payload = std::as_bytes(std::span(frames[1]));
  const bool is_ours = message->type == kRegister || message->type == kWelcome || message->type == kReject;
  if (payload.empty() || payload.size() > kMaxControlBytes || is_ours) return std::nullopt;
  message->payload.assign(payload.begin(), payload.end());
  return message;
}

}  // namespace pipeshard
