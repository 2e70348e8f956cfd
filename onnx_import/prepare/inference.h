// One walk over a graph that finds types and shapes (ONNX's schema functions, node by node) and, on the way,
// the values that are constant: shape arithmetic is then known where the next shape needs it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// Error(kBadModel): what a node is given contradicts what it takes, or what the file says that it makes.
class Contradiction : public Error {
 public:
  enum class Of : uint8_t {
    kTypes,  // or of the node itself: whatever the sizes are
    kRanks,  // whatever the sizes are, while tensors have these numbers of axes
    kSizes,  // other sizes may go
  };
  Contradiction(Of of, std::string message) : Error(ErrorCode::kBadModel, std::move(message)), of_(of) {}
  Of of() const { return of_; }

 private:
  Of of_;
};

// Type and shape inference of one graph in place, with ONNX's own schemas; the pipeshard domain by its
// function bodies.
void inferShapes(Graph& graph);

// Computes nodes whose inputs are constants (small evaluator: shape arithmetic, masks, casts). In place.
// Returns how many nodes were folded.
int foldConstants(Graph& graph, int64_t limit_bytes);

// ---- internal to onnx_import: the walk itself

class Inference {
 public:
  // Results of up to `limit_bytes` are computed. The graph must outlive the object.
  Inference(Graph& graph, int64_t limit_bytes);

  // Fills in what is unknown of every value. What is known stays, and must agree: Contradiction names the
  // node. But a size that is said by the name beside it (bindDimensions; not on axis 0), and the rank of an
  // output of the model, give way to what follows. Of an If whose condition is known the branch that is not
  // taken is not looked at. Operators that nobody knows leave their outputs as they are, as do lowerings that
  // refuse a node.
  void run();

  // Constants found for node outputs. Initializers that may be trained count as unknown.
  std::map<ValueId, Constant>& computed() { return computed_; }

 private:
  friend class NodeContext;
  friend class SubgraphInferencer;
  using FunctionTable = std::unordered_map<std::string, const Function*>;

  Inference(Graph& graph, Inference& caller, bool is_subgraph);
  void inferNode(Node& node);
  void inferCall(const Node& node, const Function& function);
  bool inferByLowering(const Node& node);  // whether a lowering has given the outputs their types
  Node copyAlone(const Node& node, GraphBuilder& builder) const;
  void inferBySchema(Node& node);
  void checkNumbers(const Node& node) const;
  void evaluate(const Node& node);
  void record(const Node& node, std::vector<Constant> results);
  const Function* callee(const Node& node) const;
  // The constant that an input is known to hold, of whatever origin, or nullptr.
  const Constant* constantOf(ValueId id) const;
  void mergeOutput(const Node& node, size_t index, const Value& inferred);

  Graph& graph_;
  Inference* outer_ = nullptr;  // of a subgraph: what it can read
  std::shared_ptr<FunctionTable> functions_;
  std::map<ValueId, Constant> computed_;
  std::vector<bool> kept_;                          // keptFromFolding
  std::unordered_map<std::string, ValueId> names_;  // only when there are subgraphs
  int64_t limit_bytes_;
  std::shared_ptr<int64_t> budget_;  // bytes that the evaluator may still touch: hostile models must end
  int depth_ = 0;
};

// Initializers of the file that must not be computed away. An optimizer may update them: parameters, and
// where nothing tells (ir/operators/initializer_role.h). Or every microbatch does: runningStatistics. By
// value index.
std::vector<bool> keptFromFolding(const Graph& graph);

}  // namespace pipeshard
