// numpy's .npz archives (a zip of .npy files), read and written. Untrusted input: sizes are checked before
// memory is taken. Format: numpy.lib.format, versions 1.0 to 3.0.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/shape.h"
#include "runtime/files/posix_file.h"
#include "runtime/files/zip_offsets.h"

namespace pipeshard {

struct NpyHeader {
  DataType data_type = DataType::kUndefined;
  bool fortran_order = false;
  Shape shape;
  size_t data_offset = 0;  // where the elements start
};

// The header of a .npy file that starts with `bytes`. `where` names file and member in messages. Accepted:
// little-endian or byte-sized bool, [u]int8..64, float16, float32, float64. Errors: kBadModel.
NpyHeader parseNpyHeader(std::span<const std::byte> bytes, const std::string& where);

struct NpzArray {
  DataType data_type = DataType::kUndefined;
  Shape shape;
  std::vector<std::byte> bytes;  // dense row-major, also when the file is in Fortran order
};

// What an archive has under a name, without its elements.
struct NpzMember {
  NpyHeader header;
  bool in_place = false;  // the elements lie in the file as they are, row-major, from byte `offset` on
  uint64_t offset = 0;
};

class NpzFile {
 public:
  // Errors: kMissingInput (no such file), kBadModel (not a zip archive).
  static NpzFile open(const std::string& path);
  NpzFile(NpzFile&&) noexcept;
  NpzFile& operator=(NpzFile&&) noexcept;
  ~NpzFile();

  const std::vector<std::string>& names() const { return names_; }  // without ".npy", in archive order
  bool has(const std::string& name) const;
  // Errors: kMissingInput (no array of that name; lists those that exist), kBadModel (malformed member).
  NpzArray read(const std::string& name) const;

  // In bounded memory. Errors as read().
  NpzMember look(const std::string& name) const;
  // The elements, row-major; `out` has as many bytes as the header says. The archive's checksum is compared.
  void unpack(const std::string& name, std::span<std::byte> out) const;
  // Reads all and compares the checksum.
  void verify(const std::string& name) const;
  const std::vector<ZipMember>& members() const { return members_; }  // as names()
  // In which elements lie in place.
  const std::shared_ptr<const Descriptor>& file() const { return file_; }

 private:
  size_t indexOf(const std::string& name) const;
  std::string whereOf(const std::string& name) const;

  struct Archive;
  NpzFile();

  std::string path_;
  std::unique_ptr<Archive> archive_;
  std::shared_ptr<const Descriptor> file_;
  std::vector<ZipMember> members_;  // as names_
  std::vector<std::string> names_;
};

// Writes the arrays, uncompressed; an older file is replaced when all is written. Errors: kDiskFull (it
// cannot be written), kConfiguration (an element type that numpy does not have).
void writeNpz(const std::string& path, const std::map<std::string, NpzArray>& arrays);

}  // namespace pipeshard
