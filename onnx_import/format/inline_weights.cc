#include "onnx_import/format/inline_weights.h"

#include <limits>
#include <vector>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include "onnx_import/format/proto_checks.h"

namespace pipeshard {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

// Copies one message field by field. `visit(tag, length, copy)` may take a length-delimited field over by
// returning true; the stream then stands behind it.
template <typename Visit>
bool copyFields(CodedInputStream& in, std::string& out, Visit&& visit) {
  StringOutputStream stream(&out);
  CodedOutputStream copy(&stream);
  while (const uint32_t tag = in.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag, &copy)) return false;
      continue;
    }
    int length = 0;
    if (!in.ReadVarintSizeAsInt(&length)) return false;
    std::string field;
    bool dropped = false;
    if (!visit(WireFormatLite::GetTagFieldNumber(tag), length, field, dropped)) return false;
    if (dropped) continue;
    copy.WriteTag(tag);
    copy.WriteVarint32(field.size());
    copy.WriteString(field);
  }
  return in.ConsumedEntireMessage() && !copy.HadError();
}

// Reads a submessage of `length` bytes through `body`.
template <typename Body>
bool inside(CodedInputStream& in, int length, Body&& body) {
  const auto limit = in.PushLimit(length);
  const bool good = body() && in.BytesUntilLimit() == 0;
  in.PopLimit(limit);
  return good;
}

class Scanner {
 public:
  Scanner(CodedInputStream& in, uint64_t threshold, InlineWeights& weights, ConstantPlaces& constants)
      : in_(in), threshold_(threshold), weights_(weights), constants_(constants) {}

  bool model(std::string& out) {
    return copyFields(in_, out, [&](int number, int length, std::string& field, bool&) {
      if (number != onnx::ModelProto::kGraphFieldNumber) return in_.ReadString(&field, length);
      return inside(in_, length, [&] { return graph(field); });
    });
  }

 private:
  bool graph(std::string& out) {
    return copyFields(in_, out, [&](int number, int length, std::string& field, bool&) {
      if (number == onnx::GraphProto::kNodeFieldNumber)
        return inside(in_, length, [&] { return node(field); });
      if (number != onnx::GraphProto::kInitializerFieldNumber) return in_.ReadString(&field, length);
      const bool good = inside(in_, length, [&] { return tensor(field); });
      ++position_;
      return good;
    });
  }

  // Packed floats and doubles lie in the file as they do in raw data. A second such field stays: the reader
  // refuses that.
  bool tensor(std::string& out) {
    using Tensor = onnx::TensorProto;
    return copyFields(in_, out, [&](int number, int length, std::string& field, bool& dropped) {
      const bool elements = number == Tensor::kRawDataFieldNumber ||
                            number == Tensor::kFloatDataFieldNumber ||
                            number == Tensor::kDoubleDataFieldNumber;
      if (!elements || static_cast<uint64_t>(length) <= threshold_ || weights_.contains(position_))
        return in_.ReadString(&field, length);
      weights_[position_] = {static_cast<uint64_t>(in_.CurrentPosition()), static_cast<uint64_t>(length),
                             number};
      dropped = true;
      return in_.Skip(length);
    });
  }

  bool node(std::string& out) {
    using Node = onnx::NodeProto;
    std::string op_type, domain, output;
    std::vector<std::pair<uint64_t, uint64_t>> places;
    const bool good = copyFields(in_, out, [&](int number, int length, std::string& field, bool&) {
      if (number == Node::kAttributeFieldNumber)
        return inside(in_, length, [&] { return attribute(field, places); });
      if (!in_.ReadString(&field, length)) return false;
      if (number == Node::kOpTypeFieldNumber) op_type = field;
      if (number == Node::kDomainFieldNumber) domain = field;
      if (number == Node::kOutputFieldNumber) output = field;
      return true;
    });
    const bool is_constant = op_type == "Constant" && normalDomain(domain).empty() && places.size() == 1;
    if (is_constant && places[0].second > threshold_) constants_[output] = places[0];
    return good;
  }

  bool attribute(std::string& out, std::vector<std::pair<uint64_t, uint64_t>>& places) {
    return copyFields(in_, out, [&](int number, int length, std::string& field, bool&) {
      if (number != onnx::AttributeProto::kTFieldNumber) return in_.ReadString(&field, length);
      return inside(in_, length, [&] {
        return copyFields(in_, field, [&](int inner, int bytes, std::string& content, bool&) {
          if (inner == onnx::TensorProto::kRawDataFieldNumber)
            places.emplace_back(static_cast<uint64_t>(in_.CurrentPosition()), static_cast<uint64_t>(bytes));
          return in_.ReadString(&content, bytes);
        });
      });
    });
  }

  CodedInputStream& in_;
  uint64_t threshold_;
  InlineWeights& weights_;
  ConstantPlaces& constants_;
  int position_ = 0;
};

}  // namespace

bool parseWithoutWeights(google::protobuf::io::ZeroCopyInputStream& stream, uint64_t threshold,
                         onnx::ModelProto& model, InlineWeights& weights, ConstantPlaces& constants) {
  std::string bytes;
  {
    CodedInputStream in(&stream);
    in.SetTotalBytesLimit(std::numeric_limits<int>::max());
    if (!Scanner(in, threshold, weights, constants).model(bytes)) return false;
  }
  return model.ParseFromString(bytes);
}

}  // namespace pipeshard
