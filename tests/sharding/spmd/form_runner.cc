#include "tests/sharding/spmd/form_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <stdexcept>

#include "ir/base/error.h"

namespace pipeshard::testing {
namespace {

std::vector<int64_t> range(int64_t start, int64_t size) {
  std::vector<int64_t> indices(size);
  std::iota(indices.begin(), indices.end(), start);
  return indices;
}

// Adds the part to the whole's numbers.
void addPart(std::vector<double>& whole, const Shape& shape, const Constant& part, const Shard& shard) {
  const std::vector<double> numbers = numericElements(part);
  const Shape strides = rowMajorStrides(shape);
  for (size_t i = 0; i < numbers.size(); ++i) {
    int64_t rest = i;
    int64_t at = 0;
    for (size_t axis = shape.size(); axis-- > 0;) {
      at += (shard.start[axis] + rest % shard.size[axis]) * strides[axis];
      rest /= shard.size[axis];
    }
    whole[at] += numbers[i];
  }
}

Constant fromNumbers(DataType type, const Shape& shape, const std::vector<double>& numbers) {
  if (type == DataType::kFloat64) return makeConstant<double>(shape, numbers);
  if (type == DataType::kFloat32)
    return makeConstant<float>(shape, std::vector<float>(numbers.begin(), numbers.end()));
  if (type == DataType::kInt64)
    return makeConstant<int64_t>(shape, std::vector<int64_t>(numbers.begin(), numbers.end()));
  throw std::logic_error("output of an unexpected type");
}

// A device's graph for the node.
Graph localGraph(const FormProblem& problem, const LogicalMesh& mesh, const Strategy& strategy,
                 DeviceId device) {
  const Graph& whole = problem.graph;
  const Node& node = problem.theNode();
  Graph graph;
  graph.opset_imports = whole.opset_imports;
  GraphBuilder builder(graph);
  std::map<ValueId, ValueId> made;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    inputs.emplace_back();
    if (!id.valid()) continue;
    const Shard shard = shardOf(strategy.inputs[i], whole.shape(id), mesh, device);
    const Constant* constant = whole.constant(id);
    const std::string name = whole.value(id).name + "#" + std::to_string(i);
    inputs.back() = constant != nullptr ? builder.addConstant(name, partOf(*constant, shard))
                                        : builder.addValue(name, whole.dataType(id), shard.size);
    if (constant == nullptr) graph.inputs.push_back(inputs.back());
  }
  const MeshGroups groups = meshGroups(mesh);
  const std::vector<ValueId> outputs =
      emitExchangeForm(builder, {whole, mesh, device, groups, nullptr}, node, strategy, inputs);
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    EXPECT_EQ(outputs.at(o).valid(), node.outputs[o].valid());
    if (!node.outputs[o].valid()) continue;
    const Shard shard = shardOf(strategy.outputs[o], whole.shape(node.outputs[o]), mesh, device);
    EXPECT_EQ(graph.shape(outputs[o]), shard.size) << "output " << o;
    EXPECT_EQ(graph.dataType(outputs[o]), whole.dataType(node.outputs[o])) << "output " << o;
    graph.outputs.push_back(outputs[o]);
  }
  verifyGraph(graph);
  return graph;
}

Tensors runDevice(const FormProblem& problem, const Graph& graph, const LogicalMesh& mesh,
                  const Strategy& strategy, DeviceId device, Collectives& collectives) {
  const Node& node = problem.theNode();
  Tensors values;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].valid() || problem.graph.constant(node.inputs[i]) != nullptr) continue;
    const std::string& name = problem.graph.value(node.inputs[i]).name;
    const Shard shard = shardOf(strategy.inputs[i], problem.graph.shape(node.inputs[i]), mesh, device);
    values[name + "#" + std::to_string(i)] = partOf(problem.given.at(name), shard);
  }
  for (const Node& local : graph.nodes) runNode(graph, local, values, &collectives);
  Tensors outputs;
  size_t next = 0;
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (node.outputs[o].valid())
      outputs["out" + std::to_string(o)] = values.at(graph.value(graph.outputs[next++]).name);
  }
  return outputs;
}

}  // namespace

FormProblem::FormProblem() { graph.opset_imports = {{"", 18}, {std::string(kPipeshardDomain), 1}}; }

ValueId FormProblem::input(const std::string& name, Constant tensor) {
  const ValueId id = GraphBuilder(graph).addValue(name, tensor.data_type, tensor.shape);
  graph.inputs.push_back(id);
  given[name] = std::move(tensor);
  return id;
}

void FormProblem::node(const std::string& domain, const std::string& op_type, std::vector<ValueId> inputs,
                       const std::vector<std::pair<DataType, Shape>>& outputs,
                       std::map<std::string, Attribute> attributes) {
  GraphBuilder builder(graph);
  std::vector<ValueId> ids;
  for (size_t o = 0; o < outputs.size(); ++o) {
    const bool absent = outputs[o].first == DataType::kUndefined;
    ids.push_back(absent ? ValueId()
                         : builder.addValue("out" + std::to_string(o), outputs[o].first, outputs[o].second));
    if (!absent) graph.outputs.push_back(ids.back());
  }
  builder.addNode(domain, op_type, std::move(inputs), ids, std::move(attributes));
}

