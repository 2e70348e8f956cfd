#include "tools/profile_ladder.h"

#include <array>
#include <string>

#include "ir/graph/weight_role.h"
#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/patterns/patterns.h"
#include "onnx_import/prepare/prepare.h"
#include "runtime/execute/subgraph.h"
#include "runtime/kernels/base/cpu_kernels.h"

namespace pipeshard {
namespace {

using Attributes = std::map<std::string, Attribute>;

// A forward graph, written down as one writes a model; shapes follow.
class Model {
 public:
  Model() { graph_.opset_imports = {{"", 20}, {std::string(kPipeshardDomain), 1}}; }

  ValueId input(const std::string& name, const Shape& shape, DataType type = DataType::kFloat32) {
    graph_.inputs.push_back(builder_.addValue(name, type, shape));
    return graph_.inputs.back();
  }

  ValueId parameter(const Shape& shape) {
    const ValueId id =
        builder_.addValue("weight" + std::to_string(graph_.values.size()), DataType::kFloat32, shape);
    setExportedKind(graph_.value(id), "PARAMETER");
    const uint64_t bytes = byteCount(DataType::kFloat32, shape);
    graph_.initializers[id] = WeightReference{"none", 0, bytes};
    return id;
  }

  ValueId integers(const std::vector<int64_t>& elements) {
    return builder_.addConstant("sizes", makeConstant<int64_t>({std::ssize(elements)}, elements));
  }
  ValueId scalar(double number) {
    return builder_.addConstant("scalar", makeScalar(DataType::kFloat32, number));
  }

  ValueId op(const std::string& type, const std::vector<ValueId>& inputs, Attributes attributes = {}) {
    const ValueId output(graph_.values.size());
    graph_.values.emplace_back().name = "value" + std::to_string(output.index());
    builder_.addNode("", type, inputs, {output}, std::move(attributes));
    return output;
  }

  // With the statistics of the batch; the running ones are kept beside them, as exporters write it.
  ValueId batchNormalization(ValueId x, int64_t channels) {
    std::vector<ValueId> inputs = {x, parameter({channels}), parameter({channels})}, outputs;
    for (int statistic = 0; statistic < 2; ++statistic) {
      inputs.push_back(parameter({channels}));
      graph_.value(inputs.back()).metadata.clear();
    }
    for (int output = 0; output < 3; ++output) {
      outputs.emplace_back(graph_.values.size());
      graph_.values.emplace_back().name = "value" + std::to_string(outputs.back().index());
    }
    builder_.addNode("", "BatchNormalization", inputs, outputs,
                     {{"training_mode", int64_t{1}}, {"momentum", 0.9F}, {"epsilon", 1e-5F}});
    return outputs[0];
  }

  // The nodes of its training step, with the optimizer's updates where their parameters are; both as they
  // stand and where patterns have made functions of them.
  void addTo(ProfileSamples& samples, ValueId loss, const std::string& optimizer) {
    graph_.outputs = {loss};
    const std::string name = graph_.value(loss).name;
    Graph prepared = prepareModel(graph_, {});
    addStep(samples, prepared, name, optimizer);
    if (!recognisePatterns(prepared).found.empty()) addStep(samples, prepared, name, optimizer);
  }

  // Whole numbers of this input are below `limit`.
  void below(ValueId input, int64_t limit) { below_[graph_.value(input).name] = limit; }

 private:
  void addStep(ProfileSamples& samples, Graph graph, const std::string& loss, const std::string& optimizer) {
    ForwardGraph forward;
    forward.graph = std::move(graph);
    forward.loss = findValue(forward.graph, loss);
    for (const ValueId id : forward.graph.inputs) forward.inputs.push_back({id, -1});
    const TrainingGraph training = buildTrainingGraph(std::move(forward), parseOptimizer(optimizer));
    samples.add(imageOf(passOf(training)));
  }

  // All of a step, one node behind the other.
  GraphPass passOf(const TrainingGraph& training) const {
    Graph whole = training.graph;
    std::set<ValueId> inputs(whole.inputs.begin(), whole.inputs.end());
    for (auto at = whole.initializers.begin(); at != whole.initializers.end();) {
      const bool is_weight = std::holds_alternative<WeightReference>(at->second);
      if (is_weight && inputs.insert(at->first).second) whole.inputs.push_back(at->first);
      at = is_weight ? whole.initializers.erase(at) : std::next(at);
    }
    GraphPass pass{runnableGraph(whole, cpuKernels())};
    const auto now = [&](ValueId id) { return findValue(pass.graph, whole.value(id).name); };
    for (const Parameter& parameter : training.parameters) {
      if (!parameter.updated.valid()) continue;
      pass.in_place[now(parameter.updated)] = now(parameter.value);
      for (const OptimizerState& state : parameter.states) {
        pass.in_place[now(state.updated)] = now(state.value);
        pass.states.insert(now(state.value));
      }
    }
    for (const auto& [name, limit] : below_) pass.below[findValue(pass.graph, name)] = limit;
    return pass;
  }

