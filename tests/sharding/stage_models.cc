#include "tests/sharding/stage_models.h"

#include <fmt/format.h>

#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/training.h"

namespace pipeshard::testing {

StageModel::StageModel() : builder_(graph_) { graph_.opset_imports = {{"", 18}}; }

ValueId StageModel::input(const std::string& name, Shape shape, DataType type, int axis) {
  const ValueId id = builder_.addValue(name, type, std::move(shape));
  graph_.inputs.push_back(id);
  inputs_.push_back({id, axis});
  return id;
}

ValueId StageModel::parameter(const std::string& name, Shape shape) {
  const uint64_t length = byteCount(DataType::kFloat32, shape);
  const ValueId id = builder_.addValue(name, DataType::kFloat32, std::move(shape));
  graph_.initializers[id] = WeightReference{"weights", 0, length};
  graph_.value(id).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
  return id;
}

ValueId StageModel::integers(const std::vector<int64_t>& elements) {
  return builder_.addConstant("integers", makeConstant<int64_t>({std::ssize(elements)}, elements));
}

ValueId StageModel::op(const std::string& type, std::vector<ValueId> operands, Shape shape,
                       std::map<std::string, Attribute> attributes) {
  const ValueId output = builder_.addValue(type + "_output", DataType::kFloat32, std::move(shape));
  const NodeId node = builder_.addNode("", type, std::move(operands), {output}, std::move(attributes));
  graph_.node(node).name = graph_.value(output).name + "_node";
  return output;
}

TrainingGraph StageModel::finish(ValueId loss, const std::string& optimizer) {
  graph_.outputs = {loss};
  return buildTrainingGraph(ForwardGraph{graph_, loss, inputs_, {}, 1}, parseOptimizer(optimizer));
}

std::vector<NodeId> allNodes(const TrainingGraph& training) {
  std::vector<NodeId> nodes;
  for (size_t index = 0; index < training.graph.nodes.size(); ++index) nodes.emplace_back(index);
  return nodes;
}

namespace {

ValueId sumOfSquares(StageModel& model, ValueId value, const Shape& shape) {
  const ValueId squares = model.op("Mul", {value, value}, shape);
  return model.op("ReduceSum", {squares}, {}, {{"keepdims", int64_t{0}}});
}

class GptBuilder {
 public:
  GptBuilder(StageModel& model, const GptSizes& sizes)
      : model_(model), sizes_(sizes), stream_{sizes.batch, sizes.sequence, sizes.hidden} {}

  ValueId block(ValueId x, int64_t layer) {
    name_ = fmt::format("h.{}.", layer);
    x = model_.op("Add", {x, attention(normalized(x, "ln_1"))}, stream_);
    return model_.op("Add", {x, mlp(normalized(x, "ln_2"))}, stream_);
  }

  ValueId normalized(ValueId x, const std::string& name) {
    const ValueId scale = model_.parameter(name_ + name + ".weight", {sizes_.hidden});
    const ValueId bias = model_.parameter(name_ + name + ".bias", {sizes_.hidden});
    return model_.op("LayerNormalization", {x, scale, bias}, stream_, {{"axis", int64_t{-1}}});
  }

  ValueId linear(ValueId x, const std::string& name, int64_t in, int64_t out) {
    const Shape shape{sizes_.batch, sizes_.sequence, out};
    const ValueId product =
        model_.op("MatMul", {x, model_.parameter(name_ + name + ".weight", {in, out})}, shape);
    return model_.op("Add", {product, model_.parameter(name_ + name + ".bias", {out})}, shape);
  }

 private:
  ValueId heads(ValueId x, const std::string& name, const std::vector<int64_t>& permutation) {
    const int64_t width = sizes_.hidden / sizes_.heads;
    const Shape split{sizes_.batch, sizes_.sequence, sizes_.heads, width};
    const ValueId parts =
        model_.op("Reshape", {linear(x, name, sizes_.hidden, sizes_.hidden), model_.integers(split)}, split);
    Shape moved;
    for (int64_t axis : permutation) moved.push_back(split[axis]);
    return model_.op("Transpose", {parts}, moved, {{"perm", permutation}});
  }

