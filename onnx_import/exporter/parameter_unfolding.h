// What the ways of folded_parameters.h share. Internal to onnx_import/exporter.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/graph.h"
#include "onnx_import/exporter/replacement_writer.h"

namespace pipeshard {

// What a constant was computed from.
struct Fold {
  std::vector<std::string> parameters;
  std::vector<std::string> buffers;
  // Kinds of the module's calls: "unsqueeze" of 'unsqueeze_13', its own among them; without what belongs to a
  // call ('val_3').
  std::vector<std::string> calls;
  bool hasOnly(std::initializer_list<std::string_view> kinds) const;
  int64_t count(std::string_view kind) const;
};

// A graph in which parameters are made again. New nodes stand before the node that reads what they give.
class Unfolding {
 public:
  explicit Unfolding(Graph& graph);

  Graph& graph() { return graph_; }
  bool hasParameters() const { return !name_of_.empty(); }
  // Of a value that is a floating-point initializer; nothing in it without a parameter.
  Fold foldOf(ValueId id) const;
  // The parameters that a call mentions, in its order, each once.
  std::vector<std::string> mentioned(const ExportedCall& call) const;
  bool isParameter(const std::string& name) const { return parameters_.contains(name); }
  // Nothing in the file has the name.
  bool isFree(const std::string& name) const { return !builder_.find(name); }

  // `content` has the elements of `shape`, in order; its own shape does not count.
  ValueId addParameter(const std::string& name, DataType type, const Shape& shape, Initializer content);
  // `write` adds nodes for the node `reader`, in front of it.
  template <typename Write>
  void addBefore(size_t reader, Write write) {
    const Node node = graph_.nodes[reader];
    ReplacementWriter writer(graph_, builder_, node);
    write(writer);
    for (Node& made : writer.take()) before_[reader].push_back(std::move(made));
  }
  // Before node `reader`, a chain of ONNX's operators, the first on `parameter`, of which the last gives
  // `constant`: functions of single numbers, "Sub" (from 1), "Transpose" (of a matrix), "Reshape" and
  // "Expand" (to the constant's shape). It is no initializer any more.
  void compute(size_t reader, ValueId constant, ValueId parameter, const std::vector<std::string>& operators);
  // Nodes that were added give what was a constant, of a parameter that the file has.
  void countCopy() { ++made_; }
  // Puts the nodes into the graph. How many parameters were made, and copies of others.
  int finish();

 private:
  Graph& graph_;
  GraphBuilder builder_;
  std::map<std::string, std::string> name_of_;  // by argument
  std::set<std::string> parameters_, buffers_;
  int made_ = 0;
  std::map<size_t, std::vector<Node>> before_;  // by the node behind them
};

// The elements as numbers, and the other way. Of types that convert to float64.
std::vector<double> numbersOf(DataType type, const std::vector<std::byte>& bytes);
std::vector<std::byte> bytesOf(DataType type, const std::vector<double>& numbers);

// Functions of single numbers that the exporter's optimizer has computed of a parameter, undone.
//
// The temperature of a contrastive loss, logit_scale.exp(), is a constant 'exp' in the file. What it was
// computed from is its logarithm:
//   'exp' = 14.2857  →  logit_scale = 2.65926, and logit_scale  →  Exp  →  'exp'
// Digits that the function has swallowed are gone: a gate of sigmoid(12) is 0.999994 with steps of 6e-8,
// which are 0.01 of the number before. Such a parameter is not made again.
//
// ONNX's operators, the first on the parameter.
using FoldedFunction = std::vector<std::string>;

// The functions among `fold`'s calls, which lose their names there: the rest may be views. Of several only
// -exp(x) and exp(-x) are known, by the sign of what they gave (`bytes`, elements of `type`). Empty where
// there is none.
std::optional<FoldedFunction> takeFunction(Fold& fold, DataType type, const std::vector<std::byte>& bytes);

// The numbers that `function` has made these of. Nothing where one of them is not known to 1e-5 of it (of 1,
// where it is less).
std::optional<std::vector<std::byte>> beforeFunction(const FoldedFunction& function, DataType type,
                                                     const std::vector<std::byte>& bytes);

}  // namespace pipeshard
