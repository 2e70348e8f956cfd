// The page that `plan` and `validate` leave in the plan directory (report.html), and the picture of a schedule.
//
// The page is one HTML file without scripts or outside references: it can be mailed, printed and kept. Everything that
// comes from the model (names, notes, paths) is escaped. Same input, same bytes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/data_type.h"
#include "ir/plan.h"
#include "ir/shape.h"
#include "partition/schedule.h"
#include "partition/simulator.h"

namespace pipeshard {

struct ValidationReport;  // runtime/validate.h

// A parameter as one device of a stage holds it.
struct ReportedParameter {
  size_t stage = 0;
  std::string name;
  DataType data_type = DataType::kUndefined;
  Shape whole;
  Shape held;
};
// Of the stages that are sharded, as the programs of their first devices say. Errors as loadProgram (runtime/executor.h).
std::vector<ReportedParameter> readParameters(const Plan& plan, const std::string& plan_directory);

struct ReportInput {
  const Plan& plan;
  const ValidationReport* validation = nullptr;  // null: planned only
  const Schedule* schedule = nullptr;            // null: makeSchedule(plan.schedule, ...)
  std::vector<ReportedParameter> parameters = {};
};

// The whole page. Throws what makeSchedule and simulate throw.
std::string renderReport(const ReportInput& input);

// The times that the plan's FLOPs give on equal devices, a backward pass half input part and half weight part; F=I=W=1 for every stage
// when a stage has no FLOPs.
std::vector<PassTimes> stageTimes(const Plan& plan);

enum class SvgUse {
  kInPage,  // styled by the page
  kFile,    // stands alone: namespace, style and background included
};

// A Gantt chart: a row per rank, a box per pass with the number of its microbatch. row_names[rank] is written before the row.
std::string renderScheduleSvg(const Simulation& simulation, std::span<const std::string> row_names, SvgUse use = SvgUse::kFile);

}  // namespace pipeshard
