// A JSON text with one fault, for tests of refusals.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace pipeshard {

// `text` with the first `from` replaced by `to`; a test failure if there is none.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace pipeshard
