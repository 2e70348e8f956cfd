#include "onnx_import/patterns/more_rows.h"

#include <utility>

#include "onnx_import/patterns/patterns.h"

namespace pipeshard {

void MoreRows::ask() {
  if (!make_) return;
  graph_ = std::exchange(make_, nullptr)();
  if (!graph_) return;
  for (const Value& value : graph_->values) {
    if (value.shape) shapes_.emplace(value.name, *value.shape);
  }
}

const Shape* MoreRows::shape(const std::string& name) {
  ask();
  const auto found = shapes_.find(name);
  return found == shapes_.end() ? nullptr : &found->second;
}

std::optional<bool> MoreRows::keeps(const std::string& name) {
  ask();
  if (!graph_) return std::nullopt;
  if (!kept_) {
    kept_.emplace();
    recognisePatterns(*graph_);
    for (const Node& node : graph_->nodes) {
      for (const ValueId output : node.outputs) {
        if (output.valid()) kept_->insert(graph_->value(output).name);
      }
    }
  }
  return kept_->contains(name);
}

}  // namespace pipeshard
