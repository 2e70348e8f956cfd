#include "onnx_import/autodiff/function_builder.h"

#include <memory>

#include <fmt/format.h>

namespace pipeshard {
namespace {

constexpr int32_t kNumberAttribute = 1;    // onnx.AttributeProto.FLOAT
constexpr int32_t kIntegersAttribute = 7;  // onnx.AttributeProto.INTS
constexpr int32_t kIntegerAttribute = 2;   // onnx.AttributeProto.INT

}  // namespace

FunctionBuilder::FunctionBuilder(std::string_view name, std::string_view overload, int opset) {
  function_.domain = kPipeshardDomain;
  function_.name = name;
  function_.overload = overload;
  body_.name = name;
  body_.opset_imports[""] = opset;
}

ValueId FunctionBuilder::newValue(std::string_view name) {
  Value value;
  value.name = name;
  body_.values.push_back(std::move(value));
  return ValueId(body_.values.size() - 1);
}

ValueId FunctionBuilder::input(std::string_view name) {
  body_.inputs.push_back(newValue(name));
  return body_.inputs.back();
}

void FunctionBuilder::output(std::string_view name, ValueId value) {
  body_.value(value).name = name;
  body_.outputs.push_back(value);
}

ValueId FunctionBuilder::op(std::string_view op_type, std::vector<ValueId> inputs,
                            std::map<std::string, Attribute> attributes) {
  return ops(op_type, std::move(inputs), 1, std::move(attributes))[0];
}

std::vector<ValueId> FunctionBuilder::ops(std::string_view op_type, std::vector<ValueId> inputs,
                                          size_t outputs, std::map<std::string, Attribute> attributes) {
  Node node;
  node.op_type = op_type;
  node.opset_version = body_.opset_imports.at("");
  node.inputs = std::move(inputs);
  node.attributes = std::move(attributes);
  node.name = fmt::format("{}_{}", op_type, temporaries_);
  for (size_t i = 0; i < outputs; ++i) node.outputs.push_back(newValue(fmt::format("t{}", temporaries_++)));
  body_.nodes.push_back(std::move(node));
  return body_.nodes.back().outputs;
}

Attribute FunctionBuilder::integersReference(std::string_view name) {
  return AttributeReference{std::string(name), kIntegersAttribute};
}

ValueId FunctionBuilder::numberAttribute(std::string_view name, ValueId like) {
  const AttributeReference reference{std::string(name), kNumberAttribute};
  return op("CastLike", {op("Constant", {}, {{"value_float", reference}}), like});
}

Attribute FunctionBuilder::integerReference(std::string_view name) {
  return AttributeReference{std::string(name), kIntegerAttribute};
}

ValueId FunctionBuilder::integerAttribute(std::string_view name) {
  return op("Constant", {}, {{"value_int", integerReference(name)}});
}

ValueId FunctionBuilder::constant(Constant constant) {
  return op("Constant", {}, {{"value", std::move(constant)}});
}

ValueId FunctionBuilder::integer(int64_t value) { return constant(makeConstant<int64_t>({}, {value})); }

ValueId FunctionBuilder::integers(const std::vector<int64_t>& elements) {
  return constant(makeConstant<int64_t>({std::ssize(elements)}, elements));
}

ValueId FunctionBuilder::number(double value, ValueId like) {
  return op("CastLike", {constant(makeScalar(DataType::kFloat64, value)), like});
}

Function FunctionBuilder::finish() {
  function_.body = std::make_shared<const Graph>(std::move(body_));
  return std::move(function_);
}

}  // namespace pipeshard
