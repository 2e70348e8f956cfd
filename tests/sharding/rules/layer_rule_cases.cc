// Convolutions, normalizations, attention and losses.
#include "tests/sharding/rules/rule_case_lists.h"

namespace pipeshard::testing {

void addProjections(std::vector<RuleCase>& cases) {
  for (const bool transposed : {false, true}) {
    const std::map<std::string, Attribute> attributes = {{"transposed", int64_t{transposed}}};
    const std::string suffix = transposed ? "Transposed" : "";
    const Shape weight = transposed ? Shape{3, 4, 6} : Shape{6, 3, 4};
    const Argument x = real({8, 6}), dy = real({8, 3, 4});
    const auto add = [&](const std::string& op, const std::string& name, std::vector<Argument> inputs,
                         const Shape& output) {
      cases.push_back(
          {op + name + suffix, "pipeshard", op, std::move(inputs), {{kReal, output}}, attributes});
    };
    add("FusedProjection", "", {real({2, 4, 6}), real(weight)}, {2, 4, 3, 4});
    add("FusedProjection", "WithBias", {x, real(weight), real({3, 4})}, {8, 3, 4});
    add("FusedProjectionInputGrad", "", {dy, real(weight)}, {8, 6});
    add("FusedProjectionWeightGrad", "", transposed ? std::vector{dy, x} : std::vector{x, dy}, weight);
  }
}

namespace {

Argument images() { return real({4, 6, 3, 5}); }

// Of 3 x 3 numbers, as many of them as the image has.
std::map<std::string, Attribute> window() {
  return {{"kernel_shape", Ints{3, 3}},
          {"pads", Ints{1, 1, 1, 1}},
          {"strides", Ints{1, 1}},
          {"dilations", Ints{1, 1}}};
}

std::map<std::string, Attribute> groupedWindow() {
  std::map<std::string, Attribute> grouped = window();
  grouped["group"] = int64_t{2};
  return grouped;
}

void addTransposedConvolutions(std::vector<RuleCase>& cases) {
  cases.push_back({"ConvTranspose",
                   "",
                   "ConvTranspose",
                   {images(), real({6, 2, 3, 3})},
                   {{kReal, {4, 2, 3, 5}}},
                   window()});
  cases.push_back({"ConvTransposeWithBias",
                   "",
                   "ConvTranspose",
                   {images(), real({6, 2, 3, 3}), real({2})},
                   {{kReal, {4, 2, 3, 5}}},
                   window()});
  cases.push_back({"ConvTransposeInGroupsWithBias",
                   "",
                   "ConvTranspose",
                   {images(), real({6, 2, 3, 3}), real({4})},
                   {{kReal, {4, 4, 3, 5}}},
                   groupedWindow()});
}

void addPooling(std::vector<RuleCase>& cases) {
  std::map<std::string, Attribute> averaged = window();
  averaged["image"] = Ints{3, 5};
  averaged["ceil_mode"] = averaged["count_include_pad"] = int64_t{0};
  cases.push_back({"MaxPool", "", "MaxPool", {images()}, {{kReal, {4, 6, 3, 5}}}, window()});
  cases.push_back(
      {"MaxPoolGrad", "pipeshard", "MaxPoolGrad", {images(), images()}, {{kReal, {4, 6, 3, 5}}}, window()});
  cases.push_back(
      {"AveragePoolGrad", "pipeshard", "AveragePoolGrad", {images()}, {{kReal, {4, 6, 3, 5}}}, averaged});
  cases.push_back({"AveragePool", "", "AveragePool", {images()}, {{kReal, {4, 6, 3, 5}}}, window()});
  cases.push_back({"GlobalAveragePool", "", "GlobalAveragePool", {images()}, {{kReal, {4, 6, 1, 1}}}});
  cases.push_back({"GlobalMaxPool", "", "GlobalMaxPool", {images()}, {{kReal, {4, 6, 1, 1}}}});
}

void addBatchNormalizations(std::vector<RuleCase>& cases) {
  const Argument statistic = positive({6});
  const std::vector<Argument> inputs = {images(), statistic, statistic, statistic, statistic};
  cases.push_back({"BatchNormalization", "", "BatchNormalization", inputs, {{kReal, {4, 6, 3, 5}}}});
  cases.push_back({"BatchNormalizationTraining",
                   "",
                   "BatchNormalization",
                   inputs,
                   {{kReal, {4, 6, 3, 5}}, {kReal, {6}}, {kReal, {6}}},
                   {{"training_mode", int64_t{1}}}});
  cases.push_back({"BatchNormalizationInputGrad",
                   "pipeshard",
                   "BatchNormalizationInputGrad",
                   {images(), images(), statistic},
                   {{kReal, {4, 6, 3, 5}}}});
  cases.push_back({"BatchNormalizationWeightGrad",
                   "pipeshard",
                   "BatchNormalizationWeightGrad",
                   {images(), images()},
                   {{kReal, {6}}, {kReal, {6}}}});
}

}  // namespace

void addConvolutions(std::vector<RuleCase>& cases) {
  std::map<std::string, Attribute> transposed = window();
  transposed["output_padding"] = Ints{0, 0};
  const Argument weight = real({2, 6, 3, 3});
  const Argument output = real({4, 2, 3, 5});
  cases.push_back({"Conv", "", "Conv", {images(), weight}, {{kReal, {4, 2, 3, 5}}}, window()});
  cases.push_back(
      {"ConvWithBias", "", "Conv", {images(), weight, real({2})}, {{kReal, {4, 2, 3, 5}}}, window()});
  cases.push_back(
      {"ConvInGroups", "", "Conv", {images(), real({4, 3, 3, 3})}, {{kReal, {4, 4, 3, 5}}}, groupedWindow()});
  cases.push_back(
      {"ConvInputGrad", "pipeshard", "ConvInputGrad", {output, weight}, {{kReal, {4, 6, 3, 5}}}, transposed});
  cases.push_back({"ConvWeightGrad",
                   "pipeshard",
                   "ConvWeightGrad",
                   {output, images()},
                   {{kReal, {2, 6, 3, 3}}},
                   window()});
  cases.push_back({"ConvWeightGradInGroups",
                   "pipeshard",
                   "ConvWeightGrad",
                   {real({4, 4, 3, 5}), images()},
                   {{kReal, {4, 3, 3, 3}}},
                   groupedWindow()});
  addTransposedConvolutions(cases);
  addPooling(cases);
  addBatchNormalizations(cases);
}

namespace {

std::map<std::string, Attribute> axis1() { return {{"axis", int64_t{1}}}; }

void addLayerNormalizations(std::vector<RuleCase>& cases) {
  cases.push_back({"LayerNormalization",
                   "",
                   "LayerNormalization",
                   {real({4, 2, 6}), real({6}), real({6})},
                   {{kReal, {4, 2, 6}}, {kReal, {4, 2, 1}}, {kReal, {4, 2, 1}}}});
  cases.push_back({"LayerNormalizationOverTwoAxes",
                   "",
                   "LayerNormalization",
                   {real({4, 2, 6}), real({2, 6})},
                   {{kReal, {4, 2, 6}}, {kReal, {4, 1, 1}}, {kReal, {4, 1, 1}}},
                   axis1()});
  cases.push_back({"LayerNormalizationInputGrad",
                   "pipeshard",
                   "LayerNormalizationInputGrad",
                   {real({4, 2, 6}), real({4, 2, 6}), real({6}), real({4, 2, 1}), positive({4, 2, 1})},
                   {{kReal, {4, 2, 6}}}});
  cases.push_back({"LayerNormalizationWeightGrad",
                   "pipeshard",
                   "LayerNormalizationWeightGrad",
                   {real({4, 2, 6}), real({4, 2, 6}), real({4, 2, 1}), positive({4, 2, 1})},
                   {{kReal, {6}}, {kReal, {6}}}});
}

void addRmsNormalizations(std::vector<RuleCase>& cases) {
  // ONNX's body computes in the type that is stashed.
  cases.push_back({"RMSNormalization",
                   "",
                   "RMSNormalization",
                   {real({4, 2, 6}), real({6})},
                   {{kReal, {4, 2, 6}}},
                   {{"stash_type", typeNumber(kReal)}}});
  cases.push_back({"RmsNormalization",
                   "pipeshard",
                   "RMSNormalization",
                   {real({4, 2, 6}), real({6})},
                   {{kReal, {4, 2, 6}}, {kReal, {4, 2, 1}}}});
  cases.push_back({"RmsNormalizationInputGrad",
                   "pipeshard",
                   "RMSNormalizationInputGrad",
                   {real({4, 2, 6}), real({4, 2, 6}), real({6}), positive({4, 2, 1})},
                   {{kReal, {4, 2, 6}}}});
  cases.push_back({"RmsNormalizationWeightGrad",
                   "pipeshard",
                   "RMSNormalizationWeightGrad",
                   {real({4, 2, 6}), real({4, 2, 6}), positive({4, 2, 1})},
                   {{kReal, {6}}}});
}

}  // namespace

void addNormalizations(std::vector<RuleCase>& cases) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    cases.push_back({op, "", op, {real({4, 6})}, {{kReal, {4, 6}}}});
    cases.push_back(
        {std::string(op) + "OverMiddle", "", op, {real({4, 6, 2})}, {{kReal, {4, 6, 2}}}, axis1()});
    cases.push_back({std::string(op) + "Grad",
                     "pipeshard",
                     std::string(op) + "Grad",
                     {real({4, 6, 2}), real({4, 6, 2})},
                     {{kReal, {4, 6, 2}}},
                     axis1()});
  }
  cases.push_back({"Hardmax", "", "Hardmax", {real({4, 6})}, {{kReal, {4, 6}}}});
  cases.push_back({"InstanceNormalization",
                   "",
                   "InstanceNormalization",
                   {real({4, 6, 5}), real({6}), real({6})},
                   {{kReal, {4, 6, 5}}}});
  cases.push_back({"LpNormalization", "", "LpNormalization", {real({4, 6})}, {{kReal, {4, 6}}}});
  cases.push_back(
      {"LpNormalizationOverMiddle", "", "LpNormalization", {real({4, 6, 2})}, {{kReal, {4, 6, 2}}}, axis1()});
  addLayerNormalizations(cases);
  addRmsNormalizations(cases);
}

