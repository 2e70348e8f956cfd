#include "ir/base/error.h"

#include <algorithm>

namespace pipeshard {
namespace {

// What a message quotes may be somebody else's, and of any length.
constexpr size_t kLongestLine = 8'192, kShownAtItsEnd = 256;
constexpr size_t kMostBytes = 262'144;  // of all lines

// `at`, or behind it, where no character of UTF-8 is cut.
size_t behindCharacter(std::string_view text, size_t at) {
  const auto is_inside = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  for (int i = 0; i < 3 && at < text.size() && is_inside(at); ++i) ++at;
  return at;
}

std::string shortenLine(std::string_view line) {
  const size_t begin = behindCharacter(line, kLongestLine - 2 * kShownAtItsEnd);
  const size_t end = std::max(begin, behindCharacter(line, line.size() - kShownAtItsEnd));
  return fmt::format("{} ... ({} more bytes) ... {}", line.substr(0, begin), end - begin, line.substr(end));
}

std::string shorten(std::string text) {
  if (text.size() <= kLongestLine) return text;
  std::string result;
  size_t at = 0;
  while (at <= text.size() && result.size() < kMostBytes) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (at > 0) result += '\n';
    result += line.size() > kLongestLine ? shortenLine(line) : std::string(line);
    at = end + 1;
  }
  if (at < text.size()) result += "\n...";
  return result;
}

}  // namespace

std::string_view errorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage: return "usage";
    case ErrorCode::kBadModel: return "bad model or data";
    case ErrorCode::kMissingInput: return "missing input";
    case ErrorCode::kPeerUnavailable: return "peer unavailable";
    case ErrorCode::kInternal: return "internal error";
    case ErrorCode::kDiskFull: return "cannot write";
    case ErrorCode::kRequeue: return "requeue";
    case ErrorCode::kVersionMismatch: return "version mismatch";
    case ErrorCode::kAuthentication: return "authentication";
    case ErrorCode::kConfiguration: return "configuration";
    case ErrorCode::kNoProgress: return "no progress";
    case ErrorCode::kHang: return "hang";
    case ErrorCode::kNotANumber: return "not a number";
    case ErrorCode::kOutOfMemory: return "out of memory";
    case ErrorCode::kAddressInUse: return "address in use";
    case ErrorCode::kNoGoodCheckpoint: return "no good checkpoint";
    case ErrorCode::kReplicasDiffer: return "replicas differ";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string message) : code_(code), message_(shorten(std::move(message))) {}

void Error::addContext(std::string_view context) {
  message_ = shorten(std::string(context) + ": " + message_);
}

namespace internal {

void checkFailed(const char* expression, const char* file, int line, const std::string& detail) {
  throw Error(ErrorCode::kInternal,
              fmt::format("{}:{}: check failed: {}{}{}; this is a bug in pipeshard, please report it", file,
                          line, expression, detail.empty() ? "" : ": ", detail));
}

}  // namespace internal
}  // namespace pipeshard
