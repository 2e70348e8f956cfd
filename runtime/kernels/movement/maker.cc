#include "runtime/kernels/movement/maker.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// A kernel whose output 0 does not depend on what the inputs hold.
std::unique_ptr<Kernel> fixedOutput(std::vector<std::byte> bytes) {
  return makeKernel([content = std::move(bytes)](const KernelArguments& arguments) {
    storeBytes(arguments.queue, content, output<std::byte>(arguments, 0));
  });
}

std::vector<std::byte> integerBytes(const std::vector<int64_t>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(int64_t));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::unique_ptr<Kernel> shape(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, DataType::kInt64);
  const Shape& of = spec.inputs[0].shape;
  const int64_t rank = of.size();
  const auto position = [&](int64_t at) { return std::clamp(at < 0 ? at + rank : at, int64_t{0}, rank); };
  const int64_t begin = position(spec.node->intAttribute("start", 0));
  const int64_t end = std::max(begin, position(spec.node->intAttribute("end", rank)));
  checkOutputShape(spec, 0, {end - begin});
  return fixedOutput(integerBytes({of.begin() + begin, of.begin() + end}));
}

std::unique_ptr<Kernel> size(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, DataType::kInt64);
  checkOutputShape(spec, 0, {});
  return fixedOutput(integerBytes({elementCount(spec.inputs[0].shape)}));
}

const Constant* tensorAttribute(const KernelSpec& spec, const char* name) {
  const auto found = spec.node->attributes.find(name);
  if (found == spec.node->attributes.end()) return nullptr;
  const Constant* constant = std::get_if<Constant>(&found->second);
  if (constant == nullptr) refuse(spec, "attribute {} must be a tensor", name);
  return constant;
}

std::unique_ptr<Kernel> constant(const KernelSpec& spec) {
  if (!hasOutput(spec, 0)) refuse(spec, "output 0 is missing");
  Constant value;
  if (const Constant* tensor = tensorAttribute(spec, "value")) {
    value = *tensor;
  } else if (const auto number = spec.node->attributes.find("value_float");
             number != spec.node->attributes.end()) {
    value = makeConstant<float>({}, {spec.node->floatAttribute("value_float", 0)});
  } else if (spec.node->hasAttribute("value_int")) {
    value = makeConstant<int64_t>({}, {spec.node->intAttribute("value_int", 0)});
  } else if (spec.node->hasAttribute("value_ints")) {
    const std::vector<int64_t> list = spec.node->intsAttribute("value_ints");
    value = makeConstant<int64_t>({std::ssize(list)}, list);
  } else if (const auto floats = spec.node->attributes.find("value_floats");
             floats != spec.node->attributes.end()) {
    const auto* list = std::get_if<std::vector<float>>(&floats->second);
    if (list == nullptr) refuse(spec, "attribute value_floats must be a list of floats");
    value = makeConstant<float>({std::ssize(*list)}, *list);
  } else {
    refuse(spec,
           "has none of the attributes value, value_float, value_floats, value_int, value_ints that the CPU "
           "kernel supports");
  }
  checkOutputType(spec, 0, value.data_type);
  checkOutputShape(spec, 0, value.shape);
  return fixedOutput(std::move(value.bytes));
}

std::unique_ptr<Kernel> constantOfShape(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  const Constant* given = tensorAttribute(spec, "value");
  const Constant value = given != nullptr ? *given : makeConstant<float>({1}, {0.0f});
  if (elementCount(value.shape) != 1) refuse(spec, "attribute value must have one element");
  checkOutputType(spec, 0, value.data_type);
  const int64_t count = elementCount(spec.outputs[0].shape);
  return withElementSize(spec, value.data_type, "attribute value", [&](auto zero) {
    using T = decltype(zero);
    T element;
    std::memcpy(&element, value.bytes.data(), sizeof(T));
    return makeKernel([element, count](const KernelArguments& arguments) {
      fillElements(arguments.queue, count, element, output<T>(arguments, 0));
    });
  });
}

