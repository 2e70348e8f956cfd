#include "tests/onnx_import/autodiff/function_calls.h"

#include <utility>

#include "ir/operators/attention_form.h"
#include "ir/operators/fused_projection.h"
#include "tests/onnx_import/autodiff/interpreter.h"

namespace pipeshard::testing {

Constant numbers(const Shape& shape, double low, double high) {
  static uint64_t seed = 100;
  return randomTensor(shape, seed++, low, high);
}

namespace {

Constant integers(Shape shape, const std::vector<int64_t>& elements) {
  return makeConstant<int64_t>(std::move(shape), elements);
}

std::vector<Call> activationCalls() {
  std::vector<Call> calls = {
      {"ReluGrad", "", {numbers({3, 4}), numbers({3, 4})}, {{3, 4}}},
      {"GeluGrad",
       "",
       {numbers({3, 4}), numbers({3, 4}, -3, 3)},
       {{3, 4}},
       {{"approximate", std::string("none")}}},
      {"GeluGrad",
       "tanh",
       {numbers({3, 4}), numbers({3, 4}, -3, 3)},
       {{3, 4}},
       {{"approximate", std::string("tanh")}}},
      {"Gelu", "", {numbers({3, 4}, -3, 3)}, {{3, 4}}, {{"approximate", std::string("none")}}},
      {"Gelu", "tanh", {numbers({3, 4}, -3, 3)}, {{3, 4}}, {{"approximate", std::string("tanh")}}},
      {"Gelu",
       "factors",
       {numbers({3, 4}, -3, 3)},
       {{3, 4}},
       {{"approximate", std::string("none")}, {"factor", 0.75f}}},
      {"Gelu",
       "tanh_factors",
       {numbers({3, 4}, -3, 3)},
       {{3, 4}},
       {{"approximate", std::string("tanh")}, {"factor", 0.75f}, {"cubic", 0.05f}}},
      {"Gelu",
       "divisor",
       {numbers({3, 4}, -3, 3)},
       {{3, 4}},
       {{"approximate", std::string("none")}, {"divisor", 1.25f}}},
      {"GeluGrad",
       "divisor",
       {numbers({3, 4}), numbers({3, 4}, -3, 3)},
       {{3, 4}},
       {{"approximate", std::string("none")}, {"divisor", 1.25f}}},
      {"GeluGrad",
       "factors",
       {numbers({3, 4}), numbers({3, 4}, -3, 3)},
       {{3, 4}},
       {{"approximate", std::string("none")}, {"factor", 0.75f}}},
      {"GeluGrad",
       "tanh_factors",
       {numbers({3, 4}), numbers({3, 4}, -3, 3)},
       {{3, 4}},
       {{"approximate", std::string("tanh")}, {"factor", 0.75f}, {"cubic", 0.05f}}},
      {"Swish", "", {numbers({3, 4}, -4, 4)}, {{3, 4}}, {{"alpha", 1.702f}}},
      {"SwishGrad", "", {numbers({3, 4}), numbers({3, 4}, -4, 4)}, {{3, 4}}, {{"alpha", 1.702f}}},
      {"MishGrad", "", {numbers({3, 4}), numbers({3, 4}, -4, 4)}, {{3, 4}}},
      {"SoftmaxGrad", "", {numbers({3, 4}), numbers({3, 4})}, {{3, 4}}},
  };
  for (int64_t axis : {0, 1, -1}) {
    calls.push_back(
        {"SoftmaxGrad", "", {numbers({2, 3, 4}), numbers({2, 3, 4})}, {{2, 3, 4}}, {{"axis", axis}}});
    calls.push_back(
        {"LogSoftmaxGrad", "", {numbers({2, 3, 4}), numbers({2, 3, 4})}, {{2, 3, 4}}, {{"axis", axis}}});
  }
  return calls;
}

std::vector<Call> layerNormalizationCalls() {
  const Constant root = numbers({2, 3, 1}, 0.5, 2);
  std::vector<Call> calls = {
      {"RMSNormalization",
       "",
       {numbers({2, 3, 4}), numbers({4})},
       {{2, 3, 4}, {2, 3, 1}},
       {{"epsilon", 1e-3f}}},
      {"RMSNormalizationInputGrad",
       "",
       {numbers({2, 3, 4}), numbers({2, 3, 4}), numbers({4}), root},
       {{2, 3, 4}}},
      {"RMSNormalizationWeightGrad", "", {numbers({2, 3, 4}), numbers({2, 3, 4}), root}, {{4}}},
  };
  for (int64_t axis : {-1, 1, 2}) {
    const Shape inner = axis == 1 ? Shape{3, 4} : Shape{4};
    const Shape outer = axis == 1 ? Shape{2, 1, 1} : Shape{2, 3, 1};
    const Constant dy = numbers({2, 3, 4});
    const Constant x = numbers({2, 3, 4});
    const Constant mean = numbers(outer);
    const Constant deviation = numbers(outer, 0.5, 2);
    calls.push_back({"LayerNormalizationInputGrad",
                     "",
                     {dy, x, numbers(inner), mean, deviation},
                     {{2, 3, 4}},
                     {{"axis", axis}}});
    calls.push_back(
        {"LayerNormalizationWeightGrad", "", {dy, x, mean, deviation}, {inner, inner}, {{"axis", axis}}});
  }
  return calls;
}

Constant flags(const Shape& shape, int64_t every) {
  Constant constant{DataType::kBool, shape, std::vector<std::byte>(elementCount(shape))};
  for (size_t i = 0; i < constant.bytes.size(); ++i) constant.bytes[i] = std::byte(i % every != 0);
  return constant;
}

// With every overlay, broadcast in several ways; queries, keys and widths differ. The first row of the mask
// has nothing left.
std::vector<Call> attentionCalls() {
  const Shape query = {2, 3, 4, 5}, key = {2, 3, 6, 5}, value = {2, 3, 6, 7}, row = {2, 3, 4, 1};
  const Shape output = {2, 3, 4, 7};
  std::vector<Call> calls;
  for (const std::string& overlays : attentionOverlays()) {
    for (const bool safe : {false, true}) {
      const std::string overload = attentionOverload(overlays, safe);
      const std::map<std::string, Attribute> attributes = {{"overlays", overlays},
                                                           {"nan_to_zero", int64_t{safe}}};
      std::vector<Constant> inputs = {numbers(query), numbers(key), numbers(value), makeTensor({}, {0.7})};
      const AttentionForm form = attentionForm(overlays, safe, false);
      inputs.resize(form.inputs);
      Constant mask = flags(safe ? Shape{2, 1, 4, 6} : Shape{4, 6}, 3);
      std::fill_n(mask.bytes.begin(), 6, std::byte(0));
      if (form.mask >= 0) {
        inputs[form.mask] = mask;
        inputs[form.fill()] = makeTensor({}, {-2.5});
      }
      if (form.bias >= 0) inputs[form.bias] = numbers(safe ? Shape{3, 1, 6} : Shape{2, 1, 4, 1});
      if (form.second_bias >= 0) inputs[form.second_bias] = numbers(safe ? Shape{2, 1, 1, 6} : Shape{4, 6});
      if (form.keep >= 0) {
        inputs[form.keep] = flags(safe ? Shape{2, 3, 4, 6} : Shape{4, 6}, 4);
        inputs[form.factor()] = makeTensor({}, {1.25});
      }
      calls.push_back({"Attention", overload, inputs, {output, row, row}, attributes});
      inputs.insert(inputs.begin(), {numbers(output), numbers(row), numbers(row, 2, 6)});
      calls.push_back({"AttentionGrad", overload, inputs, {query, key, value}, attributes});
      if (form.bias >= 0)
        calls.push_back({"AttentionScoresGrad", overload, inputs, {{2, 3, 4, 6}}, attributes});
      const Shape shared_key = {2, 1, 6, 5}, shared_value = {2, 1, 6, 7};
      inputs[4] = numbers(shared_key);
      inputs[5] = numbers(shared_value);
      calls.push_back({"AttentionGrad",
                       groupedOverload(overload),
                       inputs,
                       {query, shared_key, shared_value},
                       attributes});
      inputs.erase(inputs.begin(), inputs.begin() + kAttentionGradientInputs);
      calls.push_back({"Attention", overload, inputs, {output, row, row}, attributes});
    }
  }
  // Of one head alone.
  calls.push_back({"Attention",
                   "",
                   {numbers({4, 5}), numbers({6, 5}), numbers({6, 7}), makeTensor({}, {0.7})},
                   {{4, 7}, {4, 1}, {4, 1}}});
  return calls;
}

std::vector<Call> gatherCalls() {
  const Constant indices = integers({2, 3}, {0, 2, -1, 2, 1, 0});
  const Constant elements = integers({2, 4}, {0, 2, 2, 1, 0, -1, 1, 1});
  return {
      {"GatherGrad", "", {numbers({2, 3, 4}), indices, integers({2}, {3, 4})}, {{3, 4}}, {}, {2}},
      {"GatherGrad",
       "",
       {numbers({5, 2, 3, 4}), indices, integers({3}, {5, 3, 4})},
       {{5, 3, 4}},
       {{"axis", int64_t{1}}},
       {2}},
      {"GatherGrad",
       "",
       {numbers({5, 2, 3}), indices, integers({2}, {5, 3})},
       {{5, 3}},
       {{"axis", int64_t{-1}}},
       {2}},
      {"GatherGrad", "", {numbers({4}), integers({}, {-1}), integers({2}, {3, 4})}, {{3, 4}}, {}, {2}},
      {"GatherElementsGrad",
       "",
       {numbers({2, 4}), elements, integers({2}, {3, 4})},
       {{3, 4}},
       {{"axis", int64_t{0}}},
       {2}},
      {"GatherElementsGrad",
       "",
       {numbers({2, 4}), elements, integers({2}, {2, 5})},
       {{2, 5}},
       {{"axis", int64_t{-1}}},
       {2}},
  };
}

std::vector<Call> lossCalls() {
  std::vector<Call> calls;
  const Constant labels = integers({2, 3}, {0, 3, -100, 1, 2, -100});
  const Constant all_ignored = integers({2, 3}, {-100, -100, -100, -100, -100, -100});
  const Constant plain = integers({2, 3}, {0, 3, 1, 1, 2, 0});
  for (const std::string reduction : {"none", "sum", "mean"}) {
    for (bool weighted : {false, true}) {
      for (const Constant& chosen : {labels, plain, all_ignored}) {
        const bool ignoring = chosen != plain;
        const std::string overload = reduction + (weighted ? "_weighted" : "");
        const Shape of_loss = reduction == "none" ? Shape{2, 3} : Shape{};
        Call loss{"CrossEntropyLoss", overload, {}, {of_loss, {2, 3}, {2, 3}}};
        loss.inputs = {numbers({2, 4, 3}, -3, 3), chosen};
        Call gradient{"CrossEntropyLossGrad", overload, {}, {{2, 4, 3}}};
        gradient.inputs = {numbers(of_loss), numbers({2, 4, 3}, -3, 3), numbers({2, 3}, 2, 3),
                           numbers({2, 3}, 1, 4), chosen};
        for (Call* call : {&loss, &gradient}) {
          if (weighted) call->inputs.push_back(numbers({4}, 0.5, 2));
          call->attributes = {{"reduction", reduction},
                              {"ignore_index", int64_t{-100}},
                              {"has_ignore_index", int64_t{ignoring}}};
        }
        if (chosen != all_ignored || reduction != "mean") calls.push_back(loss);  // else 0/0
        calls.push_back(gradient);
      }
    }
  }
  return calls;
}

// An update of one tensor, without the step and the numbers of a schedule.
struct PlainUpdate {
  std::string name;
  size_t states;
  bool counts;
  std::vector<double> numbers;  // LearningRate first
  std::map<std::string, Attribute> attributes = {};
};

const std::vector<PlainUpdate>& plainUpdates() {
  static const std::vector<PlainUpdate> updates = {
      {"SGD", 0, false, {0.1, 0.01}},
      {"SGDMomentum", 1, false, {0.1, 0.9, 0.01}, {{"nesterov", int64_t{0}}}},
      {"SGDMomentum", 1, false, {0.1, 0.9, 0.01}, {{"nesterov", int64_t{1}}}},
      {"Adam", 2, true, {1e-3, 0.9, 0.999, 1e-8, 0.1}},
      {"AdamW", 2, true, {1e-3, 0.9, 0.999, 1e-8, 0.1}},
      {"RMSProp", 1, false, {0.01, 0.99, 1e-8, 0.1}},
      {"RMSPropMomentum", 2, false, {0.01, 0.99, 1e-8, 0.1, 0.9}},
      {"Adagrad", 1, true, {0.01, 0.1, 1e-10, 0.1}},
      {"Lion", 1, false, {0.01, 0.9, 0.99, 0.1}},
  };
  return updates;
}

Call callOf(const PlainUpdate& update, int64_t step, const std::string& schedule,
            const std::vector<double>& schedule_numbers) {
  const auto scalar = [](double number) { return makeTensor({}, {number}); };
  const Shape shape = {3, 4};
  Call call{update.name, schedule, {numbers(shape), numbers(shape)}, {}, update.attributes};
  for (size_t s = 0; s < update.states; ++s) call.inputs.push_back(numbers(shape, 0, 1));
  if (update.counts || !schedule.empty()) call.inputs.push_back(integers({}, {step}));
  for (double number : update.numbers) call.inputs.push_back(scalar(number));
  for (double number : schedule_numbers) call.inputs.push_back(scalar(number));
  call.outputs.assign(1 + update.states, shape);
  if (!schedule.empty()) call.attributes.emplace("schedule", schedule);
  return call;
}

std::vector<Call> optimizerCalls() {
  std::vector<Call> calls;
  for (const PlainUpdate& update : plainUpdates()) {
    for (int64_t step : {1, 7}) calls.push_back(callOf(update, step, "", {}));
    for (const auto& [schedule, numbers] :
         std::vector<std::pair<std::string, std::vector<double>>>{{"constant", {4, 0.25}},
                                                                  {"constant", {0, 0}},
                                                                  {"linear", {3, 0, 11, 1e-4}},
                                                                  {"cosine", {3, 0.1, 11, 1e-4}},
                                                                  {"cosine", {0, 0, 9, 0}},
                                                                  {"step", {3, 0, 2, 0.5}},
                                                                  {"one-cycle", {12, 0.3, 25, 1e4}}}) {
      const bool all_steps = update.name == "SGD";
      for (int64_t step = 1; step < 15; step += all_steps ? 1 : 6)
        calls.push_back(callOf(update, step, schedule, numbers));
    }
  }
  return calls;
}

// What updates consist of that are more than one function.
std::vector<Call> updatePartCalls() {
  const auto scalar = [](double number) { return makeTensor({}, {number}); };
  std::vector<Call> calls;
  for (const auto& [part, parts] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {0, 4}, {3, 4}, {8, 20}}) {
    calls.push_back({"SquareSum", "", {numbers({3, 5}), integers({1}, {part})}, {{}}, {{"parts", parts}}});
  }
  calls.push_back({"SquareSum", "", {numbers({}), integers({1}, {0})}, {{}}});
  calls.push_back({"MovingAverage", "", {numbers({3, 4}), numbers({3, 4}), scalar(0.9)}, {{3, 4}}});
  for (int steps = 1; steps <= 20; ++steps) {
    const std::string overload = std::to_string(steps);
    calls.push_back({"Orthogonalized", overload, {numbers({3, 4}), scalar(1e-7)}, {{3, 4}}});
    calls.push_back({"Orthogonalized", overload + "_tall", {numbers({5, 2}), scalar(1e-7)}, {{5, 2}}});
  }
  for (int64_t step : {1, 7}) {
    calls.push_back({"LAMBDirection",
                     "",
                     {numbers({3, 4}), numbers({3, 4}), numbers({3, 4}), numbers({3, 4}, 0, 1),
                      integers({}, {step}), scalar(0.9), scalar(0.999), scalar(1e-6), scalar(0.1)},
                     {{3, 4}, {3, 4}, {3, 4}}});
    for (const auto& [schedule, settings] :
         std::vector<std::pair<std::string, std::vector<double>>>{{"constant", {4, 0.25}},
                                                                  {"linear", {3, 0, 11, 1e-4}},
                                                                  {"cosine", {3, 0.1, 11, 1e-4}},
                                                                  {"step", {3, 0, 2, 0.5}},
                                                                  {"one-cycle", {12, 0.3, 25, 1e4}}}) {
      Call call{
          "ScheduledRate", schedule, {integers({}, {step}), scalar(0.1)}, {{}}, {{"schedule", schedule}}};
      for (double number : settings) call.inputs.push_back(scalar(number));
      calls.push_back(std::move(call));
    }
  }
  return calls;
}

using Ints = std::vector<int64_t>;

// Strides, dilations, pads, groups, and an image that goes beyond the last window.
std::vector<Call> convolutionCalls() {
  struct Case {
    Shape image, weight, output;
    Ints strides, dilations, pads, rest;
    int64_t group;
  };
  const std::vector<Case> cases = {
      {{2, 3, 5, 6}, {4, 3, 3, 2}, {2, 4, 3, 5}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {0, 0}, 1},
      {{2, 4, 6, 6}, {6, 2, 3, 3}, {2, 6, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2},
      {{1, 3, 7, 8}, {3, 1, 2, 2}, {1, 3, 6, 4}, {1, 2}, {2, 1}, {1, 0, 0, 1}, {0, 1}, 3},
      {{2, 3, 9}, {2, 3, 3}, {2, 2, 3}, {3}, {1}, {0, 1}, {1}, 1},
      {{2, 3, 4, 4}, {5, 3, 1, 1}, {2, 5, 4, 4}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {0, 0}, 1},
  };
  std::vector<Call> calls;
  for (const Case& c : cases) {
    std::map<std::string, Attribute> attributes = {
        {"strides", c.strides},
        {"dilations", c.dilations},
        {"pads", c.pads},
        {"group", c.group},
        {"kernel_shape", Ints(c.weight.begin() + 2, c.weight.end())}};
    calls.push_back({"ConvWeightGrad", "", {numbers(c.output), numbers(c.image)}, {c.weight}, attributes});
    attributes["output_padding"] = c.rest;
    calls.push_back({"ConvInputGrad", "", {numbers(c.output), numbers(c.weight)}, {c.image}, attributes});
  }
  return calls;
}

// Padding that counts and padding that does not, windows that reach beyond it, an image that reaches beyond
// the windows.
std::vector<Call> averagePoolCalls() {
  struct Case {
    Shape image, output;
    Ints kernel, strides, dilations, pads;
    int64_t ceil_mode;
  };
  const std::vector<Case> cases = {
      {{2, 3, 5, 6}, {2, 3, 3, 5}, {3, 2}, {1, 1}, {1, 1}, {0, 0, 0, 0}, 0},
      {{2, 3, 6, 5}, {2, 3, 4, 3}, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 1},
      {{1, 2, 6, 5}, {1, 2, 3, 3}, {3, 3}, {2, 2}, {1, 1}, {1, 0, 1, 2}, 0},
      {{1, 2, 7, 9}, {1, 2, 3, 3}, {2, 3}, {2, 3}, {3, 1}, {1, 1, 0, 0}, 0},
      {{2, 2, 9}, {2, 2, 4}, {3}, {3}, {1}, {1, 1}, 1},
      {{1, 2, 4, 3, 5}, {1, 2, 4, 3, 2}, {2, 1, 3}, {1, 1, 2}, {1, 1, 1}, {1, 0, 0, 0, 0, 0}, 0},
  };
  std::vector<Call> calls;
  for (const Case& c : cases) {
    for (int64_t counted : {0, 1}) {
      calls.push_back({"AveragePoolGrad",
                       "",
                       {numbers(c.output)},
                       {c.image},
                       {{"kernel_shape", c.kernel},
                        {"strides", c.strides},
                        {"dilations", c.dilations},
                        {"pads", c.pads},
                        {"ceil_mode", c.ceil_mode},
                        {"count_include_pad", counted},
                        {"image", Ints(c.image.begin() + 2, c.image.end())}}});
    }
  }
  return calls;
}

std::vector<Call> poolAndBatchNormalizationCalls() {
  std::vector<Call> calls;
  const std::map<std::string, Attribute> plain = {{"kernel_shape", Ints{3, 2}},
                                                  {"strides", Ints{1, 1}},
                                                  {"dilations", Ints{1, 1}},
                                                  {"pads", Ints{0, 0, 0, 0}},
                                                  {"ceil_mode", int64_t{0}}};
  const std::map<std::string, Attribute> padded = {{"kernel_shape", Ints{3, 3}},
                                                   {"strides", Ints{2, 2}},
                                                   {"dilations", Ints{1, 1}},
                                                   {"pads", Ints{1, 1, 1, 1}},
                                                   {"ceil_mode", int64_t{1}}};
  calls.push_back({"MaxPoolGrad", "", {numbers({2, 3, 3, 5}), numbers({2, 3, 5, 6})}, {{2, 3, 5, 6}}, plain});
  calls.push_back(
      {"MaxPoolGrad", "", {numbers({2, 3, 4, 3}), numbers({2, 3, 6, 5})}, {{2, 3, 6, 5}}, padded});
  for (const Shape& shape : {Shape{4, 3}, Shape{2, 3, 5}, Shape{2, 3, 4, 5}}) {
    const std::map<std::string, Attribute> epsilon = {{"epsilon", 1e-3f}};
    calls.push_back({"BatchNormalizationInputGrad",
                     "",
                     {numbers(shape), numbers(shape), numbers({3})},
                     {shape},
                     epsilon});
    calls.push_back(
        {"BatchNormalizationWeightGrad", "", {numbers(shape), numbers(shape)}, {{3}, {3}}, epsilon});
  }
  return calls;
}

std::vector<Call> projectionCalls() {
  std::vector<Call> calls;
  for (const bool transposed : {false, true}) {
    const std::map<std::string, Attribute> attributes = {{"transposed", int64_t{transposed}}};
    const std::string overload = projectionOverload(transposed, false);
    const Shape weight = transposed ? Shape{3, 4, 5} : Shape{5, 3, 4};
    const Constant x = numbers({6, 5}), dy = numbers({6, 3, 4});
    calls.push_back(
        {"FusedProjection", overload, {numbers({2, 3, 5}), numbers(weight)}, {{2, 3, 3, 4}}, attributes});
    calls.push_back({"FusedProjection",
                     projectionOverload(transposed, true),
                     {x, numbers(weight), numbers({3, 4})},
                     {{6, 3, 4}},
                     attributes});
    calls.push_back({"FusedProjectionInputGrad", overload, {dy, numbers(weight)}, {{6, 5}}, attributes});
    const std::vector<Constant> factors = transposed ? std::vector{dy, x} : std::vector{x, dy};
    calls.push_back({"FusedProjectionWeightGrad", overload, {factors[0], factors[1]}, {weight}, attributes});
  }
  return calls;
}

}  // namespace

std::vector<Call> allCalls() {
  std::vector<Call> calls;
  for (const auto& family : {activationCalls(), layerNormalizationCalls(), attentionCalls(), gatherCalls(),
                             lossCalls(), optimizerCalls(), updatePartCalls(), convolutionCalls(),
                             averagePoolCalls(), poolAndBatchNormalizationCalls(), projectionCalls()}) {
    calls.insert(calls.end(), family.begin(), family.end());
  }
  return calls;
}

}  // namespace pipeshard::testing
