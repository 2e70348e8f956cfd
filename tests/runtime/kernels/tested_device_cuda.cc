// The CUDA module, which must have whatever the CPU has kernels of its own for.
#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "runtime/kernels/base/families.h"
#include "tests/runtime/device/cuda/cuda_call.h"
#include "tests/runtime/kernels/tested_device.h"

namespace pipeshard::testing {
namespace {

// float16 and bfloat16 are widened on every device.
DataType widened(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 ? DataType::kFloat32 : type;
}

KernelCall widened(const KernelCall& call) {
  KernelCall wide = call;
  for (auto& input : wide.inputs) {
    if (!input || widened(input->type) == input->type) continue;
    Tensor tensor{widened(input->type), input->shape,
                  std::vector<std::byte>(byteCount(widened(input->type), input->shape))};
    convertElements(input->type, input->bytes.data(), tensor.type, tensor.bytes.data(),
                    elementCount(input->shape));
    input = tensor;
  }
  for (OutputSpec& output : wide.outputs) output.type = widened(output.type);
  for (const char* name : {"to", "dtype"}) {
    const auto found = wide.node.attributes.find(name);
    if (found == wide.node.attributes.end()) continue;
    auto& type = std::get<int64_t>(found->second);
    type = static_cast<int64_t>(widened(static_cast<DataType>(type)));
  }
  return wide;
}

// The CPU's own kernels cast between all types; the module's between those that it computes in.
bool castsOtherTypes(const KernelCall& call) {
  if (!call.node.op_type.starts_with("Cast")) return false;
  const auto is_other = [](DataType type) {
    return type != DataType::kFloat32 && type != DataType::kFloat64 && type != DataType::kInt32 &&
           type != DataType::kInt64 && type != DataType::kInt8 && type != DataType::kUint8 &&
           type != DataType::kBool;
  };
  return is_other(call.inputs[0]->type) || is_other(call.outputs[0].type);
}

}  // namespace

const KernelRegistry& testedKernels() { return cuda().kernels(); }

std::vector<Tensor> execute(const KernelCall& call, Kernel& kernel,
                            std::optional<std::pair<size_t, size_t>> shared, const Tensor* total) {
  return runOnCuda(call, kernel, shared, total);
}

bool mustRun(const KernelCall& call) {
  KernelCall known = widened(call);
  if (castsOtherTypes(known)) return false;
  static const KernelRegistry without_widening = [] {
    KernelRegistry all(KernelRegistry::OtherTypes::kRefused);
    kernels::addAllKernels(all);
    return all;
  }();
  for (size_t i = 0; i < call.inputs.size(); ++i) known.constants.push_back(i);
  try {
    without_widening.create(CallSpec(known).spec);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace pipeshard::testing
