// Internal to CompiledSubgraph: decides where every value of a subgraph lives under one aliasing of its
// buffers.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "runtime/execute/subgraph.h"

namespace pipeshard {

class CompiledSubgraph::Planner {
 public:
  static constexpr size_t kNoTemporary = std::numeric_limits<size_t>::max();

  Planner(const CompiledSubgraph& subgraph, const Aliasing& aliasing);
  Layout plan();

 private:
  void findUses();
  void placeInputsAndConstants();
  void claimOutputs();
  bool mayWriteEarly(size_t output, ValueId value) const;
  void placeStep(size_t step);
  bool reuseInput(size_t step, size_t output, ValueId value);
  int64_t* endOf(const Storage& storage, int64_t bytes);
  bool mayOverwrite(size_t step, size_t output, const std::vector<size_t>& inputs) const;
  void copyOutputs();
  size_t addTemporary(int64_t bytes, int64_t begin, int64_t end);
  void placeTemporaries();
  void findMoments();
  ValueId outputRoot(size_t output) const { return subgraph_.root(graph_.outputs[output]); }
  // Inputs of a step that are in the memory of `wanted` (by position).
  template <typename Predicate>
  std::vector<size_t> inputsWhere(size_t step, Predicate predicate) const;

  const CompiledSubgraph& subgraph_;
  const Graph& graph_;
  const Aliasing& aliasing_;
  std::set<int> output_buffers_;
  std::map<int, std::vector<ValueId>> inputs_of_;  // by buffer that is an output, too: what is read of it
  Layout layout_;
  // by input: the position from which its buffer's memory may be overwritten; nullopt: never
  std::vector<std::optional<int64_t>> input_ends_;
  std::vector<int64_t> producer_;  // by root: step, -1 for inputs and constants
  // by root: the last step that reads it, as many as there are for the final copies
  std::vector<int64_t> last_use_;
  std::vector<size_t> claimed_output_;  // by root: the output buffer that it is computed in, or kNoTemporary
  std::vector<bool> output_done_;       // by output: computed in place, no copy needed
};

}  // namespace pipeshard
