// .onnx files to Graph, without loss and without inference.
//
// Untrusted input: limits, path rules, cycles and recursion are checked before anything looks at the content.
// External data is never read here, only checked: it must be a regular file inside the model's folder (after
// resolving symbolic links, also those of the model file itself) or under `external_data_root`, and [offset,
// offset+length) must lie in it and match type and shape.
#pragma once

#include <cstdint>
#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// Refusals are Error(kBadModel) naming file, limit and value found.
struct ImportLimits {
  uint64_t file_bytes = (uint64_t{1} << 31) - 1;  // protobuf's own limit
  uint64_t nodes = 1'000'000;
  uint64_t initializers = 1'000'000;
  uint64_t inlined_nodes = 2'000'000;  // after expanding functions
  uint64_t rank = 64;
  uint64_t tensor_elements = uint64_t{1} << 38;
  uint64_t name_bytes = 65'536;
  int subgraph_depth = 16;
  int function_call_depth = 64;
};

// ReadOptions::inline_weight_bytes: nothing inline becomes a reference.
inline constexpr uint64_t kKeepInline = ~uint64_t{0};

struct ReadOptions {
  std::string external_data_root;     // a second folder that external data may come from; "" for none
  bool require_external_data = true;  // false: files of external data need not exist (models without weights)
  // Initializers of the main graph with more inline bytes than this (raw, or packed floats or doubles) are
  // not loaded: they become references into the .onnx file itself (readModel only). kKeepInline loads all of
  // them as Constants.
  uint64_t inline_weight_bytes = kKeepInline;
  // Weights in Constant nodes become initializers (constant_nodes.h), large ones as above.
  bool lift_constant_nodes = false;
  ImportLimits limits;
};

// Errors: kMissingInput (no such file, a directory, unreadable), kBadModel (everything about the content).
Graph readModel(const std::string& path, const ReadOptions& options = {});

// The same from memory; `directory` is where external data starts, `name` is for messages.
Graph parseModel(const std::string& bytes, const std::string& directory, const std::string& name,
                 const ReadOptions& options = {});

}  // namespace pipeshard
