// An array that lies row-major in a file, read where it is asked for.
#pragma once

#include <memory>
#include <string>

#include "runtime/data/stored_array.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

class FileArray : public StoredArray {
 public:
  // Its first element is at byte `offset`; the caller has compared its size with the file's.
  FileArray(DataType data_type, Shape shape, std::shared_ptr<const Descriptor> file, std::string path,
            uint64_t offset)
      : StoredArray(data_type, std::move(shape)),
        file_(std::move(file)),
        path_(std::move(path)),
        offset_(offset) {}
  void read(int64_t first, std::span<std::byte> out) const override {
    readExactly(*file_, offset_ + first * dataTypeSize(dataType()), out, path_);
  }

 private:
  std::shared_ptr<const Descriptor> file_;
  std::string path_;
  uint64_t offset_;
};

}  // namespace pipeshard
