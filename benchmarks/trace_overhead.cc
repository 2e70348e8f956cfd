// What recording a trace costs: trace_overhead DIR [STEPS]
//
// Runs the single-device program of a plan directory, each step once with and once without a recorder, in
// turn, and prints the medians and their ratio. The smaller the model, the more recording shows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/local_program.h"
#include "runtime/execute/rank_image.h"

namespace pipeshard {
namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void measure(const std::string& directory, int64_t steps) {
  LocalProgram local(loadRank(directory + "/reference", RankId(0)), {"", 1}, {.check_finite = false});
  Executor& executor = local.executor();
  TraceRecorder recorder(RankId(0), {{&executor.program(), executor.memory().live_bytes}}, 20);
  AlignedMemory memory(recorder.bytes());
  std::memset(memory.data(), 0, memory.size());
  recorder.place(memory.bytes());
  for (int64_t step = 1; step <= 10; ++step) local.runStep(step);
  std::vector<double> plain, recorded, ratios;
  for (int64_t step = 11; step <= steps + 10; ++step) {
    double seconds[2] = {};
    for (const bool first : {true, false}) {
      const bool on = first == (step % 2 == 0);  // neither is always the first
      executor.record(on ? &recorder : nullptr);
      seconds[on ? 1 : 0] = local.runStep(step).seconds;
    }
    plain.push_back(seconds[0]);
    recorded.push_back(seconds[1]);
    ratios.push_back(seconds[1] / seconds[0]);
  }
  const double added = median(ratios) - 1;
  fmt::print(
      "{} instructions; step {:.3f} ms, recorded {:.3f} ms; recording adds {:+.2f}% (median of {} pairs; "
      "{:.0f} ns an instruction)\n",
      executor.program().instructions.size(), median(plain) * 1e3, median(recorded) * 1e3, 100 * added, steps,
      added * median(plain) * 1e9 / static_cast<double>(executor.program().instructions.size()));
}

}  // namespace
}  // namespace pipeshard

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: trace_overhead DIR [STEPS]\n");
    return 64;
  }
  try {
    pipeshard::measure(argv[1], argc > 2 ? std::atoll(argv[2]) : 300);
    return 0;
  } catch (const pipeshard::Error& error) {
    fmt::print(stderr, "trace_overhead: {}\n", error.message());
    return static_cast<int>(error.code());
  }
}