  Graph graph_;
  GraphBuilder builder_{graph_};
  std::map<std::string, int64_t> below_;
};

struct BlockSizes {
  int64_t batch, sequence, width, heads, vocabulary;
};

// Attention and a perceptron with their normalisations, an embedding before and a cross-entropy behind.
void addBlock(ProfileSamples& samples, const BlockSizes& s, const std::string& optimizer) {
  Model m;
  const int64_t head = s.width / s.heads;
  const ValueId ids = m.input("ids", {s.batch, s.sequence}, DataType::kInt64);
  const ValueId labels = m.input("labels", {s.batch * s.sequence}, DataType::kInt64);
  m.below(ids, s.vocabulary);
  m.below(labels, s.vocabulary);
  ValueId x = m.op("Gather", {m.parameter({s.vocabulary, s.width}), ids});
  x = m.op("Add", {x, m.op("Unsqueeze", {m.parameter({s.sequence, s.width}), m.integers({0})})});
  const auto norm = [&](ValueId in) {
    return m.op("LayerNormalization", {in, m.parameter({s.width}), m.parameter({s.width})},
                {{"axis", int64_t{-1}}});
  };
  const auto linear = [&](ValueId in, int64_t from, int64_t to) {
    return m.op("Add", {m.op("MatMul", {in, m.parameter({from, to})}), m.parameter({to})});
  };
  const auto heads = [&](ValueId in, const std::vector<int64_t>& order) {
    return m.op(
        "Transpose",
        {m.op("Reshape", {linear(in, s.width, s.width), m.integers({s.batch, s.sequence, s.heads, head})})},
        {{"perm", order}});
  };
  const ValueId normed = norm(x);
  const ValueId queries = heads(normed, {0, 2, 1, 3});
  const ValueId keys = heads(normed, {0, 2, 3, 1});
  const ValueId values = heads(normed, {0, 2, 1, 3});
  const ValueId scores = m.op("Mul", {m.op("MatMul", {queries, keys}), m.scalar(0.125)});
  const ValueId mixed = m.op("MatMul", {m.op("Softmax", {scores}, {{"axis", int64_t{-1}}}), values});
  const ValueId joined =
      m.op("Reshape", {m.op("Transpose", {mixed}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}}),
                       m.integers({s.batch, s.sequence, s.width})});
  x = m.op("Add", {x, linear(joined, s.width, s.width)});
  x = m.op("Add", {x, linear(m.op("Gelu", {linear(norm(x), s.width, 4 * s.width)}), 4 * s.width, s.width)});
  const ValueId logits = m.op("Reshape", {m.op("MatMul", {norm(x), m.parameter({s.width, s.vocabulary})}),
                                          m.integers({s.batch * s.sequence, s.vocabulary})});
  m.addTo(samples, m.op("SoftmaxCrossEntropyLoss", {logits, labels}), optimizer);
}

// The operators of newer language models: gates, root mean squares, rotations.
void addGates(ProfileSamples& samples, const BlockSizes& s, const std::string& optimizer) {
  Model m;
  ValueId x = m.input("x", {s.batch, s.sequence, s.width});
  const ValueId squares =
      m.op("ReduceMean", {m.op("Pow", {x, m.scalar(2)}), m.integers({-1})}, {{"keepdims", int64_t{1}}});
  const ValueId root = m.op("Sqrt", {m.op("Add", {squares, m.scalar(1e-5)})});
  x = m.op("Mul", {m.op("Mul", {x, m.op("Reciprocal", {root})}), m.parameter({s.width})});
  const ValueId gate = m.op("MatMul", {x, m.parameter({s.width, s.width})});
  const ValueId up = m.op("MatMul", {x, m.parameter({s.width, s.width})});
  x = m.op("Mul", {m.op("Mul", {gate, m.op("Sigmoid", {gate})}), up});
  const ValueId low = m.op("Slice", {x, m.integers({0}), m.integers({s.width / 2}), m.integers({2})});
  const ValueId high = m.op("Slice", {x, m.integers({s.width / 2}), m.integers({s.width}), m.integers({2})});
  x = m.op("Add", {x, m.op("Concat", {m.op("Neg", {high}), low}, {{"axis", int64_t{2}}})});
  const ValueId difference = m.op("Sub", {x, m.op("Tanh", {x})});
  m.addTo(samples, m.op("ReduceMean", {m.op("Mul", {difference, difference})}, {{"keepdims", int64_t{0}}}),
          optimizer);
}

