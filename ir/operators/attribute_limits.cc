#include "ir/operators/attribute_limits.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 20;  // along one axis, by one attribute
constexpr int64_t kMostAxes = 64;

struct AttributeLimit {
  std::string_view name;
  int64_t low;
  int64_t high;
};

constexpr std::array kLimits = {
    AttributeLimit{"keepdims", 0, 1},
    AttributeLimit{"ceil_mode", 0, 1},
    AttributeLimit{"strides", 1, kMostElements},
    AttributeLimit{"dilations", 1, kMostElements},
    AttributeLimit{"kernel_shape", 1, kMostElements},
    AttributeLimit{"pooled_shape", 1, kMostElements},
    AttributeLimit{"group", 1, kMostElements},
    AttributeLimit{"offset_group", 1, kMostElements},
    AttributeLimit{"blocksize", 1, kMostElements},
    AttributeLimit{"output_height", 1, kMostElements},
    AttributeLimit{"output_width", 1, kMostElements},
    AttributeLimit{"sampling_ratio", 0, kMostElements},
    AttributeLimit{"output_padding", 0, kMostElements},
    AttributeLimit{"num_outputs", 1, kMostElements},
    AttributeLimit{"num_scan_inputs", 1, kMostElements},
    AttributeLimit{"hidden_size", 1, kMostElements},
    AttributeLimit{"p", 1, 1024},
    AttributeLimit{"axis", -kMostAxes, kMostAxes},
    AttributeLimit{"axes", -kMostAxes, kMostAxes},
    AttributeLimit{"perm", 0, kMostAxes},
    AttributeLimit{"batch_dims", 0, kMostAxes},
};
struct ShapeInput {
  std::string_view op_type;
  size_t input;
};
constexpr std::array kShapeInputs = {
    ShapeInput{"Reshape", 1}, ShapeInput{"Expand", 1},     ShapeInput{"ConstantOfShape", 0},
    ShapeInput{"Tile", 1},    ShapeInput{"AffineGrid", 1}, ShapeInput{"Upsample", 1},
    ShapeInput{"Resize", 2},  ShapeInput{"Resize", 3},     ShapeInput{"Pad", 1},
    ShapeInput{"Col2Im", 1},  ShapeInput{"Unsqueeze", 1},  ShapeInput{"CenterCropPad", 1},
    ShapeInput{"Slice", 1},   ShapeInput{"MaxUnpool", 2},  ShapeInput{"Squeeze", 1},
};

// Windows that slide over input 0, and the input that says how large they are.
constexpr std::array kWindows = {
    ShapeInput{"Conv", 1},        ShapeInput{"ConvTranspose", 1}, ShapeInput{"ConvInteger", 1},
    ShapeInput{"QLinearConv", 3}, ShapeInput{"DeformConv", 1},
};

// Of Pad they may be negative: that cuts off.
constexpr AttributeLimit kPads{"pads", 0, kMostElements};
constexpr AttributeLimit kCuttingPads{"pads", -kMostElements, kMostElements};

const AttributeLimit* limitOf(const Node& node, std::string_view name) {
  if (name == kPads.name) return node.op_type == "Pad" ? &kCuttingPads : &kPads;
  const auto found = std::find_if(kLimits.begin(), kLimits.end(),
                                  [&](const AttributeLimit& limit) { return limit.name == name; });
  return found == kLimits.end() ? nullptr : &*found;
}

void checkNumber(const Node& node, const AttributeLimit& limit, int64_t number) {
  if (number >= limit.low && number <= limit.high) return;
  fail(ErrorCode::kBadModel, "{}: its attribute {} has {}; what is taken is from {} to {}",
       describeNode(node), limit.name, number, limit.low, limit.high);
}

}  // namespace

void checkAttributes(const Node& node) {
  if (!node.domain.empty()) return;
  for (const auto& [name, attribute] : node.attributes) {
    const AttributeLimit* limit = limitOf(node, name);
    if (limit == nullptr) continue;
    if (const auto* number = std::get_if<int64_t>(&attribute)) checkNumber(node, *limit, *number);
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute)) {
      for (const int64_t number : *numbers) checkNumber(node, *limit, number);
    }
  }
}

void checkShapeInput(const Node& node, size_t input, int64_t length) {
  const bool is_shape = std::any_of(kShapeInputs.begin(), kShapeInputs.end(), [&](const ShapeInput& known) {
    return known.op_type == node.op_type && known.input == input;
  });
  if (!is_shape || !node.domain.empty() || length <= 2 * kMostAxes) return;
  fail(ErrorCode::kBadModel, "{}: its input {} has {} elements, but tensors have {} axes at most",
       describeNode(node), input, length, kMostAxes);
}

std::optional<size_t> windowInput(const Node& node) {
  const auto found = std::find_if(kWindows.begin(), kWindows.end(),
                                  [&](const ShapeInput& known) { return known.op_type == node.op_type; });
  if (found == kWindows.end() || !node.domain.empty() || node.inputs.size() <= found->input)
    return std::nullopt;
  return found->input;
}

void checkWindow(const Node& node, int64_t image_rank, int64_t window_rank) {
  if (image_rank == window_rank) return;
  fail(ErrorCode::kBadModel, "{}: its weights have {} axes, but its input has {}; they are of one rank",
       describeNode(node), window_rank, image_rank);
}

void checkReducedAxes(const Node& node, const std::vector<int64_t>& axes, int64_t rank) {
  std::set<int64_t> seen;
  for (const int64_t axis : axes) {
    if (seen.insert(axis < 0 ? axis + rank : axis).second) continue;
    fail(ErrorCode::kBadModel, "{}: its axes name axis {} twice", describeNode(node), axis);
  }
}

}  // namespace pipeshard
