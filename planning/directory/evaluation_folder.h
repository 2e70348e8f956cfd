// What `run --eval` keeps in a plan directory: programs that evaluate held-out data beside those that train.
//
//   PLAN/evaluation/ranks.json, kinds/, subgraphs/   as in PLAN
//   PLAN/evaluation/evaluation.json                  what they were made for
//
// They follow from plan.json and the number of held-out examples, and are made when a run asks for them.
#pragma once

#include <cstdint>
#include <string>

#include "planning/request/progress.h"
#include "runtime/data/data.h"

namespace pipeshard {

struct EvaluationFolder {
  int64_t rows = 0;     // examples of the held-out data
  int64_t batches = 0;  // of the held-out data, a shorter last one included
  std::string divisor;  // as EvaluationPrograms (planning/programs/evaluation_programs.h)
  bool adds = false;    // likewise
  bool exact = true;    // likewise; always of a single batch
  bool drop_last = false;
  // For people: "20 examples in 3 batches, weighted by their rows"
  std::string text;
};

// Makes the programs where they are not there yet. `data`: the held-out data. Errors: those of openData;
// kUsage: a plan that trains nothing, data without an end; kConfiguration, kBadModel: what the plan cannot
// evaluate, by name; kDiskFull.
EvaluationFolder prepareEvaluation(const std::string& plan_directory, const DataDescription& data,
                                   const ProgressCallback& progress);

// The same programs on a host that has only been told how many held-out examples there are. Errors likewise.
void makeEvaluation(const std::string& plan_directory, int64_t rows, const ProgressCallback& progress);

}  // namespace pipeshard
