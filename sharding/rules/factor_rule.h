// Factor rules: what an operator does, said once, as a statement about named factors.
//
// A rule maps every axis of every input and output to a list of factors, major to minor. MatMul
// [8,16]x[16,32] is
//   factors: i(8) parallel, k(16) sum, j(32) parallel;   inputs: [[i],[k]], [[k],[j]];   outputs: [[i],[j]]
// A reshape [8,16,64] -> [128,64] is
//   factors: a(8), b(16), c(64) parallel;   inputs: [[a],[b],[c]];   outputs: [[a,b],[c]]
// Cutting a factor cuts every axis that holds it, at the factor's place in the axis' list. Which operators
// let partial sums pass is said in ir/operators/operator_facts.h. From it follow microbatching (a factor cut
// along time), data and tensor parallelism (a factor cut along a mesh axis), local shapes, collectives, bytes
// and FLOPs. Nobody writes strategies by hand. The idea is Shardy's (sdy dialect, op sharding rule) and
// GSPMD's (Xu et al. 2021, section 3), with partial results as a first-class state.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

enum class FactorKind : uint8_t {
  kParallel,  // cut inputs give the same cut of the outputs
  kSum,       // in inputs only: cut inputs give partial sums
  kMean,      // in inputs only: cut inputs give means of parts: a ratio of sums
  kMax,       // in inputs only: partial maxima
  kMin,
  kWhole,  // cannot be cut (the axis of a softmax, of a sort, a sliced axis)
};

struct Factor {
  std::string name;  // for printing
  int64_t size = 1;
  FactorKind kind = FactorKind::kParallel;
};

// Factors of one tensor: per axis a list of indices into FactorRule::factors, major to minor. An axis of size
// 1 that is broadcast, or one that no cut may touch and that no other tensor shares, has an empty list.
using TensorFactors = std::vector<std::vector<int>>;
bool holdsFactor(const TensorFactors& tensor, int factor);  // at one of its axes

struct FactorRule {
  std::vector<Factor> factors;
  std::vector<TensorFactors> inputs;   // by input position; absent inputs have an empty entry
  std::vector<TensorFactors> outputs;  // by output position
  // A whole factor that would be a sum if this input were not added once to it (Gemm's C, a convolution's
  // bias). Devices can share it all the same where the input is a partial sum too; microbatches cannot.
  struct AddedOnce {
    int factor = -1;
    int input = -1;
  };
  std::optional<AddedOnce> added_once;
  // of the whole operator: 2 per multiply-add of a contraction, else a small multiple of the elements
  double flops = 0;
};

// The rule of a node of a prepared graph; nullopt for an operator without one (it runs replicated, and `plan`
// says so).
std::optional<FactorRule> factorRule(const Graph& graph, NodeId node);

// The same for a node that is not (yet) in the graph, but whose inputs and outputs are values of it.
std::optional<FactorRule> factorRule(const Graph& graph, const Node& node);

// (domain, operator) of all rules, sorted.
std::vector<std::pair<std::string, std::string>> operatorsWithRule();

// Forward FLOPs of a node: the rule's, or the elements of its outputs where there is no rule.
int64_t nodeFlops(const Graph& graph, NodeId node);

// "i(8) k(16,sum) j(32): [i][k],[k][j] -> [i][j]"
std::string printFactorRule(const FactorRule& rule);

}  // namespace pipeshard