  ValueId attention(ValueId x) {
    const int64_t width = sizes_.hidden / sizes_.heads;
    const Shape square{sizes_.batch, sizes_.heads, sizes_.sequence, sizes_.sequence};
    const ValueId queries = heads(x, "q", {0, 2, 1, 3});
    const ValueId keys = heads(x, "k", {0, 2, 3, 1});
    const ValueId values = heads(x, "v", {0, 2, 1, 3});
    const ValueId scores =
        model_.op("Softmax", {model_.op("MatMul", {queries, keys}, square)}, square, {{"axis", int64_t{-1}}});
    const ValueId mixed =
        model_.op("MatMul", {scores, values}, {sizes_.batch, sizes_.heads, sizes_.sequence, width});
    const ValueId moved =
        model_.op("Transpose", {mixed}, {sizes_.batch, sizes_.sequence, sizes_.heads, width},
                  {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    return linear(model_.op("Reshape", {moved, model_.integers(stream_)}, stream_), "proj", sizes_.hidden,
                  sizes_.hidden);
  }

  ValueId mlp(ValueId x) {
    const int64_t wide = 4 * sizes_.hidden;
    const ValueId active =
        model_.op("Relu", {linear(x, "fc", sizes_.hidden, wide)}, {sizes_.batch, sizes_.sequence, wide});
    return linear(active, "out", wide, sizes_.hidden);
  }

  StageModel& model_;
  const GptSizes& sizes_;
  Shape stream_;
  std::string name_;
};

}  // namespace

TrainingGraph twoLayers(const TwoLayerSizes& sizes, const std::string& optimizer) {
  StageModel model;
  const Shape shape{sizes.batch, sizes.width};
  const ValueId x = model.input("x", shape);
  const ValueId y = model.input("y", shape);
  const ValueId hidden = model.op("MatMul", {x, model.parameter("w1", {sizes.width, sizes.width})}, shape);
  const ValueId out = model.op("MatMul", {hidden, model.parameter("w2", {sizes.width, sizes.width})}, shape);
  return model.finish(sumOfSquares(model, model.op("Sub", {out, y}, shape), shape), optimizer);
}

TrainingGraph perceptron(int64_t batch, int64_t in, int64_t hidden, int64_t out,
                         const std::string& optimizer) {
  StageModel model;
  const ValueId x = model.input("x", {batch, in});
  const ValueId first = model.op(
      "Gemm", {x, model.parameter("fc1.weight", {in, hidden}), model.parameter("fc1.bias", {hidden})},
      {batch, hidden});
  const ValueId active = model.op("Relu", {first}, {batch, hidden});
  const ValueId second = model.op(
      "Gemm", {active, model.parameter("fc2.weight", {hidden, out}), model.parameter("fc2.bias", {out})},
      {batch, out});
  return model.finish(sumOfSquares(model, second, {batch, out}), optimizer);
}

TrainingGraph gpt(const GptSizes& sizes, const std::string& optimizer) {
  StageModel model;
  GptBuilder builder(model, sizes);
  const Shape stream{sizes.batch, sizes.sequence, sizes.hidden};
  if (sizes.vocabulary == 0) {
    // The first layer needs a gradient of its input, as all others do.
    ValueId x = model.op(
        "Add", {model.input("x", stream), model.parameter("position", {sizes.sequence, sizes.hidden})},
        stream);
    for (int64_t layer = 0; layer < sizes.layers; ++layer) x = builder.block(x, layer);
    return model.finish(sumOfSquares(model, x, stream), optimizer);
  }
  const ValueId tokens = model.input("tokens", {sizes.batch, sizes.sequence}, DataType::kInt64);
  const ValueId labels = model.input("labels", {sizes.batch * sizes.sequence}, DataType::kInt64);
  const ValueId embedding = model.parameter("embedding", {sizes.vocabulary, sizes.hidden});
  ValueId x = model.op("Gather", {embedding, tokens}, stream, {{"axis", int64_t{0}}});
  x = model.op("Add", {x, model.parameter("position", {sizes.sequence, sizes.hidden})}, stream);
  for (int64_t layer = 0; layer < sizes.layers; ++layer) x = builder.block(x, layer);
  const Shape flat{sizes.batch * sizes.sequence, sizes.hidden};
  const Shape logits{sizes.batch * sizes.sequence, sizes.vocabulary};
  const ValueId rows = model.op("Reshape", {x, model.integers(flat)}, flat);
  const ValueId head = model.parameter("head", {sizes.hidden, sizes.vocabulary});
  const ValueId scores = model.op("MatMul", {rows, head}, logits);
  return model.finish(
      model.op("SoftmaxCrossEntropyLoss", {scores, labels}, {}, {{"reduction", std::string("sum")}}),
      optimizer);
}

TrainingGraph mixtureOfExperts(const ExpertSizes& sizes, const std::string& optimizer) {
  const auto [batch, sequence, hidden, experts, capacity, inner] = sizes;
  StageModel model;
  const Shape stream{batch, sequence, hidden}, slots{batch, experts * capacity, hidden};
  const auto transposed = [&](ValueId value, std::vector<int64_t> perm, Shape shape) {
    return model.op("Transpose", {value}, std::move(shape), {{"perm", std::move(perm)}});
  };
  ValueId x =
      model.op("MatMul", {model.input("x", stream), model.parameter("dense", {hidden, hidden})}, stream);
  const ValueId mask = model.input("mask", {batch, sequence, experts * capacity});
  const ValueId dispatched =
      model.op("MatMul", {transposed(mask, {0, 2, 1}, {batch, experts * capacity, sequence}), x}, slots);
  const Shape by_example{batch, experts, capacity, hidden}, by_expert{experts, batch, capacity, hidden};
  ValueId tokens = model.op("Reshape", {dispatched, model.integers(by_example)}, by_example);
  tokens = transposed(tokens, {1, 0, 2, 3}, by_expert);
  const Shape flat{experts, batch * capacity, hidden}, wide{experts, batch * capacity, inner};
  tokens = model.op("Reshape", {tokens, model.integers(flat)}, flat);
  tokens = model.op(
      "Relu", {model.op("MatMul", {tokens, model.parameter("up", {experts, hidden, inner})}, wide)}, wide);
  tokens = model.op("MatMul", {tokens, model.parameter("down", {experts, inner, hidden})}, flat);
  tokens = model.op("Reshape", {tokens, model.integers(by_expert)}, by_expert);
  tokens = transposed(tokens, {1, 0, 2, 3}, by_example);
  tokens = model.op("Reshape", {tokens, model.integers(slots)}, slots);
  x = model.op("Add", {x, model.op("MatMul", {mask, tokens}, stream)}, stream);
  return model.finish(sumOfSquares(model, x, stream), optimizer);
}

}  // namespace pipeshard::testing
