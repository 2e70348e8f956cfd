#include "sharding/stage/given_specs.h"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"

namespace pipeshard {

namespace {

// `*` stands for any characters, `?` for one. A star that turns out too short takes one more: linear but for
// the last star.
bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0;
  size_t star = std::string_view::npos, star_end = 0;  // the last star, and where what it stands for ends
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

[[noreturn]] void failUnmatched(const TrainingGraph& training, const std::string& pattern) {
  std::vector<std::string> names;
  for (const Value& value : training.graph.values) names.push_back(value.name);
  const std::vector<std::string> near = nearMatches(pattern, names);
  fail(ErrorCode::kConfiguration,
       "sharding of \"{}\": no value of the training graph has such a name{}; values are parameters, inputs, "
       "and what nodes give (a pattern may hold * and ?)",
       pattern, near.empty() ? "" : fmt::format("; near matches: {}", fmt::join(near, ", ")));
}

std::string faultOf(const TrainingGraph& training, ValueId id, const StageValue& value,
                    const ShardingSpec& spec, const LogicalMesh& mesh) {
  const Shape& shape = training.graph.shape(id);
  if (spec.axes.size() != shape.size())
    return fmt::format("it has {} axes, the spec {}", shape.size(), spec.axes.size());
  std::string fault = specFault(spec, shape, mesh);
  if (!fault.empty()) return fault;
  if (!spec.partial.empty() && !value.partial_allowed)
    return "a value that comes from outside or stays from step to step is no partial sum";
  if (!spec.isReplicated() && value.fixed_replicated)
    return "it must be kept replicated, since other stages or the prologue share it";
  return "";
}

}  // namespace

std::map<ValueId, ShardingSpec> givenSpecs(const TrainingGraph& training,
                                           const std::vector<StageValue>& values, const LogicalMesh& mesh,
                                           const std::vector<ShardConstraint>& constraints) {
  std::map<ValueId, ShardingSpec> given;
  std::map<ValueId, std::string> source;
  for (const ShardConstraint& constraint : constraints) {
    bool any = false;
    for (size_t index = 0; index < values.size(); ++index) {
      const ValueId id(index);
      if (!matches(constraint.pattern, training.graph.value(id).name)) continue;
      any = true;
      if (!values[index].held || values[index].constant) continue;
      const std::string fault = faultOf(training, id, values[index], constraint.spec, mesh);
      if (!fault.empty()) {
        fail(ErrorCode::kConfiguration, "sharding of \"{}\": '{}' {} cannot be kept as {} on mesh {}: {}",
             constraint.pattern, training.graph.value(id).name, shapeToString(training.graph.shape(id)),
             printSpec(constraint.spec), printMesh(mesh), fault);
      }
      const ValueId first = values[index].shares;
      const auto [place, is_new] = given.try_emplace(first, constraint.spec);
      if (!is_new && place->second != constraint.spec) {
        fail(ErrorCode::kConfiguration,
             "sharding of \"{}\": '{}' would be kept as {}, but \"{}\" says {}; give one spec",
             constraint.pattern, training.graph.value(id).name, printSpec(constraint.spec), source[first],
             printSpec(place->second));
      }
      source[first] = constraint.pattern;
    }
    if (!any) failUnmatched(training, constraint.pattern);
  }
  return given;
}

}  // namespace pipeshard
