// The interface of whoever wants to be told about every node that an executor runs, as it runs: profiling
// measures nodes so (runtime/profiling/profiling_passes.h). Only the nodes of subgraphs are told of; neither
// other instructions (sends, copies, accumulation) nor what the background lane does.
#pragma once

#include <cstddef>
#include <span>

namespace pipeshard {

class DeviceQueue;  // runtime/device/device.h

class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  // A run begins: this instruction of the program.
  virtual void beginRun(size_t instruction) = 0;
  // By their numbers in the subgraph as it is run (runnableGraph): one, or several that run as one; views are
  // no nodes that run. A copy at the end of a run belongs to the last node. False: they are left out, and
  // what they would have made is whatever was there. `queue`: what they are given to; a device that works
  // beside the host is not done with them when they have ended.
  virtual bool beginNodes(std::span<const size_t> nodes, DeviceQueue& queue) = 0;
  virtual void endNodes(std::span<const size_t> nodes, DeviceQueue& queue) = 0;
};

}  // namespace pipeshard
