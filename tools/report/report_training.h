// How a run has gone: its loss, its speed and its learning rate over the steps.
#pragma once

#include <string>

#include "tools/report/report_chart.h"
#include "tools/report/run_history.h"

namespace pipeshard {

// Panels below each other, on one axis of steps: the loss, with the held-out data's as points; examples or
// tokens a second; the learning rate, if it changes. Where steps are closer than pixels, the line is their
// mean and the area goes from the least to the most. Steps from which the run went on are dashed; those
// behind which something was lost have a line with a number.
Chart trainingChart(const RunHistory& history);

// The section of the page: the chart, restarts and evaluations as tables. "" for a log without steps.
std::string renderTraining(const RunHistory& history);

}  // namespace pipeshard
