// Where batches come from. Every worker makes its own source and asks it for the rows that its program loads; the content
// depends on nothing but the description, the step, and the place in the whole batch: however it is cut, rows are the same.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/program.h"

namespace pipeshard {

class DataSource {
 public:
  virtual ~DataSource() = default;
  // Writes elements [offset, offset + n) of the axis of batch input `input` (index into the inputs the source was made for) in
  // `step` (1-based), row-major; `out` holds exactly these bytes, and n follows from its size. All of the input when its axis is
  // -1 (offset 0).
  //   x float32[8,3], axis 0: fill(0, step, 2, <24 bytes>) writes rows 2 and 3
  virtual void fill(size_t input, int64_t step, int64_t offset, std::span<std::byte> out) = 0;
};

struct DataDescription {
  std::string path;   // an .npz file; "": synthetic
  uint64_t seed = 0;  // of synthetic data
};

// Counter-based random numbers: element e of input n in step s is a function of (seed, s, n's name, e) alone, so that any
// split of the batch sees the same numbers. Standard normal for floating-point inputs (the float32 value is the float64
// value rounded), integers in [low, high), bools from {0, 1}.
// Errors: kConfiguration for an integer input with an empty range or a type that cannot be made.
std::unique_ptr<DataSource> makeSyntheticData(const std::vector<ProgramInput>& inputs, uint64_t seed);

// Arrays of an .npz file, named as the inputs. An array may be longer than the batch along the input's axis: step s takes the
// next rows, and starts again at the end. Integer and float types are converted to the input's. Only the inputs in `needed`
// (by index; empty: all) are read.
// Errors: kMissingInput (file or array), kConfiguration (shape or type: found and expected; an integer that the model does not
// allow: row, number and range), kBadModel (damaged file).
std::unique_ptr<DataSource> openNpzData(const std::string& path, const std::vector<ProgramInput>& inputs,
                                        const std::vector<bool>& needed = {});

std::unique_ptr<DataSource> makeDataSource(const DataDescription& description, const Program& program);

}  // namespace pipeshard
