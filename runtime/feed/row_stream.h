// Rows that another program sends, one message after the other:
//
//   8 bytes: N, little-endian;  then N bytes: a safetensors file
//
// A message has a tensor per input, named as the input, each with any number of rows along the input's axis,
// as many in all; inputs without an axis stay what the last message that had them said. Batches are cut from
// the rows as they come. Tensors of other names are left aside; the first message's are told (unused()).
//
// Where sequences have several lengths (row_lengths.h) all of a message have one. Rows are put with those
// that the same of the plan's lengths holds (length_groups.h), and padded to it; or, where the sender goes by
// steps, a message has whole batches.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "runtime/data/length_groups.h"
#include "runtime/data/row_lengths.h"
#include "runtime/files/tensor_file.h"

namespace pipeshard {

class RowStream {
 public:
  // Fills as much of a span as there is, at least a byte; 0: there is nothing more. What it throws comes out
  // of the calls below.
  using Read = std::function<size_t(std::span<std::byte>)>;

  // `source` names the sender in messages: "the loader `python load.py`". `inputs`: all of the program's;
  // drawn ones are not sent. `whole_batches`: of several lengths, a message without must be refused.
  // Error(kConfiguration): inputs whose batches are not of one size.
  RowStream(std::vector<ProgramInput> inputs, std::string source, Read read, RowLengths lengths = {},
            bool whole_batches = false);
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;

  int64_t batchRows() const { return batch_; }
  int64_t rows() const { return rows_; }          // that came
  int64_t messages() const { return messages_; }  // that are complete
  // What the first message had that no input takes, for people (describeUnused of stored_array.h); "":
  // nothing.
  const std::string& unused() const { return unused_; }

  // The next batch: `out` has a span per input, of the whole batch in the input's type; empty ones are left
  // out. In shorter sequences it is the first part of a span that is the batch. False when the stream ended
  // before the batch was whole. Errors: kBadModel (no message, or one that is cut off), kConfiguration (a
  // type, shape or number that does not fit: message, tensor and row), kMissingInput (an input that was not
  // sent).
  bool next(const std::vector<std::span<std::byte>>& out);
  // Of the sequences of the last batch: StepSize::length.
  size_t length() const { return batch_length_; }
  // Leaves out so many batches. False as next().
  bool skip(int64_t batches);

 private:
  struct Column {
    const TensorEntry* entry = nullptr;  // of the present message
    std::vector<std::byte> constant;     // of an input without an axis: what was sent last
  };

  // A row of sequences, by input: what was sent, in the input's type, one row along its axis. Nothing for an
  // input without one.
  struct Part {
    Shape size;
    std::vector<std::byte> bytes;
  };
  using Row = std::vector<Part>;
  struct Batch {
    size_t length = 0;
    std::vector<Row> rows;
  };

  int64_t rowsLeft() const { return message_rows_ - taken_; }
  void takeRows(int64_t wanted, const std::vector<std::span<std::byte>>& out, int64_t have);
  std::optional<Batch> nextOfLength();
  Row takeRow();
  void writeRows(size_t input, const Batch& batch, std::span<std::byte> out) const;
  void writeConstant(size_t input, std::span<std::byte> out) const;
  bool receive();
  bool readMessage();
  void fill(std::span<std::byte> out, const char* what, bool may_end, bool& ended);
  void lookAt(size_t input);
  void takeLength(const ProgramInput& input, const TensorEntry& entry);
  Shape batchShape(size_t input) const;
  std::string here() const;
  void copyRows(size_t input, int64_t first, int64_t count, std::span<std::byte> out, int64_t have) const;

  void noteUnused();

  std::vector<ProgramInput> inputs_;
  RowLengths lengths_;
  std::string source_, unused_;
  Read read_;
  int64_t batch_;
  int64_t rows_ = 0, messages_ = 0;
  std::vector<std::byte> message_;
  size_t message_bytes_ = 0;
  std::vector<TensorEntry> entries_;
  std::vector<Column> columns_;
  int64_t message_rows_ = 0;     // of the present message
  int64_t taken_ = 0;            // of them
  int64_t message_length_ = -1;  // of its sequences; -1: it has none
  size_t message_group_ = 0;     // StepSize::length of the shortest that holds them
  size_t batch_length_ = 0;
  bool whole_batches_;
  bool has_ended_ = false;
  std::deque<Batch> ready_;
  LengthGroups<Row> groups_;
};

}  // namespace pipeshard
