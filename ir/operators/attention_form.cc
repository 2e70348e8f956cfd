#include "ir/operators/attention_form.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {

AttentionForm attentionForm(std::string_view overlays, bool nan_to_zero, bool gradient) {
  const std::vector<std::string>& known = attentionOverlays();
  if (std::find(known.begin(), known.end(), overlays) == known.end())
    fail(ErrorCode::kBadModel, "attribute overlays is '{}'; it names mask, bias or both, as mask_bias",
         overlays);
  AttentionForm form;
  form.nan_to_zero = nan_to_zero;
  form.query = gradient ? kAttentionGradientInputs : 0;
  const int first = form.query + 4;
  const size_t mask = overlays.find("mask"), bias = overlays.find("bias");
  const bool has_mask = mask != std::string_view::npos, has_bias = bias != std::string_view::npos;
  if (has_mask) form.mask = first + (has_bias && bias < mask ? 1 : 0);
  if (has_bias) form.bias = first + (has_mask && mask < bias ? 2 : 0);
  form.inputs = first + (has_mask ? 2 : 0) + (has_bias ? 1 : 0);
  return form;
}

AttentionForm attentionForm(const Node& node) {
  return attentionForm(node.stringAttribute("overlays", ""), node.intAttribute("nan_to_zero", 0) != 0,
                       node.op_type != "Attention");
}

const std::vector<std::string>& attentionOverlays() {
  static const std::vector<std::string> overlays = {"", "mask", "bias", "mask_bias", "bias_mask"};
  return overlays;
}

std::string attentionOverload(std::string_view overlays, bool nan_to_zero) {
  std::string overload(overlays);
  if (nan_to_zero) overload += overlays.empty() ? "safe" : "_safe";
  return overload;
}

}  // namespace pipeshard
