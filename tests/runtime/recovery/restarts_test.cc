#include "runtime/recovery/restarts.h"

#include <gtest/gtest.h>

namespace pipeshard {
namespace {

TEST(MayBeStartedAgain, WhatIsLostMayAndWhatWouldEndAlikeMayNot) {
  for (const bool has_new_step : {false, true}) {
    EXPECT_TRUE(mayBeStartedAgain(ErrorCode::kPeerUnavailable, has_new_step));
    EXPECT_TRUE(mayBeStartedAgain(ErrorCode::kHang, has_new_step));
    EXPECT_FALSE(mayBeStartedAgain(ErrorCode::kBadModel, has_new_step));
    EXPECT_EQ(mayBeStartedAgain(ErrorCode::kOutOfMemory, has_new_step), has_new_step);
  }
}

}  // namespace
}  // namespace pipeshard
