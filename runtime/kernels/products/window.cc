#include "runtime/kernels/products/window.h"

#include <algorithm>

#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

constexpr size_t kSpatial = 3;

void checkRanks(const KernelSpec& spec, const Shape& image, const Shape& output,
                const std::vector<int64_t>& kernel) {
  if (image.size() < 3 || image.size() > 5)
    refuse(spec, "the image has shape {}; the kernel supports one to three spatial axes",
           shapeToString(image));
  if (output.size() != image.size() || kernel.size() + 2 != image.size())
    refuse(spec, "image {}, output {} and a kernel of {} axes do not fit", shapeToString(image),
           shapeToString(output), kernel.size());
}

// Element i of a list attribute, or its default when the attribute is absent.
int64_t elementOf(const KernelSpec& spec, std::string_view attribute, size_t i, size_t size,
                  int64_t default_value) {
  const std::vector<int64_t> list = spec.node->intsAttribute(attribute);
  if (list.empty()) return default_value;
  if (list.size() != size)
    refuse(spec, "attribute '{}' has {} elements, expected {}", attribute, list.size(), size);
  return list[i];
}

Window withoutPads(const KernelSpec& spec, const Shape& image, const Shape& output,
                   const std::vector<int64_t>& kernel) {
  checkRanks(spec, image, output, kernel);
  Window window;
  const size_t axes = kernel.size();
  for (size_t i = 0; i < axes; ++i) {
    const size_t a = kSpatial - axes + i;
    window.in[a] = image[i + 2];
    window.out[a] = output[i + 2];
    window.kernel[a] = kernel[i];
    window.stride[a] = elementOf(spec, "strides", i, axes, 1);
    window.dilation[a] = elementOf(spec, "dilations", i, axes, 1);
    if (window.stride[a] < 1 || window.dilation[a] < 1 || window.kernel[a] < 1)
      refuse(spec, "strides, dilations and kernel sizes must be positive");
  }
  return window;
}

void takePads(const KernelSpec& spec, size_t axes, Window& window) {
  for (size_t i = 0; i < axes; ++i) {
    const size_t a = kSpatial - axes + i;
    window.pad[a] = elementOf(spec, "pads", i, 2 * axes, 0);
    window.pad_end[a] = elementOf(spec, "pads", axes + i, 2 * axes, 0);
    if (window.pad[a] < 0 || window.pad_end[a] < 0) refuse(spec, "negative pads are not supported");
  }
}

// What the kernel covers of an axis from the first to the last output position.
int64_t reach(const Window& window, size_t a) {
  return (window.out[a] - 1) * window.stride[a] + (window.kernel[a] - 1) * window.dilation[a] + 1;
}

void sharePads(Window& window, bool more_at_end, size_t axes) {
  for (size_t a = kSpatial - axes; a < kSpatial; ++a) {
    const int64_t total = std::max<int64_t>(0, reach(window, a) - window.in[a]);
    window.pad[a] = more_at_end ? total / 2 : total - total / 2;
    window.pad_end[a] = total - window.pad[a];
  }
}

}  // namespace

bool Window::isPointwise() const {
  const Triple ones{1, 1, 1};
  const Triple zeros{0, 0, 0};
  return kernel == ones && stride == ones && pad == zeros && in == out;
}

std::vector<int64_t> kernelSizes(const KernelSpec& spec, const Shape* weight) {
  std::vector<int64_t> said = spec.node->intsAttribute("kernel_shape");
  if (weight == nullptr) return said;
  if (weight->size() < 2)
    refuse(spec, "the weight has shape {}; it needs two channel axes", shapeToString(*weight));
  std::vector<int64_t> sizes(weight->begin() + 2, weight->end());
  if (!said.empty() && said != sizes)
    refuse(spec, "kernel_shape is not that of the weight {}", shapeToString(*weight));
  return sizes;
}

Window windowOf(const KernelSpec& spec, const Shape& image, const Shape& output,
                const std::vector<int64_t>& kernel) {
  Window window = withoutPads(spec, image, output, kernel);
  const std::string auto_pad = spec.node->stringAttribute("auto_pad", "NOTSET");
  if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
    sharePads(window, auto_pad == "SAME_UPPER", kernel.size());
  } else if (auto_pad == "NOTSET" || auto_pad.empty()) {
    takePads(spec, kernel.size(), window);
  } else if (auto_pad != "VALID") {
    refuse(spec, "auto_pad '{}' is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER", auto_pad);
  }
  const bool ceiling = spec.node->intAttribute("ceil_mode", 0) != 0;
  for (size_t a = 0; a < kSpatial; ++a) {
    const int64_t beyond = reach(window, a) - (window.in[a] + window.pad[a] + window.pad_end[a]);
    if (window.out[a] < 1 || beyond > (ceiling ? window.stride[a] - 1 : 0) ||
        beyond <= -window.stride[a] - (ceiling ? window.stride[a] : 0))
      refuse(spec, "the output {} is not what kernel, strides and pads make of {}", shapeToString(output),
             shapeToString(image));
  }
  return window;
}

Window transposedWindowOf(const KernelSpec& spec, const Shape& image, const Shape& output,
                          const std::vector<int64_t>& kernel) {
  Window window = withoutPads(spec, image, output, kernel);
  const std::string auto_pad = spec.node->stringAttribute("auto_pad", "NOTSET");
  const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  if (!same && spec.node->intsAttribute("output_shape").empty()) {
    if (auto_pad != "VALID") takePads(spec, kernel.size(), window);
    return window;
  }
  for (size_t i = 0; i < kernel.size(); ++i) {
    const size_t a = kSpatial - kernel.size() + i;
    const int64_t total = std::max<int64_t>(
        0, reach(window, a) + elementOf(spec, "output_padding", i, kernel.size(), 0) - window.in[a]);
    window.pad[a] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    window.pad_end[a] = total - window.pad[a];
  }
  return window;
}

}  // namespace pipeshard::kernels
