// Calls of the module that no node of a file is marked with: dropped, or merged into equal ones by an
// exporter's optimizer. Known by the marks of what reads them (exporter_marks.h).
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// A node reads a value that its own call does not name, and its call names one that the file does not have.
struct LostCall {
  NodeId reader;
  ValueId value;           // that it reads instead
  std::string kept;        // the call that gives the value: "mul"
  std::string lost;        // the one that the reader's call names: "mul_1"
  bool is_merged = false;  // both are of one function: the lost one was equal to the kept one
};
// Operand by operand: of two equal operands of which the call names two, the second one is found. What a
// call merely looks at again (a view that changes nothing, a dropout in inference mode) is lost, too, but not
// merged. The optimizer keeps the first one of two equal calls. Of the graph itself, without its branches and
// loops.
std::vector<LostCall> lostCalls(const Graph& graph);

// The name by which calls mention this value of that node: its call's, or the value's where the call has
// several results ("getitem_2"). "" where the file does not say.
std::string mentionedAs(const Node& maker, const Value& value);

}  // namespace pipeshard
