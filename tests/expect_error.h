// EXPECT_ERROR(statement, code, "part of the message"): the statement throws pipeshard::Error like this.
// codeOf and isRefused: whether an action throws one.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"

namespace pipeshard {

// 0: no error was thrown.
template <typename Action>
ErrorCode codeOf(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode{0};
}

// Whether a verifier throws its error; no other is expected.
template <typename Action>
bool isRefused(const Action& verify) {
  const ErrorCode code = codeOf(verify);
  EXPECT_TRUE(code == ErrorCode{0} || code == ErrorCode::kInternal) << static_cast<int>(code);
  return code != ErrorCode{0};
}

}  // namespace pipeshard

#define EXPECT_ERROR(statement, expected_code, part)           \
  try {                                                        \
    statement;                                                 \
    ADD_FAILURE() << "no error was thrown";                    \
  } catch (const ::pipeshard::Error& error) {                  \
    EXPECT_EQ(error.code(), expected_code) << error.message(); \
    EXPECT_THAT(error.message(), ::testing::HasSubstr(part));  \
  }
