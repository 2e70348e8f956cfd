// A subgraph made ready to run: kernels created, lifetimes and places of its temporaries known. Binding it to
// buffers gives a BoundRun: a flat list of kernel calls with all pointers resolved.
//
// On the host's memory elementwise nodes that follow each other run as one (runtime/kernels/fusion).
//
// Values share memory where they can: Reshape, Squeeze, Unsqueeze, Flatten and Identity are names for their
// input; a kernel that may run in place overwrites a temporary, or an input whose buffer ends with the run,
// that nobody reads later; a result is computed straight into its output buffer.
//
// An output may be the same buffer as an input (kUpdate). It is computed in place when nothing reads the
// input after (or beside) the node that makes the output, else in a temporary that is copied when everything
// has run.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/graph.h"
#include "runtime/device/cpu_device.h"
#include "runtime/execute/memory_plan.h"
#include "runtime/execute/nan_finder.h"
#include "runtime/execute/node_observer.h"
#include "runtime/kernels/base/kernel.h"
#include "runtime/kernels/fusion/fused_groups.h"

namespace pipeshard {

// Calls of one binding, in order. Valid as long as its CompiledSubgraph and the memory it was bound to.
class BoundRun {
 public:
  // Gives all calls to the queue. Adds one to `progress` with every node, for those who watch. Errors of a
  // kernel get the node as context. `observer`, if there is one, is told about every node.
  // `finder`, if there is one, looks at every node's results; its error gets the node as context, too.
  void run(std::atomic<uint64_t>& progress, NodeObserver* observer = nullptr,
           NanFinder* finder = nullptr) const;

  // As many of its kernels record faults (Kernel::recordsFaults); where, is to be said before it runs: an
  // array of the device's memory.
  size_t faultCount() const { return fault_count_; }
  void placeFaults(DataFault* faults);
  // What they have recorded, on the host: throws the first one, with its node as context.
  void throwFirst(std::span<const DataFault> faults) const;

 private:
  friend class CompiledSubgraph;
  struct Call {
    Kernel* kernel = nullptr;  // nullptr: copy `bytes` from input to output
    size_t first_input = 0, input_count = 0;
    size_t first_output = 0, output_count = 0;
    void* workspace = nullptr;
    uint32_t accumulate = 0;
    size_t bytes = 0;
    std::span<const size_t> nodes;  // what runs as one; a copy belongs to the last
    DataFault* fault = nullptr;
  };
  void perform(const Call& call) const;
  void look(const Call& call, NanFinder& finder) const;
  void addNode(Error& error, const Call& call) const;

  const std::vector<std::string>* node_names_ = nullptr;
  const Graph* graph_ = nullptr;
  Collectives* collectives_ = nullptr;
  DeviceQueue* queue_ = nullptr;
  size_t fault_count_ = 0;
  std::vector<Call> calls_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

// Which nodes run as one. kNone: every result has memory of its own, and can be looked at.
enum class Fusion : uint8_t { kElementwise, kNone };

// A subgraph's graph as it is run: functions without a kernel are inlined, missing shapes inferred,
// transposed operands folded into their products. Views are still nodes. What is timed, or foreseen, is what
// these nodes take.
Graph runnableGraph(Graph graph, const KernelRegistry& kernels);

class CompiledSubgraph {
 public:
  // Inlines functions that have no kernel, infers what shapes are missing, and creates the kernels. Errors:
  // kBadModel when an operator has no kernel or a value no static shape (names the node), or the graph refers
  // to weights that no input carries.
  // `device`: of the kernels; its memory holds the constants. `queue`: of it, which gets them there, and is
  // what runs use that name no other; nullptr: one of the subgraph's own.
  CompiledSubgraph(Graph graph, std::string name, const KernelRegistry& kernels, Device& device = cpuDevice(),
                   DeviceQueue* queue = nullptr, Fusion fusion = Fusion::kElementwise);
  CompiledSubgraph(const CompiledSubgraph&) = delete;
  CompiledSubgraph& operator=(const CompiledSubgraph&) = delete;

  const std::string& name() const { return name_; }
  const Graph& graph() const { return graph_; }  // as it is run (runnableGraph)
  size_t inputCount() const { return graph_.inputs.size(); }
  size_t outputCount() const { return graph_.outputs.size(); }
  // Type, shape and name of an input or output, to check what is bound to it.
  const Value& input(size_t i) const { return graph_.value(graph_.inputs[i]); }
  const Value& output(size_t i) const { return graph_.value(graph_.outputs[i]); }
  int64_t constantBytes() const { return std::ssize(constants_.bytes); }

