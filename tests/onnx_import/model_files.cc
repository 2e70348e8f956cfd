#include "tests/onnx_import/model_files.h"

#include <gtest/gtest.h>
#include <onnx/defs/parser.h>

#include "ir/graph/graph_print.h"
#include "onnx_import/format/reader.h"

namespace pipeshard::testing {

onnx::ModelProto parseText(const std::string& text) {
  onnx::ModelProto model;
  const auto status = onnx::OnnxParser::Parse(model, text.c_str());
  EXPECT_TRUE(status.IsOK()) << status.ErrorMessage();
  return model;
}

Graph graphFromText(const std::string& text) {
  return parseModel(parseText(text).SerializeAsString(), "", "text");
}

onnx::ModelProto reluModel() {
  return parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    main_graph (float[2,3] x) => (float[2,3] y) { y = Relu(x) })");
}

onnx::TensorProto floatTensor(const std::string& name, const std::vector<int64_t>& dims,
                              const std::vector<float>& elements) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  tensor.mutable_dims()->Add(dims.begin(), dims.end());
  tensor.mutable_float_data()->Add(elements.begin(), elements.end());
  return tensor;
}

Error errorOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorCode::kInternal, "");
}

std::vector<double> elementsOf(const Graph& graph, const std::string& name) {
  const ValueId id = findValue(graph, name);
  const Constant* constant = id.valid() ? graph.constant(id) : nullptr;
  if (constant == nullptr) {
    ADD_FAILURE() << "'" << name << "' is no constant of\n" << printGraph(graph);
    return {};
  }
  return numericElements(*constant);
}

}  // namespace pipeshard::testing
