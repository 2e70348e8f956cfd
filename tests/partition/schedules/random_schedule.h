// Schedules of orders by hand, and any schedule that can be: stages on any ranks, passes in any order that
// their dependencies allow, backward passes halved here and there.
#pragma once

#include <functional>
#include <random>

#include "ir/plan/plan.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {

// A stage per rank; `orders` need not be legal.
Schedule scheduleOf(const ScheduleOrders& orders, int microbatches);

// Every stage runs its passes of each kind in ascending order of microbatches. `ranks`: at most so many, each
// with a stage. Passes verifySchedule.
Schedule randomSchedule(int stages, int ranks, int microbatches, std::mt19937& random);

// Cuts a plan's layers: behind every forward node for which `cuts_behind` says so.
void cutLayers(Plan& plan, const std::function<bool()>& cuts_behind);

// Some stages recompute always, some but for the last microbatch, some by layers, of which they get some
// more.
void recomputeAtRandom(Plan& plan, std::mt19937& random);

}  // namespace pipeshard
