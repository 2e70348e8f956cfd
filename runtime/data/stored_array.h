// Arrays that batches are read from, in whatever file they are. A format is an ArrayStore: it says which
// array of its file stands for an input; array_data.h makes batches of the arrays.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/program/program.h"
#include "runtime/data/data.h"
#include "runtime/data/row_lengths.h"

namespace pipeshard {

class StoredArray {
 public:
  StoredArray(DataType data_type, Shape shape) : data_type_(data_type), shape_(std::move(shape)) {}
  virtual ~StoredArray() = default;

  DataType dataType() const { return data_type_; }
  const Shape& shape() const { return shape_; }
  // Of examples that are not as long as the array is: how long each is, along the axes that sequences have
  // (RowLengths::axes); what the array has behind that is padding. Empty: all are as long as the array.
  virtual std::span<const int64_t> lengths() const { return {}; }
  // Fills `out` (whole elements of dataType()) from element `first` of the row-major array on; all of them
  // are inside the array. Error(kMissingInput) when the file has shrunk or cannot be read any more.
  virtual void read(int64_t first, std::span<std::byte> out) const = 0;
  // Called once before the first read(), by who will read. What takes long is done here.
  virtual void prepare() {}
  // Its numbers are checked when the data are opened; others' when they are read.
  virtual bool isSmall() const { return false; }

 private:
  DataType data_type_;
  Shape shape_;
};

class MemoryArray : public StoredArray {
 public:
  // `bytes`: dense, row-major.
  MemoryArray(DataType data_type, Shape shape, std::vector<std::byte> bytes,
              std::vector<int64_t> lengths = {})
      : StoredArray(data_type, std::move(shape)), bytes_(std::move(bytes)), lengths_(std::move(lengths)) {}
  std::span<const int64_t> lengths() const override { return lengths_; }
  void read(int64_t first, std::span<std::byte> out) const override {
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + first * dataTypeSize(dataType()), out.size());
  }
  bool isSmall() const override { return true; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<int64_t> lengths_;
};

class ArrayStore {
 public:
  virtual ~ArrayStore() = default;
  // The array of an input that is not drawn; its type and shape are as found, not as wanted. An input whose
  // type is kUndefined is asked for its number of rows alone: read() is not called. Errors: kMissingInput (no
  // such array), kBadModel (damaged), kConfiguration (what is there cannot stand for the input).
  virtual std::unique_ptr<StoredArray> open(const ProgramInput& input) = 0;
  // The axis of the array along which examples follow each other; -1: it is the same in every step.
  virtual int rowAxis(const ProgramInput& input) const { return input.axis; }
  // What a person should know about how inputs were filled, when all have been opened; "" when names say it.
  // Errors: kUsage (an option that goes with no input of the model).
  virtual std::string decisions() const { return ""; }
  // What the file has, by name, that no open() so far has asked for; nothing where arrays have no names.
  virtual std::vector<std::string> unused() const { return {}; }
};

// When all inputs have been opened:
//   "no input takes token_type_ids; the model's inputs are input_ids, labels"; "" where the file has no more.
std::string describeUnused(const ArrayStore& store, const std::vector<ProgramInput>& inputs);
// The same of names that no input takes.
std::string describeUnused(std::vector<std::string> unused, const std::vector<ProgramInput>& inputs);
// The names that are not among `taken`.
inline std::vector<std::string> namesBut(std::vector<std::string> names, const std::set<std::string>& taken) {
  std::erase_if(names, [&](const std::string& name) { return taken.contains(name); });
  return names;
}

// Chosen by what the path is (docs/data.md). `inputs`: all of the model's; drawn ones are left aside. Errors:
// kMissingInput (there is none), kUsage (a kind that is not known, an option that does not go with it),
// kBadModel (damaged). What keeps a reference to `lengths`, which outlives it, may have examples of several.
std::unique_ptr<ArrayStore> openArrays(const DataDescription& description,
                                       const std::vector<ProgramInput>& inputs, const RowLengths& lengths);

}  // namespace pipeshard
