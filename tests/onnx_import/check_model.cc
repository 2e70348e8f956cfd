#include "tests/onnx_import/check_model.h"

#include <exception>

#include <onnx/checker.h>

#include "ir/base/error.h"
#include "onnx_import/format/graph_to_proto.h"
#include "onnx_import/prepare/inference.h"

namespace pipeshard {

void checkModel(const Graph& graph) {
  verifyGraph(graph);
  checkVersions(graph);
  // Inference first: it names nodes better, and outputs need a type to be checked.
  Graph copy = graph;
  inferShapes(copy);
  onnx::ModelProto model;
  modelToProto(copy, WeightForm::kInputs, model);
  try {
    onnx::checker::check_model(model, false, false, false);
  } catch (const std::exception& error) {
    fail(ErrorCode::kBadModel, "graph '{}' is no valid ONNX model: {}", graph.name, error.what());
  }
}

}  // namespace pipeshard
