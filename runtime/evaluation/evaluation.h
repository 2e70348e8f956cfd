// Evaluation on held-out data while a job trains: what is asked for, and what comes of it. Plain data.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/data/data.h"

namespace pipeshard {

struct EvaluationSpec {
  DataDescription data;     // as all workers read it; "" for its path: there is no evaluation
  int64_t rows = 0;         // examples of the data, for which the plan's programs that evaluate were made
  int64_t batches = 0;      // of the data, a shorter last one included
  std::string divisor;      // the measure that batches are weighted by; "": by their rows
  bool adds = false;        // batches are added up, not averaged: their loss is a sum over rows
  bool exact = true;        // false: that may not be the loss of all rows at once
  int64_t every_steps = 0;  // after every so many steps; 0: after the last one alone
  bool at_start = false;    // before the first step, too, unless the job goes on from a checkpoint
  int64_t known_step = -1;  // after which it was made already; -1: after none

  bool asked() const { return !data.path.empty(); }
  // The first step behind `step` after which there is an evaluation, as far as that does not depend on which
  // step is the last one.
  int64_t nextDue(int64_t step) const;
  bool isDue(int64_t step) const { return nextDue(step - 1) == step; }
  // Whether a job that goes on behind `step` (0: begins) evaluates before anything else. One that was due
  // there may have been lost to what ended the job before.
  bool isFirst(int64_t step) const;

  friend bool operator==(const EvaluationSpec&, const EvaluationSpec&) = default;
};

// Losses of batches, weighted. Their mean is the loss of all rows where a batch's loss is a mean over what
// the weights count.
struct WeightedLoss {
  double sum = 0;  // of loss times weight
  double weight = 0;

  void add(double loss, double of_weight) {
    sum += loss * of_weight;
    weight += of_weight;
  }
  void add(const WeightedLoss& other) {
    sum += other.sum;
    weight += other.weight;
  }
  // Not a number where nothing has any weight.
  double mean() const { return sum / weight; }
};

}  // namespace pipeshard
