// Wrong data in a kernel's inputs, looked for before they are used: on the CPU an Error at once, on other
// devices a record that becomes the same Error behind the step (DataFault).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace pipeshard {
class DeviceQueue;
struct DataFault;
}  // namespace pipeshard

namespace pipeshard::kernels {

// Kernels of this device throw what they find in their data.
extern const bool kKernelsThrow;

// The first element that is 0, or outside of [low, high) and not `ignored`, is written to `fault`, unless
// there is one. `fault`: of the device's memory. T: int32_t, int64_t, int8_t, uint8_t.
template <typename T>
void findZero(DeviceQueue* queue, int64_t count, const T* elements, DataFault* fault);
// T: int32_t, int64_t.
template <typename T>
void findOutside(DeviceQueue* queue, int64_t count, const T* elements, int64_t low, int64_t high,
                 std::optional<int64_t> ignored, DataFault* fault);
// Tuples of sizes.size() entries, `count` entries in all: entry e of each lies in [-sizes[e], sizes[e]).
void findOutsideTuples(DeviceQueue* queue, int64_t count, const int64_t* entries,
                       const std::vector<int64_t>& sizes, DataFault* fault);

}  // namespace pipeshard::kernels
