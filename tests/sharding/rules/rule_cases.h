// Node configurations for the property test of factor rules.
#pragma once

#include <map>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard::testing {

struct Argument {
  enum class Kind { kReal, kPositive, kIndex, kFlag, kFixed, kAbsent };
  Kind kind = Kind::kAbsent;
  Shape shape;
  int64_t low = 0;  // kIndex: [low, high)
  int64_t high = 0;
  DataType type = DataType::kInt64;  // kIndex
  Constant constant;                 // kFixed: known before the run (axes, shapes, hyperparameters)
};

Argument real(Shape shape);
Argument positive(Shape shape);
Argument index(Shape shape, int64_t low, int64_t high, DataType type = DataType::kInt64);
Argument flag(Shape shape);
Argument fixed(const std::vector<int64_t>& elements);
Argument fixed2(const std::vector<std::vector<int64_t>>& rows);
Argument fixedReals(const std::vector<double>& elements);
Argument number(double value);    // a float64 scalar
Argument integer(int64_t value);  // an int64 scalar
Argument absent();

struct RuleCase {
  std::string name;
  std::string domain;
  std::string op_type;
  std::vector<Argument> inputs;
  std::vector<std::pair<DataType, Shape>> outputs;
  std::map<std::string, Attribute> attributes = {};
  int shape_input = -1;  // this input is the shape of output 0 and must follow when that is cut
};

std::vector<RuleCase> ruleCases();

// pipeshard's functions that have none: a scalar, one that is never cut (tests of optimizers compare it where
// parameters are), and one that is in programs alone, never in a training graph.
const std::set<std::string>& functionsWithoutCase();

// Random inputs of a case.
std::vector<Constant> caseInputs(const RuleCase& rule_case, std::mt19937_64& generator);
// A graph of the one node, with inputs "input<i>" like these and outputs "output<i>" of these shapes.
Graph caseGraph(const RuleCase& rule_case, const std::vector<Constant>& inputs,
                const std::vector<Shape>& output_shapes);
Graph caseGraph(const RuleCase& rule_case);

// What GoogleTest shows of a case.
void PrintTo(const RuleCase& rule_case, std::ostream* stream);

}  // namespace pipeshard::testing