std::unique_ptr<Kernel> range(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  for (size_t i : {0, 1, 2}) {
    checkInputType(spec, i, spec.inputs[0].data_type);
    if (elementCount(spec.inputs[i].shape) != 1) refuse(spec, "input {} must be a scalar", i);
  }
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const int64_t count = elementCount(spec.outputs[0].shape);
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([count](const KernelArguments& arguments) {
      fillRange(arguments.queue, count, input<T>(arguments, 0), input<T>(arguments, 2),
                output<T>(arguments, 0));
    });
  });
}

std::unique_ptr<Kernel> eyeLike(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  if (spec.inputs[0].shape.size() != 2)
    refuse(spec, "input has shape {}; it must be a matrix", shapeToString(spec.inputs[0].shape));
  const int64_t rows = spec.inputs[0].shape[0];
  const int64_t columns = spec.inputs[0].shape[1];
  const int64_t diagonal = spec.node->intAttribute("k", 0);
  checkOutputType(spec, 0,
                  static_cast<DataType>(
                      spec.node->intAttribute("dtype", static_cast<int64_t>(spec.inputs[0].data_type))));
  return withType<float, double, int32_t, int64_t, bool>(
      spec, spec.outputs[0].data_type, "output 0", [&](auto zero) {
        using T = decltype(zero);
        return makeKernel([=](const KernelArguments& arguments) {
          fillDiagonal(arguments.queue, rows, columns, diagonal, std::bit_cast<Bits<T>>(T(1)),
                       bitsOf(output<T>(arguments, 0)));
        });
      });
}

std::unique_ptr<Kernel> oneHot(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const Shape& indices = spec.inputs[0].shape;
  const int64_t depth = constantNumber(spec, 1, "depth");
  const size_t axis = checkedAxis(spec, spec.node->intAttribute("axis", -1), indices.size() + 1);
  Shape expected = indices;
  expected.insert(expected.begin() + axis, depth);
  checkOutputShape(spec, 0, expected);
  checkInputShape(spec, 2, {2});
  checkOutputType(spec, 0, spec.inputs[2].data_type);
  const AxisSplit split = splitAtAxis(expected, axis);
  return withElementSize(spec, spec.inputs[2].data_type, "input 2", [&](auto value) {
    using V = decltype(value);
    return withType<int64_t, int32_t, float, double>(
        spec, spec.inputs[0].data_type, "input 0", [&](auto index) {
          using I = decltype(index);
          return makeKernel([split](const KernelArguments& arguments) {
            fillOneHot(arguments.queue, split, input<I>(arguments, 0), input<V>(arguments, 2),
                       output<V>(arguments, 0));
          });
        });
  });
}

std::unique_ptr<Kernel> trilu(const KernelSpec& spec) {
  checkArity(spec, 1, 2);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const Shape& shape = spec.inputs[0].shape;
  if (shape.size() < 2)
    refuse(spec, "input has shape {}; it must have at least two axes", shapeToString(shape));
  TrianglePlan plan;
  plan.rows = shape[shape.size() - 2];
  plan.columns = shape.back();
  plan.batch = plan.rows * plan.columns == 0 ? 0 : elementCount(shape) / (plan.rows * plan.columns);
  plan.diagonal = hasInput(spec, 1) ? static_cast<int64_t>(constantNumber(spec, 1, "k")) : 0;
  plan.upper = spec.node->intAttribute("upper", 1) != 0;
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [=](const KernelArguments& arguments) {
          keepTriangle(arguments.queue, plan, input<T>(arguments, 0), output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0}));
  });
}

}  // namespace

void addMakerKernels(KernelRegistry& registry) {
  registry.add("", "Shape", shape);
  registry.add("", "Size", size);
  registry.add("", "Constant", constant);
  registry.add("", "ConstantOfShape", constantOfShape);
  registry.add("", "Range", range);
  registry.add("", "EyeLike", eyeLike);
  registry.add("", "OneHot", oneHot);
  registry.add("", "Trilu", trilu);
}

}  // namespace pipeshard::kernels
