// What a finder of patterns gives: which nodes one call takes the place of.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "onnx_import/patterns/patterns.h"
#include "onnx_import/patterns/polynomial.h"

namespace pipeshard {

// An input that the graph does not have: a number, or what a node of the match becomes in its place.
struct MadeInput {
  size_t position = 0;  // in Match::inputs
  std::optional<double> number = {};
  NodeId place = {};
  std::string op_type = {};  // a standard operator of one input, `from`
  ValueId from = {};
  std::map<std::string, Attribute> attributes = {};
  DataType type = DataType::kUndefined;
  Shape shape = {};
};

struct Match {
  PatternKind kind = PatternKind::kGelu;
  std::string function, overload;  // of the pipeshard domain
  std::vector<ValueId> inputs;
  ValueId output;          // of the last node, in whose place the call goes
  std::set<NodeId> nodes;  // that it replaces
  std::map<std::string, Attribute> attributes;
  std::vector<MadeInput> made;
};

// Why the nodes cannot be replaced by one: somebody else needs what they make in between, or the file says
// how one of them is sharded. "": they can.
std::string obstacle(const PatternGraph& patterns, const Match& match);

}  // namespace pipeshard
