// Kernels: one operator on one device. All shapes are static: a kernel is created once per node, when a program is loaded,
// and run once per microbatch. An operator that has no kernel for a device is an error at load, never a silent no-op.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace pipeshard {

// What a kernel knows when it is created. Absent optional inputs and unused outputs have data_type kUndefined.
struct TensorSpec {
  DataType data_type = DataType::kUndefined;
  Shape shape;
  const Constant* constant = nullptr;  // the content, when it is known before the first step (axes, shapes, indices)
  bool present() const { return data_type != DataType::kUndefined; }
};

struct KernelSpec {
  const Node* node = nullptr;  // operator, opset version, attributes, name; outlives the call only, not the kernel
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
};

// Pointers of one execution, by position; nullptr for absent ones. Dense row-major, 64-byte aligned when from the arena.
struct KernelArguments {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  void* workspace = nullptr;  // workspaceBytes() bytes, 64-byte aligned, undefined content
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Deterministic: the same inputs give the same bits, whatever the number of threads.
  virtual void run(const KernelArguments& arguments) = 0;
  virtual size_t workspaceBytes() const { return 0; }
  // Output o may be the same memory as input i (an element is read before its place is written).
  virtual bool mayRunInPlace(int /*input*/, int /*output*/) const { return false; }
};

using KernelFactory = std::function<std::unique_ptr<Kernel>(const KernelSpec&)>;

// The kernels of one device, keyed by domain and operator. Filled by explicit calls, no static registration.
class KernelRegistry {
 public:
  void add(std::string domain, std::string op_type, KernelFactory factory);
  bool has(const std::string& domain, const std::string& op_type) const;
  // Error(kBadModel) naming node and operator when there is no kernel, or none for these types or attributes.
  std::unique_ptr<Kernel> create(const KernelSpec& spec) const;
  std::vector<std::string> operators() const;  // "domain::op_type", sorted

 private:
  std::map<std::pair<std::string, std::string>, KernelFactory> factories_;
};

// All CPU kernels. Threads: OpenMP's number of this process.
const KernelRegistry& cpuKernels();

}  // namespace pipeshard