Strategy strategyOf(const FormProblem& problem, const LogicalMesh& mesh,
                    const std::vector<std::string>& factors) {
  const Node& node = problem.theNode();
  const auto rule = factorRule(problem.graph, node);
  if (!rule) throw std::logic_error("no rule");
  Strategy strategy;
  for (const std::string& name : factors) {
    const auto found = std::find_if(rule->factors.begin(), rule->factors.end(),
                                    [&](const Factor& f) { return f.name == name; });
    if (!name.empty() && found == rule->factors.end())
      throw std::logic_error("no factor " + name + " in " + printFactorRule(*rule));
    AxisUse use;
    if (!name.empty()) use = {AxisUse::Kind::kFactor, static_cast<int>(found - rule->factors.begin())};
    strategy.uses.push_back(use);
  }
  const auto specOf = [&](const TensorFactors& tensor, bool output, size_t position) {
    ShardingSpec spec = replicated(tensor.size());
    for (int mesh_axis = 0; mesh_axis < mesh.rank(); ++mesh_axis) {
      const int factor = strategy.uses[mesh_axis].index;
      if (factor < 0) continue;
      bool held = false;
      for (size_t axis = 0; axis < tensor.size(); ++axis) {
        if (tensor[axis] != std::vector<int>{factor}) continue;
        spec.axes[axis].push_back(mesh_axis);
        held = true;
      }
      if (held || !output) continue;
      const ExchangeForm* form = exchangeForm(problem.graph, node, *rule, factor);
      const bool sum = rule->factors[factor].kind == FactorKind::kSum;
      if (form != nullptr ? position < form->partial_outputs.size() && form->partial_outputs[position] : sum)
        spec.partial.push_back(mesh_axis);
    }
    return spec;
  };
  for (size_t i = 0; i < rule->inputs.size(); ++i)
    strategy.inputs.push_back(specOf(rule->inputs[i], false, i));
  for (size_t o = 0; o < rule->outputs.size(); ++o)
    strategy.outputs.push_back(specOf(rule->outputs[o], true, o));
  return strategy;
}

Constant partOf(const Constant& whole, const Shard& shard) {
  Constant part = whole;
  for (size_t axis = 0; axis < whole.shape.size(); ++axis) {
    if (shard.size[axis] != whole.shape[axis])
      part = selectAlong(part, axis, range(shard.start[axis], shard.size[axis]));
  }
  return part;
}

FormResult runForm(const FormProblem& problem, const LogicalMesh& mesh, const Strategy& strategy) {
  const size_t devices = mesh.deviceCount();
  FormResult result{{}, std::vector<Tensors>(devices)};
  std::vector<std::exception_ptr> failures(devices);
  for (size_t d = 0; d < devices; ++d)
    result.graphs.push_back(localGraph(problem, mesh, strategy, DeviceId(d)));
  runDevices(mesh, [&](DeviceId device, Collectives& collectives) {
    const size_t d = device.index();
    try {
      result.outputs[d] = runDevice(problem, result.graphs[d], mesh, strategy, device, collectives);
    } catch (...) {
      failures[d] = std::current_exception();
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return result;
}

void expectAsWhole(const FormProblem& problem, const LogicalMesh& mesh,
                   const std::vector<std::string>& factors, double tolerance) {
  const Node& node = problem.theNode();
  std::string title = describeNode(node) + " on " + printMesh(mesh) + ":";
  for (const std::string& factor : factors) title += " " + (factor.empty() ? "-" : factor);
  SCOPED_TRACE(title);
  const Strategy strategy = strategyOf(problem, mesh, factors);
  const FormResult result = runForm(problem, mesh, strategy);
  for (const Graph& graph : result.graphs) {
    ASSERT_EQ(graph.nodes.size(), result.graphs[0].nodes.size());
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      EXPECT_EQ(graph.nodes[n].op_type, result.graphs[0].nodes[n].op_type);
      EXPECT_EQ(graph.nodes[n].inputs, result.graphs[0].nodes[n].inputs);
    }
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (!node.outputs[o].valid()) continue;
    const std::string name = "out" + std::to_string(o);
    const ShardingSpec& spec = strategy.outputs[o];
    SCOPED_TRACE(name + " as " + printSpec(spec));
    const Constant whole = runGraph(problem.graph, problem.given, {name}).at(name);
    std::vector<double> sum(elementCount(whole.shape));
    for (const DeviceId device : mesh.devices()) {
      DeviceId twin = device;  // the device at coordinate 0 of the mesh axes along which all hold the same
      for (int axis = 0; axis < mesh.rank(); ++axis) {
        if (!spec.uses(axis)) twin = mesh.lineOf(twin, axis)[0];
      }
      const Constant& mine = result.outputs[device.index()].at(name);
      if (twin == device) addPart(sum, whole.shape, mine, shardOf(spec, whole.shape, mesh, device));
      EXPECT_EQ(mine, result.outputs[twin.index()].at(name)) << "device " << device.index();
    }
    EXPECT_LE(distance(fromNumbers(whole.data_type, whole.shape, sum), whole), tolerance);
  }
}

int countNodes(const Graph& graph, const std::string& op_type) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.op_type == op_type; });
}

std::vector<std::pair<LogicalMesh, std::vector<std::string>>> cutsOf(const std::string& factor) {
  return {{{{2}}, {factor}}, {{{3}}, {factor}}, {{{4}}, {factor}}, {{{2, 2}}, {factor, factor}}};
}

}  // namespace pipeshard::testing
