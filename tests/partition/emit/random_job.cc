#include "tests/partition/emit/random_job.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "partition/stages/partition_training.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using Kind = TrainingBuilder::Kind;

// The same graph for every number of rows.
class RandomStep {
 public:
  // `rows_differ`: whatever is split depends on the input "x", so that no row is like another; no states,
  // whose nodes run for nothing else.
  RandomStep(unsigned seed, int64_t rows, int64_t microbatches, bool rows_differ)
      : random_(seed), builder_(microbatches, rows), rows_differ_(rows_differ) {}

  TrainingGraph make() {
    addSources();
    for (size_t nodes = 3 + random_() % 12; nodes > 0; --nodes) addNode();
    std::vector<ValueId> losses = {builder_.reduce("last", {pool(Kind::kSplit).back(), any(Kind::kSplit)})};
    for (size_t i = random_() % 3; i > 0 && !pool(Kind::kSum).empty(); --i) losses.push_back(any(Kind::kSum));
    if (random_() % 3 == 0) losses.push_back(any(Kind::kInvariant));
    return builder_.finish(losses, random_() % 3);
  }

 private:
  std::vector<ValueId>& pool(Kind kind) { return pools_[kind]; }
  ValueId any(Kind kind) { return pool(kind)[random_() % pool(kind).size()]; }
  void add(ValueId id) { pool(builder_.kind(id)).push_back(id); }

  // The newest more often, so that chains grow.
  ValueId recent(Kind kind) { return random_() % 2 ? pool(kind).back() : any(kind); }

  void addSources() {
    add(builder_.input("x"));
    if (random_() % 2) add(builder_.input("y", 1));
    add(builder_.input("mask", -1));
    add(builder_.constant("c"));
    add(builder_.weight("frozen"));
    if (random_() % 2) add(builder_.total("count", any(Kind::kSplit)));
    if (random_() % 3 == 0 && !rows_differ_)
      add(builder_.growingConstant("ones" + std::to_string(random_() % 3)));
  }

  ValueId parameter() {
    if (!parameters_.empty() && random_() % 3 == 0) return parameters_[random_() % parameters_.size()];
    const std::string name = "w" + std::to_string(parameters_.size());
    parameters_.push_back(random_() % 2 ? builder_.parameter(name) : builder_.smallParameter(name));
    return parameters_.back();
  }

  std::vector<ValueId> with(std::vector<ValueId> inputs, Kind others) {
    for (size_t i = random_() % 3; i > 0; --i)
      inputs.push_back(any(random_() % 2 ? others : Kind::kInvariant));
    if (random_() % 2) inputs.push_back(parameter());
    if (rows_differ_ && others == Kind::kSplit) inputs.push_back(pool(Kind::kSplit).front());
    std::shuffle(inputs.begin(), inputs.end(), random_);
    return inputs;
  }

