#include "runtime/kernels/elementwise/conversion.h"

namespace pipeshard::kernels {

std::unique_ptr<Kernel> makeConversion(const KernelSpec& spec, DataType to) {
  refuse(spec,
         "a cast from {} to {}; the CUDA kernel knows float32, float64, int8, int32, int64, uint8 and bool",
         dataTypeName(spec.inputs[0].data_type), dataTypeName(to));
}

}  // namespace pipeshard::kernels
