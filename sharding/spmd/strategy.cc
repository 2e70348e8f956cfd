#include "sharding/spmd/strategy.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "sharding/spmd/strategy_builder.h"

namespace pipeshard {

namespace {

// Nothing makes partial sums of a tensor that the file holds.
bool isPassUseful(const Graph& graph, const Node& node, const std::vector<int>& list) {
  return std::any_of(list.begin(), list.end(),
                     [&](int input) { return !graph.initializers.contains(node.inputs[input]); });
}

std::string useName(const StrategyBuilder& builder, const AxisUse& use) {
  if (use.kind == AxisUse::Kind::kPass) return fmt::format("pass{}", use.index);
  return builder.rule()->factors[use.index].name;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) result.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

[[noreturn]] void refuseUses(const StrategyBuilder& builder, const Node& node, const LogicalMesh& mesh,
                             std::string_view text, const std::string& reason) {
  std::vector<std::string> names;
  for (size_t f = 0; builder.rule() && f < builder.rule()->factors.size(); ++f) {
    const Factor& factor = builder.rule()->factors[f];
    if (builder.canCut(f)) names.push_back(fmt::format("{} ({})", factor.name, factor.size));
  }
  for (size_t k = 0; k < builder.linear().size(); ++k) {
    if (builder.canPass(k)) names.push_back(fmt::format("pass{}", k));
  }
  fail(ErrorCode::kConfiguration,
       "{}: \"{}\" is no strategy on mesh {}: {}. Expected \"replicate\", or for mesh axes what each does, "
       "as in \"0:{}\". It can: {}",
       describeNode(node), text, printMesh(mesh), reason, names.empty() ? "k" : words(names.front()).front(),
       names.empty() ? "replicate only" : fmt::format("{}", fmt::join(names, ", ")));
}

// The index of the use named `name`, -1 for none.
int findUse(const StrategyBuilder& builder, const AxisUse& like, std::string_view name) {
  const bool pass = like.kind == AxisUse::Kind::kPass;
  const int count = pass ? builder.linear().size() : builder.rule() ? builder.rule()->factors.size() : 0;
  for (int index = 0; index < count; ++index) {
    if (useName(builder, {like.kind, index}) == name) return index;
  }
  return -1;
}

}  // namespace

std::optional<Strategy> makeStrategy(const Graph& graph, const Node& node, const LogicalMesh& mesh,
                                     const std::vector<AxisUse>& uses) {
  return StrategyBuilder(graph, node, mesh).make(uses);
}

std::vector<Strategy> strategies(const Graph& graph, const Node& node, const LogicalMesh& mesh) {
  const StrategyBuilder builder(graph, node, mesh);
  std::vector<AxisUse> choices = {{}};
  for (int factor = 0; builder.rule() && factor < std::ssize(builder.rule()->factors); ++factor) {
    if (builder.canCut(factor)) choices.push_back({AxisUse::Kind::kFactor, factor});
  }
  for (int list = 0; list < std::ssize(builder.linear()); ++list) {
    const bool useful = builder.canPass(list) && isPassUseful(graph, node, builder.linear()[list]);
    if (useful) choices.push_back({AxisUse::Kind::kPass, list});
  }
  std::vector<Strategy> result;
  std::vector<size_t> choice(mesh.rank(), 0);
  std::vector<AxisUse> uses(choice.size());
  while (true) {
    for (size_t axis = 0; axis < choice.size(); ++axis) uses[axis] = choices[choice[axis]];
    if (auto strategy = builder.make(uses)) result.push_back(std::move(*strategy));
    // the next combination, the last mesh axis fastest; one device along an axis: nothing to choose
    size_t axis = choice.size();
    while (axis > 0 && (mesh.axisSize(axis - 1) == 1 || ++choice[axis - 1] == choices.size()))
      choice[--axis] = 0;
    if (axis == 0) return result;
  }
}

std::string printUses(const Graph& graph, const Node& node, const std::vector<AxisUse>& uses) {
  const LogicalMesh mesh{std::vector<int>(uses.size(), 1)};
  const StrategyBuilder builder(graph, node, mesh);
  std::string text;
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    if (uses[axis].kind == AxisUse::Kind::kReplicate) continue;
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", axis, useName(builder, uses[axis]));
  }
  return text.empty() ? "replicate" : text;
}

std::vector<AxisUse> parseUses(const Graph& graph, const Node& node, const LogicalMesh& mesh,
                               std::string_view text) {
  const StrategyBuilder builder(graph, node, mesh);
  std::vector<AxisUse> uses(mesh.rank());
  const std::vector<std::string_view> parts = words(text);
  if (parts.empty()) refuseUses(builder, node, mesh, text, "it is empty");
  if (parts == std::vector<std::string_view>{"replicate"}) return uses;
  for (std::string_view part : parts) {
    int axis = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), axis);
    if (error != std::errc() || end == part.data() + part.size() || *end != ':') {
      refuseUses(builder, node, mesh, text,
                 fmt::format("\"{}\" does not start with a mesh axis and a colon", part));
    }
    if (axis < 0 || axis >= mesh.rank())
      refuseUses(builder, node, mesh, text, fmt::format("there is no mesh axis {}", axis));
    AxisUse& use = uses[axis];
    if (use.kind != AxisUse::Kind::kReplicate)
      refuseUses(builder, node, mesh, text, fmt::format("it names mesh axis {} twice", axis));
    const std::string_view name = part.substr(end - part.data() + 1);
    for (AxisUse::Kind kind : {AxisUse::Kind::kFactor, AxisUse::Kind::kPass}) {
      const int index = findUse(builder, {kind, 0}, name);
      if (index >= 0) use = {kind, index};
    }
    if (use.kind == AxisUse::Kind::kReplicate)
      refuseUses(builder, node, mesh, text, fmt::format("it has no factor \"{}\"", name));
  }
  if (!builder.make(uses))
    refuseUses(builder, node, mesh, text, "the operator cannot be shared so over these devices");
  return uses;
}

}  // namespace pipeshard
