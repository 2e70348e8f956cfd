#include "ir/base/convert.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/widening.h"

namespace pipeshard::kernels {

bool canConvert(DataType from, DataType to) { return isConvertible(from, to); }

void convertTensor(DeviceQueue*, DataType from_type, const void* from, DataType to_type, void* to,
                   int64_t count, SmallFloatRounding rounding) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  const auto from_bytes = static_cast<int64_t>(dataTypeSize(from_type));
  const auto to_bytes = static_cast<int64_t>(dataTypeSize(to_type));
  forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
    convertElements(from_type, source + begin * from_bytes, to_type, target + begin * to_bytes, end - begin,
                    rounding);
  });
}

}  // namespace pipeshard::kernels
