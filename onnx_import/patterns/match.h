// What a finder of patterns gives: which nodes one call takes the place of.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "onnx_import/patterns/patterns.h"
#include "onnx_import/patterns/polynomial.h"

namespace pipeshard {

struct Match {
  PatternKind kind = PatternKind::kGelu;
  std::string function, overload;  // of the pipeshard domain
  std::vector<ValueId> inputs;
  ValueId output;          // of the last node, in whose place the call goes
  std::set<NodeId> nodes;  // that it replaces
  std::map<std::string, Attribute> attributes;
};

// Why the nodes cannot be replaced by one: somebody else needs what they make in between, or the file says
// how one of them is sharded. "": they can.
std::string obstacle(const PatternGraph& patterns, const Match& match);

}  // namespace pipeshard