namespace {

// Two of three heads each that have the same keys; two biases.
void addSharedKeys(std::vector<RuleCase>& cases) {
  const Shape query = {2, 2, 3, 6, 3}, key = {2, 2, 1, 5, 3}, value = {2, 2, 1, 5, 2};
  const Shape row = {2, 2, 3, 6, 1}, output = {2, 2, 3, 6, 2};
  const std::map<std::string, Attribute> biases = {{"overlays", std::string("bias_bias")}};
  std::vector<Argument> inputs = {real(query), real(key),          real(value),
                                  number(0.5), real({2, 3, 6, 5}), real({2, 1, 1, 1, 5})};
  const std::vector<std::pair<DataType, Shape>> outputs = {{kReal, output}, {kReal, row}, {kReal, row}};
  cases.push_back({"AttentionOfGroups", "pipeshard", "Attention", inputs, outputs, biases});
  inputs.insert(inputs.begin(), {real(output), real(row), positive(row)});
  cases.push_back({"AttentionGradOfGroups",
                   "pipeshard",
                   "AttentionGrad",
                   inputs,
                   {{kReal, query}, {kReal, key}, {kReal, value}},
                   biases});
  cases.push_back({"AttentionScoresGradOfGroups",
                   "pipeshard",
                   "AttentionScoresGrad",
                   inputs,
                   {{kReal, {2, 2, 3, 6, 5}}},
                   biases});
}

}  // namespace

