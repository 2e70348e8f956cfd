#include "onnx_import/format/stored_tensor.h"

#include <fcntl.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ir/base/error.h"
#include "onnx_import/format/tensor_proto.h"

namespace pipeshard {
namespace {

// The message of a regular file that is no larger than the limit.
onnx::TensorProto parseTensorFile(const std::string& path, const ImportLimits& limits) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail(ErrorCode::kMissingInput, "cannot open {}: {}", path, std::strerror(errno));
  google::protobuf::io::FileInputStream stream(file, 1 << 16);
  stream.SetCloseOnDelete(true);
  struct stat status = {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode))
    fail(ErrorCode::kMissingInput, "{} is no regular file", path);
  if (status.st_size == 0) fail(ErrorCode::kBadModel, "{} is empty; expected a tensor (TensorProto)", path);
  if (static_cast<uint64_t>(status.st_size) > limits.file_bytes) {
    fail(ErrorCode::kBadModel, "{} has {} bytes, more than the limit of {}", path, status.st_size,
         limits.file_bytes);
  }
  onnx::TensorProto tensor;
  const bool parsed = tensor.ParseFromZeroCopyStream(&stream);
  if (stream.GetErrno() != 0)
    fail(ErrorCode::kMissingInput, "cannot read {}: {}", path, std::strerror(stream.GetErrno()));
  // a sequence, a model or anything else is, as this message, fields that nobody knows
  if (!parsed || tensor.data_type() == 0 || !tensor.unknown_fields().empty()) {
    fail(ErrorCode::kBadModel, "{} holds no tensor (TensorProto): it is damaged, cut off, or something else",
         path);
  }
  return tensor;
}

}  // namespace

StoredTensor readStoredTensor(const std::string& path, const ImportLimits& limits) {
  const onnx::TensorProto tensor = parseTensorFile(path, limits);
  if (!isPlainTensor(tensor)) {
    fail(ErrorCode::kBadModel,
         "{}: its elements are of type {}{}; expected numbers that are in the file itself", path,
         onnx::TensorProto::DataType_Name(tensor.data_type()),
         tensor.data_location() == onnx::TensorProto::EXTERNAL ? ", in another file" : "");
  }
  const Shape shape = shapeOfTensor(tensor, limits.rank, limits.tensor_elements, path);
  return {tensor.name(), constantFromTensor(tensor, shape, path)};
}

}  // namespace pipeshard
