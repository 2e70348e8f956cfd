// The options of `run`, as they are parsed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "runtime/job/job.h"
#include "tools/options/checkpoint_options.h"
#include "tools/options/node_options.h"
#include "tools/options/trace_options.h"

namespace pipeshard {

// What becomes of a step that ends in NaN (--on-nan).
enum class OnNan { kStop, kSkip, kRewind, kFind };

struct RunOptions {
  std::string directory;  // of the plan
  std::string json;
  std::string outputs;
  std::string log;
  std::string metrics;          // HOST:PORT; "": none
  std::optional<OnNan> on_nan;  // not given: what the plan's precision asks for
  int64_t epochs = 0;           // 0: as many steps as --steps says
  JobSpec job;                  // what options say of it; the plan and the other options make the rest
  CheckpointOptions checkpoint;
  ListenOptions listen;
  TraceOptions trace;
};

// They must outlive parsing.
void addRunOptions(CLI::App& command, RunOptions& options);

// Error(kUsage) for those that would do nothing, naming the option.
void refuseRunOptionsInVain(const CLI::App& command, const RunOptions& options);

}  // namespace pipeshard