// Two overlays, one with an axis that is broadcast; plain; and of gradients.
void addAttention(std::vector<RuleCase>& cases) {
  const Shape query = {4, 2, 6, 3}, key = {4, 2, 5, 3}, value = {4, 2, 5, 2};
  const Shape row = {4, 2, 6, 1}, output = {4, 2, 6, 2};
  const std::map<std::string, Attribute> mask_first = {{"overlays", std::string("mask_bias")}};
  const std::map<std::string, Attribute> bias_first = {{"overlays", std::string("bias_mask")}};
  const std::vector<Argument> plain = {real(query), real(key), real(value), number(0.5)};
  const std::vector<Argument> mask = {flag({6, 5}), number(-2)}, bias = {real({2, 6, 5})};
  const auto with = [](std::vector<Argument> first, const std::vector<std::vector<Argument>>& rest) {
    for (const std::vector<Argument>& list : rest) first.insert(first.end(), list.begin(), list.end());
    return first;
  };
  const std::vector<Argument> given = {real(output), real(row), positive(row)};
  const std::vector<std::pair<DataType, Shape>> outputs = {{kReal, output}, {kReal, row}, {kReal, row}};
  const std::vector<std::pair<DataType, Shape>> gradients = {{kReal, query}, {kReal, key}, {kReal, value}};
  cases.push_back({"Attention", "pipeshard", "Attention", plain, outputs});
  cases.push_back(
      {"AttentionMasked", "pipeshard", "Attention", with(plain, {mask, bias}), outputs, mask_first});
  cases.push_back({"AttentionPadded", "pipeshard", "Attention", with(plain, {{real({4, 1, 1, 5})}, mask}),
                   outputs, bias_first});
  cases.push_back({"AttentionGrad", "pipeshard", "AttentionGrad", with(given, {plain}), gradients});
  cases.push_back({"AttentionGradMasked", "pipeshard", "AttentionGrad", with(given, {plain, mask, bias}),
                   gradients, mask_first});
  cases.push_back({"AttentionScoresGrad",
                   "pipeshard",
                   "AttentionScoresGrad",
                   with(given, {plain, bias, mask}),
                   {{kReal, {4, 2, 6, 5}}},
                   bias_first});
  std::vector<Argument> dropped = with(plain, {{flag({4, 1, 6, 5}), number(2)}});
  cases.push_back(
      {"AttentionDropped", "pipeshard", "Attention", dropped, outputs, {{"overlays", std::string("drop")}}});
  cases.push_back({"AttentionGradDropped",
                   "pipeshard",
                   "AttentionGrad",
                   with(given, {dropped}),
                   gradients,
                   {{"overlays", std::string("drop")}}});
  addSharedKeys(cases);
}

