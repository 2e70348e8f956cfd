// Told about every node that an executor runs, as it runs, for who measures them
// (runtime/profiling/profiling.h). Between instructions that are not runs it hears nothing, and nothing of
// what the background lane does.
#pragma once

#include <cstddef>

namespace pipeshard {

class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  // A run begins: this instruction of the program.
  virtual void beginRun(size_t instruction) = 0;
  // By its number in the subgraph as it is run (runnableGraph); views are no nodes that run. A copy at the
  // end of a run belongs to the last node. False: it is left out, and what it would have made is whatever was
  // there.
  virtual bool beginNode(size_t node) = 0;
  virtual void endNode(size_t node) = 0;
};

}  // namespace pipeshard
