// The one error type of pipeshard. Everything that can go wrong with input, files, peers or machines is
// thrown as pipeshard::Error; third-party errors are translated into it where they arise. Assertions
// (PIPESHARD_CHECK) are for bugs only, never for input.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace pipeshard {

// What a caller (or a job scheduler) can do about the error. The value is the exit code of the command.
enum class ErrorCode : int {
  kUsage = 64,             // wrong command line: read --help
  kBadModel = 65,          // a model or data file is malformed, or asks for what pipeshard does not support
  kMissingInput = 66,      // a file that was named does not exist or cannot be read
  kPeerUnavailable = 69,   // a worker or node died or cannot be reached
  kInternal = 70,          // a bug in pipeshard
  kDiskFull = 73,          // an output could not be written
  kRequeue = 75,           // stopped on request; start again to go on
  kVersionMismatch = 76,   // the two sides speak different versions
  kAuthentication = 77,    // a key was refused
  kConfiguration = 78,     // plan, cluster or options contradict each other
  kNoProgress = 80,        // restarts did not get a step further
  kHang = 81,              // a deadline passed
  kNotANumber = 82,        // the loss or a gradient is not finite
  kOutOfMemory = 83,       // a device or host has too little memory
  kAddressInUse = 84,      // a port or socket is taken
  kNoGoodCheckpoint = 85,  // no checkpoint passes verification
  kReplicasDiffer = 86,    // ranks that hold copies of a tensor hold different numbers
};

// "bad model or data", "missing input", ...: the name used in messages and JSON.
std::string_view errorCodeName(ErrorCode code);

// A message that says what was found, what was expected and what to do, and context lines added on the way up
// (file, node, operator, rank), outermost first. Copyable; what() is "context: context: message".
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

  // Puts "context: " before the message. A handler goes on with `throw;`, which keeps the kind of the error:
  // `throw error;` would make a plain Error of a derived one. So this returns nothing that could be thrown.
  void addContext(std::string_view context);

 private:
  ErrorCode code_;
  std::string message_;
};

// Throws Error with a formatted message: fail(ErrorCode::kBadModel, "node {}: ...", name).
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

namespace internal {
[[noreturn]] void checkFailed(const char* expression, const char* file, int line, const std::string& detail);
}  // namespace internal

}  // namespace pipeshard

// Ends in Error(kInternal) when a condition that only a bug can break is false. The detail is a fmt format.
#define PIPESHARD_CHECK(condition, ...)                                                                  \
  do {                                                                                                   \
    if (!(condition)) {                                                                                  \
      ::pipeshard::internal::checkFailed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                                    \
  } while (false)
