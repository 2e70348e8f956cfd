// How the verifier of Programs fails; for ir/program/program_verify*.cc only.
#pragma once

#include <string>

#include "ir/base/error.h"

namespace pipeshard {

// Throws Error(kInternal): "program verification: <place>: <message>".
[[noreturn]] inline void failVerification(const std::string& place, const std::string& message) {
  fail(ErrorCode::kInternal, "program verification: {}: {}", place, message);
}

}  // namespace pipeshard
