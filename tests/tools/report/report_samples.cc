#include "tests/tools/report/report_samples.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/simulation/simulator.h"
#include "tools/report/report_timeline.h"

namespace pipeshard {

Plan planOf(int stages, int64_t microbatches, const std::string& schedule) {
  Plan plan;
  plan.model_path = "/models/tiny <b>.onnx";
  plan.dimensions = {{"batch", 8}};
  plan.batch_dimension = "batch";
  plan.loss = "cross-entropy:logits,labels";
  plan.given.optimizer = parseOptimizer("sgd:lr=0.1");
  plan.cluster = uniformCluster(1, stages);
  plan.microbatches = microbatches;
  plan.schedule = parseSchedule(schedule);
  for (int s = 0; s < stages; ++s) {
    plan.layers.push_back(
        {fmt::format("first_of_{}", s), fmt::format("last_of_{}", s), 2 * s, 2 * s + 1, 100});
    StagePlan stage;
    stage.first_layer = stage.last_layer = LayerId(s);
    stage.devices = {RankId(s)};
    stage.forward_flops = 100;
    stage.backward_flops = 200;
    plan.stages.push_back(stage);
  }
  return plan;
}

Plan chunkedPlan(int ranks, int chunks, int64_t microbatches) {
  Plan plan =
      planOf(ranks * chunks, microbatches, chunks == 1 ? "zb-h1" : fmt::format("interleaved:v={}", chunks));
  plan.model_path = "/home/somebody/models/language/gpt2-small-with-a-loss-inside-and-a-long-name.onnx";
  plan.cluster = uniformCluster((ranks + 7) / 8, std::min(ranks, 8));
  plan.given.optimizer = parseOptimizer("adamw:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0.01");
  plan.notes = {
      "operator /transformer/h.0/attn/Softmax is replicated: it has no factor rule for a sharded class axis"};
  for (int s = 0; s < ranks * chunks; ++s) {
    StagePlan& stage = plan.stages[StageId(s)];
    stage.devices = {RankId(s % ranks)};
    stage.forward_flops = 3'400'000'000 + 150'000'000 * (s % 3);
    stage.backward_flops = 2 * stage.forward_flops;
    stage.parameter_bytes = 28'500'000;
    stage.peak_activations = ranks - s % ranks;
    LayerPlan& layer = plan.layers[LayerId(s)];
    layer.first_node = fmt::format("/transformer/h.{}/attn/c_attn/MatMul_output_0_with_a_long_suffix", s);
    layer.last_node = fmt::format("/transformer/h.{}/mlp/c_proj/Add", s);
    layer.flops = stage.forward_flops;
  }
  return plan;
}

Plan shardedPlan() {
  Plan plan = planOf(2, 2, "gpipe");
  plan.cluster = uniformCluster(1, 8);
  plan.stages[StageId(0)].devices = idsAt<RankId>({0, 1, 2, 3});
  plan.stages[StageId(1)].devices = idsAt<RankId>({4});
  plan.stages[StageId(0)].sharding = ShardingPlan{parseShardingMethod("megatron:2,2"),
                                                  {2, 2},
                                                  {{"h", "0:i"}},
                                                  {{"w<1>", "R,S1"}, {"h", "S0,S1"}, {"y", "S0,R;P1"}},
                                                  1250000,
                                                  500000,
                                                  3 << 20,
                                                  1500000,
                                                  true};
  return plan;
}

std::vector<ReportedParameter> shardedParameters() {
  return {{StageId(0), "w<1>", DataType::kFloat32, {256, 512}, {256, 256}},
          {StageId(0), "bias", DataType::kFloat32, {512}, {512}},
          {StageId(1), "of_another_stage", DataType::kFloat32, {512}, {512}}};
}

Trace measuredTrace(const Plan& plan, const Schedule& schedule) {
  IdVector<StageId, PassTimes> times = passTimes(plan);
  for (const StageId s : times.ids()) {
    const auto slower = [&](Ticks ticks) {
      return ticks / 1000 + ticks / 1000 * static_cast<Ticks>(s.index() * 7 % 5) / 25;
    };
    times[s] = {.forward = slower(times[s].forward),
                .backward_input = slower(times[s].backward_input),
                .backward_weight = slower(times[s].backward_weight),
                .activation = 40 << 20};
  }
  const Simulation run = simulate({.schedule = schedule, .stages = times, .latency = 150'000});
  Trace trace{.source = "measured", .ranks = schedule.ranks(), .rank_names = {}, .events = {}, .memory = {}};
  for (int r = 0; r < schedule.ranks(); ++r) {
    for (const SimulatedAction& done : run.ranks[PipelineRankId(r)]) {
      TraceEvent event{.work = traceWorkOf(done.action.kind),
                       .rank = RankId(r),
                       .step = 2,
                       .stage = done.action.stage,
                       .microbatch = done.action.microbatch,
                       .name = actionToString(done.action),
                       .start_ns = done.start,
                       .end_ns = done.end};
      event.arrived_ns = event.start_ns;
      trace.events.push_back(event);
    }
    for (const MemoryPoint& point : run.memory[PipelineRankId(r)])
      trace.memory.push_back({RankId(r), point.time, point.held + (100 << 20)});
  }
  for (const SimulatedMessage& message : run.messages) {
    TraceEvent event{.kind = TraceEventKind::kReceive,
                     .rank = RankId(message.to.index()),
                     .step = 2,
                     .stage = message.sent.stage,
                     .microbatch = message.sent.microbatch,
                     .name = "receive",
                     .start_ns = message.started,
                     .end_ns = message.arrived};
    event.arrived_ns = message.started;
    event.peer = RankId(message.from.index());
    trace.events.push_back(event);
  }
  return trace;
}

TensorComparison compared(const std::string& name, double error, double bound) {
  TensorComparison tensor;
  tensor.name = name;
  tensor.step = 1;
  tensor.error = error;
  tensor.bound = bound;
  return tensor;
}

ValidationReport validated(std::vector<TensorComparison> tensors) {
  ValidationReport report;
  report.ranks = 2;
  report.steps = {{1.25, 1.25}, {1.125, 1.125}};
  report.tensors = std::move(tensors);
  return report;
}

ValidationReport validatedRun(int ranks) {
  ValidationReport report =
      validated({compared("transformer.h.11.attn.c_attn.weight_with_a_long_name", 3e-7, 1e-5),
                 compared("lm_head.weight", 1e-9, std::numeric_limits<double>::infinity())});
  report.ranks = ranks;
  RankResult rank;
  rank.memory.parameters = 30 << 20;
  rank.memory.activations = 70 << 20;
  rank.arena_bytes = 110 << 20;
  rank.peak_resident_bytes = 190 << 20;
  report.planned.ranks.assign(ranks, rank);
  report.planned.steps = {
      {2, 1.125, {}, 0.75, IdVector<RankId, double>(ranks, 0.5), IdVector<RankId, double>(ranks, 0.125)}};
  return report;
}

std::vector<std::pair<std::string, std::string>> samplePages() {
  std::vector<std::pair<std::string, std::string>> pages;
  const Plan planned = planOf(4, 8, "1f1b");
  pages.emplace_back("planned", renderReport({.plan = planned}));
  const Plan chunked = chunkedPlan(4, 2, 8);
  const Schedule schedule = scheduleOf(chunked);
  const Trace measured = measuredTrace(chunked, schedule);
  const ValidationReport passed = validatedRun(4);
  pages.emplace_back("measured",
                     renderReport({.plan = chunked, .validation = &passed, .measured = measured}));
  Plan limited = shardedPlan();
  limited.stages[StageId(0)].sharding->memory_limit = 400 << 20;
  const ValidationReport failed =
      validated({compared("broken", std::numeric_limits<double>::infinity(), 1e-5)});
  pages.emplace_back(
      "sharded", renderReport({.plan = limited, .validation = &failed, .parameters = shardedParameters()}));
  const Plan large = chunkedPlan(16, 1, 128);
  const Schedule split = scheduleOf(large);
  pages.emplace_back("large", renderReport({.plan = large, .measured = measuredTrace(large, split)}));
  return pages;
}

size_t countOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace pipeshard
