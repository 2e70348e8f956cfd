// Kernels: one operator on one device. All shapes are static: a kernel is created once per node, when a
// program is loaded, and run once per microbatch. An operator that has no kernel for a device is an error at
// load, never a silent no-op.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/operators/collectives.h"
#include "runtime/kernels/base/data_fault.h"
#include "transport/collectives/communicator.h"

namespace pipeshard {

// What a kernel knows when it is created. Absent optional inputs and unused outputs have data_type
// kUndefined.
struct TensorSpec {
  DataType data_type = DataType::kUndefined;
  Shape shape;
  // the content, when it is known before the first step (axes, shapes, indices)
  const Constant* constant = nullptr;
  bool present() const { return data_type != DataType::kUndefined; }
};

struct KernelSpec {
  // operator, opset version, attributes, name; outlives the call only, not the kernel
  const Node* node = nullptr;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
};

// One collective, over a group of Program::groups. Meaning of the pointers as in
// transport/collectives/communicator.h: `count` elements per member; results in rank order, the same bits in
// every run. input == output is allowed for kAllReduce.
struct CollectiveCall {
  using Kind = CollectiveKind;
  Kind kind = Kind::kAllReduce;
  GroupId group;
  size_t members = 0;  // that the caller counts on; 0: any number
  DataType type = DataType::kUndefined;
  Reduction reduction = Reduction::kSum;  // kAllReduce, kReduceScatter
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;

  // Bytes behind `input` and `output`.
  size_t inputBytes() const { return blocks(kind == Kind::kReduceScatter || kind == Kind::kAllToAll); }
  size_t outputBytes() const { return blocks(kind == Kind::kAllGather || kind == Kind::kAllToAll); }

 private:
  size_t blocks(bool of_all_members) const {
    return (of_all_members ? members : 1) * count * dataTypeSize(type);
  }
};

// What a kernel of a collective calls: the ranks of this program's groups, as the executor knows them. Every
// member of the group calls the same operations in the same order; they wait for each other.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual void call(const CollectiveCall& call) = 0;
};

// Where a device is given its work (runtime/device/device.h).
class DeviceQueue;

// Pointers of one execution, by position; nullptr for absent ones. Dense row-major, aligned as the device has
// it (64 bytes on the CPU) when from the arena.
struct KernelArguments {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  void* workspace = nullptr;           // workspaceBytes() bytes, aligned likewise, undefined content
  Collectives* collectives = nullptr;  // there when the kernel has a collectiveGroup()
  // bit o: output o is added to what is there; only where mayAccumulate(o)
  uint32_t accumulate = 0;
  DeviceQueue* queue = nullptr;  // kernels of other devices than the CPU give their work to it
  DataFault* fault = nullptr;    // there when the kernel recordsFaults()
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Deterministic: the same inputs give the same bits, whatever the number of threads. The CPU's have
  // computed when it returns, others have given their work to the queue.
  virtual void run(const KernelArguments& arguments) = 0;
  virtual size_t workspaceBytes() const { return 0; }
  // Output o may be the same memory as input i (an element is read before its place is written).
  virtual bool mayRunInPlace(int /*input*/, int /*output*/) const { return false; }
  // Output o may be added to what its memory holds (none of the inputs); on the CPU to the same bits as a
  // separate addition element by element.
  virtual bool mayAccumulate(int /*output*/) const { return false; }
  // The group over which run() calls its one collective; invalid for all others, which need nothing but their
  // arguments.
  virtual GroupId collectiveGroup() const { return {}; }
  // As many members that group must have; 0: any number.
  virtual size_t collectiveMembers() const { return 0; }
  // Of its call: bytes of what it takes and of what it gives together.
  virtual size_t collectiveBytes() const { return 0; }
  // Wrong data are written to KernelArguments::fault, the first of a step; what is computed then stays inside
  // its memory and means nothing. False: run() throws, or there are none.
  virtual bool recordsFaults() const { return false; }
  // Throws what the CPU's kernel would have thrown about it.
  virtual void throwFault(const DataFault& /*fault*/) const {}
};

using KernelFactory = std::function<std::unique_ptr<Kernel>(const KernelSpec&)>;

// The kernels of one device, keyed by domain and operator. Filled by explicit calls, no static registration.
class KernelRegistry {
 public:
  // What becomes of element types that a kernel does not have: computed in a wider one, by the host
  // (widening.h), or refused by name.
  enum class OtherTypes : uint8_t { kWidened, kRefused };
  explicit KernelRegistry(OtherTypes other_types = OtherTypes::kWidened) : other_types_(other_types) {}

  void add(std::string domain, std::string op_type, KernelFactory factory);
  bool has(const std::string& domain, const std::string& op_type) const;
  // Error(kBadModel) naming node and operator when there is no kernel, or none for these types or attributes.
  std::unique_ptr<Kernel> create(const KernelSpec& spec) const;
  std::vector<std::string> operators() const;  // "domain::op_type", sorted

 private:
  OtherTypes other_types_;
  std::map<std::pair<std::string, std::string>, KernelFactory> factories_;
};

}  // namespace pipeshard
