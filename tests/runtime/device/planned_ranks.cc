#include "tests/runtime/device/planned_ranks.h"

#include <fmt/format.h>

#include "partition/families/make_schedule.h"
#include "runtime/execute/dump.h"
#include "runtime/execute/executor.h"
#include "tests/transport/rank_threads.h"
#include "transport/shared/shared_memory.h"

namespace pipeshard::testing {
namespace {

Outcome outcomeOf(const Executor& executor, const StepReport& report) {
  Outcome outcome;
  const auto add = [&](const std::string& name, BufferId id) {
    const HostView view = executor.view(id);
    outcome[name] = {executor.program().buffer(id).data_type, {view.bytes().begin(), view.bytes().end()}};
  };
  for (const Result& result : executor.program().results) add(dumpTensorName(result), result.buffer);
  for (size_t b = 0; b < executor.program().buffers.size(); ++b) {
    const Buffer& buffer = executor.program().buffer(BufferId(b));
    if (isPersistent(buffer.kind)) add("buffer " + buffer.name, BufferId(b));
  }
  outcome["applied"] = {DataType::kBool, {report.applied ? std::byte{1} : std::byte{0}}};
  const auto losses = std::as_bytes(std::span(report.losses));
  outcome["losses"] = {DataType::kFloat64, {losses.begin(), losses.end()}};
  return outcome;
}

}  // namespace

void PrintTo(const PlannedCase& of, std::ostream* out) { *out << of.name; }

PlannedTraining plan(const PlannedCase& of) {
  PlanRequest request;
  request.model_path = fmt::format("{}/examples/{}.onnx", PIPESHARD_SOURCE_DIR, of.model);
  request.given.optimizer = parseOptimizer("adam:lr=0.001");
  request.microbatches = of.microbatches;
  request.partition.cluster = parseCluster(of.cluster);
  request.partition.stages = parseStages(of.stages);
  if (!of.schedule.empty()) request.partition.schedule = parseSchedule(of.schedule);
  if (!of.method.empty()) request.partition.sharding.method = parseSearchedMethod(of.method);
  if (of.also) of.also(request);
  return planTraining(request, [](const std::string&) {});
}

RankImage imageOf(const PlannedTraining& planned, RankId rank) {
  return {instantiate(planned.whole.ranks.set, rank), planned.whole.ranks.of(rank).subgraphs, ""};
}

Outcomes run(const PlannedTraining& planned, const std::function<std::unique_ptr<Device>()>& make_device,
             const std::function<void(int rank, const Device&)>& look,
             const std::function<void(Program&)>& change) {
  const size_t ranks = planned.whole.ranks.size();
  Outcomes outcomes(kPlannedSteps, std::vector<Outcome>(ranks));
  runRankThreads(static_cast<int>(ranks), [&](Communicator& opened) {
    RankImage image = imageOf(planned, opened.rank());
    if (change) change(image.program);
    auto& shared = dynamic_cast<SharedMemoryCommunicator&>(opened);
    const std::unique_ptr<Device> device = make_device ? make_device() : nullptr;
    MemoryBlock memory;  // given back behind the executor
    ExecutorOptions options;
    options.device = device.get();
    const auto data = makeDataSource({"", 3}, image.program);
    std::unique_ptr<Communicator> second;
    Executor executor(std::move(image), options);
    const size_t bytes = executor.memory().total_bytes;
    std::span<std::byte> arena = shared.createArena(device ? 0 : bytes);
    if (device) arena = (memory = device->allocate(bytes)).bytes;
    second = shared.openSecond();
    executor.attach(arena, &opened, data.get(), second.get());
    for (int64_t step = 1; step <= kPlannedSteps; ++step) {
      const StepReport report = executor.runStep(step);
      outcomes[step - 1][opened.rank().index()] = outcomeOf(executor, report);
    }
    if (look && device) look(static_cast<int>(opened.rank().index()), *device);
  });
  return outcomes;
}

}  // namespace pipeshard::testing
