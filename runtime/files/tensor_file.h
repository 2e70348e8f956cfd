// Named tensors in one file: the safetensors format (8 bytes little-endian header length, a JSON header, raw
// little-endian row-major elements without holes). Dumps, checkpoints and copied weights use it; any
// safetensors reader opens it. Format: https://github.com/huggingface/safetensors (README, "Format").
//
// A file is untrusted: the header is limited, every offset is checked against the file and against type and
// shape, and overlaps, holes and duplicate names are refused, before a byte of content is read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/shape.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

struct TensorEntry {
  std::string name;
  DataType data_type = DataType::kUndefined;
  Shape shape;
  uint64_t offset = 0;  // in the file, bytes
  uint64_t length = 0;  // bytes
};

// A safetensors file open for reading. Movable; readable from several threads at once (pread).
class TensorFile {
 public:
  // Errors: kMissingInput (no such file, unreadable), kBadModel (the content; names file and tensor).
  static TensorFile open(const std::string& path);

  // The same of bytes in memory, which `name` stands for in messages. Only the directory is kept: offsets of
  // entries count in `bytes`, read() is not called. Errors: kBadModel.
  static TensorFile parse(std::span<const std::byte> bytes, std::string name);

  const std::string& path() const { return path_; }
  const std::vector<TensorEntry>& tensors() const { return tensors_; }  // in file order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorEntry* find(std::string_view name) const;  // nullptr: no such tensor
  std::vector<std::byte> read(const TensorEntry& entry) const;
  void read(const TensorEntry& entry, uint64_t offset,
            std::span<std::byte> out) const;  // `offset` bytes into it

 private:
  TensorFile() = default;
  void parse(uint64_t file_bytes, const std::function<void(uint64_t, std::span<std::byte>)>& read);

  std::string path_;
  Descriptor file_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to write; `data` holds byteCount(data_type, shape) bytes and is not owned.
struct TensorView {
  std::string name;
  DataType data_type = DataType::kUndefined;
  Shape shape;
  const void* data = nullptr;
};

struct WrittenFile {
  int64_t bytes = 0;
  uint64_t hash = 0;  // of all bytes (content_hash.h)
};

// Writes a temporary file beside `path` and renames it, so that a reader never sees half a file. `durable`
// also waits until disk has it. `access`: of the file. Errors: kDiskFull (anything that keeps it from being
// written; the temporary is removed), kBadModel (a type that the format lacks), kInternal (two tensors of one
// name).
WrittenFile writeTensorFile(const std::string& path, std::span<const TensorView> tensors,
                            const std::map<std::string, std::string>& metadata = {}, bool durable = false,
                            FileAccess access = FileAccess::kByUmask);

}  // namespace pipeshard
