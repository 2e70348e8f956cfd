// The sections of the report's page. Each returns HTML, heading included.
#pragma once

#include <span>
#include <string>

#include "tools/report/report.h"
#include "tools/report/report_timeline.h"

namespace pipeshard {

std::string percent(double part);  // "27.3%"

std::string renderCluster(const Plan& plan);
std::string renderStages(const Plan& plan);
std::string renderSchedule(const Plan& plan, const Schedule& schedule, std::span<const Timeline> timelines);
std::string renderStepParts(std::span<const Timeline> timelines);

std::string renderVerdict(const ReportInput& input);
std::string renderComparison(const ValidationReport& validation);
std::string renderLosses(const ValidationReport& validation);
std::string renderTimes(const ValidationReport& validation);  // of the last step

}  // namespace pipeshard
