#include "onnx_import/patterns/attention_overlays.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/operators/attention_form.h"

namespace pipeshard {
namespace {

NodeId producerOf(const PatternGraph& patterns, ValueId value) {
  return patterns.uses.producer[value.index()];
}

bool isName(const std::string& name) {
  const std::vector<std::string>& known = attentionOverlays();
  return std::find(known.begin(), known.end(), name) != known.end();
}

std::string nameOf(const std::vector<AttentionOverlay>& overlays) {
  std::vector<std::string_view> names;
  for (const AttentionOverlay& overlay : overlays)
    names.push_back(overlay.kind == AttentionOverlay::Kind::kMask ? "mask" : "bias");
  return fmt::format("{}", fmt::join(names, "_"));
}

}  // namespace

std::optional<double> numberEverywhere(const PatternGraph& patterns, ValueId value) {
  const NodeId id = producerOf(patterns, value);
  if (id.valid() && patterns.graph.node(id).is("Expand"))
    return patterns.numberOf(patterns.graph.node(id).inputs[0]);
  return patterns.numberOf(value);
}

AttentionOverlay addedOverlay(const PatternGraph& patterns, ValueId tensor, NodeId place) {
  const NodeId id = producerOf(patterns, tensor);
  if (id.valid() && patterns.graph.node(id).is("Where")) {
    const std::vector<ValueId>& inputs = patterns.graph.node(id).inputs;
    for (const bool inverted : {false, true}) {
      const std::optional<double> seen = numberEverywhere(patterns, inputs[inverted ? 2 : 1]);
      const std::optional<double> hidden = numberEverywhere(patterns, inputs[inverted ? 1 : 2]);
      if (seen == 0.0 && hidden == -std::numeric_limits<double>::infinity())
        return {AttentionOverlay::Kind::kMask, inputs[0], place, inverted, *hidden, tensor};
    }
  }
  return {AttentionOverlay::Kind::kBias, tensor, place};
}

std::string nameOverlays(std::vector<AttentionOverlay>& overlays, std::string& name) {
  name = nameOf(overlays);
  if (isName(name)) return "";
  for (AttentionOverlay& overlay : overlays) {
    if (overlay.bias.valid()) overlay = {AttentionOverlay::Kind::kBias, overlay.bias, overlay.node};
  }
  name = nameOf(overlays);
  if (isName(name)) return "";
  const auto count = [&](AttentionOverlay::Kind kind) {
    return std::count_if(overlays.begin(), overlays.end(),
                         [&](const AttentionOverlay& overlay) { return overlay.kind == kind; });
  };
  if (count(AttentionOverlay::Kind::kMask) > 1) return "two masks lie over its scores";
  if (count(AttentionOverlay::Kind::kBias) > 2) return "three tensors are added to its scores";
  return "a tensor is added to its scores before a mask, and one behind it";
}

}  // namespace pipeshard