void addPerceptron(ProfileSamples& samples, int64_t rows, int64_t width, const std::string& optimizer) {
  Model m;
  ValueId x = m.input("x", {rows, width});
  const auto linear = [&](ValueId in, int64_t from, int64_t to) {
    return m.op("Gemm", {in, m.parameter({to, from}), m.parameter({to})}, {{"transB", int64_t{1}}});
  };
  const ValueId hidden = m.op("Relu", {linear(m.op("Relu", {linear(x, width, width)}), width, 2 * width)});
  x = m.op("Sub", {linear(hidden, 2 * width, width), m.input("y", {rows, width})});
  m.addTo(samples, m.op("ReduceMean", {m.op("Mul", {x, x})}, {{"keepdims", int64_t{0}}}), optimizer);
}

void addConvolutions(ProfileSamples& samples, int64_t batch, int64_t channels, int64_t size,
                     const std::string& optimizer) {
  Model m;
  ValueId x = m.input("images", {batch, channels, size, size});
  const auto convolution = [&](ValueId in, int64_t from, int64_t to, int64_t kernel, int64_t stride) {
    const int64_t pad = kernel / 2;
    return m.op("Conv", {in, m.parameter({to, from, kernel, kernel})},
                {{"kernel_shape", std::vector<int64_t>{kernel, kernel}},
                 {"pads", std::vector<int64_t>{pad, pad, pad, pad}},
                 {"strides", std::vector<int64_t>{stride, stride}},
                 {"dilations", std::vector<int64_t>{1, 1}},
                 {"group", int64_t{1}}});
  };
  const auto scaled = [&](ValueId in, int64_t width) {
    const ValueId mean = m.op("ReduceMean", {in, m.integers({0, 2, 3})}, {{"keepdims", int64_t{1}}});
    return m.op("Mul", {m.op("Sub", {in, mean}), m.parameter({1, width, 1, 1})});
  };
  x = m.op("Relu", {m.batchNormalization(convolution(x, channels, channels, 3, 1), channels)});
  x = m.op("MaxPool", {x},
           {{"kernel_shape", std::vector<int64_t>{3, 3}},
            {"pads", std::vector<int64_t>{1, 1, 1, 1}},
            {"strides", std::vector<int64_t>{2, 2}}});
  const ValueId wide = m.op("Relu", {scaled(convolution(x, channels, 2 * channels, 3, 2), 2 * channels)});
  x = m.op("Add", {wide, convolution(x, channels, 2 * channels, 1, 2)});
  x = m.op("ReduceMean", {x, m.integers({2, 3})}, {{"keepdims", int64_t{0}}});
  m.addTo(samples, m.op("ReduceMean", {m.op("Mul", {x, x})}, {{"keepdims", int64_t{0}}}), optimizer);
}

}  // namespace

void addLadder(ProfileSamples& samples, bool quick) {
  constexpr std::array<BlockSizes, 6> kBlocks{{{2, 16, 32, 2, 128},
                                               {8, 16, 64, 4, 256},
                                               {16, 32, 64, 4, 512},
                                               {4, 64, 256, 4, 1024},
                                               {2, 128, 512, 8, 4096},
                                               {4, 256, 768, 12, 8192}}};
  const size_t blocks = quick ? 3 : kBlocks.size();
  for (size_t b = 0; b < blocks; ++b) {
    addBlock(samples, kBlocks[b], b % 2 == 0 ? "adamw:lr=1e-3" : "sgd:lr=0.1,momentum=0.9");
    addGates(samples, kBlocks[b], b % 2 == 0 ? "adam:lr=1e-3" : "sgd:lr=0.1");
  }
  for (const int64_t rows : {8, 64, 512, 4096}) {
    for (const int64_t width : {32, 128, 512, 1024}) {
      if (rows * width <= (quick ? 1 << 14 : 1 << 21)) addPerceptron(samples, rows, width, "adamw:lr=1e-3");
    }
  }
  addConvolutions(samples, 2, 8, 16, "sgd:lr=0.1,momentum=0.9");
  addConvolutions(samples, 8, 16, 32, "adamw:lr=1e-3");
  if (quick) return;
  addConvolutions(samples, 16, 32, 32, "sgd:lr=0.1,momentum=0.9");
  addConvolutions(samples, 8, 64, 56, "adamw:lr=1e-3");
  addConvolutions(samples, 8, 256, 14, "sgd:lr=0.1");
}

}  // namespace pipeshard
