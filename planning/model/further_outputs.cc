#include "planning/model/further_outputs.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/prepare/prepare.h"
#include "planning/model/operator_support.h"

namespace pipeshard {
namespace {

// What makes them goes, too: sizes that do not fit are refused before anything else removes dead code.
void leaveOut(const std::set<std::string>& outputs, Graph& raw) {
  std::erase_if(raw.outputs, [&](ValueId output) { return outputs.contains(raw.value(output).name); });
  removeDeadCode(raw);
}

bool isPrepared(const Graph& raw, const std::set<std::string>& without,
                const std::function<void(const Graph&)>& prepare) {
  Graph graph = raw;
  leaveOut(without, graph);
  try {
    prepare(graph);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;
    return false;
  }
}

// Of `some`, which are all left out, those come back that are in nobody's way. Half by half: few are.
void takeBack(const Graph& raw, std::span<const std::string> some,
              const std::function<void(const Graph&)>& prepare, std::set<std::string>& left_out) {
  std::set<std::string> fewer = left_out;
  for (const std::string& name : some) fewer.erase(name);
  if (isPrepared(raw, fewer, prepare)) {
    left_out = std::move(fewer);
    return;
  }
  if (some.size() == 1) return;
  takeBack(raw, some.first(some.size() / 2), prepare, left_out);
  takeBack(raw, some.subspan(some.size() / 2), prepare, left_out);
}

}  // namespace

std::vector<std::string> furtherOutputs(const Graph& raw, ValueId loss, bool trains) {
  const UseDef uses = computeUseDef(raw);
  const auto isStatistic = [&](ValueId value) {
    NodeId producer = uses.producer[value.index()];
    while (producer.valid() && raw.node(producer).is("Identity")) {
      value = raw.node(producer).inputs[0];
      producer = uses.producer[value.index()];
    }
    return producer.valid() && raw.node(producer).is("BatchNormalization") &&
           raw.node(producer).outputs[0] != value;
  };
  std::vector<std::string> names;
  for (const ValueId output : raw.outputs) {
    const bool is_given = !trains || uses.producer[output.index()].valid();
    if (output != loss && is_given && !isStatistic(output)) names.push_back(raw.value(output).name);
  }
  return names;
}

bool haveOperatorsOfTheirOwn(const Graph& raw, ValueId loss, const std::vector<std::string>& outputs) {
  std::vector<ValueId> values;
  for (const std::string& name : outputs) values.push_back(findValue(raw, name));
  const std::vector<bool> of_loss = ancestorsOf(raw, {loss}), of_outputs = ancestorsOf(raw, values);
  for (size_t n = 0; n < of_loss.size(); ++n) {
    if (of_outputs[n] && !of_loss[n]) return true;
  }
  return false;
}

std::vector<std::string> clearTheWay(Graph& raw, std::vector<std::string>& outputs,
                                     const std::function<void(const Graph&)>& prepare) {
  if (outputs.empty() || isPrepared(raw, {}, prepare)) return {};
  std::set<std::string> left_out(outputs.begin(), outputs.end());
  if (!isPrepared(raw, left_out, prepare)) return {};
  takeBack(raw, outputs, prepare, left_out);
  leaveOut(left_out, raw);
  std::erase_if(outputs, [&](const std::string& output) { return left_out.contains(output); });
  return {left_out.begin(), left_out.end()};
}

void prepareOneRow(const Graph& raw, std::map<std::string, int64_t> dimensions,
                   const std::string& batch_dimension) {
  PrepareOptions options;
  options.dimensions = std::move(dimensions);
  if (const auto batch = options.dimensions.find(batch_dimension); batch != options.dimensions.end())
    batch->second = 1;
  options.supported = canTrain;
  options.tensor_elements = UINT64_MAX;
  prepareModel(raw, options);
}

std::string inTheWayNote(const std::vector<std::string>& outputs) {
  return fmt::format(
      "outputs left out, as the loss does not need them and their shapes depend on data or do not go with "
      "every part of the batch: {}",
      listed(outputs, 6));
}

std::string unknownOutputsNote(const std::vector<std::string>& outputs, bool has_loss) {
  return fmt::format("outputs left out, as {}their operators are not supported: {}",
                     has_loss ? "the loss does not need them and " : "", listed(outputs, 6));
}

}  // namespace pipeshard
