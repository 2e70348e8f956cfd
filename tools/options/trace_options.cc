#include "tools/options/trace_options.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "ir/trace/trace_breakdown.h"
#include "runtime/execute/rank_image.h"
#include "runtime/machine/limits.h"
#include "tools/options/option_checks.h"
#include "tools/simulation/trace_file.h"

namespace pipeshard {
namespace {

constexpr uint64_t kBlockOfADisk = 4096;
constexpr uint64_t kBytesOfAnEvent = 100;  // in the file; measured: 120

// Of all ranks in one step: what takes time.
uint64_t eventsOfAStep(const std::string& plan_directory) {
  ProgramFolder folder(plan_directory);
  std::map<KindId, uint64_t> of_kind;
  uint64_t events = 0;
  for (const RankId rank : idsBelow<RankId>(folder.ranks())) {
    const auto [known, is_new] = of_kind.try_emplace(folder.kindOf(rank), 0);
    if (is_new) {
      const Program program = folder.program(rank);
      for (const Instruction& instruction : program.instructions)
        known->second += instruction.kind == InstructionKind::kFree ? 0 : 1;
    }
    events += known->second;
  }
  return events;
}

}  // namespace

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

void TraceOptions::requireSpace(const JobSpec& job) const {
  if (file.empty()) return;
  // A run that goes on from a checkpoint may have one step left.
  const int64_t traced =
      job.checkpoint.directory.empty() ? std::max<int64_t>(1, std::min(steps, job.steps)) : 1;
  const uint64_t bytes = static_cast<uint64_t>(traced) * eventsOfAStep(job.plan_directory) * kBytesOfAnEvent;
  if (!std::filesystem::is_regular_file(file) && std::filesystem::exists(file)) return;  // /dev/stdout
  pipeshard::requireSpace(std::filesystem::absolute(file).parent_path(), std::max(bytes, kBlockOfADisk),
                          "the trace");
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
