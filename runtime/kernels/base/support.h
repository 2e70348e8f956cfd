// What every kernel factory needs: refusals that name the node, constant inputs, choice of the element type,
// and a Kernel made of a function. Nothing here computes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/error.h"
#include "ir/base/shape.h"
#include "ir/graph/graph.h"
#include "runtime/kernels/base/axis_split.h"
#include "runtime/kernels/base/data_faults.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard::kernels {

// Error(kBadModel): "MatMul 'name' (onnx::MatMul): <message>".
template <typename... Args>
[[noreturn]] void refuse(const KernelSpec& spec, fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorCode::kBadModel, "{}: {}", describeNode(*spec.node),
       fmt::format(format, std::forward<Args>(args)...));
}

// The number of inputs lies in [least, most] and the first `least` are present.
void checkInputs(const KernelSpec& spec, size_t least, size_t most);
// The same, and the first output is present. Not for what may be asked for a later output alone, as gradients
// of several inputs are.
void checkArity(const KernelSpec& spec, size_t least, size_t most);

// Output `output`, if present, has this shape.
void checkOutputShape(const KernelSpec& spec, size_t output, const Shape& expected);

// Input `input` has this shape.
void checkInputShape(const KernelSpec& spec, size_t input, const Shape& expected);

// Input `input`, if present, has this type; likewise outputs.
void checkInputType(const KernelSpec& spec, size_t input, DataType expected);
void checkOutputType(const KernelSpec& spec, size_t output, DataType expected);

// Is input (output) number `position` there?
bool hasInput(const KernelSpec& spec, size_t position);
bool hasOutput(const KernelSpec& spec, size_t position);

// The content of a present input that must be known when the kernel is created ("needs a constant axes
// input").
const Constant& constantInput(const KernelSpec& spec, size_t input, std::string_view what);
std::vector<int64_t> constantIntegers(const KernelSpec& spec, size_t input, std::string_view what);
double constantNumber(const KernelSpec& spec, size_t input, std::string_view what);

// A list that old opsets give as an attribute and new ones as a constant input; empty when neither is there.
std::vector<int64_t> integersFromAttributeOrInput(const KernelSpec& spec, std::string_view attribute,
                                                  size_t input);

// normalizeAxis with the node's name in the error.
size_t checkedAxis(const KernelSpec& spec, int64_t axis, size_t rank);
// The attribute `axis` (or its default) as an axis of input `input`.
size_t axisAttribute(const KernelSpec& spec, int64_t default_axis, size_t input = 0);

// May output o use the memory of input i: same number of bytes?
bool sameStorage(const KernelSpec& spec, size_t input, size_t output);

AxisSplit splitAtAxis(const Shape& shape, size_t axis);

// Bytes of a workspace's part, so that the next one is aligned as the workspace is on the CPU.
constexpr size_t alignedPart(size_t bytes) {
  constexpr size_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct KernelTraits {
  std::vector<std::pair<int, int>> in_place;  // (input, output) pairs
  size_t workspace_bytes = 0;
  bool accumulates = false;  // output 0 may be added to what is there
  // The kernel looks for wrong data (checkData): throws the Error that a fault is.
  std::function<void(const DataFault&)> throw_fault = {};
};

// A kernel that calls `body`. The body must own what it captures.
std::unique_ptr<Kernel> makeKernel(std::function<void(const KernelArguments&)> body,
                                   KernelTraits traits = {});

// in_place pairs (i, 0) for the inputs of the list that have as many bytes as output 0.
KernelTraits inPlaceTraits(const KernelSpec& spec, std::initializer_list<int> inputs);

template <typename T>
const T* input(const KernelArguments& arguments, size_t position) {
  return position < arguments.inputs.size() ? static_cast<const T*>(arguments.inputs[position]) : nullptr;
}
template <typename T>
T* output(const KernelArguments& arguments, size_t position) {
  return position < arguments.outputs.size() ? static_cast<T*>(arguments.outputs[position]) : nullptr;
}

// Calls find(fault), which looks for wrong data (data_faults.h), in a kernel whose traits have `throw_fault`.
template <typename Find>
void checkData(const KernelArguments& arguments, const std::function<void(const DataFault&)>& throw_fault,
               const Find& find) {
  if (!kKernelsThrow) return find(arguments.fault);
  DataFault fault;
  find(&fault);
  if (fault.found != 0) throw_fault(fault);
}

// Is output 0 to be added to what is there?
inline bool accumulates(const KernelArguments& arguments) { return (arguments.accumulate & 1U) != 0; }

// Calls body(T{}) with the T among Ts whose DataType is `type`; refuses, listing Ts, when there is none.
//   return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) { ... });
template <typename... Ts, typename Body>
std::unique_ptr<Kernel> withType(const KernelSpec& spec, DataType type, std::string_view what, Body&& body) {
  std::unique_ptr<Kernel> kernel;
  const bool found = ((type == dataTypeOf<Ts>() ? (kernel = body(Ts{}), true) : false) || ...);
  if (!found) {
    std::string names;
    ((names += (names.empty() ? "" : ", "), names += dataTypeName(dataTypeOf<Ts>())), ...);
    refuse(spec, "{} has type {}; the kernel supports {}", what, dataTypeName(type), names);
  }
  return kernel;
}

// Calls body(U{}) with the unsigned integer of `type`'s size: for operators that only move elements.
template <typename Body>
std::unique_ptr<Kernel> withElementSize(const KernelSpec& spec, DataType type, std::string_view what,
                                        Body&& body) {
  switch (dataTypeSize(type)) {
    case 1: return body(uint8_t{});
    case 2: return body(uint16_t{});
    case 4: return body(uint32_t{});
    case 8: return body(uint64_t{});
    default:
      refuse(spec, "{} has type {}; the kernel supports types of 1, 2, 4 or 8 bytes", what,
             dataTypeName(type));
  }
}

}  // namespace pipeshard::kernels
