// What a step leaves behind, on disk: one safetensors file per rank and step, and one view over all ranks.
//
// Names inside: "loss", "gradient/<parameter>", "parameter/<parameter>", "state/<parameter>/<state>", "forward_state/<name>".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/executor.h"
#include "runtime/tensor_file.h"

namespace pipeshard {

// The loss is always written.
struct DumpSelection {
  bool gradients = false;
  bool parameters = false;
  bool states = false;
};

// "step-000002.rank-0001.safetensors"
std::string dumpFileName(int64_t step, int rank);
std::string dumpTensorName(const Result& result);

// Writes the selected results of a step into `directory` and returns the path. Error(kDiskFull).
std::string writeStepDump(const Executor& executor, const std::string& directory, int64_t step, const DumpSelection& selection);

// The results of a step over all ranks.
class StepDump {
 public:
  struct Tensor {
    std::string name;
    DataType data_type = DataType::kUndefined;
    Shape shape;
    std::vector<std::byte> bytes;
    std::vector<double> elements() const;
  };

  // Errors: kMissingInput (a rank's file is missing), kBadModel (damaged, or two ranks hold a tensor of one name).
  static StepDump open(const std::string& directory, int64_t step, int ranks);

  const std::vector<std::string>& names() const { return names_; }  // sorted
  bool has(std::string_view name) const;
  Tensor read(std::string_view name) const;  // Error(kMissingInput) naming the tensor and the dump

 private:
  std::string description_;
  std::vector<TensorFile> files_;
  std::vector<std::string> names_;
  std::map<std::string, size_t, std::less<>> file_of_;
};

}  // namespace pipeshard
