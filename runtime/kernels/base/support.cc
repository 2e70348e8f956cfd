#include "runtime/kernels/base/support.h"

#include <algorithm>

namespace pipeshard::kernels {
namespace {

class FunctionKernel : public Kernel {
 public:
  FunctionKernel(std::function<void(const KernelArguments&)> body, KernelTraits traits)
      : body_(std::move(body)), traits_(std::move(traits)) {}

  void run(const KernelArguments& arguments) override { body_(arguments); }
  size_t workspaceBytes() const override { return traits_.workspace_bytes; }
  bool mayRunInPlace(int input, int output) const override {
    return std::find(traits_.in_place.begin(), traits_.in_place.end(), std::pair(input, output)) !=
           traits_.in_place.end();
  }
  bool mayAccumulate(int output) const override { return traits_.accumulates && output == 0; }
  bool recordsFaults() const override { return !kKernelsThrow && traits_.throw_fault != nullptr; }
  void throwFault(const DataFault& fault) const override { traits_.throw_fault(fault); }

 private:
  std::function<void(const KernelArguments&)> body_;
  KernelTraits traits_;
};

}  // namespace

void checkInputs(const KernelSpec& spec, size_t least, size_t most) {
  if (spec.inputs.size() < least || spec.inputs.size() > most) {
    refuse(spec, "has {} inputs; the kernel takes {} to {}", spec.inputs.size(), least, most);
  }
  for (size_t i = 0; i < least; ++i) {
    if (!spec.inputs[i].present()) refuse(spec, "input {} is missing", i);
  }
}

void checkArity(const KernelSpec& spec, size_t least, size_t most) {
  checkInputs(spec, least, most);
  if (!hasOutput(spec, 0)) refuse(spec, "output 0 is missing");
}

void checkOutputShape(const KernelSpec& spec, size_t output, const Shape& expected) {
  if (!hasOutput(spec, output) || spec.outputs[output].shape == expected) return;
  refuse(spec, "output {} has shape {}, but the inputs give {}", output,
         shapeToString(spec.outputs[output].shape), shapeToString(expected));
}

void checkInputShape(const KernelSpec& spec, size_t input, const Shape& expected) {
  if (spec.inputs[input].shape == expected) return;
  refuse(spec, "input {} has shape {}; it must be {}", input, shapeToString(spec.inputs[input].shape),
         shapeToString(expected));
}

void checkInputType(const KernelSpec& spec, size_t input, DataType expected) {
  if (!hasInput(spec, input) || spec.inputs[input].data_type == expected) return;
  refuse(spec, "input {} has type {}; the kernel needs {}", input, dataTypeName(spec.inputs[input].data_type),
         dataTypeName(expected));
}

void checkOutputType(const KernelSpec& spec, size_t output, DataType expected) {
  if (!hasOutput(spec, output) || spec.outputs[output].data_type == expected) return;
  refuse(spec, "output {} has type {}; the kernel gives {}", output,
         dataTypeName(spec.outputs[output].data_type), dataTypeName(expected));
}

bool hasInput(const KernelSpec& spec, size_t position) {
  return position < spec.inputs.size() && spec.inputs[position].present();
}

bool hasOutput(const KernelSpec& spec, size_t position) {
  return position < spec.outputs.size() && spec.outputs[position].present();
}

const Constant& constantInput(const KernelSpec& spec, size_t input, std::string_view what) {
  if (!hasInput(spec, input)) refuse(spec, "input {} ({}) is missing", input, what);
  if (spec.inputs[input].constant == nullptr) {
    refuse(spec,
           "needs a constant {} (input {}), but it is computed while the model runs; fold it or fix the "
           "model's shapes",
           what, input);
  }
  return *spec.inputs[input].constant;
}

std::vector<int64_t> constantIntegers(const KernelSpec& spec, size_t input, std::string_view what) {
  const Constant& constant = constantInput(spec, input, what);
  if (constant.data_type != DataType::kInt64 && constant.data_type != DataType::kInt32) {
    refuse(spec, "{} (input {}) has type {}; it must be int64 or int32", what, input,
           dataTypeName(constant.data_type));
  }
  return integerElements(constant);
}

double constantNumber(const KernelSpec& spec, size_t input, std::string_view what) {
  const std::vector<double> elements = numericElements(constantInput(spec, input, what));
  if (elements.size() != 1)
    refuse(spec, "{} (input {}) has {} elements; it must have one", what, input, elements.size());
  return elements[0];
}

std::vector<int64_t> integersFromAttributeOrInput(const KernelSpec& spec, std::string_view attribute,
                                                  size_t input) {
  if (hasInput(spec, input)) return constantIntegers(spec, input, attribute);
  return spec.node->intsAttribute(attribute);
}

size_t checkedAxis(const KernelSpec& spec, int64_t axis, size_t rank) {
  try {
    return normalizeAxis(axis, rank);
  } catch (Error& error) {
    error.addContext(describeNode(*spec.node));
    throw;
  }
}

size_t axisAttribute(const KernelSpec& spec, int64_t default_axis, size_t input) {
  return checkedAxis(spec, spec.node->intAttribute("axis", default_axis), spec.inputs[input].shape.size());
}

bool sameStorage(const KernelSpec& spec, size_t input, size_t output) {
  if (!hasInput(spec, input) || !hasOutput(spec, output)) return false;
  const TensorSpec& from = spec.inputs[input];
  const TensorSpec& to = spec.outputs[output];
  return dataTypeSize(from.data_type) == dataTypeSize(to.data_type) &&
         elementCount(from.shape) == elementCount(to.shape);
}

AxisSplit splitAtAxis(const Shape& shape, size_t axis) {
  AxisSplit split;
  split.size = shape[axis];
  for (size_t i = 0; i < axis; ++i) split.outer *= shape[i];
  for (size_t i = axis + 1; i < shape.size(); ++i) split.inner *= shape[i];
  return split;
}

std::unique_ptr<Kernel> makeKernel(std::function<void(const KernelArguments&)> body, KernelTraits traits) {
  return std::make_unique<FunctionKernel>(std::move(body), std::move(traits));
}

KernelTraits inPlaceTraits(const KernelSpec& spec, std::initializer_list<int> inputs) {
  KernelTraits traits;
  for (int input : inputs) {
    if (sameStorage(spec, input, 0)) traits.in_place.emplace_back(input, 0);
  }
  return traits;
}

}  // namespace pipeshard::kernels
