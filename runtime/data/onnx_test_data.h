// ONNX's test data: a folder of folders test_data_set_0, test_data_set_1, ..., each with input_0.pb,
// input_1.pb, ... (a TensorProto each), or one such folder itself. Read whole.
//
// The sets follow each other along the axis of the batch. Files that hold a tensor's name stand for the input
// of this name; where none of a set's has one, input_K.pb stands for the K-th input of the model. Expected
// outputs (output_0.pb) are not looked at.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/data/stored_array.h"

namespace pipeshard {

// Whether a folder holds such files.
bool isOnnxTestData(const std::string& path);

// `inputs`: the model's, without those that are drawn. Errors, of open() too: kMissingInput (no file for the
// input), kBadModel (damaged), kConfiguration (sets whose arrays do not fit each other).
std::unique_ptr<ArrayStore> openOnnxTestData(const std::string& path,
                                             std::span<const ProgramInput* const> inputs);

}  // namespace pipeshard
