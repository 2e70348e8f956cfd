// Takes out of the model the rows of memory that limit nothing.
#pragma once

#include "sharding/solver/model.h"

namespace pipeshard::solver {

// Takes the least usage of every item out of the rows that it covers, and leaves only rows that are not
// implied by another one and that some choice could exceed. Labels that need more than a row has are given
// the cost `big`.
void reduceRows(Model& model);

}  // namespace pipeshard::solver
