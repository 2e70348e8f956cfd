#include "onnx_import/forms/initial_content.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "onnx_import/prepare/inference.h"

namespace pipeshard {
namespace {

constexpr int64_t kComputedBytes = 1 << 20;

bool holdsZeros(const Constant& constant) {
  return std::all_of(constant.bytes.begin(), constant.bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

// Of any size: ConstantOfShape is not computed for it.
bool makesZeros(const Node& node) {
  if (!node.is("ConstantOfShape")) return false;
  const auto value = node.attributes.find("value");
  const Constant* constant = value == node.attributes.end() ? nullptr : std::get_if<Constant>(&value->second);
  return value == node.attributes.end() || (constant != nullptr && holdsZeros(*constant));
}

}  // namespace

InitialContent::InitialContent(const CombinedStep& step, const std::vector<TrainingInfo>& infos) {
  for (const auto& [id, updated] : step.updates) {
    if (const Constant* constant = step.graph.constant(id))
      content_[step.graph.value(id).name] = {*constant, holdsZeros(*constant), ""};
  }
  for (const TrainingInfo& info : infos) bind(info, step.graph);
}

void InitialContent::bind(const TrainingInfo& info, const Graph& step) {
  if (info.initialization_binding.empty()) return;
  const UseDef made = computeUseDef(info.initialization);
  Graph computed = info.initialization;
  foldConstants(computed, kComputedBytes);
  for (const auto& [initializer, output] : info.initialization_binding) {
    const ValueId variable = findValue(step, initializer);
    if (!variable.valid() || !step.initializers.contains(variable))
      fail(ErrorCode::kBadModel, "initialization_binding sets '{}', which is no initializer", initializer);
    const ValueId value = findValue(info.initialization, output);
    if (!value.valid()) {
      fail(ErrorCode::kBadModel,
           "initialization_binding sets '{}' to '{}', which `initialization` does not make", initializer,
           output);
    }
    Content& content = content_[initializer];
    content = {};
    const NodeId producer = made.producer[value.index()];
    if (producer.valid()) content.op_type = info.initialization.node(producer).op_type;
    content.zero = producer.valid() && makesZeros(info.initialization.node(producer));
    const ValueId result = findValue(computed, output);
    const Constant* constant = result.valid() ? computed.constant(result) : nullptr;
    if (constant == nullptr) continue;
    content.known = *constant;
    content.zero = holdsZeros(*constant);
  }
}

bool InitialContent::isZero(const std::string& initializer) const {
  const auto found = content_.find(initializer);
  return found != content_.end() && found->second.zero;
}

std::optional<double> InitialContent::number(const std::string& initializer) const {
  const auto found = content_.find(initializer);
  if (found == content_.end() || !found->second.known || elementCount(found->second.known->shape) != 1)
    return std::nullopt;
  return numericElements(*found->second.known).front();
}

std::string InitialContent::operatorFor(const std::string& initializer) const {
  const auto found = content_.find(initializer);
  return found == content_.end() ? "" : found->second.op_type;
}

}  // namespace pipeshard
