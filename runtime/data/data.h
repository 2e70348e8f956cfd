// Where batches come from. Every worker makes a source of its own and asks it for the rows that its program
// loads. What a row holds depends on the description of the data, the step and the row's place in the whole
// batch alone. So all ranks, however the batch is cut, see the same batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/program/program.h"
#include "ir/program/step_size.h"
#include "runtime/data/data_description.h"

namespace pipeshard {

// What a program's inputs are where sequences are shorter: a list for every shorter length of the plan, by
// StepSize::length from 1 on, in the order of the longest's inputs.
using ShorterInputs = std::vector<std::vector<ProgramInput>>;

struct FileRow {
  std::string path;
  int64_t row = 0;  // from 0 on
};

class DataSource {
 public:
  virtual ~DataSource() = default;
  // Writes a box of the whole batch's input `input` (index into the inputs the source was made for) in `step`
  // (1-based), row-major; `out` holds exactly these bytes. In a step of shorter sequences the batch's shape
  // is that of ShorterInputs.
  //   x float32[8,3], axis 0: fill(0, step, {{2,1}, {4,2}}, <32 bytes>) writes columns 1 and 2 of rows 2 to 5
  void fill(size_t input, int64_t step, const Shard& box, std::span<std::byte> out);
  // Elements [offset, offset + n) of the input's axis, where n follows from the size of `out`. All of the
  // input when its axis is -1 (offset 0).
  //   x float32[8,3], axis 0: fill(0, step, 2, <24 bytes>) writes rows 2 and 3
  void fill(size_t input, int64_t step, int64_t offset, std::span<std::byte> out);
  // The step's batch is the shorter one that ends an epoch: it has EpochEnd::last_batch rows.
  virtual bool isLastBatch(int64_t step) const = 0;
  // Of the step's sequences: StepSize::length.
  virtual size_t lengthOf(int64_t) const { return 0; }
  StepSize sizeOf(int64_t step) const { return {isLastBatch(step), lengthOf(step)}; }
  // Steps until every example has been used once, a shorter last batch included; 0: data without an end.
  virtual int64_t stepsPerEpoch() const { return 0; }
  const std::vector<ProgramInput>& inputs() const { return inputs_; }
  const ShorterInputs& shorter() const { return shorter_; }
  uint64_t seed() const { return seed_; }
  // Where row `row` of the step's batch comes from; nothing where that is no file, or the same in every step.
  virtual std::optional<FileRow> fileRowOf(int64_t, int64_t) const { return std::nullopt; }
  // Made up, from random numbers, for no data were given.
  virtual bool isSynthetic() const { return false; }
  // Whether fill() may wait for somebody else, who has a deadline of his own.
  virtual bool mayWait() const { return false; }
  // From another thread: a fill() that waits, and any later one that would, ends with kPeerUnavailable.
  virtual void cancel() {}
  // One line for people: what the data are, and how inputs are filled where their names do not say it; "" for
  // synthetic data.
  virtual std::string describe() const { return ""; }
  // The part of it that says how inputs are filled, and what is left out.
  virtual std::string decisions() const { return ""; }

 protected:
  // `seed`: of inputs that are drawn (ProgramInput::drawn), whatever the others' source is.
  explicit DataSource(std::vector<ProgramInput> inputs, uint64_t seed = 0, ShorterInputs shorter = {})
      : inputs_(std::move(inputs)), shorter_(std::move(shorter)), seed_(seed) {}
  // As it is in the step's sequences.
  const ProgramInput& inputIn(int64_t step, size_t input) const {
    const size_t length = shorter_.empty() ? 0 : lengthOf(step);
    return length == 0 ? inputs_.at(input) : shorter_.at(length - 1).at(input);
  }
  // An input that is not drawn.
  virtual void write(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) = 0;

  std::vector<ProgramInput> inputs_;
  ShorterInputs shorter_;
  uint64_t seed_;
};

// What a plan is made for, of the data that it will be given.
struct DataOutline {
  // How many rows of a file's arrays are left for the last, shorter batch of an epoch; 0 when they are a
  // multiple of the batch, or left out (EpochEnd::drop_last).
  int64_t last_batch = 0;
  // Of a file that has fewer examples than a whole batch, which `run` refuses, describeTooFew; "": it has
  // not.
  std::string too_few;
  // What it has that no input takes, for people (describeUnused of stored_array.h); "": nothing.
  std::string unused;
};
// `inputs`: all of the model's, of the whole batch; their types do not matter. Errors of openData, but for
// shapes and numbers; kUsage for what has no length (a pipe).
DataOutline outlineData(const DataDescription& description, const std::vector<ProgramInput>& inputs,
                        const ShorterInputs& shorter = {});

// Counter-based random numbers: element e of input n in step s is a function of (seed, s, n's name, e) alone,
// so that any split of the batch sees the same numbers. Standard normal for floating-point inputs (the
// float32 value is the float64 value rounded), integers in [low, high), bools from {0, 1}. Errors:
// kConfiguration for an integer input with an empty range or a type that cannot be made. All sizes of step
// that there are take turns: whole batches, the last one, shorter sequences, of which nothing is padding.
std::unique_ptr<DataSource> makeSyntheticData(const std::vector<ProgramInput>& inputs, uint64_t seed,
                                              const EpochEnd& end = {}, const ShorterInputs& shorter = {});

// Arrays in a file, named as the inputs, or a file of tokens: what the path is decides (docs/data.md). An
// array may be longer than the batch along the input's axis: step s takes the next rows, and starts again at
// the end. Integer and float types are converted to the input's. Inputs that are drawn are no arrays of the
// file. Only the inputs in `needed` (by index; empty: all) may be filled; of others only type and shape are
// looked at. Errors: kMissingInput (file or array), kConfiguration (shape or type: found and expected; an
// integer that the model does not allow: row, number and range), kBadModel (damaged file), kUsage (options
// that do not go with such a file, or with synthetic data). Numbers of files that are read by rows are
// checked in the step that reads them, in fill().
//
// Where there are shorter sequences, too, a batch is of rows that have the same length in this sense: the
// shortest of the plan's that holds them, up to which they are padded (row_lengths.h). Which rows make a
// batch: length_order.h; what comes through a pipe: runtime/feed/row_stream.h.
std::unique_ptr<DataSource> openData(const DataDescription& description,
                                     const std::vector<ProgramInput>& inputs,
                                     const std::vector<bool>& needed = {}, const ShorterInputs& shorter = {});

// openData of what the program loads.
std::unique_ptr<DataSource> makeDataSource(const DataDescription& description, const Program& program,
                                           const ShorterInputs& shorter = {});

}  // namespace pipeshard
