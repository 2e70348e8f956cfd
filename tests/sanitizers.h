// Tests that measure what sanitizers change (memory, time) say so and are left out under them:
//
//   SKIP_UNDER_SANITIZERS("their shadow of the memory counts as resident");
#pragma once

#include <gtest/gtest.h>

namespace pipeshard {

// As -fsanitize takes them; nullptr: none.
#ifdef PIPESHARD_SANITIZERS
inline constexpr const char* kSanitizers = PIPESHARD_SANITIZERS;
#else
inline constexpr const char* kSanitizers = nullptr;
#endif

}  // namespace pipeshard

#define SKIP_UNDER_SANITIZERS(why)         \
  if (::pipeshard::kSanitizers != nullptr) \
  GTEST_SKIP() << "with the sanitizers " << ::pipeshard::kSanitizers << ": " << (why)
