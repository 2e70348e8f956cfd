// The page that `plan` and `validate` leave in the plan directory (report.html), and its pictures as files.
//
// The page is one HTML file without scripts or outside references: it can be mailed, printed and kept.
// Everything that comes from the model (names, notes, paths) is escaped. Same input, same bytes. It is read
// on a laptop and on a phone, in light and dark, and with the keyboard (docs/report.md;
// tests/tools/report/report_page_test.cc looks at it in a browser).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/shape.h"
#include "ir/plan/plan.h"
#include "ir/program/program_set.h"
#include "ir/trace/trace_event.h"
#include "partition/schedules/schedule.h"
#include "runtime/execute/memory_plan.h"

namespace pipeshard {

struct RunHistory;        // tools/report/run_history.h
struct ValidationReport;  // runtime/validation/validate.h

// A parameter as one device of a stage holds it.
struct ReportedParameter {
  StageId stage;
  std::string name;
  DataType data_type = DataType::kUndefined;
  Shape whole;
  Shape held;
};

struct ReportInput {
  const Plan& plan;
  const ValidationReport* validation = nullptr;  // null: planned only
  const Schedule* schedule = nullptr;  // null: scheduleOf(plan) (partition/families/plan_schedule.h)
  std::vector<ReportedParameter> parameters = {};
  // The ranks that `memory` and `predicted` are of, which stand for all; null: every one.
  const RankSample* sample = nullptr;
  std::vector<MemoryParts> memory = {};  // memoryOf; empty: not known
  // What was simulated of the programs; none: the schedule, simulated with the plan's FLOPs, transfers free.
  std::optional<Trace> predicted = {};
  std::optional<Trace> measured = {};    // `run --trace`
  int64_t measured_step = 0;             // 0: its last
  const RunHistory* training = nullptr;  // `run --log`
};

// The whole page. Throws what makeSchedule and simulate throw, and Error(kConfiguration) for a trace without
// a step.
std::string renderReport(const ReportInput& input);

// The pictures as SVG files that stand alone, by file name: "cluster.svg", "schedule.svg", "memory.svg" where
// memory is known, "training.svg" of a run.
std::vector<std::pair<std::string, std::string>> renderPictures(const ReportInput& input);

}  // namespace pipeshard
