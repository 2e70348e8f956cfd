#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/strided_copy.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// Nothing where they lie already.
void copyBytes(const KernelArguments& arguments, int64_t bytes) {
  if (arguments.inputs[0] == arguments.outputs[0]) return;
  copyElements<uint8_t>(arguments.queue, makeStridedCopy({{bytes, 1, 1}}), input<uint8_t>(arguments, 0),
                        output<uint8_t>(arguments, 0));
}

// Same elements, another shape. The output's shape is that of the prepared graph, so shape inputs need not be
// read.
std::unique_ptr<Kernel> view(const KernelSpec& spec) {
  checkArity(spec, 1, 2);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  if (!sameStorage(spec, 0, 0)) {
    refuse(spec, "output shape {} does not hold the elements of input shape {}",
           shapeToString(spec.outputs[0].shape), shapeToString(spec.inputs[0].shape));
  }
  const int64_t bytes = byteCount(spec.inputs[0].data_type, spec.inputs[0].shape);
  return makeKernel([bytes](const KernelArguments& arguments) { copyBytes(arguments, bytes); },
                    inPlaceTraits(spec, {0}));
}

std::unique_ptr<Kernel> identity(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  return view(spec);
}

// Random numbers come with the training graph's own operators; here Dropout passes its input through.
std::unique_ptr<Kernel> dropout(const KernelSpec& spec) {
  checkArity(spec, 1, 3);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  checkOutputShape(spec, 1, spec.inputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputType(spec, 1, DataType::kBool);
  const bool training = hasInput(spec, 2) && constantNumber(spec, 2, "training_mode") != 0;
  const double ratio = hasInput(spec, 1) && training ? constantNumber(spec, 1, "ratio") : 0.5;
  if (training && ratio != 0) {
    refuse(spec,
           "training_mode is true with ratio {}; pipeshard supports Dropout in inference mode or with ratio "
           "0: export with ratio 0",
           ratio);
  }
  const int64_t count = elementCount(spec.inputs[0].shape);
  const int64_t bytes = byteCount(spec.inputs[0].data_type, spec.inputs[0].shape);
  return makeKernel(
      [bytes, count](const KernelArguments& arguments) {
        copyBytes(arguments, bytes);
        if (auto* mask = output<uint8_t>(arguments, 1))
          fillElements<uint8_t>(arguments.queue, count, 1, mask);
      },
      inPlaceTraits(spec, {0}));
}

}  // namespace

void addViewKernels(KernelRegistry& registry) {
  for (const char* name : {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}) registry.add("", name, view);
  registry.add("", "Identity", identity);
  registry.add("", "Dropout", dropout);
}

}  // namespace pipeshard::kernels
