#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/movement/pad.h"

namespace pipeshard::kernels {

template <typename T>
void padElements(DeviceQueue*, const PadPlan& plan, const T* in, T value, const T* value_at, T* out) {
  if (value_at != nullptr) value = *value_at;
  const size_t outer = plan.output.size() - 1;
  const std::vector<int64_t>& inner = plan.maps[outer];
  const int64_t length = inner.size();
  forRows(plan.rows, length, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      int64_t rest = row, from = 0;
      bool outside = false;
      for (size_t a = outer; a-- > 0;) {
        const int64_t position = plan.maps[a][rest % plan.output[a]];
        rest /= plan.output[a];
        outside = outside || position == kOutside;
        from += position * plan.in_strides[a];
      }
      for (int64_t i = 0; i < length; ++i) {
        const int64_t position = inner[i];
        out[row * length + i] = outside || position == kOutside ? value : in[from + position];
      }
    }
  });
}

template void padElements(DeviceQueue*, const PadPlan&, const uint8_t*, uint8_t, const uint8_t*, uint8_t*);
template void padElements(DeviceQueue*, const PadPlan&, const uint16_t*, uint16_t, const uint16_t*,
                          uint16_t*);
template void padElements(DeviceQueue*, const PadPlan&, const uint32_t*, uint32_t, const uint32_t*,
                          uint32_t*);
template void padElements(DeviceQueue*, const PadPlan&, const uint64_t*, uint64_t, const uint64_t*,
                          uint64_t*);

}  // namespace pipeshard::kernels
