// Building a rank's subgraphs and program by hand, with the weights of pipeline_program.h.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/pipeline_program.h"

namespace pipeshard {

// Builds one subgraph by name.
class Sketch {
 public:
  Sketch(std::string name, DataType type) : builder_(graph_), type_(type) {
    graph_.name = std::move(name);
    graph_.opset_imports[""] = 18;
  }
  ValueId input(const char* name, Shape shape) {
    const ValueId id = builder_.addValue(name, type_, std::move(shape));
    graph_.inputs.push_back(id);
    return id;
  }
  ValueId constant(const char* name, Constant constant) {
    return builder_.addConstant(name, std::move(constant));
  }
  ValueId node(const char* op, std::vector<ValueId> inputs, const char* name, Shape shape,
               std::map<std::string, Attribute> attributes = {}) {
    const ValueId id = builder_.addValue(name, type_, std::move(shape));
    builder_.addNode("", op, std::move(inputs), {id}, std::move(attributes));
    return id;
  }
  ValueId transpose(ValueId id, const char* name) {
    const Shape shape = graph_.shape(id);
    return node("Transpose", {id}, name, {shape[1], shape[0]}, {{"perm", std::vector<int64_t>{1, 0}}});
  }
  Graph finish(std::vector<ValueId> outputs) {
    graph_.outputs = std::move(outputs);
    return std::move(graph_);
  }

 private:
  Graph graph_;
  GraphBuilder builder_;
  DataType type_;
};

// Builds one rank's program.
class RankSketch {
 public:
  RankSketch(int rank, int ranks, const PipelineOptions& options)
      : options_(options), rows_(options.batch / options.microbatches) {
    image_.program.rank = RankId(rank);
    image_.program.world_size = ranks;
    image_.program.microbatches = options.microbatches;
    image_.program.inputs = {{"x", options.data_type, {options.batch, kFeatures}, 0, 0, 0}};
  }

  BufferId buffer(const std::string& name, BufferKind kind, Shape shape, const std::string& value = "") {
    image_.program.buffers.push_back(
        {name, kind, options_.data_type, std::move(shape), value, std::nullopt, DataType::kUndefined});
    return BufferId(image_.program.buffers.size() - 1);
  }
  BufferId weight(int which, Shape shape) {
    const std::string name = "w" + std::to_string(which);
    const BufferId id = buffer(name, BufferKind::kParameter, shape, name);
    image_.program.buffers[id.index()].source = makeConstant<double>(std::move(shape), initialWeights(which));
    image_.program.buffers[id.index()].source_type = DataType::kFloat64;
    return id;
  }
  SubgraphId subgraph(Graph graph, Phase phase) {
    Subgraph description{graph.name, graph.name + ".onnx", phase, {}, {}};
    for (const ValueId id : graph.inputs) description.inputs.push_back(graph.value(id).name);
    for (const ValueId id : graph.outputs) description.outputs.push_back(graph.value(id).name);
    image_.program.subgraphs.push_back(std::move(description));
    image_.subgraphs.push_back(std::move(graph));
    return SubgraphId(image_.subgraphs.size() - 1);
  }
  Instruction& add(InstructionKind kind, std::vector<BufferId> inputs, std::vector<BufferId> outputs,
                   int microbatch = -1) {
    Instruction instruction;
    instruction.kind = kind;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    instruction.microbatch = microbatch;
    image_.program.instructions.push_back(std::move(instruction));
    return image_.program.instructions.back();
  }
  void run(SubgraphId subgraph, std::vector<BufferId> inputs, std::vector<BufferId> outputs, int microbatch) {
    add(InstructionKind::kRun, std::move(inputs), std::move(outputs), microbatch).subgraph = subgraph;
  }
  // The buffer holds [start, start + its shape) of `whole`; its source, if it has one, becomes that of the
  // whole.
  void makePart(BufferId id, const Shape& whole, Shape start) {
    Buffer& buffer = image_.program.buffers[id.index()];
    buffer.part = BufferPart{whole, std::move(start)};
    if (buffer.source) std::get<Constant>(*buffer.source).shape = whole;
  }
  void group(std::vector<RankId> ranks) { image_.program.groups.push_back(std::move(ranks)); }
  void free(BufferId id) { add(InstructionKind::kFree, {id}, {}); }
  void result(Result::Kind kind, const std::string& name, BufferId id) {
    image_.program.results.push_back({kind, name, "", id});
  }
  void update(int which, BufferId weight, BufferId gradient, const Shape& shape) {
    Sketch sketch("update_w" + std::to_string(which), options_.data_type);
    const ValueId w = sketch.input("w", shape);
    const ValueId g = sketch.input("g", shape);
    const ValueId rate = sketch.constant("rate", makeScalar(options_.data_type, options_.rate));
    const ValueId change = sketch.node("Mul", {g, rate}, "change", shape);
    const SubgraphId id =
        subgraph(sketch.finish({sketch.node("Sub", {w, change}, "updated", shape)}), Phase::kUpdate);
    add(InstructionKind::kUpdate, {weight, gradient}, {weight}).subgraph = id;
    result(Result::Kind::kGradient, "w" + std::to_string(which), gradient);
    result(Result::Kind::kParameter, "w" + std::to_string(which), weight);
  }
  int64_t rows() const { return rows_; }
  DataType type() const { return options_.data_type; }
  bool endless() const { return options_.endless; }
  RankImage finish() { return std::move(image_); }

 private:
  PipelineOptions options_;
  int64_t rows_;
  RankImage image_;
};

}  // namespace pipeshard
