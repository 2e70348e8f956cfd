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
  const ScheduleOrders* orders = nullptr;        // null: makeSchedule(plan.schedule, stages, microbatches)
  std::vector<ReportedParameter> parameters = {};
};

// The whole page. Throws what makeSchedule and simulateSchedule throw.
std::string renderReport(const ReportInput& input);

// How long the passes of one microbatch take on a stage, in any unit.
struct StageTimes {
  double forward = 1;
  double backward = 2;  // a backward pass split in two takes half for its input part, half for its weight part
};

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

// When everything happens if the ranks keep their orders, transfers are free and no rank waits without need.
struct Timeline {
  std::vector<std::vector<TimedAction>> ranks;
  double makespan = 0;
  double busy = 0;  // sum over the ranks
  // The bubble by the two usual conventions: GPipe with p equal stages and m microbatches has (p-1)/(m+p-1) and (p-1)/m.
  double idleOfMakespan() const;
  double idleOfUseful() const;
};

// times[stage]; a forward pass waits for the stage before, a backward pass for its forward pass and the stage after, a
// weight part for its input part. Error(kInternal) when the orders wait for each other in a circle or lack a pass.
Timeline simulateSchedule(const ScheduleOrders& orders, std::span<const StageTimes> times);

// The times that the plan's FLOPs give on equal devices; F=1, B=2 for every stage when a stage has no FLOPs.
std::vector<StageTimes> stageTimes(const Plan& plan);

enum class SvgUse {
  kInPage,  // styled by the page
  kFile,    // stands alone: namespace, style and background included
};

// A Gantt chart: a row per rank, a box per pass with the number of its microbatch. row_names[rank] is written before the row.
std::string renderScheduleSvg(const Timeline& timeline, std::span<const std::string> row_names, SvgUse use = SvgUse::kFile);

}  // namespace pipeshard
