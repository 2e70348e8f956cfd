// A window as cuDNN has it: two or three axes, and one pad for both ends of each.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/products/window.h"

namespace pipeshard::kernels {

class CudnnAxes {
 public:
  explicit CudnnAxes(const Window& window) : window_(window) {
    const bool flat = window.in[0] == 1 && window.out[0] == 1 && window.kernel[0] == 1 && window.pad[0] == 0;
    first_ = flat ? 1 : 0;
  }

  size_t count() const { return 3 - first_; }
  std::vector<int64_t> of(const Triple& triple) const { return {triple.begin() + first_, triple.end()}; }
  std::vector<int64_t> sizes(int64_t outer, int64_t channels, const Triple& triple) const {
    std::vector<int64_t> all = {outer, channels};
    all.insert(all.end(), triple.begin() + first_, triple.end());
    return all;
  }
  // cuDNN finds as many output positions when both pads are that at the begin: then all of them are ours, for
  // what lies beyond the image counts as padding, however far that goes.
  bool areTheirs() const {
    for (size_t a = 0; a < 3; ++a) {
      const int64_t covered = (window_.kernel[a] - 1) * window_.dilation[a] + 1;
      const int64_t room = window_.in[a] + 2 * window_.pad[a] - covered;
      if (room < 0 || room / window_.stride[a] + 1 != window_.out[a]) return false;
    }
    return true;
  }

 private:
  const Window& window_;
  size_t first_;
};

}  // namespace pipeshard::kernels
