// Between a request and plan.json: what of a plan is known before anything is decided, and back.
#pragma once

#include "ir/plan/plan.h"
#include "planning/model/forward_model.h"
#include "planning/request/plan_request.h"

namespace pipeshard {

// The plan before anything is decided: model, batch, loss, optimizer, cluster, and what was asked for.
Plan describePlan(const PlanRequest& request, const ForwardModel& model);

// What a plan keeps of the options that are given: a cluster of one node has no receives between nodes.
GivenOptions keptOptions(GivenOptions given, const Cluster& cluster);

// What was asked for when a plan was made, as far as the training graph depends on it.
PlanRequest requestOf(const Plan& plan);

}  // namespace pipeshard
