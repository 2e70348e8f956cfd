// The report of a plan directory, from the files in it: plan.json, ranks/, and, once it was validated,
// validation.json and trace.json.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ir/trace/trace_event.h"

namespace pipeshard {

struct ProgramSet;        // ir/program/program_set.h
struct ValidationReport;  // runtime/validation/validate.h

struct ReportRequest {
  std::string directory;
  std::string trace = {};  // what `run --trace` recorded; "": the directory's trace.json, if there is one
  // Durations for what is predicted, from a trace (simulate --measured); "": by the cost model.
  std::string durations = {};
  int64_t step = 0;                      // of the trace; 0: its last
  std::string log = {};                  // the folder of `run --log`; "": how a run went is not shown
  std::vector<RankId> shown = {};        // as PlanSimulationRequest
  const ProgramSet* programs = nullptr;  // likewise
  bool pictures = false;                 // the pictures, too
};

struct RenderedReport {
  std::string page;
  std::vector<std::pair<std::string, std::string>> pictures;  // by file name
  std::string measured;                                       // the trace that is shown; "": none
};

// Errors: kMissingInput, kConfiguration, kVersionMismatch, naming the file.
RenderedReport renderDirectory(const ReportRequest& request);

// Of the directory, to DIR/report.html. `programs`: as PlanSimulationRequest.
void writeReport(const std::string& directory, const ProgramSet* programs = nullptr);

// Why the directory cannot take what keepValidation and writeReport write; "" where it can. Asked before long
// work; writes nothing.
std::string whyNothingIsKept(const std::string& directory);
// What `validate` found and the last step of what it recorded, for writeReport to find.
void keepValidation(const ValidationReport& report, const Trace& trace, const std::string& directory);

}  // namespace pipeshard
