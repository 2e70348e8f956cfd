#include "ir/plan/recomputation.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::array<std::string_view, 5> kRecomputations = {"never", "selective", "layers", "always",
                                                             "except-last"};

}  // namespace

std::vector<std::string> recomputationNames() { return {kRecomputations.begin(), kRecomputations.end()}; }

std::string_view recomputationName(Recomputation recomputation) {
  return kRecomputations.at(static_cast<size_t>(recomputation));
}

bool isByLayers(Recomputation recomputation) {
  return recomputation == Recomputation::kSelective || recomputation == Recomputation::kLayers;
}

std::optional<Recomputation> recomputationFromName(std::string_view name) {
  const auto found = std::find(kRecomputations.begin(), kRecomputations.end(), name);
  if (found == kRecomputations.end()) return std::nullopt;
  return static_cast<Recomputation>(found - kRecomputations.begin());
}

RecomputationChoice parseRecomputation(std::string_view text) {
  RecomputationChoice choice;
  if (const auto all = recomputationFromName(text)) {
    choice.all = *all;
    return choice;
  }
  const auto failHere = [&](std::string_view found) {
    fail(ErrorCode::kUsage,
         "--recompute {}: found \"{}\"; expected {}, for all stages or by stage, each once, as in "
         "0:always,2:except-last",
         text, found, kRecomputationNames);
  };
  if (text.ends_with(',')) failHere("");
  for (std::string_view rest = text; choice.by_stage.empty() || !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) failHere(entry);
    size_t stage = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + colon, stage);
    const auto recomputation = recomputationFromName(entry.substr(colon + 1));
    const bool is_stage = error == std::errc() && end == entry.data() + colon;
    if (!is_stage || !recomputation || !choice.by_stage.emplace(stage, *recomputation).second)
      failHere(entry);
  }
  return choice;
}

}  // namespace pipeshard
