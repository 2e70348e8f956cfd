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

// A standard operator of one input (a Reshape: to `shape`).
struct MadeNode {
  std::string op_type = {};
  Shape shape = {};
  std::map<std::string, Attribute> attributes = {};
};

// An input that the graph does not have: a number (in all of `shape`), or what nodes make of `from`, one
// behind the other. They are where a node of the match was: the first in its place, if it is free; in front
// of the last one, where the call goes.
struct MadeInput {
  size_t position = 0;  // in Match::inputs
  std::optional<double> number = {};
  Shape shape = {};
  NodeId place = {};
  ValueId from = {};
  std::vector<MadeNode> nodes = {};
  DataType type = DataType::kUndefined;
};

struct Match {
  PatternKind kind = PatternKind::kGelu;
  std::string function, overload;  // of the pipeshard domain
  bool is_standard = false;        // or else of ONNX's own
  std::vector<ValueId> inputs;
  ValueId output;          // of the last node, in whose place the call goes
  std::set<NodeId> nodes;  // that it replaces
  std::map<std::string, Attribute> attributes;
  std::vector<MadeInput> made;
  std::optional<Shape> output_shape;  // of the call, where it is a view of `output`
};

// Why the nodes cannot be replaced by one: somebody else needs what they make in between, or the file says
// how one of them is sharded. "": they can.
std::string obstacle(const PatternGraph& patterns, const Match& match);

}  // namespace pipeshard
