// What an evaluation gave (`run --outputs FILE.npz`): the model's outputs over all batches, as arrays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

// The outputs among what a plan's program for a single device lists; empty: a plan that trains, or whose
// model gives nothing but a loss.
std::vector<Result> listedOutputs(const std::string& plan_directory);

// Joins what a job's ranks have dumped (DumpSelection::outputs) in steps 1 to `steps`: per output one array,
// the microbatches and the steps behind each other along its batch axis. Of an output that is the same in
// every microbatch, that of the first step; it must be the same in all.
//   logits [8,10] in steps of 8 rows, two microbatches each; 3 steps  ->  logits [24,10]
// Replaces `path` when all is there. Errors: kMissingInput (a dump), kDiskFull, kConfiguration.
void writeOutputs(const std::vector<Result>& outputs, const std::string& dump_directory, int64_t steps,
                  int ranks, const std::string& path);

}  // namespace pipeshard
