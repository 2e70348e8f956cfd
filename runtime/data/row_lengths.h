// Sequences of several lengths: which axes of a model's inputs they lie along, how long a batch of them may
// be, and what a row is filled up with that is shorter than its batch.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/data.h"

namespace pipeshard {

// What stands behind the end of a row, so that the loss and all gradients are as if it ended there:
//
//   an input whose name says that it is a mask    0
//   labels, as the loss reads them                the label that the loss ignores
//   others                                        0, or the least number that the model takes
//
// DataDescription::padding says otherwise. Exact where the model lets no position see those behind it, or has
// a mask; that cannot be seen here. Where no input is a mask, none has an ignored label, and nobody has said
// how to pad, padding is refused.
class RowLengths {
 public:
  RowLengths() = default;  // of one length
  // As openData has them. Without shorter inputs there is one length, which is no matter here but for
  // documents (DataDescription::end_of_text), whose rows are padded to it. Errors:
  // kConfiguration (programs whose inputs do not fit each other), kUsage (padding of an input that there is
  // not, or that the model does not take; options for several lengths where there is one).
  RowLengths(const DataDescription& description, const std::vector<ProgramInput>& inputs,
             const ShorterInputs& shorter);

  bool several() const { return lengths_.size() > 1; }
  size_t count() const { return lengths_.size(); }
  bool pads() const { return !lengths_.empty(); }       // rows may be shorter than their batch
  int64_t longest() const { return lengths_.front(); }  // where they may
  int64_t lengthAt(size_t length) const { return lengths_.at(length); }  // by StepSize::length
  // Ascending; none where the input has no sequences, or all are as long as it is.
  const std::vector<int>& axes(std::string_view input) const;
  double padding(std::string_view input) const;
  // StepSize::length of the shortest that holds a row of `length` elements. Error(kConfiguration), beginning
  // with `where`, for a row without elements, or longer than the longest where that is not to be cut.
  size_t shortestFor(int64_t length, std::string_view where) const;
  // Error(kConfiguration) where padding would change the loss. `path`: of the data.
  void requirePadding(const std::string& path) const;
  // "padded: input_ids by 0, labels by -100 (which the loss ignores); no input is a mask, ..."
  std::string describePadding() const;
  // "16, 8, 4"
  std::string describeLengths() const;
  // "7 examples of at most 64, 2 of 32": `rows` by StepSize::length.
  std::string describeRows(const std::vector<int64_t>& rows) const;

 private:
  struct Input {
    std::vector<int> axes;
    double padding = 0;
    bool ignored = false;  // the padding is what the loss ignores
    bool mask = false;
  };

  void findAxes(const std::vector<ProgramInput>& inputs, const ShorterInputs& shorter);
  void findDocumentAxes(const std::vector<ProgramInput>& inputs);
  void decidePadding(const DataDescription& description, const ProgramInput& input);

  std::vector<int64_t> lengths_;  // descending
  std::vector<std::string> names_;
  std::map<std::string, Input, std::less<>> inputs_;  // that have sequences
  bool truncate_ = false;
  bool said_ = false;  // somebody has said how to pad
};

// Writes a tensor of this shape: `content`, dense, in the box; elsewhere nothing, or `padding`.
//   [2,3], box {{0,0},{2,1}}, content 1 2, padding 0:  1 0 0  2 0 0
void writeBox(DataType type, const Shape& shape, const Shard& box, std::span<const std::byte> content,
              std::span<std::byte> out);
void writePadded(DataType type, double padding, const Shape& shape, const Shard& box,
                 std::span<const std::byte> content, std::span<std::byte> out);

}  // namespace pipeshard
