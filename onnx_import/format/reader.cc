#include "onnx_import/format/reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/base/error.h"
#include "onnx_import/format/constant_nodes.h"
#include "onnx_import/format/external_data.h"
#include "onnx_import/format/inline_weights.h"
#include "onnx_import/format/proto_checks.h"
#include "onnx_import/format/proto_to_graph.h"

namespace pipeshard {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~FileDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

std::string directoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string realDirectoryOf(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  return real ? directoryOf(real.get()) : std::string();
}

// Refuses what cannot be a model, and returns its owner.
uid_t checkFile(const FileDescriptor& file, const std::string& path, const ImportLimits& limits) {
  if (file.get() < 0) fail(ErrorCode::kMissingInput, "cannot open '{}': {}", path, std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0)
    fail(ErrorCode::kMissingInput, "cannot look at '{}': {}", path, std::strerror(errno));
  if (S_ISDIR(status.st_mode))
    fail(ErrorCode::kMissingInput, "'{}' is a directory; name the .onnx file in it", path);
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::kMissingInput, "'{}' is no regular file", path);
  if (status.st_size == 0) fail(ErrorCode::kBadModel, "'{}' is empty", path);
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size > limits.file_bytes) {
    fail(ErrorCode::kBadModel,
         "'{}' has {} bytes, more than the limit of {}; save the model with its weights as external data",
         path, size, limits.file_bytes);
  }
  return status.st_uid;
}

// What to say about bytes that are no model.
std::string explainGarbage(std::string_view start) {
  const auto printable = [](unsigned char c) {
    return c >= 32 ? c < 127 : c == '\n' || c == '\r' || c == '\t';
  };
  if (start.starts_with("version https://git-lfs"))
    return "it is a Git LFS pointer; fetch the real file with `git lfs pull`";
  if (start.starts_with("PK")) return "it is a zip archive; unpack it, or export the model to ONNX";
  if (start.size() >= 2 && std::all_of(start.begin(), start.end(), printable)) return "it is a text file";
  return "it is damaged, cut off, or no ONNX file";
}

Graph convert(onnx::ModelProto& model, ExternalData& external, const ReadOptions& options, std::string file,
              InlineWeights inline_weights, const ConstantPlaces& constants) {
  checkStructure(model, options.limits, external);
  const ProtoSource source{options.limits, &external, std::move(file), std::move(inline_weights)};
  Graph graph = graphFromModel(model, source);
  graph.directory = external.base();
  if (options.lift_constant_nodes) liftConstantNodes(graph, constants, source.file);
  return graph;
}

}  // namespace

Graph readModel(const std::string& path, const ReadOptions& options) {
  const FileDescriptor file(path);
  const uid_t owner = checkFile(file, path, options.limits);
  char start[64];
  const ssize_t started = ::pread(file.get(), start, sizeof(start), 0);
  if (started < 0) fail(ErrorCode::kMissingInput, "cannot read '{}': {}", path, std::strerror(errno));
  onnx::ModelProto model;
  InlineWeights inline_weights;
  ConstantPlaces constants;
  bool parsed = false;
  {
    google::protobuf::io::FileInputStream stream(file.get(), 1 << 16);
    if (options.inline_weight_bytes != kKeepInline) {
      parsed = parseWithoutWeights(stream, options.inline_weight_bytes, model, inline_weights, constants);
    } else {
      parsed = model.ParseFromZeroCopyStream(&stream);
    }
    if (stream.GetErrno() != 0)
      fail(ErrorCode::kMissingInput, "cannot read '{}': {}", path, std::strerror(stream.GetErrno()));
  }
  if (!parsed) {
    fail(ErrorCode::kBadModel, "'{}' is no ONNX model: {}", path,
         explainGarbage(std::string_view(start, static_cast<size_t>(started))));
  }
  try {
    ExternalData external(directoryOf(path), realDirectoryOf(path), options.external_data_root,
                          options.require_external_data);
    external.setOwner(owner);
    return convert(model, external, options, std::filesystem::path(path).filename().string(),
                   std::move(inline_weights), constants);
  } catch (Error& error) {
    error.addContext(path);
    throw;
  }
}

Graph parseModel(const std::string& bytes, const std::string& directory, const std::string& name,
                 const ReadOptions& options) {
  if (bytes.empty()) fail(ErrorCode::kBadModel, "'{}' is empty", name);
  if (bytes.size() > options.limits.file_bytes) {
    fail(ErrorCode::kBadModel, "'{}' has {} bytes, more than the limit of {}", name, bytes.size(),
         options.limits.file_bytes);
  }
  onnx::ModelProto model;
  if (!model.ParseFromString(bytes)) {
    fail(ErrorCode::kBadModel, "'{}' is no ONNX model: {}", name,
         explainGarbage(std::string_view(bytes).substr(0, 64)));
  }
  try {
    ExternalData external(directory, "", options.external_data_root, options.require_external_data);
    return convert(model, external, options, "", {}, {});
  } catch (Error& error) {
    error.addContext(name);
    throw;
  }
}

}  // namespace pipeshard
