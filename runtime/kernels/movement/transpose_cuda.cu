#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/movement/transpose.h"

namespace pipeshard::kernels {

template <typename T>
void transposeElements(DeviceQueue* queue, const TransposePlan& plan, const T* in, T* out) {
  copyElements(queue, plan.copy, in, out);
}

template void transposeElements(DeviceQueue*, const TransposePlan&, const uint8_t*, uint8_t*);
template void transposeElements(DeviceQueue*, const TransposePlan&, const uint16_t*, uint16_t*);
template void transposeElements(DeviceQueue*, const TransposePlan&, const uint32_t*, uint32_t*);
template void transposeElements(DeviceQueue*, const TransposePlan&, const uint64_t*, uint64_t*);

}  // namespace pipeshard::kernels
