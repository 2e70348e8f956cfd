// What every operator of a rank takes in the steps of a job (`run --operators`), and the machine's best rates
// beside it.
//
//   NodeTimes times;                        // ExecutorOptions::observer of the program of whole batches
//   runner.runStep(1); times.endStep(seconds); ... // the first step finds nothing in caches: left out, if
//   others follow times.rows(program)                         // by subgraph and node
//
// On the CPU alone, where a node is done when it has returned. Thread rules: as the executor's.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/program/program.h"
#include "runtime/execute/node_observer.h"

namespace pipeshard {

// Of one node of a subgraph as it is run (CompiledSubgraph::graph), over all its runs; of several that run as
// one, said of the last of them.
struct NodeTime {
  SubgraphId subgraph;
  size_t node = 0;
  int64_t runs = 0;
  double seconds = 0;
};

class NodeTimes : public NodeObserver {
 public:
  void beginRun(size_t instruction) override;
  bool beginNodes(std::span<const size_t> nodes, DeviceQueue& queue) override;
  void endNodes(std::span<const size_t> nodes, DeviceQueue& queue) override;
  void endStep(double seconds);

  // How many steps the times are of.
  int64_t steps() const { return steps_ - (warmed_up_ ? 1 : 0); }
  double stepSeconds() const { return step_seconds_; }  // of all of them
  // Those that have run, by subgraph and node.
  std::vector<NodeTime> rows(const Program& program) const;

 private:
  struct Time {
    int64_t runs = 0;
    std::chrono::steady_clock::duration taken{};
  };
  std::vector<std::vector<Time>> times_;  // by instruction, node
  std::vector<Time>* run_ = nullptr;      // of the instruction that runs
  std::optional<size_t> last_;            // node of it
  bool is_copy_ = false;                  // behind that node, not the node itself
  std::chrono::steady_clock::time_point start_;
  int64_t steps_ = 0;
  double step_seconds_ = 0;
  bool warmed_up_ = false;
};

// What kernels reach here with this thread's number of threads: floating-point operations of a float32
// product of 1,024 x 1,024 matrices, and bytes that an addition of tensors beyond all caches reads and
// writes; per second. Takes about 100 MiB and some tenths of a second.
struct KernelRates {
  double flops = 0;
  double bytes = 0;
};
KernelRates measureKernelRates();

}  // namespace pipeshard
