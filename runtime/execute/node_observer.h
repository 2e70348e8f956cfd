// The interface of whoever wants to be told about every node that an executor runs, as it runs: profiling
// measures nodes so (runtime/profiling/profiling_passes.h). Only the nodes of subgraphs are told of; neither
// other instructions (sends, copies, accumulation) nor what the background lane does.
#pragma once

#include <cstddef>

namespace pipeshard {

class DeviceQueue;  // runtime/device/device.h

class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  // A run begins: this instruction of the program.
  virtual void beginRun(size_t instruction) = 0;
  // By its number in the subgraph as it is run (runnableGraph); views are no nodes that run. A copy at the
  // end of a run belongs to the last node. False: it is left out, and what it would have made is whatever was
  // there. `queue`: what the node is given to; a device that works beside the host is not done with it when
  // the node has ended.
  virtual bool beginNode(size_t node, DeviceQueue& queue) = 0;
  virtual void endNode(size_t node, DeviceQueue& queue) = 0;
};

}  // namespace pipeshard
