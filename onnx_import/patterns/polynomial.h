// A value of a graph as a polynomial of other values of it: the normal form in which patterns are compared.
//
//   0.5 * (x + x * f)   and   (x * (1 + f)) * 0.5   and   Div(Add(x, Mul(f, x)), 2)
//     are all  0.5 x + 0.5 x f,  which is {(1,0): 0.5, (1,1): 0.5}
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"
#include "onnx_import/patterns/more_rows.h"

namespace pipeshard {

// Exponents of x and of f -> coefficient; no coefficient is 0.
using Polynomial = std::map<std::pair<int, int>, double>;

// Coefficients that agree to 1e-6 of them: constants of float32 files.
bool isNear(double number, double expected);
bool isNear(const Polynomial& polynomial, const Polynomial& expected);

// What patterns are found in: who reads what, and which initializers are numbers rather than weights.
struct PatternGraph {
  // `more_rows`: of a graph of one row, or nullptr. It is kept.
  explicit PatternGraph(const Graph& graph, MoreRows* more_rows = nullptr);

  const Graph& graph;
  MoreRows* more_rows;
  UseDef uses;
  std::vector<bool> is_output;  // by value index
  std::vector<bool> is_number;  // by value index: a constant of the arithmetic that holds one element
  std::vector<bool> is_zero;    // by value index: one that holds zeros, as many as there are

  // float32 or float64: the types of the functions' kernels. (Halves stay as they are.)
  bool hasKernelType(ValueId value) const;
  // The one element of a constant, an integer too; nothing for a weight, or for a half.
  std::optional<double> numberOf(ValueId value) const;
  // Add, Sub, Mul, Div, Neg, Pow: what a polynomial is written with.
  bool isArithmetic(NodeId node) const;
};

// What finders of patterns ask of a graph all the time.
class PatternReader {
 protected:
  explicit PatternReader(const PatternGraph& patterns) : patterns_(patterns) {}

  const Graph& graph() const { return patterns_.graph; }
  const Node& node(NodeId id) const { return graph().node(id); }
  const Shape& shape(ValueId value) const { return graph().shape(value); }
  NodeId producer(ValueId value) const { return patterns_.uses.producer[value.index()]; }
  const std::vector<NodeId>& readers(ValueId value) const { return patterns_.uses.consumers[value.index()]; }

  const PatternGraph& patterns_;
};

// Writes values as polynomials of x and f (f may be invalid: of x alone).
class PolynomialWriter {
 public:
  PolynomialWriter(const PatternGraph& patterns, ValueId x, ValueId f) : patterns_(patterns), x_(x), f_(f) {}

  // Nothing if the value is not made of x, f and numbers by few nodes.
  std::optional<Polynomial> write(ValueId value);
  // The nodes between, of all values written so far.
  const std::set<NodeId>& nodes() const { return nodes_; }

 private:
  std::optional<Polynomial> ofNode(NodeId node);

  const PatternGraph& patterns_;
  ValueId x_, f_;
  std::set<NodeId> nodes_;
  size_t steps_ = 0;
};

}  // namespace pipeshard
