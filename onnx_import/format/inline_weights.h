// Parsing a model without holding its inline weights. Internal to onnx_import.
#pragma once

#include <cstdint>

#include <google/protobuf/io/zero_copy_stream.h>
#include <onnx/onnx_pb.h>

#include "onnx_import/format/constant_nodes.h"
#include "onnx_import/format/proto_to_graph.h"

namespace pipeshard {

// Parses the stream from its start (position 0 of the file), leaving out the raw_data, float_data or
// double_data of initializers of the main graph that is longer than `threshold` bytes; `weights` says where
// in the file each of them lies. Those of its Constant nodes stay, and `constants` says where they lie.
// Returns false when the bytes are no ModelProto.
bool parseWithoutWeights(google::protobuf::io::ZeroCopyInputStream& stream, uint64_t threshold,
                         onnx::ModelProto& model, InlineWeights& weights, ConstantPlaces& constants);

}  // namespace pipeshard
