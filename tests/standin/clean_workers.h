// What the stand-ins of NVIDIA's libraries have said of a job's workers (STANDIN_LOG).
#pragma once

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pipeshard {

// So many workers have worked on the stand-in and ended, and had nothing reported.
inline void expectCleanWorkers(const std::string& log, size_t count) {
  std::ifstream file(log);
  size_t ended = 0;
  for (std::string line; std::getline(file, line); ++ended)
    EXPECT_THAT(line, ::testing::MatchesRegex("process [0-9]+: [0-9]+ operations, 0 kinds of faults"));
  EXPECT_EQ(ended, count);
}

}  // namespace pipeshard
