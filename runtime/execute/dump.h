// What a step leaves behind, on disk: one safetensors file per rank and step, and one view over all ranks.
//
// Names inside: "loss", "gradient/<parameter>", "parameter/<parameter>", "state/<parameter>/<state>",
// "forward_state/<name>", "microbatch3/output/<name>". Where a step is a window of several updates, losses
// and gradients say to which they belong: "update0/loss", "update3/gradient/<parameter>".
// Where the loss is scaled (float16) gradients are as they are accumulated, "measure/loss_scale" times as
// large.
//
// A rank that holds a part of a tensor (Buffer::part) writes the part under the tensor's name, and where it
// belongs (runtime/files/joined_tensors.h). The view joins the parts. Weights that the exporter has
// transposed are written as the module has them, and so are their gradients and states (Result::transposed).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/execute/executor.h"
#include "runtime/files/joined_tensors.h"

namespace pipeshard {

// The loss is always written.
struct DumpSelection {
  bool gradients = false;
  bool parameters = false;
  bool states = false;
  bool outputs = false;

  friend bool operator==(const DumpSelection&, const DumpSelection&) = default;
};

// "step-000002.rank-0001.safetensors"
std::string dumpFileName(int64_t step, RankId rank);
std::optional<int64_t> stepOfDump(std::string_view file_name);  // nothing: it is no such name
std::string dumpTensorName(const Result& result);

// The gradients of a window's updates, each kept when its update runs. Watches the executor, which must live
// as long.
class WindowGradients {
 public:
  explicit WindowGradients(Executor& executor);
  ~WindowGradients();
  WindowGradients(const WindowGradients&) = delete;
  WindowGradients& operator=(const WindowGradients&) = delete;

  const std::byte* find(const Result& result) const;  // of the last step

 private:
  Executor& executor_;
  std::vector<std::vector<std::byte>> kept_;  // by result of the program
};

// Writes the selected results of a step into `directory` and returns the path. Gradients of a window's
// updates are taken from `gradients`, and left out without. Error(kDiskFull).
std::string writeStepDump(const Executor& executor, const std::string& directory, int64_t step,
                          const DumpSelection& selection, const WindowGradients* gradients = nullptr);

// What the dump has of a result, as its buffer holds it (its box; the transposed matrix). `out` is as large.
void readResult(const JoinedTensors& dump, const Result& result, const Buffer& buffer,
                std::span<std::byte> out);
// The inverse: a buffer's content as dumps have it.
std::vector<std::byte> dumpedContent(const Result& result, const Buffer& buffer,
                                     std::span<const std::byte> content);

// Sets the executor's parameters, optimizer states and forward states to what the dump holds; buffers that
// are parts to their box.
void adoptStepDump(Executor& executor, const JoinedTensors& dump);

// The results of a step over all ranks.
class StepDump : public JoinedTensors {
 public:
  static StepDump open(const std::string& directory, int64_t step,
                       int ranks);  // errors as JoinedTensors::open

 private:
  explicit StepDump(JoinedTensors tensors) : JoinedTensors(std::move(tensors)) {}
};

}  // namespace pipeshard
