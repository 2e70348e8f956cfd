// Calls of the module that no node of a file is marked with: dropped, or merged into equal ones by an
// exporter's optimizer. Known by the marks of what reads them (exporter_marks.h).
#pragma once

#include <string>
#include <string_view>
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

// A sum, difference, product or quotient of numbers that the optimizer has left out: its other operand, which
// it had computed beforehand, was a 0 or a 1. What reads it reads `kept` instead. Unlike a merged call it has
// taken the value of `kept` itself, which the mark of `kept` tells: it has more users than the file.
struct LeftOutCall {
  std::string name;    // "add_2"
  std::string kept;    // the call, or input, in its place: "mse_loss"; "" if not told
  std::string module;  // the innermost one around `kept` and what reads it; "" for the outermost
};
// Each once. Of the graph itself, without its branches and loops.
std::vector<LeftOutCall> leftOutCalls(const Graph& graph);

// Something divided by 1 or times 1 (and not plus or minus 0): "mul_3", "div".
bool isProductCall(std::string_view name);

// The name by which calls mention this value of that node: its call's, or the value's where the call has
// several results ("getitem_2"). "" where the file does not say.
std::string mentionedAs(const Node& maker, const Value& value);

}  // namespace pipeshard