  void addNode() {
    const std::string name = "h" + std::to_string(nodes_++);
    const bool has_sum = !pool(Kind::kSum).empty();
    switch (random_() % (rows_differ_ ? 10 : 12)) {
      case 0: return add(builder_.op(name, with({parameter()}, Kind::kInvariant)));
      case 1: return add(builder_.bias(name, builder_.op(name + "_in", {parameter()}), parameter()));
      case 2: return add(builder_.reduce(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
      case 3: return add(builder_.share(name, with({parameter()}, Kind::kInvariant)));
      case 4:
      case 5:
        if (has_sum) return add(builder_.op(name, with({recent(Kind::kSum)}, Kind::kSum)));
        return add(builder_.reduce(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
      case 6: return add(builder_.reshape(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
      case 10: return add(builder_.stateful(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
      case 11: return add(builder_.expand(name, with({parameter()}, Kind::kInvariant)));
      default: return add(builder_.op(name, with({recent(Kind::kSplit)}, Kind::kSplit)));
    }
  }

  std::mt19937 random_;
  TrainingBuilder builder_;
  const bool rows_differ_;
  std::map<Kind, std::vector<ValueId>> pools_;
  std::vector<ValueId> parameters_;
  size_t nodes_ = 0;
};

constexpr std::pair<int, int> kMeshes[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {1, 3}, {2, 2}};

void cutAndPlace(Job& job, bool along_data, std::mt19937& random) {
  cutAtRandom(job, 4, along_data, random);
  std::vector<int> groups(job.plan.stages.size());
  std::iota(groups.begin(), groups.end(), 0);
  placeAtRandom(job, groups, along_data, random);
}

}  // namespace

std::vector<Rows> Job::parts() const {
  std::vector<Rows> parts;
  for (int64_t k = 0; k < microbatches; ++k) parts.push_back(shareOf({0, batch}, k, microbatches));
  return parts;
}

void cutAtRandom(Job& job, size_t most_stages, bool rows_differ, std::mt19937& random) {
  const TrainingFamily family = job.family();
  const TrainingGraph& training = family.base();
  std::vector<std::string> names;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    const std::string& name = training.graph.value(training.graph.nodes[n].outputs[0]).name;
    if (training.node_phase[n] == Phase::kForward && !(rows_differ && name.ends_with("_in")))
      names.push_back(name);
  }
  const size_t stages = 1 + random() % std::min(names.size(), most_stages);
  std::vector<size_t> cuts(names.size() - 1);
  std::iota(cuts.begin(), cuts.end(), 0);
  std::shuffle(cuts.begin(), cuts.end(), random);
  cuts.resize(stages - 1);
  std::sort(cuts.begin(), cuts.end());
  PartitionOptions options;
  options.cluster = uniformCluster(1, stages);
  options.stages = uniformStages(stages);
  for (size_t cut : cuts) options.boundaries.push_back(names[cut]);
  partitionTraining(training, options, job.plan);
}

void placeAtRandom(Job& job, const std::vector<int>& groups, bool along_data, std::mt19937& random) {
  const size_t count = static_cast<size_t>(*std::max_element(groups.begin(), groups.end())) + 1;
  std::vector<std::pair<int, int>> meshes;
  for (size_t g = 0; g < count; ++g) {
    std::pair<int, int> mesh = kMeshes[random() % std::size(kMeshes)];
    if (along_data) mesh.second = 1;
    if (mesh.first > job.batch / job.microbatches) mesh = {1, mesh.second};
    meshes.push_back(mesh);
  }
  int devices = 0;
  for (const auto& [data, model] : meshes) devices += data * model;
  std::vector<RankId> numbers = idsBelow<RankId>(devices);
  std::shuffle(numbers.begin(), numbers.end(), random);
  auto next = numbers.begin();
  for (size_t g = 0; g < count; ++g) {
    const auto end = next + meshes[g].first * meshes[g].second;
    for (size_t s = 0; s < groups.size(); ++s) {
      if (groups[s] != static_cast<int>(g)) continue;
      job.plan.stages[StageId(s)].mesh_shape = {meshes[g].first, meshes[g].second};
      job.plan.stages[StageId(s)].devices.assign(next, end);
    }
    next = end;
  }
}

Job wholeJob(unsigned seed, bool rows_differ, int64_t microbatches, std::mt19937& random) {
  Job job;
  job.microbatches = 1 + static_cast<int64_t>(random() % 4);
  job.batch =
      job.microbatches * (1 + static_cast<int64_t>(random() % 5)) + static_cast<int64_t>(random() % 4);
  if (microbatches > 0) {
    job.batch = job.batch / job.microbatches * microbatches;
    job.microbatches = microbatches;
  }
  job.maker = [seed, rows_differ, microbatches = job.microbatches](int64_t rows) {
    return RandomStep(seed, rows, microbatches, rows_differ).make();
  };
  job.plan.microbatches = job.microbatches;
  job.plan.given.bucket_bytes = std::array<int64_t, 4>{0, 1, 1000, kDefaultBucketBytes}[seed % 4];
  job.plan.given.overlap_receives = seed / 4 % 2 == 0 ? OverlapReceives::kOn : OverlapReceives::kOff;
  return job;
}

Job randomJob(unsigned seed, bool rows_differ, int64_t microbatches) {
  std::mt19937 random(seed);
  Job job = wholeJob(seed, rows_differ, microbatches, random);
  cutAndPlace(job, rows_differ, random);
  return job;
}

// Ranks in order of stages, or those of a line of replicas one after the other.
Job replicatedJob(unsigned seed, bool rows_differ, int64_t microbatches) {
  std::mt19937 random(seed);
  Job job = wholeJob(seed, rows_differ, microbatches, random);
  const int data = 2 + static_cast<int>(random() % 3);
  const int model = rows_differ ? 1 : 1 + static_cast<int>(random() % 2);
  job.batch = job.microbatches * data * (1 + static_cast<int64_t>(random() % 2));
  cutAtRandom(job, 3, rows_differ, random);
  const bool by_stage = random() % 2 == 0;
  const int width = data * model, stages = static_cast<int>(job.plan.stages.size());
  for (const StageId id : job.plan.stages.ids()) {
    auto& stage = job.plan.stages[id];
    const int s = static_cast<int>(id.index());
    stage.mesh_shape = {data, model};
    stage.devices.clear();
    for (int i = 0; i < width; ++i) stage.devices.emplace_back(by_stage ? s * width + i : i * stages + s);
  }
  return job;
}

}  // namespace pipeshard
