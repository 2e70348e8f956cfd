// Memory that the coordinator of a job and its workers on one machine share: the batches of the next few
// steps, put there by one (runtime/feed/loader_feed.h), read by all.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "runtime/data/data.h"
#include "runtime/files/posix_file.h"
#include "transport/shared/mapping.h"

namespace pipeshard {

class BatchRing {
 public:
  // Makes the memory, for batches of these inputs; drawn ones have no place. Error(kOutOfMemory).
  static BatchRing create(const std::vector<ProgramInput>& inputs, int64_t steps_done);
  // That of a process that inherited the descriptor. Errors: kConfiguration (it is of other inputs).
  static BatchRing inherit(int descriptor, const std::vector<ProgramInput>& inputs);

  int descriptor() const { return memory_.get(); }  // children inherit it
  int64_t slots() const;
  // The place of an input's whole batch; that of step s + slots() is the same.
  std::span<std::byte> batch(int64_t step, size_t input) const;
  // Of the step's sequences: StepSize::length.
  void setLength(int64_t step, size_t length) const;
  size_t length(int64_t step) const;
  // Whoever reads `step` afterwards sees all that was written before.
  void publish(int64_t step) const;
  int64_t published() const;  // the last step that is there

 private:
  struct Header;
  BatchRing() = default;
  void place(const std::vector<ProgramInput>& inputs);
  Header& header() const;

  Descriptor memory_;
  shm::Mapping mapping_;
  std::vector<size_t> offsets_, bytes_;  // by input, in a slot
  size_t slot_bytes_ = 0;
};

// Reads them; fill() waits for its step. What a step read stays there until all ranks have done the step.
// lengthOf() waits, too.
std::unique_ptr<DataSource> makeRingData(const DataDescription& description,
                                         const std::vector<ProgramInput>& inputs,
                                         const ShorterInputs& shorter);
// Of a pipe that is not read in this process: what there is to say about it.
std::unique_ptr<DataSource> describePipe(const DataDescription& description,
                                         const std::vector<ProgramInput>& inputs,
                                         const ShorterInputs& shorter);

}  // namespace pipeshard
