#include "planning/model/batch_dimension.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "onnx_import/prepare/dimensions.h"

namespace pipeshard {
namespace {

// A size for a dimension that is no batch, where only the form of the graph is wanted.
constexpr int64_t kAnySize = 16;

struct Symbols {
  std::set<std::string> all;
  // Names on axis 0 of an input and on no other axis, in the order of the inputs.
  std::vector<std::string> leading;
};

// "batch - 4" where there is a "batch": no name of its own.
bool isMadeOf(const std::string& symbol, const std::set<std::string>& all) {
  const std::vector<std::string> names = dimensionNames(symbol);
  return names != std::vector<std::string>{symbol} &&
         std::all_of(names.begin(), names.end(), [&](const std::string& name) { return all.contains(name); });
}

// Axes without a size or a name get one first, so that they are dimensions like any other.
Symbols symbolsOf(Graph& raw) {
  Symbols symbols;
  std::set<std::string> inner;
  for (ValueId input : raw.inputs) {
    Value& value = raw.value(input);
    if (raw.initializers.contains(input) || !value.shape) continue;
    value.symbols.resize(value.shape->size());
    for (size_t axis = 0; axis < value.shape->size(); ++axis) {
      if ((*value.shape)[axis] >= 0) continue;
      std::string& symbol = value.symbols[axis];
      symbol = axisName(value, axis);
      symbols.all.insert(symbol);
      if (axis > 0) {
        inner.insert(symbol);
      } else if (std::find(symbols.leading.begin(), symbols.leading.end(), symbol) == symbols.leading.end()) {
        symbols.leading.push_back(symbol);
      }
    }
  }
  std::erase_if(symbols.leading,
                [&](const std::string& name) { return inner.contains(name) || isMadeOf(name, symbols.all); });
  return symbols;
}

constexpr const char* kUsualNames[] = {"batch", "batch_size", "N"};

std::string nameOfBatch(const PlanRequest& request, const Symbols& symbols) {
  const std::string& asked = request.batch_dimension;
  if (!asked.empty()) {
    if (symbols.all.contains(asked)) return asked;
    fail(ErrorCode::kUsage, "--batch-dim {}: the model's symbolic dimensions are: {}", asked,
         symbols.all.empty() ? "none" : fmt::format("{}", fmt::join(symbols.all, ", ")));
  }
  for (const char* usual : kUsualNames) {
    if (symbols.all.contains(usual)) return usual;
  }
  std::set<int64_t> sizes;
  for (const std::string& name : symbols.leading) {
    const auto given = request.dimensions.find(name);
    if (given != request.dimensions.end()) sizes.insert(given->second);
  }
  if (sizes.size() <= 1) return symbols.leading.empty() ? "" : symbols.leading.front();
  if (request.microbatches <= 1) return "";
  fail(ErrorCode::kUsage, "which dimension is the batch that --microbatches cuts? Choose one: --batch-dim {}",
       fmt::join(symbols.leading, ", or --batch-dim "));
}

// An exporter may call the batch s77: a size that is given for "batch" is meant for it.
void takeUsualName(const Symbols& symbols, BatchDimension& batch) {
  for (const char* usual : kUsualNames) {
    const auto given = batch.dimensions.find(usual);
    if (batch.name.empty() || given == batch.dimensions.end() || symbols.all.contains(usual) ||
        batch.dimensions.contains(batch.name))
      continue;
    batch.notes.push_back(
        fmt::format("--dim {} is taken for {}, as the file calls the batch", usual, batch.name));
    batch.dimensions.emplace(batch.name, given->second);
    batch.dimensions.erase(given);
  }
}

// Other names of the batch become its own.
void mergeNames(const Symbols& symbols, Graph& raw, BatchDimension& batch) {
  std::set<std::string> others;
  for (const std::string& name : symbols.leading) {
    if (name == batch.name || batch.name.empty()) continue;
    const auto given = batch.dimensions.find(name);
    const auto own = batch.dimensions.find(batch.name);
    if (given != batch.dimensions.end() && own != batch.dimensions.end() && given->second != own->second)
      continue;
    if (given != batch.dimensions.end()) batch.dimensions.emplace(batch.name, given->second);
    batch.dimensions.erase(name);
    others.insert(name);
  }
  if (others.empty()) return;
  for (Value& value : raw.values) {
    for (std::string& symbol : value.symbols) {
      if (others.contains(symbol)) symbol = batch.name;
    }
  }
  batch.notes.push_back(
      fmt::format("{} taken for other names of the batch, {} (--dim gives one another size)",
                  fmt::join(others, ", "), batch.name));
}

int64_t sizeOfBatch(const PlanRequest& request, const AskedStages& stages) {
  constexpr int64_t kWhole = 8;  // rows of a batch that is not cut, since its examples meet
  if (request.uncut && request.fewest_rows == 1) return kWhole;
  if (request.microbatches > 0) return request.microbatches * stages.widest;
  constexpr int64_t kPlenty = 720720;  // a multiple of every number up to 16
  return chooseMicrobatches(kPlenty * stages.widest, request.partition, stages) * stages.widest;
}

// Where one size alone can be meant, nobody need give it.
void takeSizesOfWeights(const Graph& raw, BatchDimension& batch) {
  for (const auto& [name, size] : dimensionsByWeights(raw)) {
    if (name == batch.name || !batch.dimensions.emplace(name, size).second) continue;
    batch.notes.push_back(
        fmt::format("{} = {}, as the weight of the convolution that reads it has it", name, size));
  }
}

}  // namespace

BatchDimension decideBatchDimension(const PlanRequest& request, const AskedStages& stages, Graph& raw) {
  BatchDimension batch;
  batch.dimensions = defaultDimensions(raw);
  for (const auto& [name, size] : request.dimensions) batch.dimensions[name] = size;
  const Symbols symbols = symbolsOf(raw);
  batch.name = nameOfBatch(request, symbols);
  takeUsualName(symbols, batch);
  mergeNames(symbols, raw, batch);
  if (!batch.name.empty() && !batch.dimensions.contains(batch.name)) {
    batch.dimensions[batch.name] = sizeOfBatch(request, stages);
    batch.chosen.insert(batch.name);
    batch.notes.push_back(fmt::format("a batch of {} was chosen (--dim {}=N sets it)",
                                      batch.dimensions[batch.name], batch.name));
  }
  takeSizesOfWeights(raw, batch);
  if (!request.any_sizes) return batch;
  for (const SymbolicDimension& dimension : symbolicDimensions(raw, batch.dimensions)) {
    if (!batch.dimensions.emplace(dimension.name, kAnySize).second) continue;
    batch.chosen.insert(dimension.name);
    batch.notes.push_back(fmt::format("{} is shown for {} = {} (--dim {}=N sets it)", request.model_path,
                                      dimension.name, kAnySize, dimension.name));
  }
  return batch;
}

AskedSizes askedSizes(const PlanRequest& request, const AskedStages& stages, const Graph& raw) {
  AskedSizes asked;
  try {
    Graph named = raw;
    const BatchDimension batch = decideBatchDimension(request, stages, named);
    asked = {batch.dimensions, {}, request.length_dimension};
    if (batch.name.empty()) return asked;
    for (const ValueId input : raw.inputs) {
      const std::vector<std::string>& symbols = named.value(input).symbols;
      for (size_t axis = 0; axis < symbols.size(); ++axis) {
        if (symbols[axis] != batch.name) continue;
        asked.batch.insert(axisName(raw.value(input), axis));
      }
    }
    for (const std::string& name : asked.batch) asked.sizes[name] = batch.dimensions.at(batch.name);
  } catch (const Error&) {
    return {};
  }
  return asked;
}

AskedSizes askedSizes(const Plan& plan, const Graph& raw) {
  AskedSizes asked{plan.dimensions, {}, plan.length_dimension};
  const auto batch = plan.dimensions.find(plan.batch_dimension);
  if (batch == plan.dimensions.end()) return asked;
  asked.batch.insert(batch->first);
  for (const SymbolicDimension& dimension : symbolicDimensions(raw, plan.dimensions)) {
    // What has no size of its own was taken for another name of the batch.
    if (asked.sizes.emplace(dimension.name, batch->second).second) asked.batch.insert(dimension.name);
  }
  return asked;
}

std::optional<int64_t> takeUsualBatch(std::map<std::string, int64_t>& dimensions) {
  for (const char* usual : kUsualNames) {
    const auto given = dimensions.find(usual);
    if (given == dimensions.end()) continue;
    const int64_t size = given->second;
    dimensions.erase(given);
    return size;
  }
  return std::nullopt;
}

std::map<std::string, int> batchAxes(const Graph& raw, const std::string& batch_dimension) {
  std::map<std::string, int> axes;
  for (ValueId input : raw.inputs) {
    const std::vector<std::string>& symbols = raw.value(input).symbols;
    for (size_t axis = 0; axis < symbols.size(); ++axis) {
      if (!symbols[axis].empty() && symbols[axis] == batch_dimension) axes[raw.value(input).name] = axis;
    }
  }
  return axes;
}

int64_t fixedBatch(const Graph& raw) {
  int64_t examples = 0;
  for (const ValueId input : raw.inputs) {
    const Value& value = raw.value(input);
    if (raw.initializers.contains(input) || value.drawn) continue;
    if (!value.shape) return 0;
    if (value.shape->empty()) continue;  // a number for all
    if (value.shape->front() < 1 || (examples > 0 && value.shape->front() != examples)) return 0;
    examples = value.shape->front();
  }
  return examples;
}

std::map<std::string, int> fixedBatchAxes(const Graph& raw, int64_t examples) {
  std::map<std::string, int> axes;
  for (const ValueId input : raw.inputs) {
    const Value& value = raw.value(input);
    if (!raw.initializers.contains(input) && value.shape && !value.shape->empty() &&
        value.shape->front() == examples)
      axes[value.name] = 0;
  }
  return axes;
}

}  // namespace pipeshard
