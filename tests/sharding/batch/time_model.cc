#include "tests/sharding/batch/time_model.h"

#include "ir/base/error.h"

namespace pipeshard::testing {

namespace {

std::mt19937_64 generatorFor(const std::string& name, uint64_t seed) {
  uint64_t hash = 1469598103934665603u ^ seed;
  for (char c : name) hash = (hash ^ static_cast<uint64_t>(c)) * 1099511628211u;
  return std::mt19937_64(hash);
}

Constant addElements(const Constant& a, const Constant& b) {
  const std::vector<double> left = numericElements(a);
  const std::vector<double> right = numericElements(b);
  if (a.data_type == DataType::kInt64) {
    std::vector<int64_t> sum;
    for (size_t i = 0; i < left.size(); ++i) sum.push_back(left[i] + right[i]);
    return makeConstant<int64_t>(a.shape, sum);
  }
  std::vector<double> sum;
  for (size_t i = 0; i < left.size(); ++i) sum.push_back(left[i] + right[i]);
  PIPESHARD_CHECK(a.data_type == DataType::kFloat64, "sum of {}", dataTypeName(a.data_type));
  return makeConstant<double>(a.shape, sum);
}

void accumulate(Tensors& sums, const Tensors& parts) {
  for (const auto& [name, part] : parts) {
    const auto [sum, fresh] = sums.emplace(name, part);
    if (!fresh) sum->second = addElements(sum->second, part);
  }
}

// Of every axis that holds labels, the first examples are ignored most: microbatches get different counts.
Constant randomLabels(std::mt19937_64& generator, const Shape& shape, int64_t classes, bool ignore_all) {
  Constant labels = randomIntegers(generator, shape, 0, classes);
  auto* elements = reinterpret_cast<int64_t*>(labels.bytes.data());
  const int64_t count = elementCount(shape);
  for (int64_t i = 0; i < count; ++i) {
    const bool ignored = i < count / 4 ? generator() % 8 != 0 : generator() % 4 == 0;
    if (ignored || ignore_all) elements[i] = -100;
  }
  return labels;
}

}  // namespace

ValueId Model::input(const std::string& name, Shape shape, int axis) {
  const ValueId id = builder.addValue(name, DataType::kFloat64, std::move(shape));
  graph.inputs.push_back(id);
  inputs.push_back({id, axis});
  return id;
}

ValueId Model::labels(const std::string& name, Shape shape, int64_t class_count) {
  const ValueId id = builder.addValue(name, DataType::kInt64, std::move(shape));
  graph.inputs.push_back(id);
  inputs.push_back({id, 0});
  classes[name] = class_count;
  return id;
}

ValueId Model::parameter(const std::string& name, const Shape& shape) {
  std::mt19937_64 generator = generatorFor(name, 0);
  const ValueId id = builder.addConstant(name, randomReals(generator, shape));
  graph.value(id).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
  return id;
}

ValueId Model::number(double value) {
  return builder.addConstant("number", makeScalar(DataType::kFloat64, value));
}

ValueId Model::integers(const std::vector<int64_t>& elements) {
  return builder.addConstant("integers", makeConstant<int64_t>({std::ssize(elements)}, elements));
}

ValueId Model::op(const std::string& type, std::vector<ValueId> operands, Shape shape,
                  std::map<std::string, Attribute> attributes, DataType data_type) {
  const ValueId output = builder.addValue(type + "_output", data_type, std::move(shape));
  const NodeId node = builder.addNode("", type, std::move(operands), {output}, std::move(attributes));
  graph.node(node).name = graph.value(output).name + "_node";
  return output;
}

Tensors wholeBatch(const Model& model, uint64_t seed, bool ignore_all) {
  Tensors data;
  for (const BatchInput& input : model.inputs) {
    const Value& value = model.graph.value(input.value);
    std::mt19937_64 generator = generatorFor(value.name, seed);
    const auto classes = model.classes.find(value.name);
    data[value.name] = classes == model.classes.end()
                           ? randomReals(generator, *value.shape)
                           : randomLabels(generator, *value.shape, classes->second, ignore_all);
  }
  return data;
}

namespace {

Tensors rowsOf(const BatchPart& part, const std::vector<BatchInput>& inputs, int64_t batch,
               const Tensors& whole) {
  Tensors given;
  for (const BatchInput& input : inputs) {
    const std::string& name = part.graph->value(input.value).name;
    given[name] = whole.at(name);
    if (input.axis < 0) continue;
    const int64_t per_row = given[name].shape[input.axis] / batch;
    std::vector<int64_t> rows;
    for (int64_t i = part.rows.first * per_row; i < part.rows.end() * per_row; ++i) rows.push_back(i);
    given[name] = selectAlong(given[name], input.axis, rows);
  }
  return given;
}

}  // namespace

Constant sumOverParts(const std::vector<BatchPart>& parts, const std::vector<BatchInput>& inputs,
                      int64_t batch, const Tensors& whole, const Tensors& weights) {
  Tensors sums;
  for (const BatchPart& part : parts) {
    std::vector<std::string> names;
    for (const PrologueTotal& total : part.time->totals) names.push_back(part.graph->value(total.part).name);
    accumulate(sums, runGraph(*part.graph, rowsOf(part, inputs, batch, whole), names));
  }
  Tensors losses;
  for (const BatchPart& part : parts) {
    Tensors given = rowsOf(part, inputs, batch, whole);
    given.insert(weights.begin(), weights.end());
    for (const PrologueTotal& total : part.time->totals)
      given[part.graph->value(total.total).name] = sums.at(part.graph->value(total.part).name);
    accumulate(losses, runGraph(*part.graph, given, {part.graph->value(part.time->loss).name}));
  }
  return losses.begin()->second;
}

Losses compareLosses(const BuildModel& build, int64_t count, uint64_t seed, bool ignore_all, bool compare) {
  constexpr int64_t kBatch = 8;
  Model whole(kBatch);
  const ValueId whole_loss = build(whole);
  const Tensors data = wholeBatch(whole, seed, ignore_all);
  Model half(kBatch / 2);
  build(half);
  std::map<int64_t, std::pair<Graph, TimeAxisResult>> made;  // by rows
  std::vector<BatchPart> parts;
  for (int64_t k = 0; k < count; ++k) {
    const Rows rows = shareOf({0, kBatch}, k, count);
    if (!made.contains(rows.count)) {
      Model part(rows.count);
      const ValueId loss = build(part);
      part.graph.outputs = {loss};
      BatchShare share{rows.count, kBatch, nullptr, 0};
      const Model& other = rows.count == kBatch ? half : whole;
      if (compare) share.other = &other.graph, share.other_rows = other.batch;
      TimeAxisResult time = splitTimeAxis(part.graph, {loss, {}, part.constants}, part.inputs, share);
      verifyGraph(part.graph);
      made.emplace(rows.count, std::pair(std::move(part.graph), std::move(time)));
    }
    const auto& [graph, time] = made.at(rows.count);
    parts.push_back({rows, &graph, &time});
  }
  Losses losses;
  const std::string& name = whole.graph.value(whole_loss).name;
  losses.whole = numericElements(runGraph(whole.graph, data, {name}).at(name)).front();
  losses.parts = numericElements(sumOverParts(parts, whole.inputs, kBatch, data, {})).front();
  return losses;
}

}  // namespace pipeshard::testing
