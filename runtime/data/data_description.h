// What a job is trained on, as it was asked for.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace pipeshard {

// What a plan's steps are made of, for messages that say how to ask for smaller ones.
struct StepMakeup {
  std::string batch_dimension = {};  // which --dim gives a number; "": the batch of the model's file has one
  int64_t microbatches = 0;          // of an update; 0: nothing is known of the plan
  int64_t updates = 1;               // of a step: its window

  friend bool operator==(const StepMakeup&, const StepMakeup&) = default;
};

// Of a file: "5 examples are fewer than the 8 of a step; plan with --dim batch=5". `of_step`: examples that a
// step takes.
std::string describeTooFew(const StepMakeup& parts, int64_t examples, int64_t of_step);

// How an epoch ends that is no multiple of the batch.
struct EpochEnd {
  // Rows of the shorter batch that the plan has programs for; 0: none. Synthetic data then alternate between
  // whole and shorter batches; a file must end with a batch of this size, or with a whole one.
  int64_t last_batch = 0;
  bool drop_last = false;  // the rows of a file that do not fill a batch are left out
  // Why no plan of this kind has programs for a shorter batch, as a clause, for errors that say what to do
  // (whyWholeBatchesOnly of planning/programs/step_programs.h); "": another plan may have them.
  std::string whole_only = {};
  StepMakeup parts = {};  // of the plan's whole batches, likewise for errors

  friend bool operator==(const EpochEnd&, const EpochEnd&) = default;
};

// The path of standard input.
inline constexpr const char* kStandardInput = "-";

struct DataDescription {
  // A file or folder (docs/data.md); kStandardInput; "": synthetic, or what `command` writes.
  std::string path;
  uint64_t seed = 0;  // of synthetic data, of inputs that are drawn, and of the order of the rows
  EpochEnd end = {};
  // Rows come in an order of their own in every epoch, a function of the seed and the epoch.
  bool shuffle = false;
  bool shift_labels = false;  // of a file of tokens (token_file.h)
  int64_t end_of_text = -1;   // likewise: the token that ends a document (token_documents.h); -1: none does
  bool truncate = false;      // rows that are longer than the plan's longest sequences are cut
  // What an input is filled up with behind a row that is shorter than its batch, by the input's name, where
  // it is not what row_lengths.h finds.
  std::map<std::string, double> padding = {};

  // A shell command whose standard output is read as a pipe (runtime/feed/row_stream.h); "": none.
  std::string command = {};
  // The longest that such a loader may be waited for, until it has sent the rows of a step.
  std::chrono::milliseconds loader_timeout{std::chrono::minutes(2)};

  // Of a worker; -1: none. A file without a name, which processes of a host share, for arrays that must be
  // unpacked (unpacked_file.h), and the memory that the coordinator puts batches of a pipe in (batch_ring.h).
  int unpacked_descriptor = -1;
  int ring_descriptor = -1;

  friend bool operator==(const DataDescription&, const DataDescription&) = default;
};

// Whether batches come once, one after the other, from another program.
inline bool isPipe(const DataDescription& data) {
  return !data.command.empty() || data.path == kStandardInput;
}

// Whether nothing was given that has batches: they are random numbers then.
inline bool isSynthetic(const DataDescription& data) { return data.path.empty() && data.command.empty(); }

// Takes "NAME=NUMBER", of --pad. Error(kUsage).
void addPadding(const std::string& text, DataDescription& description);

// "tokens.u16, shuffled": the path, and all else that decides which rows a step has, but for the seed. ""
// where isSynthetic.
std::string printData(const DataDescription& description);

}  // namespace pipeshard
