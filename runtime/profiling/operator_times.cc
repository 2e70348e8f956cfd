#include "runtime/profiling/operator_times.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>

#include "runtime/device/cpu_device.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 5;

// The shortest time of an operator of two operands and a result of one shape, in seconds.
double secondsOf(const std::string& op_type, const Shape& shape) {
  Node node;
  node.op_type = op_type;
  node.opset_version = 14;
  const TensorSpec tensor{DataType::kFloat32, shape, nullptr};
  const std::unique_ptr<Kernel> kernel = cpuDevice().kernels().create({&node, {tensor, tensor}, {tensor}});
  const size_t bytes = byteCount(DataType::kFloat32, shape);
  MemoryBlock memory[3];
  for (MemoryBlock& block : memory) {
    block = cpuDevice().allocate(bytes);
    std::fill(block.bytes.begin(), block.bytes.end(), std::byte{0});
  }
  MemoryBlock workspace = cpuDevice().allocate(kernel->workspaceBytes());
  const void* inputs[] = {memory[0].bytes.data(), memory[1].bytes.data()};
  void* outputs[] = {memory[2].bytes.data()};
  double best = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    const Clock::time_point start = Clock::now();
    kernel->run({inputs, outputs, workspace.bytes.data()});
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

}  // namespace

void NodeTimes::beginRun(size_t instruction) {
  if (steps_ == 1 && !warmed_up_) {
    times_.clear();
    step_seconds_ = 0;
    warmed_up_ = true;
  }
  last_.reset();
  if (instruction >= times_.size()) times_.resize(instruction + 1);
  run_ = &times_[instruction];
}

bool NodeTimes::beginNodes(std::span<const size_t> nodes, DeviceQueue& /*queue*/) {
  is_copy_ = last_ == nodes.back();
  last_ = nodes.back();
  start_ = Clock::now();
  return true;
}

void NodeTimes::endNodes(std::span<const size_t> nodes, DeviceQueue& /*queue*/) {
  const Clock::duration taken = Clock::now() - start_;
  const size_t node = nodes.back();
  if (node >= run_->size()) run_->resize(node + 1);
  Time& time = (*run_)[node];
  time.taken += taken;
  if (!is_copy_) ++time.runs;
}

void NodeTimes::endStep(double seconds) {
  ++steps_;
  step_seconds_ += seconds;
}

std::vector<NodeTime> NodeTimes::rows(const Program& program) const {
  std::map<std::pair<SubgraphId, size_t>, NodeTime> sums;
  for (size_t i = 0; i < times_.size(); ++i) {
    const SubgraphId subgraph = program.instructions.copyAt(i).subgraph;
    for (size_t node = 0; node < times_[i].size(); ++node) {
      if (times_[i][node].runs == 0) continue;
      NodeTime& sum = sums[{subgraph, node}];
      sum.subgraph = subgraph;
      sum.node = node;
      sum.runs += times_[i][node].runs;
      sum.seconds += std::chrono::duration<double>(times_[i][node].taken).count();
    }
  }
  std::vector<NodeTime> rows;
  for (const auto& [key, sum] : sums) rows.push_back(sum);
  return rows;
}

KernelRates measureKernelRates() {
  constexpr int64_t kSide = 1024, kElements = int64_t{1} << 23;
  return {2.0 * kSide * kSide * kSide / secondsOf("MatMul", {kSide, kSide}),
          3.0 * kElements * sizeof(float) / secondsOf("Add", {kElements})};
}

}  // namespace pipeshard
