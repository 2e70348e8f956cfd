#include "onnx_import/prepare/upgrade_rules.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <onnx/onnx_pb.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"

namespace pipeshard {

OldNode::OldNode(GraphBuilder& builder, const Graph& known, Node original)
    : node(std::move(original)), builder_(builder), known_(known), prefix_(node.name) {
  for (ValueId id : node.outputs) {
    if (prefix_.empty() && id.valid()) prefix_ = builder.graph().value(id).name;
  }
}

std::optional<int64_t> OldNode::rank(size_t position) const {
  if (!hasInput(position)) return std::nullopt;
  const std::optional<Shape>& shape = known_.value(node.inputs[position]).shape;
  return shape ? std::optional<int64_t>(std::ssize(*shape)) : std::nullopt;
}

const Constant* OldNode::constant(size_t position) const {
  return hasInput(position) ? builder_.graph().constant(node.inputs[position]) : nullptr;
}

void OldNode::setInput(size_t position, ValueId value) {
  if (node.inputs.size() <= position) node.inputs.resize(position + 1);
  node.inputs[position] = value;
}

void OldNode::integersToInput(const std::string& name, size_t position) {
  if (!node.hasAttribute(name)) return;
  const std::vector<int64_t> numbers = node.intsAttribute(name);
  node.attributes.erase(name);
  if (!numbers.empty()) setInput(position, integers(name, numbers));
}

ValueId OldNode::made(std::string_view name, Constant content) {
  const ValueId id = builder_.addConstant(fmt::format("{}/{}", prefix_, name), std::move(content));
  markMade(builder_.graph().value(id));
  return id;
}

ValueId OldNode::integers(std::string_view name, const std::vector<int64_t>& numbers) {
  return made(name, makeConstant<int64_t>({std::ssize(numbers)}, numbers));
}

ValueId OldNode::numberLikeInput(std::string_view name, float number) {
  const DataType type = known_.value(node.inputs.at(0)).data_type;
  const bool makable = type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16;
  const ValueId scalar = made(name, makeScalar(makable ? type : DataType::kFloat32, number));
  return makable ? scalar : before("CastLike", {scalar, node.inputs[0]});
}

ValueId OldNode::before(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes) {
  const ValueId result = untyped(op_type);
  before_.push_back(other(op_type, std::move(inputs), result, std::move(attributes)));
  return result;
}

void OldNode::after(std::string_view op_type, size_t output, const std::vector<ValueId>& others,
                    Attributes attributes) {
  std::vector<ValueId> inputs{untyped(node.op_type)};
  inputs.insert(inputs.end(), others.begin(), others.end());
  after_.push_back(other(op_type, inputs, node.outputs.at(output), std::move(attributes)));
  node.outputs[output] = inputs[0];
}

void OldNode::moveTo(std::vector<Node>& nodes) {
  std::move(before_.begin(), before_.end(), std::back_inserter(nodes));
  nodes.push_back(std::move(node));
  std::move(after_.begin(), after_.end(), std::back_inserter(nodes));
}

ValueId OldNode::untyped(std::string_view name) {
  const ValueId id = builder_.addValue(fmt::format("{}/{}", prefix_, name), DataType::kUndefined, {});
  builder_.graph().value(id).shape.reset();
  return id;
}

Node OldNode::other(std::string_view op_type, std::vector<ValueId> inputs, ValueId output,
                    Attributes attributes) const {
  Node result;
  result.op_type = op_type;
  result.opset_version = kUpgradedTo;
  result.name = fmt::format("{}/{}", prefix_, op_type);
  result.metadata = node.metadata;
  result.inputs = std::move(inputs);
  result.outputs = {output};
  result.attributes = std::move(attributes);
  return result;
}

namespace {

bool keepVersion(OldNode&) { return false; }

bool axesToInput(OldNode& old) {
  old.integersToInput("axes", 1);
  return true;
}

bool upgradeSplit(OldNode& old) {
  old.integersToInput("split", 1);
  if (!old.hasInput(1)) old.node.attributes["num_outputs"] = std::ssize(old.node.outputs);
  return true;
}

bool upgradeSlice(OldNode& old) {
  old.integersToInput("starts", 1);
  old.integersToInput("ends", 2);
  old.integersToInput("axes", 3);
  return true;
}

bool upgradePad(OldNode& old) {
  old.integersToInput("paddings", 1);  // opset 1
  old.integersToInput("pads", 1);
  const float value = old.node.floatAttribute("value", 0);
  old.node.attributes.erase("value");
  if (value != 0) old.setInput(2, old.numberLikeInput("value", value));
  return true;
}

bool upgradeClip(OldNode& old) {
  size_t position = 1;
  for (const std::string name : {"min", "max"}) {
    if (old.node.hasAttribute(name))
      old.setInput(position, old.numberLikeInput(name, old.node.floatAttribute(name, 0)));
    old.node.attributes.erase(name);
    ++position;
  }
  return true;
}

// Without a third input it does nothing. Before opset 7 a node that is not said to be a test trains, from
// then on the mode was the runtime's, which takes it for inference.
bool upgradeDropout(OldNode& old) {
  Node& node = old.node;
  const bool trains = node.opset_version < 7 && node.intAttribute("is_test", 0) == 0;
  if (node.hasAttribute("ratio"))
    old.setInput(1, old.made("ratio", makeScalar(DataType::kFloat32, node.floatAttribute("ratio", 0.5f))));
  if (trains) old.setInput(2, old.made("training", Constant{DataType::kBool, {}, {std::byte{1}}}));
  node.attributes.erase("ratio");
  node.attributes.erase("is_test");
  const bool has_mask = node.outputs.size() > 1 && node.outputs[1].valid();
  if (has_mask && node.opset_version < 10) old.after("CastLike", 1, {node.inputs.at(0)});
  return true;
}

bool upgradeTopK(OldNode& old) {
  if (!old.node.hasAttribute("k")) return true;  // opset 10
  old.setInput(1, old.integers("k", {old.node.intAttribute("k", 0)}));
  old.node.attributes.erase("k");
  return true;
}

// Softmax and its like took all axes from `axis` on for one, and those before it for another.
bool upgradeSoftmax(OldNode& old) {
  const int64_t axis = old.node.intAttribute("axis", 1);
  const std::optional<int64_t> rank = old.rank(0);
  const bool last = axis == -1 || (rank && axis == *rank - 1);
  old.node.attributes["axis"] = int64_t{-1};
  if (last) return true;
  const ValueId x = old.node.inputs.at(0);
  const ValueId shape = old.before("Shape", {x});
  old.setInput(0, old.before("Flatten", {x}, {{"axis", axis}}));
  old.after("Reshape", 0, {shape}, {{"allowzero", int64_t{1}}});
  return true;
}

bool upgradeBatchNormalization(OldNode& old) {
  Node& node = old.node;
  const auto given =
      std::count_if(node.outputs.begin(), node.outputs.end(), [](ValueId id) { return id.valid(); });
  if (given > 1)
    fail(ErrorCode::kBadModel, "{} is in training mode, in the form before opset 14; export the model again",
         describeNode(node));
  if (node.intAttribute("spatial", 1) != 1)
    fail(ErrorCode::kBadModel, "{} has statistics for every element ('spatial' 0), which opset 9 has removed",
         describeNode(node));
  node.outputs.resize(1);
  for (const char* name : {"is_test", "spatial"}) node.attributes.erase(name);
  return true;
}

void takeFirstForm(Node& resize) {
  resize.op_type = "Resize";
  resize.attributes["coordinate_transformation_mode"] = std::string("asymmetric");
  resize.attributes["nearest_mode"] = std::string("floor");
  if (resize.stringAttribute("mode", "nearest") == "bilinear")
    resize.attributes["mode"] = std::string("linear");
}

bool upgradeUpsample(OldNode& old) {
  Node& node = old.node;
  std::vector<float> scales{1, 1, node.floatAttribute("height_scale", 1),
                            node.floatAttribute("width_scale", 1)};
  const auto listed = node.attributes.find("scales");
  if (listed != node.attributes.end()) scales = std::get<std::vector<float>>(listed->second);
  const ValueId given = old.hasInput(1)
                            ? node.inputs[1]
                            : old.made("scales", makeConstant<float>({std::ssize(scales)}, scales));
  for (const char* name : {"scales", "height_scale", "width_scale"}) node.attributes.erase(name);
  old.setInput(1, ValueId());
  old.setInput(2, given);
  takeFirstForm(node);
  return true;
}

bool upgradeResize(OldNode& old) {
  Node& node = old.node;
  // Opset 13 has removed this one.
  if (node.stringAttribute("coordinate_transformation_mode", "") == "tf_half_pixel_for_nn") return false;
  if (node.opset_version >= 11) return true;
  const ValueId scales = node.inputs.at(1);
  old.setInput(1, ValueId());
  old.setInput(2, scales);
  takeFirstForm(node);
  return true;
}

bool upgradeCast(OldNode& old) {
  const std::string name = old.node.stringAttribute("to", "");
  onnx::TensorProto::DataType type = onnx::TensorProto::UNDEFINED;
  if (!onnx::TensorProto::DataType_Parse(name, &type)) return false;
  old.node.attributes["to"] = static_cast<int64_t>(type);
  return true;
}

// The second operand, whose axes belong to those of the first from `axis` on, gets axes behind them.
bool alignOperands(OldNode& old) {
  Node& node = old.node;
  const bool aligned = node.intAttribute("broadcast", 0) != 0 && node.hasAttribute("axis");
  const int64_t given = node.intAttribute("axis", 0);
  node.attributes.erase("broadcast");
  node.attributes.erase("axis");
  if (!aligned) return true;
  const std::optional<int64_t> first = old.rank(0);
  const std::optional<int64_t> second = old.rank(1);
  if (!first || !second) return false;
  const int64_t behind = *first - *second - (given < 0 ? given + *first : given);
  if (behind < 0) return false;
  std::vector<int64_t> axes(behind);
  std::iota(axes.begin(), axes.end(), *second);
  if (behind > 0) old.setInput(1, old.before("Unsqueeze", {node.inputs[1], old.integers("axes", axes)}));
  return true;
}

bool dropBroadcast(OldNode& old) {
  old.node.attributes.erase("broadcast");
  return true;
}

// One slope for each channel.
bool upgradePRelu(OldNode& old) {
  const std::optional<int64_t> rank = old.rank(0);
  const std::optional<int64_t> slope_rank = old.rank(1);
  if (!rank || !slope_rank) return false;
  if (*slope_rank != 1 || *rank <= 2) return true;
  std::vector<int64_t> axes(*rank - 2);
  std::iota(axes.begin(), axes.end(), 1);
  old.setInput(1, old.before("Unsqueeze", {old.node.inputs[1], old.integers("axes", axes)}));
  return true;
}

bool upgradeScatter(OldNode& old) {
  old.node.op_type = "ScatterElements";
  return true;
}

bool upgradeReshape(OldNode& old) {
  const std::vector<int64_t> shape = old.node.intsAttribute("shape");
  old.node.attributes.erase("shape");
  old.setInput(1, old.integers("shape", shape));
  return true;
}

// How often to repeat one axis.
bool upgradeTile(OldNode& old) {
  const std::optional<int64_t> rank = old.rank(0);
  const Constant* tiles = old.constant(1);
  const Constant* axis = old.constant(2);
  if (!rank || tiles == nullptr || axis == nullptr) return false;
  std::vector<int64_t> repeats(*rank, 1);
  repeats.at(normalizeAxis(static_cast<int64_t>(numericElements(*axis).at(0)), *rank)) =
      static_cast<int64_t>(numericElements(*tiles).at(0));
  old.node.inputs.resize(1);
  old.setInput(1, old.integers("repeats", repeats));
  return true;
}

bool dropOutputSequence(OldNode& old) {
  old.node.attributes.erase("output_sequence");
  return true;
}

bool upgradeConcat(OldNode& old) {
  old.node.attributes.try_emplace("axis", int64_t{1});
  return true;
}

bool upgradeSelu(OldNode& old) {
  old.node.attributes.try_emplace("alpha", 1.6732f);
  old.node.attributes.try_emplace("gamma", 1.0507f);
  return true;
}

bool upgradeLpPool(OldNode& old) {
  const float power = old.node.floatAttribute("p", 2);
  if (power != std::floor(power)) return false;
  old.node.attributes["p"] = static_cast<int64_t>(power);
  return true;
}

bool upgradeRoiAlign(OldNode& old) {
  old.node.attributes["coordinate_transformation_mode"] = std::string("output_half_pixel");
  return true;
}

// Operators whose nodes say something else in opset 18, or say it otherwise.
const std::map<std::string_view, UpgradeRule>& upgradeRules() {
  static const std::map<std::string_view, UpgradeRule> rules = [] {
    std::map<std::string_view, UpgradeRule> table{
        {"BatchNormalization", {14, upgradeBatchNormalization}},
        {"Cast", {6, upgradeCast}},
        {"Clip", {11, upgradeClip}},
        {"Concat", {4, upgradeConcat}},
        {"Dropout", {12, upgradeDropout}},
        {"Gemm", {7, dropBroadcast}},
        {"PRelu", {7, upgradePRelu}},
        {"Pad", {11, upgradePad}},
        {"Reshape", {5, upgradeReshape}},
        {"Resize", {13, upgradeResize}},
        {"RoiAlign", {16, upgradeRoiAlign}},
        {"Scan", {9, keepVersion}},  // with a batch axis
        {"Scatter", {11, upgradeScatter}},
        {"Selu", {6, upgradeSelu}},
        {"Slice", {10, upgradeSlice}},
        {"Split", {18, upgradeSplit}},
        {"Tile", {6, upgradeTile}},
        {"TopK", {11, upgradeTopK}},
        {"Upsample", {10, upgradeUpsample}},
    };
    for (const char* name : {"Squeeze", "Unsqueeze", "ReduceSum"}) table[name] = {13, axesToInput};
    for (const char* name : {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
                             "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare"})
      table[name] = {18, axesToInput};
    for (const char* name : {"Softmax", "LogSoftmax", "Hardmax"}) table[name] = {13, upgradeSoftmax};
    for (const char* name : {"RNN", "GRU", "LSTM"}) table[name] = {7, dropOutputSequence};
    for (const char* name : {"LpPool", "GlobalLpPool"}) table[name] = {2, upgradeLpPool};
    for (const char* name :
         {"Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"})
      table[name] = {7, alignOperands};
    return table;
  }();
  return rules;
}

}  // namespace

const UpgradeRule* findUpgrade(const Node& node) {
  const auto found = upgradeRules().find(node.op_type);
  const bool applies = found != upgradeRules().end() && node.opset_version < found->second.before;
  return applies ? &found->second : nullptr;
}

}  // namespace pipeshard