void addLosses(std::vector<RuleCase>& cases) {
  for (const char* reduction : {"none", "sum", "mean"}) {
    const std::map<std::string, Attribute> attributes = {{"reduction", std::string(reduction)}};
    const bool none = std::string(reduction) == "none";
    const std::string name = reduction;
    cases.push_back({"SoftmaxCrossEntropyLoss_" + name,
                     "",
                     "SoftmaxCrossEntropyLoss",
                     {real({8, 5}), index({8}, 0, 5)},
                     {{kReal, none ? Shape{8} : Shape{}}, {kReal, {8, 5}}},
                     attributes});
    cases.push_back({"SoftmaxCrossEntropyLossOfPixels_" + name,
                     "",
                     "SoftmaxCrossEntropyLoss",
                     {real({4, 5, 2}), index({4, 2}, 0, 5)},
                     {{kReal, none ? Shape{4, 2} : Shape{}}, {kReal, {4, 5, 2}}},
                     attributes});
    cases.push_back({"NegativeLogLikelihoodLoss_" + name,
                     "",
                     "NegativeLogLikelihoodLoss",
                     {real({8, 5}), index({8}, 0, 5)},
                     {{kReal, none ? Shape{8} : Shape{}}},
                     attributes});
    std::map<std::string, Attribute> gradient = attributes;
    gradient["has_ignore_index"] = int64_t{1};
    gradient["ignore_index"] = int64_t{1};
    cases.push_back({"CrossEntropyLoss_" + name,
                     "pipeshard",
                     "CrossEntropyLoss",
                     {real({4, 5, 2}), index({4, 2}, 0, 5)},
                     {{kReal, none ? Shape{4, 2} : Shape{}}, {kReal, {4, 2}}, {kReal, {4, 2}}},
                     attributes});
    cases.push_back({"CrossEntropyLossGrad_" + name,
                     "pipeshard",
                     "CrossEntropyLossGrad",
                     {real(none ? Shape{8} : Shape{}), real({8, 5}), real({8}), positive({8}),
                      index({8}, 0, 5), positive({5})},
                     {{kReal, {8, 5}}},
                     gradient});
  }
  std::map<std::string, Attribute> weighted = {{"reduction", std::string("sum")},
                                               {"ignore_index", int64_t{1}}};
  cases.push_back({"WeightedSoftmaxCrossEntropyLoss",
                   "",
                   "SoftmaxCrossEntropyLoss",
                   {real({8, 5}), index({8}, 0, 5), positive({5})},
                   {{kReal, {}}, {kReal, {8, 5}}},
                   weighted});
}

}  // namespace pipeshard::testing
