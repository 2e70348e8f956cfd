#include "tests/runtime/pipeline_program.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <span>

#include "ir/program/program_json.h"
#include "onnx_import/format/writer.h"
#include "runtime/data/data.h"
#include "tests/runtime/rank_sketch.h"

namespace pipeshard {
namespace {

const Shape kShape0{kFeatures, kHidden};
const Shape kShape1{kHidden, kOutputs};

std::string at(const char* name, int64_t k) { return fmt::format("{}@{}", name, k); }

Graph firstForward(const RankSketch& rank) {
  Sketch sketch("forward0", rank.type());
  const ValueId x = sketch.input("x", {rank.rows(), kFeatures});
  const ValueId w = sketch.input("w", kShape0);
  return sketch.finish({sketch.node("MatMul", {x, w}, "h", {rank.rows(), kHidden})});
}

Graph firstBackward(const RankSketch& rank) {
  Sketch sketch("backward0", rank.type());
  const ValueId x = sketch.input("x", {rank.rows(), kFeatures});
  const ValueId dh = sketch.input("dh", {rank.rows(), kHidden});
  return sketch.finish({sketch.node("MatMul", {sketch.transpose(x, "xt"), dh}, "dw", kShape0)});
}

// A zero whose computation takes minutes: the largest of every window of 1000 x 1000 elements.
ValueId endlessZero(Sketch& sketch, DataType type) {
  constexpr int64_t kImage = 2000, kWindow = 1000;
  const std::vector<double> zeros(kImage * kImage);
  const ValueId image = sketch.constant(
      "image", type == DataType::kFloat64
                   ? makeConstant<double>({1, 1, kImage, kImage}, zeros)
                   : makeConstant<float>({1, 1, kImage, kImage}, {zeros.begin(), zeros.end()}));
  const Shape pooled{1, 1, kImage - kWindow + 1, kImage - kWindow + 1};
  const ValueId largest = sketch.node("MaxPool", {image}, "largest", pooled,
                                      {{"kernel_shape", std::vector<int64_t>{kWindow, kWindow}}});
  return sketch.node("ReduceSum", {largest}, "endless_zero", {}, {{"keepdims", int64_t{0}}});
}

// h, w -> loss, dh, dw
Graph second(const RankSketch& rank) {
  Sketch sketch("forward_backward1", rank.type());
  const ValueId h = sketch.input("h", {rank.rows(), kHidden});
  const ValueId w = sketch.input("w", kShape1);
  const ValueId two = sketch.constant("two", makeScalar(rank.type(), 2));
  const ValueId y = sketch.node("MatMul", {h, w}, "y", {rank.rows(), kOutputs});
  const ValueId square = sketch.node("Mul", {y, y}, "square", {rank.rows(), kOutputs});
  ValueId loss =
      sketch.node("ReduceSum", {square}, rank.endless() ? "sum" : "loss", {}, {{"keepdims", int64_t{0}}});
  if (rank.endless()) loss = sketch.node("Add", {loss, endlessZero(sketch, rank.type())}, "loss", {});
  const ValueId dy = sketch.node("Mul", {y, two}, "dy", {rank.rows(), kOutputs});
  const ValueId dh = sketch.node("MatMul", {dy, sketch.transpose(w, "wt")}, "dh", {rank.rows(), kHidden});
  const ValueId dw = sketch.node("MatMul", {sketch.transpose(h, "ht"), dy}, "dw", kShape1);
  return sketch.finish({loss, dh, dw});
}

// What the ranks of the pipeline do with microbatch k. On one rank, h and dh stay where they are.
struct Halves {
  RankSketch& first;
  RankSketch& last;
  BufferId w0, gradient0, w1, gradient1, loss;
  SubgraphId forward0, backward0, second;

  void microbatch(int64_t k) {
    const bool is_pipeline = &first != &last;
    const int microbatch = k;
    const BufferId x = first.buffer(at("x", k), BufferKind::kInput, {first.rows(), kFeatures}, "x");
    const BufferId h0 = first.buffer(at("h", k), BufferKind::kActivation, {first.rows(), kHidden});
    const BufferId h1 =
        is_pipeline ? last.buffer(at("h", k), BufferKind::kActivation, {first.rows(), kHidden}) : h0;
    first.add(InstructionKind::kLoadInput, {}, {x}, microbatch).offset = k * first.rows();
    first.run(forward0, {x, w0}, {h0}, microbatch);
    if (is_pipeline) {
      first.add(InstructionKind::kSend, {h0}, {}, microbatch).peer = RankId(1);
      last.add(InstructionKind::kReceive, {}, {h1}, microbatch).peer = RankId(0);
    }
    const BufferId part = last.buffer(at("loss", k), BufferKind::kActivation, {});
    const BufferId dh1 = last.buffer(at("dh", k), BufferKind::kActivation, {first.rows(), kHidden});
    const BufferId dw1 = last.buffer(at("dw1", k), BufferKind::kActivation, kShape1);
    last.run(second, {h1, w1}, {part, dh1, dw1}, microbatch);
    last.add(InstructionKind::kAccumulate, {part}, {loss}, microbatch).overwrite = k == 0;
    last.add(InstructionKind::kAccumulate, {dw1}, {gradient1}, microbatch).overwrite = k == 0;
    const BufferId dh0 =
        is_pipeline ? first.buffer(at("dh", k), BufferKind::kActivation, {first.rows(), kHidden}) : dh1;
    if (is_pipeline) {
      last.add(InstructionKind::kSend, {dh1}, {}, microbatch).peer = RankId(0);
      first.add(InstructionKind::kReceive, {}, {dh0}, microbatch).peer = RankId(1);
      for (const BufferId id : {part, dw1, h1, dh1}) last.free(id);
    }
    const BufferId dw0 = first.buffer(at("dw0", k), BufferKind::kActivation, kShape0);
    first.run(backward0, {x, dh0}, {dw0}, microbatch);
    first.add(InstructionKind::kAccumulate, {dw0}, {gradient0}, microbatch).overwrite = k == 0;
    for (const BufferId id : {x, h0, dh0, dw0}) first.free(id);
    if (!is_pipeline) {
      for (const BufferId id : {part, dw1}) last.free(id);
    }
  }
};

}  // namespace

std::vector<double> initialWeights(int which) {
  std::vector<double> weights(elementCount(which == 0 ? kShape0 : kShape1));
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] =
        0.1 * static_cast<double>(static_cast<int>((i * 7 + static_cast<size_t>(which) * 3) % 11) - 5);
  return weights;
}