  // Which inputs and outputs are one buffer: equal numbers are the same buffer. Two outputs may not be one
  // buffer. `ending`, by input (empty: none): nobody reads its buffer behind the run.
  struct Aliasing {
    std::vector<int> inputs;
    std::vector<int> outputs;
    std::vector<bool> ending = {};
    friend auto operator<=>(const Aliasing&, const Aliasing&) = default;
  };
  // What memory a run with this aliasing needs, and when: only inputs that are `ending` end before it does.
  // The reference stays valid.
  const RunMemory& memory(const Aliasing& aliasing);
  // Of the workspace in which its temporaries are apart from all else.
  int64_t workspaceBytes(const Aliasing& aliasing) { return memory(aliasing).apart.total_bytes; }
  // How many copies (rather than kernels) a run makes; for tests and the curious.
  size_t copyCount(const Aliasing& aliasing);
  // Of the nodes that are collectives, in the order in which they run: their groups.
  std::vector<GroupId> collectiveGroups() const;
  // What the kernel takes and gives whose collective moves most: bytes.
  size_t collectiveBytes() const;
  // Error(kConfiguration) naming the node when a collective is cut for another number of members than its
  // group has. Its groups exist.
  void checkGroupSizes(const IdVector<GroupId, std::vector<RankId>>& groups) const;
  // Some kernel does (Kernel::recordsFaults).
  bool recordsFaults() const;
  // Can a run add this output to what its buffer holds? When a kernel that can makes it, and nothing else
  // reads it.
  bool mayAccumulate(size_t output) const;
  // `adds`, by output (empty: none): those that are added to what their buffer holds, which is no input's;
  // only where mayAccumulate. Error(kConfiguration) when the subgraph holds collectives and `collectives`
  // (used by every run) is nullptr. `queue`: of the device, behind what the constructor's was given then.
  // `temporaries`: where these are (memory(aliasing).temporaries), from `workspace` on; nullptr: as they are
  // apart.
  BoundRun bind(const Aliasing& aliasing, std::span<std::byte* const> inputs,
                std::span<std::byte* const> outputs, std::byte* workspace, Collectives* collectives = nullptr,
                const std::vector<bool>& adds = {}, DeviceQueue* queue = nullptr,
                const std::vector<int64_t>* temporaries = nullptr);

 private:
  // Where the bytes of a value are during a run.
  struct Storage {
    enum class Kind : uint8_t { kNone, kInput, kOutput, kConstant, kTemporary };
    Kind kind = Kind::kNone;
    size_t index = 0;  // of the input, output, or temporary; byte offset in constants_
  };
  // A kernel and what it runs: one node, or several as one. In the order of its last node.
  struct Step {
    std::unique_ptr<Kernel> kernel;
    std::vector<size_t> nodes;
    std::vector<ValueId> inputs;   // of the node; of several: roots
    std::vector<ValueId> outputs;  // in the kernel's order
  };
  struct Copy {
    Storage from;
    Storage to;
    size_t bytes = 0;
  };
  struct Layout {
    std::vector<Storage> storage;          // by value index; meaningful for roots
    std::vector<size_t> kernel_workspace;  // by step: temporary, or kNoTemporary
    std::vector<Copy> copies;              // after the last step, in order
    RunMemory memory;
  };
  class Planner;
  struct Addresses;  // of what a run's storage lies in

  // Error(kConfiguration) where there is a collective and no `collectives`.
  void requireCommunicator(const Collectives* collectives) const;
  void placeConstants();
  void makeSteps(const KernelRegistry& kernels, Fusion fusion);
  void checkShapes(size_t node) const;
  KernelSpec kernelSpec(const Node& node) const;
  ValueId root(ValueId value) const { return roots_[value.index()]; }
  const Layout& layout(const Aliasing& aliasing);
  void findRootUses();

  // Of a value that others share the memory of.
  struct RootUse {
    int outputs = 0;    // of the graph
    bool read = false;  // by a kernel
    int maker = -1;     // the step whose kernel writes it, as output `position`
    int position = 0;
  };

  Graph graph_;
  std::string name_;
  std::vector<std::string> node_names_;
  std::vector<Step> steps_;
  std::vector<ValueId> roots_;            // by value: the value whose memory it shares
  std::vector<RootUse> root_uses_;        // by value
  std::vector<bool> is_input_;            // by value: of graph_.inputs
  std::vector<size_t> constant_offsets_;  // by value
  std::unique_ptr<DeviceQueue> own_queue_;
  DeviceQueue* queue_;
  MemoryBlock constants_;
  std::map<Aliasing, Layout> layouts_;
};

}  // namespace pipeshard
