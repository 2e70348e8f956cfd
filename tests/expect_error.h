// EXPECT_ERROR(statement, code, "part of the message"): the statement throws pipeshard::Error like this.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"

#define EXPECT_ERROR(statement, expected_code, part)           \
  try {                                                        \
    statement;                                                 \
    ADD_FAILURE() << "no error was thrown";                    \
  } catch (const ::pipeshard::Error& error) {                  \
    EXPECT_EQ(error.code(), expected_code) << error.message(); \
    EXPECT_THAT(error.message(), ::testing::HasSubstr(part));  \
  }
