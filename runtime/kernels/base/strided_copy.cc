#include "runtime/kernels/base/strided_copy.h"

namespace pipeshard::kernels {

StridedCopy makeStridedCopy(const std::vector<CopyAxis>& axes, int64_t in_begin, int64_t out_begin) {
  StridedCopy copy;
  copy.in_begin = in_begin;
  copy.out_begin = out_begin;
  for (const CopyAxis& axis : axes) {
    if (axis.size == 1) continue;
    if (!copy.axes.empty() && copy.axes.back().in == axis.in * axis.size &&
        copy.axes.back().out == axis.out * axis.size) {
      copy.axes.back() = {copy.axes.back().size * axis.size, axis.in, axis.out};
    } else {
      copy.axes.push_back(axis);
    }
  }
  if (copy.axes.empty()) copy.axes.push_back({1, 1, 1});
  for (size_t a = 0; a + 1 < copy.axes.size(); ++a) copy.rows *= copy.axes[a].size;
  return copy;
}

std::vector<CopyAxis> copyAxes(const Shape& sizes, const Shape& in_strides, const Shape& out_strides) {
  std::vector<CopyAxis> axes;
  for (size_t i = 0; i < sizes.size(); ++i) axes.push_back({sizes[i], in_strides[i], out_strides[i]});
  return axes;
}

}  // namespace pipeshard::kernels
