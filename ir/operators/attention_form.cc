#include "ir/operators/attention_form.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {

AttentionForm attentionForm(std::string_view overlays, bool nan_to_zero, bool gradient) {
  const std::vector<std::string>& known = attentionOverlays();
  if (std::find(known.begin(), known.end(), overlays) == known.end())
    fail(ErrorCode::kBadModel, "attribute overlays is '{}'; it is one of '{}'", overlays,
         fmt::join(known, "', '"));
  AttentionForm form;
  form.nan_to_zero = nan_to_zero;
  form.query = gradient ? kAttentionGradientInputs : 0;
  const int first = form.query + 4;
  const size_t mask = overlays.find("mask"), bias = overlays.find("bias");
  const bool has_mask = mask != std::string_view::npos;
  const int biases = bias == std::string_view::npos ? 0 : overlays.rfind("bias") == bias ? 1 : 2;
  if (has_mask) form.mask = first + (bias < mask ? biases : 0);
  if (biases > 0) form.bias = first + (has_mask && mask < bias ? 2 : 0);
  if (biases > 1) form.second_bias = form.bias + 1;
  form.inputs = first + (has_mask ? 2 : 0) + biases;
  if (overlays.ends_with("drop")) {
    form.keep = form.inputs;
    form.inputs += 2;
  }
  return form;
}

std::vector<int> AttentionForm::biases() const {
  std::vector<int> inputs;
  for (const int input : {bias, second_bias}) {
    if (input >= 0) inputs.push_back(input);
  }
  return inputs;
}

bool isGrouped(const Shape& query, const Shape& key) {
  const size_t rank = query.size();
  return rank >= 3 && key.size() == rank && key[rank - 3] == 1 && query[rank - 3] != 1;
}

AttentionForm attentionForm(const Node& node) {
  return attentionForm(node.stringAttribute("overlays", ""), node.intAttribute("nan_to_zero", 0) != 0,
                       node.op_type != "Attention");
}

const std::vector<std::string>& attentionOverlays() {
  static const std::vector<std::string> overlays = [] {
    std::vector<std::string> all = {"",          "mask",      "bias",           "mask_bias",
                                    "bias_mask", "bias_bias", "mask_bias_bias", "bias_bias_mask"};
    for (size_t i = 0, plain = all.size(); i < plain; ++i)
      all.push_back(all[i].empty() ? "drop" : all[i] + "_drop");
    return all;
  }();
  return overlays;
}

std::string attentionOverload(std::string_view overlays, bool nan_to_zero) {
  std::string overload(overlays);
  if (nan_to_zero) overload += overlays.empty() ? "safe" : "_safe";
  return overload;
}

std::string groupedOverload(std::string_view overload) {
  return overload.empty() ? "grouped" : fmt::format("grouped_{}", overload);
}

}  // namespace pipeshard
