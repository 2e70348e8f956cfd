// Cuts at values that people name. Internal to partition/.
#pragma once

#include <string>
#include <vector>

#include "partition/layers/chain.h"

namespace pipeshard {

struct Boundary {
  std::string value;    // the stage ends with the forward node that makes it
  std::string subject;  // how messages begin: "boundary", "s.json.stages[0].until: found"
};

// The position of the node behind which each cut lies. Errors: kConfiguration (an unknown value with near
// matches, one that no forward node makes, boundaries that are out of order or end with the last node).
std::vector<int64_t> boundaryPositions(const Chain& chain, const std::vector<Boundary>& boundaries);

// The position of the forward node that makes the value, or an Error(kConfiguration) as above.
int64_t positionOf(const Chain& chain, const Boundary& boundary);

}  // namespace pipeshard
