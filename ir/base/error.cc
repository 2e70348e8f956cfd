#include "ir/base/error.h"

namespace pipeshard {

std::string_view errorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage: return "usage";
    case ErrorCode::kBadModel: return "bad model";
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

Error::Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

void Error::addContext(std::string_view context) { message_ = std::string(context) + ": " + message_; }

namespace internal {

void checkFailed(const char* expression, const char* file, int line, const std::string& detail) {
  throw Error(ErrorCode::kInternal,
              fmt::format("{}:{}: check failed: {}{}{}; this is a bug in pipeshard, please report it", file,
                          line, expression, detail.empty() ? "" : ": ", detail));
}

}  // namespace internal
}  // namespace pipeshard
