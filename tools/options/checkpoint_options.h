// Where `run` leaves checkpoints, how often, and how many.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "runtime/job/job.h"

namespace pipeshard {

struct CheckpointOptions {
  std::string directory;
  std::string every;
  int keep = 2;
  int restarts = 0;
  int64_t check_replicas = 0;

  void add(CLI::App& command);
  CheckpointSpec spec() const;
};

}  // namespace pipeshard