std::vector<RankImage> pipelineImages(int ranks, const PipelineOptions& options) {
  std::vector<RankSketch> sketches;
  for (int rank = 0; rank < ranks; ++rank) sketches.emplace_back(rank, ranks, options);
  RankSketch& first = sketches.front();
  RankSketch& last = sketches.back();
  const BufferId w0 = first.weight(0, kShape0);
  const BufferId gradient0 = first.buffer("g0", BufferKind::kGradient, kShape0, "w0");
  const BufferId w1 = last.weight(1, kShape1);
  const BufferId gradient1 = last.buffer("g1", BufferKind::kGradient, kShape1, "w1");
  const BufferId loss = last.buffer("loss", BufferKind::kAccumulator, {});
  Halves halves{first,
                last,
                w0,
                gradient0,
                w1,
                gradient1,
                loss,
                first.subgraph(firstForward(first), Phase::kForward),
                first.subgraph(firstBackward(first), Phase::kBackwardWeight),
                last.subgraph(second(last), Phase::kForward)};
  for (int64_t k = 0; k < options.microbatches; ++k) halves.microbatch(k);
  first.update(0, w0, gradient0, kShape0);
  last.update(1, w1, gradient1, kShape1);
  last.result(Result::Kind::kLoss, "loss", loss);
  std::vector<RankImage> images;
  for (RankSketch& sketch : sketches) images.push_back(sketch.finish());
  return images;
}

void writePlanDirectory(const std::string& directory, const std::vector<RankImage>& images) {
  const std::filesystem::path folder(directory);
  for (const char* name : {kKindsFolder, kSubgraphsFolder})
    std::filesystem::create_directories(folder / name);
  std::vector<Program> programs;
  for (const RankImage& image : images) {
    Program& program = programs.emplace_back(image.program);
    for (size_t s = 0; s < image.subgraphs.size(); ++s) {
      std::string& file = program.subgraphs[s].file;
      file = rankFileStem(program.rank) + "_" + file;
      writeModel(image.subgraphs[s], (folder / kSubgraphsFolder / file).string());
    }
  }
  const ProgramSet set = setOf(std::move(programs));
  for (const KindId id : set.kinds.ids())
    std::ofstream(folder / kindFileName(id, StepSize::kWholeBatch)) << kindToJson(set.kinds[id]);
  std::ofstream(folder / kRanksFileName) << rankTablesToJson({bindingsOf(set), std::nullopt});
}

std::vector<ExpectedStep> expectedSteps(int steps, uint64_t seed, const PipelineOptions& options) {
  const ProgramInput input{"x", DataType::kFloat64, {options.batch, kFeatures}, 0, 0, 0};
  const auto data = makeSyntheticData({input}, seed);
  std::vector<double> w[2] = {initialWeights(0), initialWeights(1)};
  std::vector<ExpectedStep> result;
  for (int step = 1; step <= steps; ++step) {
    std::vector<double> x(options.batch * kFeatures);
    data->fill(0, step, 0, std::as_writable_bytes(std::span(x)));
    ExpectedStep expected;
    expected.gradients[0].resize(w[0].size());
    expected.gradients[1].resize(w[1].size());
    for (int64_t b = 0; b < options.batch; ++b) {
      double h[kHidden] = {}, dh[kHidden] = {};
      for (int64_t j = 0; j < kHidden; ++j) {
        for (int64_t i = 0; i < kFeatures; ++i) h[j] += x[b * kFeatures + i] * w[0][i * kHidden + j];
      }
      for (int64_t o = 0; o < kOutputs; ++o) {
        double y = 0;
        for (int64_t j = 0; j < kHidden; ++j) y += h[j] * w[1][j * kOutputs + o];
        expected.loss += y * y;
        for (int64_t j = 0; j < kHidden; ++j) {
          expected.gradients[1][j * kOutputs + o] += h[j] * 2 * y;
          dh[j] += 2 * y * w[1][j * kOutputs + o];
        }
      }
      for (int64_t i = 0; i < kFeatures; ++i) {
        for (int64_t j = 0; j < kHidden; ++j)
          expected.gradients[0][i * kHidden + j] += x[b * kFeatures + i] * dh[j];
      }
    }
    for (int which : {0, 1}) {
      for (size_t i = 0; i < w[which].size(); ++i) w[which][i] -= options.rate * expected.gradients[which][i];
      expected.weights[which] = w[which];
    }
    result.push_back(std::move(expected));
  }
  return result;
}

}  // namespace pipeshard
