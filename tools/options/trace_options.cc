#include "tools/options/trace_options.h"

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "ir/trace/trace_breakdown.h"
#include "tools/options/option_checks.h"
#include "tools/simulation/trace_file.h"

namespace pipeshard {

void TraceOptions::add(CLI::App& command) {
  command
      .add_option("--trace", file,
                  "Write what every rank did when to this file, for ui.perfetto.dev, and\nprint what their "
                  "time went to")
      ->type_name("FILE");
  command.add_option("--trace-steps", steps, "How many steps the trace has: the last ones")
      ->check(positiveWhole())
      ->capture_default_str();
}

void TraceOptions::apply(JobSpec& job, bool always) {
  if (file.empty() && !always) return;
  if (!file.empty()) requireWritable(file);
  job.trace = &trace;
  job.trace_steps = steps;
}

void TraceOptions::write() const {
  if (file.empty() || trace.events.empty()) return;
  writeTextFile(file, tracesToJson({&trace, 1}));
  fmt::print("{}trace of {} events: {}\n", printBreakdown(trace), trace.events.size(), file);
}

void TraceWriter::finish() {
  finished_ = true;
  options_.write();
}

TraceWriter::~TraceWriter() {
  if (finished_) return;
  try {
    options_.write();
  } catch (const std::exception& error) {
    fmt::print(stderr, "no trace was written: {}\n", error.what());
  }
}

}  // namespace pipeshard
