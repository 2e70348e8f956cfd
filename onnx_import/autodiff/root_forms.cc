#include "onnx_import/autodiff/root_forms.h"

#include <algorithm>

namespace pipeshard {
namespace {

// nullptr: an input or a weight.
const Node* makerOf(const GradientContext& c, ValueId value) {
  const std::vector<Node>& nodes = c.graph().nodes;
  const auto found = std::find_if(nodes.begin(), nodes.end(), [value](const Node& node) {
    return std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end();
  });
  return found == nodes.end() ? nullptr : &*found;
}

const Node* makerOf(const GradientContext& c, ValueId value, std::string_view op_type) {
  const Node* maker = makerOf(c, value);
  return maker != nullptr && maker->is(op_type) ? maker : nullptr;
}

// x, where the value is x x or x^2; invalid where it is none.
ValueId rootOfSquare(const GradientContext& c, ValueId value) {
  const Node* square = makerOf(c, value);
  if (square == nullptr) return {};
  const bool is_product = square->is("Mul") && square->inputs[0] == square->inputs[1];
  const bool is_power = square->is("Pow") && c.constantNumber(square->inputs[1]) == 2.0;
  return is_product || is_power ? square->inputs[0] : ValueId();
}

bool isSumOfSquares(const GradientContext& c, ValueId value) {
  const Node* sum = makerOf(c, value, "ReduceSum");
  return sum != nullptr && rootOfSquare(c, sum->inputs[0]).valid();
}

// x - mean(x)
bool isDifferenceFromMean(const GradientContext& c, ValueId value) {
  const Node* difference = value.valid() ? makerOf(c, value, "Sub") : nullptr;
  if (difference == nullptr) return false;
  const Node* mean = makerOf(c, difference->inputs[1], "ReduceMean");
  return mean != nullptr && mean->inputs[0] == difference->inputs[0];
}

bool isView(const GradientContext& c, ValueId value) {
  const Node* maker = makerOf(c, value);
  return maker != nullptr && (maker->is("Unsqueeze") || maker->is("Reshape") || maker->is("Expand"));
}

}  // namespace

bool isRootOfDeviation(const GradientContext& c) {
  ValueId value = c.input(0);
  int factors = 0;
  const Node* maker = makerOf(c, value);
  while (maker != nullptr && (maker->is("Mul") || maker->is("Div")) && c.constantNumber(maker->inputs[1])) {
    value = maker->inputs[0];
    maker = makerOf(c, value);
    ++factors;
  }
  return factors > 0 && maker != nullptr && maker->is("ReduceMean") &&
         isDifferenceFromMean(c, rootOfSquare(c, maker->inputs[0]));
}

bool isRootOfCosine(const GradientContext& c) {
  const Node* product = makerOf(c, c.input(0), "Mul");
  return product != nullptr && c.boundBelow().value_or(0) > 0 && isSumOfSquares(c, product->inputs[0]) &&
         isSumOfSquares(c, product->inputs[1]);
}

bool isRootOfProducts(const GradientContext& c) {
  const Node* bounded = makerOf(c, c.input(0));
  if (bounded == nullptr) return false;
  const bool is_bounded = bounded->is("Relu") || (bounded->is("Max") && bounded->inputs.size() == 2 &&
                                                  c.constantNumber(bounded->inputs[1]) == 0.0);
  const Node* product = is_bounded ? makerOf(c, bounded->inputs[0], "MatMul") : nullptr;
  const Node* turned = product != nullptr ? makerOf(c, product->inputs[1], "Transpose") : nullptr;
  return turned != nullptr && makerOf(c, product->inputs[0], "Concat") != nullptr &&
         makerOf(c, turned->inputs[0], "Concat") != nullptr;
}

bool isRootOfDistance(const GradientContext& c) {
  const double exponent = c.constantNumber(c.input(1)).value_or(1);
  if (exponent >= 0.5 || exponent < 0.499999 || !isSumOfSquares(c, c.input(0))) return false;
  const ValueId root = rootOfSquare(c, makerOf(c, c.input(0))->inputs[0]);
  const Node* difference = makerOf(c, root, "Sub");
  return difference != nullptr && isView(c, difference->inputs[0]) && isView(c, difference->inputs[1]);
}

}  // namespace pipeshard
