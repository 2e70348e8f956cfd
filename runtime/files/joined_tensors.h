// Tensors of which several safetensors files hold parts, as one view: what ranks have written of a step, or
// into a checkpoint.
//
// Where a part belongs is in its file's metadata: "part/parameter/w": "[8,6] from [0,3]" for columns 3.. of a
// tensor "parameter/w" of shape [8,6]. A tensor without it is whole.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/program/program.h"
#include "runtime/files/tensor_file.h"

namespace pipeshard {

// The metadata entry of a part.
std::pair<std::string, std::string> partEntry(const std::string& tensor, const BufferPart& part);

// Copies the elements of a box from or into all of a tensor; row-major.
void copyIntoBox(DataType type, std::span<const std::byte> box_bytes, const Shape& whole, const Shard& box,
                 std::span<std::byte> whole_bytes);
void copyOutOfBox(DataType type, std::span<const std::byte> whole_bytes, const Shape& whole, const Shard& box,
                  std::span<std::byte> box_bytes);

class JoinedTensors {
 public:
  struct Tensor {
    std::string name;
    DataType data_type = DataType::kUndefined;
    Shape shape;
    std::vector<std::byte> bytes;
    std::vector<double> elements() const;
  };
  // What is known of a tensor without reading it.
  struct Piece {
    int file = 0;  // index into `paths`
    Shape start;   // empty: all of the tensor
  };
  struct Pieces {
    DataType data_type = DataType::kUndefined;
    Shape whole;
    std::vector<Piece> pieces;  // one without a start: the whole tensor
  };

  // `description`: of all of it, for messages. Errors: kMissingInput (a file is missing), kBadModel (damaged;
  // two files hold a tensor of one name; the parts of a tensor do not hold every element once).
  static JoinedTensors open(const std::vector<std::string>& paths, std::string description);
  // Where further files, which are not at hand, hold the rest: whoever reads a box knows that it is here. Of
  // what is not, nothing is written to readBox's `out`.
  static JoinedTensors openSome(const std::vector<std::string>& paths, std::string description);

  const std::string& description() const { return description_; }
  const std::vector<std::string>& names() const { return names_; }  // sorted
  bool has(std::string_view name) const;
  // Error(kMissingInput) naming the tensor and the description.
  const Pieces& find(std::string_view name) const;
  Shard boxOf(const Piece& piece, std::string_view name) const;
  Tensor read(std::string_view name) const;
  // A box of a tensor, row-major; of files that hold none of it nothing is read. `out` holds exactly its
  // bytes.
  void readBox(std::string_view name, const Shard& box, std::span<std::byte> out) const;

 private:
  void add(int file, const TensorEntry& entry);
  void checkPieces(const std::string& name, const Pieces& tensor) const;

  std::string description_;
  std::vector<TensorFile> files_;
  std::vector<std::string> names_;
  std::map<std::string, Pieces, std::less<>> tensors_;
};

}  // namespace pipeshard
