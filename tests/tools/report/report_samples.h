// Plans, schedules, traces and validations to make reports of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ir/trace/trace_event.h"
#include "runtime/validation/validate.h"
#include "tools/report/report.h"

namespace pipeshard {

// A stage per device, each of forward 100, backward 200 FLOPs.
Plan planOf(int stages, int64_t microbatches, const std::string& schedule);
// `ranks` devices in nodes of eight at most, `chunks` stages on each (stage s on device s mod ranks), names
// as exporters give them; interleaved, or zb-h1 with one stage each.
Plan chunkedPlan(int ranks, int chunks, int64_t microbatches);
Plan shardedPlan();
std::vector<ReportedParameter> shardedParameters();

// As if the schedule had been run: times of the plan's FLOPs in microseconds, every pass longer by up to a
// fifth, messages that take time, memory in bytes.
Trace measuredTrace(const Plan& plan, const Schedule& schedule);

TensorComparison compared(const std::string& name, double error, double bound);
ValidationReport validated(std::vector<TensorComparison> tensors);
// With memory and times of every rank.
ValidationReport validatedRun(int ranks);

// Pages of every kind, by name.
std::vector<std::pair<std::string, std::string>> samplePages();

size_t countOf(const std::string& text, const std::string& part);

}  // namespace pipeshard
