#include "planning/directory/ort_dialect.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/operators/collectives.h"

namespace pipeshard {
namespace {

constexpr const char* kMicrosoft = "com.microsoft";

// Why the collective stays ours; "" if ONNX Runtime has it.
std::string reasonToKeep(const Program& program, const Graph& graph, const Node& node) {
  const DataType type = graph.dataType(node.inputs.at(0));
  const bool real = type == DataType::kFloat16 || type == DataType::kFloat32 || type == DataType::kFloat64;
  if (node.op_type == "ReduceScatter") return "ReduceScatter: ONNX Runtime has none";
  if (node.op_type == "AllToAll") return "AllToAll: ONNX Runtime's cuts and joins the first axis";
  const auto group = GroupId(node.intAttribute("group", 0));
  if (std::ssize(program.groups[group]) != program.world_size)
    return fmt::format("{}: among some ranks, ONNX Runtime's is among all", node.op_type);
  if (node.op_type == "AllReduce") {
    const std::string reduction = node.stringAttribute("reduction", "sum");
    if (reduction != "sum") return fmt::format("AllReduce: of '{}', ONNX Runtime's is a sum", reduction);
    return real ? "" : fmt::format("AllReduce: of {}", dataTypeName(type));
  }
  const std::vector<int64_t> sizes = node.intsAttribute("sizes", {});
  if (std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) != sizes.end())
    return "AllGather: of parts of several sizes";
  const bool known = real || type == DataType::kInt64 || type == DataType::kBool;
  return known ? "" : fmt::format("AllGather: of {}", dataTypeName(type));
}

}  // namespace

void writeOrtCollectives(const Program& program, Graph& graph, DialectChanges& changes) {
  for (Node& node : graph.nodes) {
    if (!collectiveKind(node)) continue;
    const std::string reason = reasonToKeep(program, graph, node);
    if (!reason.empty()) {
      ++changes.kept[reason];
      continue;
    }
    node.domain = kMicrosoft;
    if (node.op_type == "AllGather") {
      const int64_t rank = std::ssize(graph.shape(node.inputs[0]));
      const int64_t axis = node.intAttribute("axis", 0);
      node.attributes = {{"axis", axis < 0 ? axis + rank : axis},
                         {"group_size", static_cast<int64_t>(program.world_size)}};
    } else {
      node.attributes.clear();
    }
    node.opset_version = 1;
    graph.opset_imports[kMicrosoft] = 1;
    ++changes.changed;
  }
}

std::string describeChanges(const DialectChanges& changes) {
  std::string text = fmt::format("{} in {}", counted(changes.changed, "collective"), kMicrosoft);
  int kept = 0;
  std::vector<std::string> reasons;
  for (const auto& [reason, count] : changes.kept) {
    kept += count;
    reasons.push_back(reason);
  }
  if (kept == 0) return text;
  return text + fmt::format("; {} {} pipeshard's still ({})", kept, kept == 1 ? "is" : "are",
                            fmt::join(reasons, "; "));
}

}  // namespace pipeshard
