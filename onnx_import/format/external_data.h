// Where external data may lie, and whether a reference to it is sound. Internal to onnx_import.
//
// Rules: the location is a relative path without "..", empty parts or NUL; after resolving symbolic links the
// target is a regular file inside the model's directory, inside the directory of the model file after
// resolving its links (model caches store links to blobs), or under the extra root. A file with several names
// (hard links) has the owner of the model: else whoever made the folder could have us read a file of others.
// Keys other than location, offset, length and checksum, repeated keys and in-memory tags are refused. Files
// are looked at, never read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <onnx/onnx_pb.h>
#include <sys/types.h>

#include "ir/graph/graph.h"

namespace pipeshard {

class ExternalData {
 public:
  // `directory`: of the model as named by the user ("" is the current one). `real_directory`: of the model
  // file after resolving links, or "". `root`: the user's extra root, or "". With `required` false a missing
  // file is accepted.
  ExternalData(const std::string& directory, const std::string& real_directory, const std::string& root,
               bool required);

  // Who owns the model's file; until it is called, hard links of all owners are accepted.
  void setOwner(uid_t owner) { owner_ = owner; }

  // Checks one external tensor with that many bytes of content. Throws Error(kBadModel), or
  // Error(kMissingInput) for a file that does not exist; both name `what`.
  WeightReference check(const onnx::TensorProto& tensor, uint64_t byte_count, const std::string& what);

  // The directory that locations start from: the first of the three that holds the model's external files.
  const std::string& base() const { return base_; }

 private:
  struct File {
    bool exists = false;
    uint64_t size = 0;
  };
  const File& file(const std::string& location, const std::string& what);
  File inspect(const std::string& location, const std::string& what);

  std::vector<std::string> candidates_;  // directories to look in, in order
  std::vector<std::string> allowed_;     // resolved; a target must be inside one of them
  std::string base_;
  bool base_fixed_ = false;
  bool required_;
  std::optional<uid_t> owner_;
  std::map<std::string, File> files_;
};

}  // namespace pipeshard
