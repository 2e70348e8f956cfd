#include "onnx_import/format/writer.h"

#include <cerrno>
#include <cstring>
#include <limits>

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <unistd.h>

#include "ir/base/error.h"
#include "onnx_import/format/graph_to_proto.h"

namespace pipeshard {
namespace {

// A temporary file that disappears unless it is renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target) : path_(fmt::format("{}.{}.tmp", target, ::getpid())) {
    ::unlink(path_.c_str());
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) failWrite(target, errno);
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const std::string& bytes, const std::string& target) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t count = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) failWrite(target, errno);
      done += count;
    }
    if (::fsync(descriptor_) != 0 && errno != EINVAL) failWrite(target, errno);
    const int closed = ::close(descriptor_);
    descriptor_ = -1;
    if (closed != 0) failWrite(target, errno);
    if (::rename(path_.c_str(), target.c_str()) != 0) failWrite(target, errno);
    path_.clear();
  }

 private:
  [[noreturn]] static void failWrite(const std::string& target, int error) {
    fail(ErrorCode::kDiskFull, "cannot write '{}': {}", target, std::strerror(error));
  }

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

std::string serializeModel(const Graph& graph) {
  checkVersions(graph);
  onnx::ModelProto model;
  modelToProto(graph, WeightForm::kExternalData, model);
  if (model.ByteSizeLong() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    fail(ErrorCode::kBadModel,
         "graph '{}' needs {} bytes as a file, more than protobuf's 2 GiB; keep its weights as references",
         graph.name, model.ByteSizeLong());
  }
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    PIPESHARD_CHECK(model.SerializeToCodedStream(&coded), "protobuf could not serialise graph '{}'",
                    graph.name);
  }
  return bytes;
}

void writeModel(const Graph& graph, const std::string& path) {
  const std::string bytes = serializeModel(graph);
  TemporaryFile(path).write(bytes, path);
}

}  // namespace pipeshard
