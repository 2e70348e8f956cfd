// Recomputation: what a backward pass finds of its stage's forward pass, and what it makes again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

enum class Recomputation : uint8_t {
  kNever,       // all that the forward pass made is kept
  kSelective,   // as kLayers, but what products and convolutions made is kept (layer_recomputation.h)
  kLayers,      // made again layer by layer, each just before its backward pass, from what layers hand on
  kAlways,      // the stage's forward pass runs again before its backward pass
  kExceptLast,  // as kAlways, for all microbatches but the last one of a step
};
// "never", "selective", "layers", "always", "except-last"
std::string_view recomputationName(Recomputation recomputation);
// All of them, in the order of the type.
std::vector<std::string> recomputationNames();
// For messages.
inline constexpr std::string_view kRecomputationNames = "never, selective, layers, always or except-last";
// Layer by layer, wholly or in part.
bool isByLayers(Recomputation recomputation);
std::optional<Recomputation> recomputationFromName(std::string_view name);

// What is asked for: of all stages, but for those that are named.
struct RecomputationChoice {
  Recomputation all = Recomputation::kNever;
  std::map<size_t, Recomputation> by_stage = {};

  // Of all stages alike.
  bool isOnly(Recomputation recomputation) const { return by_stage.empty() && all == recomputation; }
};
// "layers", or by stage "0:always,2:layers" (others: never). Error(kUsage) that shows the forms of
// --recompute.
RecomputationChoice parseRecomputation(std::string_view text);

}  // namespace pipeshard
