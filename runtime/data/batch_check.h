// What to tell the user about a batch that the model cannot train on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "runtime/data/data.h"

namespace pipeshard {

// Rows of a whole batch, along the axes of the inputs that have some; 1 where none has.
// Error(kConfiguration), which names `source`, where they are not as many of each.
int64_t batchRowsOf(const std::vector<ProgramInput>& inputs, const std::string& source);

// How many examples an array of a file has.
struct ArrayRows {
  std::string input;
  int64_t count = 0;
};
// As many examples in every array: otherwise steps would pair what does not belong together.
// Error(kConfiguration).
void requireSameRows(const std::string& path, const ArrayRows& one, const ArrayRows& other);

// Whether an array of one type may stand for an input of another: floats for floats, integers (and bools) for
// integers.
bool mayStandFor(DataType found, DataType wanted);

// The first number of a box of an array (`found`: its type) that cannot stand for `input`: an integer that
// its type cannot hold, or that the model does not allow, where that is exact; nothing when all can. No
// memory is taken where all can.
//   "array 'ids': element [3] is 300, which uint8 cannot hold"
std::optional<std::string> numberFault(const ProgramInput& input, DataType found, const Shard& box,
                                       std::span<const std::byte> bytes);

// The first number of an array for `input` that the model does not allow, whether or not that is exact;
// nothing when all are:
//   "array 'labels', row 2: found 10 at [2,5], but the model takes integers from 0 to 9
//    (or -100, which is ignored)"
// `bytes` are a box of the array; rows and places count in the whole.
std::optional<std::string> describeNotAllowed(const ProgramInput& input, DataType data_type, const Shard& box,
                                              std::span<const std::byte> bytes);

// The same for the batch of a step that failed, over the inputs that the program loads; "": all are allowed.
// Row and place are those of the file, or "in the step's batch, array ..." where there is none. Reads the
// batch from `data` again.
std::string explainFailedStep(const Program& program, DataSource& data, int64_t step);

// Advice that ends the message about step `step` of a program whose loss is not finite. When every label of
// the step's batch is the one that the loss ignores, the mean over labels is 0/0 whatever the weights are,
// and the advice says so; where the data are synthetic, it says that. Otherwise the learning rate or the data
// are the usual causes. Reads the labels from `data` again.
std::string explainNotFiniteLoss(const Program& program, DataSource& data, int64_t step);

}  // namespace pipeshard
