// Small models for the tests of onnx_import: from ONNX's text form or built field by field, in memory or in a
// folder that disappears.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <onnx/onnx_pb.h>

#include "ir/base/error.h"
#include "ir/graph/graph.h"
#include "tests/temporary_folder.h"

namespace pipeshard::testing {

// The model of ONNX's text syntax (onnx/defs/parser.h). The text form has no way to say more than it shows.
onnx::ModelProto parseText(const std::string& text);
Graph graphFromText(const std::string& text);

// y = Relu(x) with x float32[2,3], IR 10, opset 18: a valid model to break.
onnx::ModelProto reluModel();

onnx::TensorProto floatTensor(const std::string& name, const std::vector<int64_t>& dims,
                              const std::vector<float>& elements);

class ModelFolder : public TemporaryFolder {
 public:
  using TemporaryFolder::write;
  std::string write(const std::string& name, const onnx::ModelProto& model) const {
    return write(name, model.SerializeAsString());
  }
};

// The error that `action` throws; fails the test and returns an empty kInternal error when it throws none.
Error errorOf(const std::function<void()>& action);

// Elements of a constant of the graph, by value name; empty (and a test failure) when it is none.
std::vector<double> elementsOf(const Graph& graph, const std::string& name);

}  // namespace pipeshard::testing

// Both the code and the parts of the message, in any order.
#define EXPECT_ERROR(action, expected_code, ...)                                                  \
  do {                                                                                            \
    const ::pipeshard::Error caught = ::pipeshard::testing::errorOf([&] { action; });             \
    EXPECT_EQ(static_cast<int>(caught.code()), static_cast<int>(expected_code)) << caught.what(); \
    for (const std::string part : {__VA_ARGS__})                                                  \
      EXPECT_NE(std::string(caught.what()).find(part), std::string::npos)                         \
          << caught.what() << "\nlacks: " << part;                                                \
  } while (false)
