// Where batches come from. Every worker makes its own source and asks it for the microbatches that its program loads; the
// content depends on nothing but the description, the step, and the place in the whole batch.
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
  // Writes microbatch `microbatch` of batch input `input` (index into the inputs the source was made for) in `step` (1-based):
  // rows [k*s/m, (k+1)*s/m) of its axis, row-major; all of it when axis is -1. `out` holds exactly these bytes.
  virtual void fill(size_t input, int64_t step, int64_t microbatch, std::span<std::byte> out) = 0;
};

struct DataDescription {
  std::string path;   // an .npz file; "": synthetic
  uint64_t seed = 0;  // of synthetic data
};

// Counter-based random numbers: element e of input n in step s is a function of (seed, s, n's name, e) alone, so that any
// split of the batch sees the same numbers. Standard normal for floating-point inputs (the float32 value is the float64
// value rounded), integers in [low, high), bools from {0, 1}.
// Errors: kConfiguration for an integer input with an empty range or a type that cannot be made.
std::unique_ptr<DataSource> makeSyntheticData(const std::vector<ProgramInput>& inputs, int64_t microbatches, uint64_t seed);

// Arrays of an .npz file, named as the inputs. An array may be longer than the batch along the input's axis: step s takes the
// next rows, and starts again at the end. Integer and float types are converted to the input's. Only the inputs in `needed`
// (by index; empty: all) are read.
// Errors: kMissingInput (file or array), kConfiguration (shape or type: found and expected), kBadModel (damaged file).
std::unique_ptr<DataSource> openNpzData(const std::string& path, const std::vector<ProgramInput>& inputs, int64_t microbatches,
                                        const std::vector<bool>& needed = {});

std::unique_ptr<DataSource> makeDataSource(const DataDescription& description, const Program& program);

// The shape of one microbatch of an input. Error(kConfiguration) when the axis is not divisible.
Shape microbatchShape(const ProgramInput& input, int64_t microbatches);

}  // namespace pipeshard
