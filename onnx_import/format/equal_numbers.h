// Which initializers hold the same numbers. Internal to onnx_import.
#pragma once

#include <map>

#include "ir/graph/graph.h"

namespace pipeshard {

class EqualNumbers {
 public:
  // `graph` must outlive this.
  explicit EqualNumbers(const Graph& graph) : graph_(graph) {}

  // The file says so, by an Identity.
  void add(ValueId copy, ValueId source) { source_[copy] = sourceOf(source); }
  bool isCopy(ValueId id) const { return source_.contains(id); }
  ValueId sourceOf(ValueId id) const;

  // Of one type and shape, and with equal content; not where the content cannot be read.
  bool are(ValueId a, ValueId b) const;

  // Matrices of one type, and each the other's transposed; not where the content cannot be read.
  bool areTransposed(ValueId a, ValueId b) const;

  // Drawn, or trained: of more than two different numbers. Zeros, ones and unit matrices are equal wherever a
  // module begins with them; these only where one is the other, or a copy of it.
  bool areDrawn(ValueId id);

 private:
  const Graph& graph_;
  std::map<ValueId, ValueId> source_;
  std::map<ValueId, bool> drawn_;  // by source
};

}  // namespace pipeshard
