#include "runtime/kernels/base/data_faults.h"

#include "runtime/kernels/base/kernel.h"

namespace pipeshard::kernels {
namespace {

template <typename T, typename Good>
void findFirst(int64_t count, const T* elements, DataFault* fault, const Good& is_good) {
  if (fault->found != 0) return;
  bool good = true;  // a loop without branches first: nearly always there is nothing to find
  for (int64_t i = 0; i < count; ++i) good = good && is_good(elements[i]);
  for (int64_t i = 0; i < count && !good; ++i) {
    if (is_good(elements[i])) continue;
    *fault = {1, i, static_cast<int64_t>(elements[i])};
    return;
  }
}

}  // namespace

const bool kKernelsThrow = true;

template <typename T>
void findZero(DeviceQueue*, int64_t count, const T* elements, DataFault* fault) {
  findFirst(count, elements, fault, [](T x) { return x != 0; });
}

template <typename T>
void findOutside(DeviceQueue*, int64_t count, const T* elements, int64_t low, int64_t high,
                 std::optional<int64_t> ignored, DataFault* fault) {
  if (ignored)
    return findFirst(count, elements, fault, [=](T x) { return (x >= low && x < high) || x == *ignored; });
  findFirst(count, elements, fault, [=](T x) { return x >= low && x < high; });
}

void findOutsideTuples(DeviceQueue*, int64_t count, const int64_t* entries, const std::vector<int64_t>& sizes,
                       DataFault* fault) {
  const auto depth = static_cast<int64_t>(sizes.size());
  for (int64_t i = 0; i < count && fault->found == 0; ++i) {
    const int64_t size = sizes[i % depth];
    if (entries[i] < -size || entries[i] >= size) *fault = {1, i, entries[i]};
  }
}

template void findZero(DeviceQueue*, int64_t, const int32_t*, DataFault*);
template void findZero(DeviceQueue*, int64_t, const int64_t*, DataFault*);
template void findZero(DeviceQueue*, int64_t, const int8_t*, DataFault*);
template void findZero(DeviceQueue*, int64_t, const uint8_t*, DataFault*);
template void findOutside(DeviceQueue*, int64_t, const int32_t*, int64_t, int64_t, std::optional<int64_t>,
                          DataFault*);
template void findOutside(DeviceQueue*, int64_t, const int64_t*, int64_t, int64_t, std::optional<int64_t>,
                          DataFault*);

}  // namespace pipeshard::kernels
