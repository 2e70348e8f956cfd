#include "runtime/kernels/elementwise/conversion.h"

#include "ir/base/convert.h"
#include "runtime/kernels/base/parallel.h"

namespace pipeshard::kernels {
namespace {

SmallFloatRounding roundingOf(const Node& node) {
  SmallFloatRounding rounding{.saturate = node.intAttribute("saturate", 1) != 0};
  const std::string power = node.stringAttribute("round_mode", "up");
  if (power == "nearest") {
    rounding.power = PowerRounding::kNearest;
  } else if (power == "down") {
    rounding.power = PowerRounding::kDown;
  } else if (power != "up") {
    fail(ErrorCode::kBadModel, "round_mode '{}' is none of up, down, nearest", power);
  }
  return rounding;
}

}  // namespace

std::unique_ptr<Kernel> makeConversion(const KernelSpec& spec, DataType to) {
  const DataType from = spec.inputs[0].data_type;
  const SmallFloatRounding rounding = roundingOf(*spec.node);
  return makeKernel([=, count = elementCount(spec.inputs[0].shape)](const KernelArguments& arguments) {
    const auto* x = input<std::byte>(arguments, 0);
    auto* y = output<std::byte>(arguments, 0);
    const auto from_bytes = static_cast<int64_t>(dataTypeSize(from));
    const auto to_bytes = static_cast<int64_t>(dataTypeSize(to));
    forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
      convertElements(from, x + begin * from_bytes, to, y + begin * to_bytes, end - begin, rounding);
    });
  });
}

}  // namespace pipeshard::kernels
