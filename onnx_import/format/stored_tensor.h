// A tensor in a file of its own, as ONNX's test data have them (test_data_set_0/input_0.pb).
#pragma once

#include <string>

#include "ir/graph/graph.h"
#include "onnx_import/format/reader.h"

namespace pipeshard {

struct StoredTensor {
  std::string name;  // "": the file does not say
  Constant content;
};

// Untrusted input. Errors: kMissingInput (no such file, unreadable), kBadModel (no TensorProto, damaged, of a
// type without a fixed size, external data, beyond the limits), naming the path.
StoredTensor readStoredTensor(const std::string& path, const ImportLimits& limits = {});

}  // namespace pipeshard
