#include "tests/runtime/sharded_pipeline.h"

#include <fmt/format.h>

#include "tests/runtime/rank_sketch.h"

namespace pipeshard {
namespace {

const Shape kShape0{kFeatures, kHidden};
const Shape kShape1{kHidden, kOutputs};

std::string at(const char* name, int64_t k) { return fmt::format("{}@{}", name, k); }

// x, w0, w1 -> h, the rank's summand of y
Graph forward(const RankSketch& rank, int64_t hidden) {
  Sketch sketch("forward", rank.type());
  const ValueId x = sketch.input("x", {rank.rows(), kFeatures});
  const ValueId w0 = sketch.input("w0", {kFeatures, hidden});
  const ValueId w1 = sketch.input("w1", {hidden, kOutputs});
  const ValueId h = sketch.node("MatMul", {x, w0}, "h", {rank.rows(), hidden});
  return sketch.finish({h, sketch.node("MatMul", {h, w1}, "y", {rank.rows(), kOutputs})});
}

// x, h, y, w1 -> loss, dw0, dw1
Graph backward(const RankSketch& rank, int64_t hidden) {
  Sketch sketch("backward", rank.type());
  const ValueId x = sketch.input("x", {rank.rows(), kFeatures});
  const ValueId h = sketch.input("h", {rank.rows(), hidden});
  const ValueId y = sketch.input("y", {rank.rows(), kOutputs});
  const ValueId w1 = sketch.input("w1", {hidden, kOutputs});
  const ValueId two = sketch.constant("two", makeScalar(rank.type(), 2));
  const ValueId square = sketch.node("Mul", {y, y}, "square", {rank.rows(), kOutputs});
  const ValueId loss = sketch.node("ReduceSum", {square}, "loss", {}, {{"keepdims", int64_t{0}}});
  const ValueId dy = sketch.node("Mul", {y, two}, "dy", {rank.rows(), kOutputs});
  const ValueId dh = sketch.node("MatMul", {dy, sketch.transpose(w1, "w1t")}, "dh", {rank.rows(), hidden});
  const ValueId dw0 = sketch.node("MatMul", {sketch.transpose(x, "xt"), dh}, "dw0", {kFeatures, hidden});
  const ValueId dw1 = sketch.node("MatMul", {sketch.transpose(h, "ht"), dy}, "dw1", {hidden, kOutputs});
  return sketch.finish({loss, dw0, dw1});
}

RankImage rankImage(int rank, int ranks, const PipelineOptions& options) {
  RankSketch sketch(rank, ranks, options);
  std::vector<int> all;
  sketch.group(idsBelow<RankId>(ranks));
  const int64_t begin = rank * kHidden / ranks;
  const int64_t hidden = (rank + 1) * kHidden / ranks - begin;
  const Shape shape0{kFeatures, hidden}, shape1{hidden, kOutputs};
  const BufferId w0 = sketch.weight(0, shape0), w1 = sketch.weight(1, shape1);
  const BufferId g0 = sketch.buffer("g0", BufferKind::kGradient, shape0, "w0");
  const BufferId g1 = sketch.buffer("g1", BufferKind::kGradient, shape1, "w1");
  for (const BufferId id : {w0, g0}) sketch.makePart(id, kShape0, {0, begin});
  for (const BufferId id : {w1, g1}) sketch.makePart(id, kShape1, {begin, 0});
  const BufferId loss = sketch.buffer("loss", BufferKind::kAccumulator, {});
  const SubgraphId run_forward = sketch.subgraph(forward(sketch, hidden), Phase::kForward);
  const SubgraphId run_backward = sketch.subgraph(backward(sketch, hidden), Phase::kBackwardInput);
  for (int64_t k = 0; k < options.microbatches; ++k) {
    const int microbatch = k;
    const auto activation = [&](const char* name, Shape shape) {
      return sketch.buffer(at(name, k), BufferKind::kActivation, std::move(shape));
    };
    const BufferId x = sketch.buffer(at("x", k), BufferKind::kInput, {sketch.rows(), kFeatures}, "x");
    const BufferId h = activation("h", {sketch.rows(), hidden}),
                   y = activation("y", {sketch.rows(), kOutputs});
    const BufferId part = activation("loss", {}), dw0 = activation("dw0", shape0),
                   dw1 = activation("dw1", shape1);
    sketch.add(InstructionKind::kLoadInput, {}, {x}, microbatch).offset = k * sketch.rows();
    sketch.run(run_forward, {x, w0, w1}, {h, y}, microbatch);
    sketch.add(InstructionKind::kAllReduce, {y}, {y}, microbatch).group = GroupId(0);
    sketch.run(run_backward, {x, h, y, w1}, {part, dw0, dw1}, microbatch);
    sketch.add(InstructionKind::kAccumulate, {part}, {loss}, microbatch).overwrite = k == 0;
    sketch.add(InstructionKind::kAccumulate, {dw0}, {g0}, microbatch).overwrite = k == 0;
    sketch.add(InstructionKind::kAccumulate, {dw1}, {g1}, microbatch).overwrite = k == 0;
    for (const BufferId id : {x, h, y, part, dw0, dw1}) sketch.free(id);
  }
  sketch.update(0, w0, g0, shape0);
  sketch.update(1, w1, g1, shape1);
  if (rank == 0) sketch.result(Result::Kind::kLoss, "loss", loss);
  if (rank != 0) sketch.free(loss);
  return sketch.finish();
}

}  // namespace

std::vector<RankImage> shardedPipelineImages(int ranks, const PipelineOptions& options) {
  std::vector<RankImage> images;
  for (int rank = 0; rank < ranks; ++rank) images.push_back(rankImage(rank, ranks, options));
  return images;
}

}  // namespace pipeshard
