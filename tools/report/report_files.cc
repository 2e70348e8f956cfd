#include "tools/report/report_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "planning/directory/plan_directory.h"
#include "tools/report/report.h"
#include "tools/report/report_memory.h"
#include "tools/report/report_sharding.h"
#include "tools/report/run_history.h"
#include "tools/report/validation_file.h"
#include "tools/simulation/simulation_report.h"
#include "tools/simulation/trace_file.h"
#include "tools/simulation/trace_reader.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReportFileName = "report.html";
// Of more ranks the page shows some that stand for all (sampleOf).
constexpr size_t kMostRanksAlone = 16;

Trace eventsOfLastStep(const Trace& trace) {
  int64_t step = 0, begin = INT64_MAX;
  for (const TraceEvent& event : trace.events) step = std::max(step, event.step);
  Trace last = trace;
  std::erase_if(last.events, [&](const TraceEvent& event) { return event.step != step || event.batch > 0; });
  for (const TraceEvent& event : last.events) begin = std::min(begin, event.start_ns);
  // Of earlier memory, what was held when the step began.
  last.memory.clear();
  for (const TraceMemory& point : trace.memory) {
    const bool replaces =
        !last.memory.empty() && last.memory.back().rank == point.rank && point.time_ns <= begin;
    if (replaces) last.memory.pop_back();
    last.memory.push_back(point);
  }
  return last;
}

void checkTraceIsOf(const Plan& plan, const Trace& trace, const std::string& path) {
  size_t ranks = 0;
  for (const StagePlan& stage : plan.stages) {
    for (RankId device : stage.devices) ranks = std::max(ranks, device.next().index());
  }
  size_t stages = 0;
  for (const TraceEvent& event : trace.events) {
    if (event.stage.valid()) stages = std::max(stages, event.stage.index() + 1);
  }
  if (trace.ranks == static_cast<int>(ranks) && stages <= plan.stages.size()) return;
  fail(ErrorCode::kConfiguration,
       "{}: found a trace of {} and at least {}; expected one of this plan, which has {} and {}", path,
       counted(trace.ranks, "rank"), counted(stages, "stage"), ranks, plan.stages.size());
}

}  // namespace

RenderedReport renderDirectory(const ReportRequest& request) {
  const Plan plan = readPlanDirectory(request.directory);
  const std::optional<ValidationReport> validation = readValidation(request.directory);
  const fs::path recorded =
      request.trace.empty() ? fs::path(request.directory) / kTraceFileName : fs::path(request.trace);
  ReportInput input{plan};
  RankSample sample;
  const bool is_measured = !request.trace.empty() || fs::exists(recorded);
  input.validation = validation ? &*validation : nullptr;
  const bool has_programs = hasPrograms(request.directory);
  if (!has_programs && !request.shown.empty()) {
    fail(ErrorCode::kUsage,
         "--ranks: {} is a plan without programs (plan --no-programs), so nothing is known of single ranks; "
         "plan with programs",
         request.directory);
  }
  if (has_programs) {
    PlanSimulationRequest simulation;
    simulation.directory = request.directory;
    simulation.measured = request.durations;
    simulation.programs = request.programs;
    simulation.most_ranks = kMostRanksAlone;
    simulation.shown = request.shown;
    simulation.with_json = false;
    if (is_measured) simulation.most_ranks = SIZE_MAX;  // the same rows in both
    SimulationReport simulated = simulatePlan(simulation);
    input.parameters = parametersOf(plan, simulated.programs, simulated.sample);
    input.memory = memoryOf(simulated.programs);
    input.predicted = std::move(simulated.trace);
    sample = std::move(simulated.sample);
    input.sample = &sample;
  }
  RenderedReport rendered;
  if (is_measured) {
    rendered.measured = recorded.string();
    input.measured = readTrace(rendered.measured);
    checkTraceIsOf(plan, *input.measured, rendered.measured);
    input.measured_step = request.step;
  }
  RunHistory history;
  if (!request.log.empty()) {
    history = readRunHistory(request.log);
    input.training = &history;
  }
  rendered.page = renderReport(input);
  if (request.pictures) rendered.pictures = renderPictures(input);
  return rendered;
}

void writeReport(const std::string& directory, const ProgramSet* programs) {
  const ReportRequest request{.directory = directory, .programs = programs};
  writeTextFile((fs::path(directory) / kReportFileName).string(), renderDirectory(request).page);
}

std::string whyNothingIsKept(const std::string& directory) {
  try {
    if (::access(directory.c_str(), W_OK) != 0)
      failToWrite((fs::path(directory) / kValidationFileName).string(), errno);
    for (const char* name : {kValidationFileName, kTraceFileName, kReportFileName})
      requireWritable((fs::path(directory) / name).string());
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

void keepValidation(const ValidationReport& report, const Trace& trace, const std::string& directory) {
  writeTextFile((fs::path(directory) / kValidationFileName).string(), validationToJson(report));
  const fs::path recorded = fs::path(directory) / kTraceFileName;
  if (trace.events.empty()) {
    fs::remove(recorded);
  } else {
    const Trace last = eventsOfLastStep(trace);
    writeTextFile(recorded.string(), tracesToJson({&last, 1}));
  }
}

}  // namespace pipeshard
