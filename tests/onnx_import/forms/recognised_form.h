// What reduceForm says of a graph, which stays as it is.
#pragma once

#include <string>

#include "onnx_import/forms/model_form.h"

namespace pipeshard::testing {

// The form alone; updates that are not understood are no error.
inline FoundForm recogniseForm(Graph graph, const std::string& loss = "") {
  return reduceForm(graph, {loss, true}).found;
}

}  // namespace pipeshard::testing
