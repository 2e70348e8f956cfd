// What a user takes home: the model file that was planned, with the weights of a checkpoint.
//
// The file is read as planning reads it (its exporter's changes undone, so that the module's parameters are
// there under their names), and nothing else is done to it: inputs, outputs and operators stay, unless it is
// to be written in inference mode. Parameters and running statistics are the checkpoint's; what is not
// trained stays what it was.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onnx_import/exporter/module_parameters.h"
#include "runtime/checkpoint/checkpoint.h"

namespace pipeshard {

struct TrainedModelRequest {
  std::string external_data_root;  // as of ReadOptions
  // Where the model's file is now; "": where it was planned. Files of weights that were in its folder, or
  // below, are expected there, too.
  std::string model;
  // Weights beyond this are written into a file beside the model ("trained.onnx.data"), as protobuf allows no
  // more.
  int64_t most_inline_bytes = 1'800'000'000;
  // Also how it was trained: a TrainingInfoProto with the optimizer, whose states are the checkpoint's.
  bool training_info = false;
  // Of writeTrainedModel: batch normalisations and dropouts that the file has in training mode are written in
  // inference mode (onnx_import/exporter/module_mode.h).
  bool in_inference_mode = false;
  // The moving averages of trained parameters in their place (`--ema` of the plan).
  bool moving_average = false;
  // Of writeTrainedTensors: names that tensors have besides those that the model's file tells, as no call of
  // the module goes by them.
  std::vector<TiedName> tied = {};
};

// Takes "NAME=NAME[,NAME...]", of --tied: a name that the file of tensors has, and others. Error(kUsage).
void addTiedNames(const std::string& text, TrainedModelRequest& request);

struct TrainedModelSummary {
  int64_t parameters = 0;  // tensors of the checkpoint that are in the file
  int64_t elements = 0;    // of these
  int64_t statistics = 0;
  std::string data_path;           // "": all in one file
  std::vector<std::string> notes;  // what the file does not have
};

// Writes the model; a note says what of it is in training mode, or was. Errors: kMissingInput, kConfiguration
// (the model's file is not what it was; the checkpoint has what it has not: it was made for another model;
// the file has no inference mode), kNotANumber (finite numbers that the file's type has as infinite),
// kDiskFull.
TrainedModelSummary writeTrainedModel(const Checkpoint& checkpoint, const TrainedModelRequest& request,
                                      const std::string& path);

// Writes the module's parameters and buffers, in the module's own shapes and under its names, as safetensors:
// what PyTorch's load_state_dict takes. Where there are running statistics, the batches that were counted,
// too. Errors: as above; kUsage for tied names of a tensor that the file has not, or that are another's.
TrainedModelSummary writeTrainedTensors(const Checkpoint& checkpoint, const TrainedModelRequest& request,
                                        const std::string& path);

}  // namespace pipeshard
