// `run --operators`: what the operators of a step took, by kind, beside what they would take at the best
// rates that kernels reach on this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/job/job.h"

namespace pipeshard {

// One kind of operator; of a step, all ranks together.
struct OperatorRow {
  std::string name;  // "FusedMatMul transA"
  int64_t runs = 0;
  double seconds = 0;
  double flops = 0;  // of products and convolutions; else 0
  double bytes = 0;  // read and written, each tensor once
  double floor = 0;  // seconds; 0: not known (collectives)
};

struct OperatorTable {
  std::vector<OperatorRow> rows;  // longest first
  int64_t steps = 0;              // that were measured
  double step_seconds = 0;        // of a step, all ranks together
  KernelRates rates;              // of the rank that reached most
};

// Of a job with JobSpec::operators. Errors as ProgramFolder.
OperatorTable tabulateOperators(const JobSpec& job, const JobResult& result);
std::string printOperators(const OperatorTable& table);
std::string operatorsToJson(const OperatorTable& table);

}  // namespace pipeshard
