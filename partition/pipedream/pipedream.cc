#include "partition/pipedream/pipedream.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "partition/costs/stage_costs.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {
namespace {

constexpr double kMostSteps = 2e9;    // of the tables of lower levels
constexpr double kMostEntries = 1e7;  // of the options of one search

// What is behind the components of a level in the plan: so many workers, and how many such components run the
// same stage.
struct Behind {
  int64_t workers = 0;
  int64_t replicas = 1;
  friend auto operator<=>(const Behind&, const Behind&) = default;
};

// A_k of all runs of layers: the upper triangle of a square.
using Table = std::vector<int64_t>;

// Plans from the last level down. stagesOf asks the exact search for stages of all layers on the components
// of the last level, then, for each stage that it chose, for stages of its layers on the level below. What a
// component of a lower level takes for a run of layers is known before any choice, from a table per level
// (table: the paper's dynamic program, made when it is first asked for). Both find the least time; stagesOf
// checks that they agree.
//
// Memory makes a table depend on what is behind its component in the plan (Behind). Only the ratio of workers
// behind to replicas counts, so 2 workers behind 1 replica share a table with 4 behind 2. Without a limit of
// memory all Behind are equal: one table per level.
class Planner {
 public:
  Planner(const PipeDreamProfile& profile, const PipeDreamRequest& request)
      : profile_(profile),
        levels_(request.levels),
        memory_bytes_(request.memory_bytes),
        layers_(std::ssize(profile.layers)) {
    PIPESHARD_CHECK(!levels_.empty(), "no levels");
    workers_.push_back(1);
    for (const PipeDreamLevel& level : levels_) {
      PIPESHARD_CHECK(level.components > 0 && level.bytes_per_ns > 0,
                      "a level of {} components, {} bytes per nanosecond", level.components,
                      level.bytes_per_ns);
      workers_.push_back(workers_.back() * level.components);
    }
    for (const PipeDreamLayer& layer : profile.layers) {
      compute_.push_back(compute_.back() + layer.compute_ns);
      parameters_.push_back(parameters_.back() + layer.parameter_bytes);
      kept_.push_back(kept_.back() + layer.activation_bytes + layer.parameter_bytes);
    }
    refuseTooMany();
  }

  PipeDreamPlan plan() {
    PipeDreamPlan plan;
    const size_t top = levels_.size();
    plan.stages = stagesOf(top, {}, 0, layers_ - 1, &plan.minibatch_ns);
    int64_t earlier = 0;
    placeWorkers(top, plan.stages, {0}, earlier);
    plan.one_worker_ns = plan.data_parallel_ns = profile_.computeNs();
    for (size_t level = 1; level <= top; ++level) {
      const int all = levels_[level - 1].components;
      plan.data_parallel_ns = passNs(plan.data_parallel_ns, all) + weightsNs(level, 0, layers_ - 1, all);
    }
    return plan;
  }

  // What the assignment asks of a run of layers on a level.
  const std::vector<PipeDreamLevel>& levels() const { return levels_; }
  int64_t transferNs(size_t level, int64_t layer, int to) const {
    return std::llround(2 * static_cast<double>(profile_.layers[layer].cut_bytes) /
                        (levels_[level - 1].bytes_per_ns * to));
  }
  static int64_t passNs(int64_t inside_ns, int replicas) {
    return std::llround(static_cast<double>(inside_ns) / replicas);
  }
  int64_t weightsNs(size_t level, int64_t first, int64_t last, int replicas) const {
    const auto count = static_cast<double>(replicas);
    return std::llround(4 * (count - 1) * static_cast<double>(between(parameters_, first, last)) /
                        (count * levels_[level - 1].bytes_per_ns) / count);
  }
  bool limited() const { return memory_bytes_ > 0; }

  // A_{level-1} of what a stage's components do, with so many components of its level behind; kNever: it does
  // not fit.
  int64_t insideNs(size_t level, Behind behind, int64_t first, int64_t last, int replicas,
                   int components_behind) {
    const Behind inner = behindInside(level, behind, replicas, components_behind);
    if (level > 1) return table(level - 1, inner)[first * layers_ + last];
    const int64_t versions = (inner.workers + inner.replicas - 1) / inner.replicas;
    if (limited() && versions > 0 && between(kept_, first, last) > memory_bytes_ / versions) return kNever;
    return between(compute_, first, last);
  }

 private:
  static int64_t between(const std::vector<int64_t>& sums, int64_t first, int64_t last) {
    return sums[last + 1] - sums[first];
  }

  // Only the ratio counts.
  Behind behindInside(size_t level, Behind behind, int replicas, int components_behind) const {
    if (!limited()) return {};
    Behind inner{behind.workers + behind.replicas * components_behind * workers_[level - 1],
                 behind.replicas * replicas};
    const int64_t divisor = std::gcd(inner.workers, inner.replicas);
    return {inner.workers / divisor, inner.replicas / divisor};
  }

  void refuseTooMany() const {
    const auto layers = static_cast<double>(layers_);
    double steps = 0, entries = 0, ways = 1;
    std::vector<int> components;
    for (size_t level = levels_.size(); level-- > 0;) {
      const auto all = static_cast<double>(levels_[level].components);
      components.insert(components.begin(), levels_[level].components);
      if (level + 1 < levels_.size()) steps += ways * layers * layers * layers * all * all / 12;
      entries = std::max(entries, layers * layers * all * (limited() ? (all + 1) / 2 : 1));
      if (limited()) ways *= all * all / 2;
    }
    if (entries <= kMostEntries && steps <= kMostSteps) return;
    fail(ErrorCode::kUsage,
         "{} layers on {} workers are too many to plan; expected layers^2 * workers up to {:.0f} on one "
         "level (with a limit of memory: layers^2 * workers^2 / 2), and layers^3 * workers^2 / 12 up to "
         "{:.0f} on all levels but the last",
         layers_, fmt::join(components, " x "), kMostEntries, kMostSteps);
  }

  // The dynamic program of the paper: ends of runs by ascending number of components, of which the last stage
  // has some.
  const Table& table(size_t level, Behind behind) {
    const auto [found, is_new] = tables_.try_emplace({level, behind});
    if (!is_new) return found->second;
    const size_t square = layers_ * layers_;
    const int all = levels_[level - 1].components;
    // By components: those of a stage, then those behind it.
    std::vector<std::vector<Table>> stages(static_cast<size_t>(all) + 1);
    for (int replicas = 1; replicas <= all; ++replicas) {
      for (int after = 0; after + replicas <= all; ++after) {
        std::vector<Table>& of = stages[replicas];
        of.push_back(limited() || after == 0 ? stageTable(level, behind, replicas, after) : Table());
      }
    }
    Table result(square, kNever);
    std::vector<std::vector<int64_t>> best(static_cast<size_t>(all) + 1, std::vector<int64_t>(layers_));
    for (int64_t first = 0; first < layers_; ++first) {
      for (int used = 1; used <= all; ++used) {
        for (int64_t last = first; last < layers_; ++last)
          best[used][last] = bestUpTo(level, stages, best, first, last, used);
      }
      for (int64_t last = first; last < layers_; ++last) result[first * layers_ + last] = best[all][last];
    }
    return tables_[{level, behind}] = std::move(result);
  }

  Table stageTable(size_t level, Behind behind, int replicas, int after) {
    Table times(layers_ * layers_, kNever);
    for (int64_t first = 0; first < layers_; ++first) {
      for (int64_t last = first; last < layers_; ++last) {
        const int64_t inside = insideNs(level, behind, first, last, replicas, after);
        if (inside < kNever)
          times[first * layers_ + last] = passNs(inside, replicas) + weightsNs(level, first, last, replicas);
      }
    }
    return times;
  }

  int64_t bestUpTo(size_t level, const std::vector<std::vector<Table>>& stages,
                   const std::vector<std::vector<int64_t>>& best, int64_t first, int64_t last,
                   int used) const {
    const int after = limited() ? levels_[level - 1].components - used : 0;
    const auto stage = [&](int replicas, int64_t from) {
      return stages[replicas][after][static_cast<size_t>(from * layers_ + last)];
    };
    int64_t least = stage(used, first);
    for (int replicas = 1; replicas < used; ++replicas) {
      const std::vector<int64_t>& before = best[used - replicas];
      for (int64_t cut = first; cut < last; ++cut) {
        const int64_t slower = std::max(before[cut], stage(replicas, cut + 1));
        if (slower < least) least = std::min(least, std::max(slower, transferNs(level, cut, replicas)));
      }
    }
    return least;
  }

  std::vector<PipeDreamStage> stagesOf(size_t level, Behind behind, int64_t first, int64_t last,
                                       int64_t* time_ns);

  // `components`: the first worker of every component of this level that runs the stages.
  void placeWorkers(size_t level, std::vector<PipeDreamStage>& stages, const std::vector<int>& components,
                    int64_t& earlier) const {
    int next = 0;
    for (PipeDreamStage& stage : stages) {
      std::vector<int> inside;
      for (int part = next; part < next + stage.components; ++part) {
        for (const int component : components)
          inside.push_back(component + part * static_cast<int>(workers_[level - 1]));
      }
      next += stage.components;
      if (level > 1) {
        placeWorkers(level - 1, stage.inside, inside, earlier);
        continue;
      }
      stage.workers = inside;
      const auto count = std::ssize(inside);
      stage.versions = (workers_.back() - 1 - earlier) / count + 1;
      earlier += count;
    }
  }

  const PipeDreamProfile& profile_;
  const std::vector<PipeDreamLevel> levels_;
  const int64_t memory_bytes_;
  const int64_t layers_;
  std::vector<int64_t> workers_;  // by level, of a component
  std::vector<int64_t> compute_{0}, parameters_{0}, kept_{0};
  std::map<std::pair<size_t, Behind>, Table> tables_;
};

// A run of layers on the components of one level, as the assignment sees it.
class LevelCosts : public StageCosts {
 public:
  LevelCosts(Planner& planner, size_t level, Behind behind, int64_t first, int64_t last)
      : planner_(planner), level_(level), first_(first), layers_(last - first + 1) {
    const int all = planner.levels()[level - 1].components;
    for (int replicas = 1; replicas <= all; ++replicas) {
      for (int after = planner.limited() ? all - replicas : 0; after >= 0; --after)
        addOptions(behind, replicas, after);
    }
  }

  int layers() const override { return layers_; }
  int submeshClass(const Submesh& submesh) const override {
    const int all = planner_.levels()[level_ - 1].components;
    const int after = planner_.limited() ? all - submesh.first_device - submesh.deviceCount() : 0;
    return submesh.deviceCount() * (all + 1) + after;
  }
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override {
    return options_.at(submeshClass(submesh))[first_layer * layers_ + last_layer];
  }
  int64_t transfer(int layer, const Submesh&, int, const Submesh& to, int) const override {
    return planner_.transferNs(level_, first_ + layer, to.deviceCount());
  }
  int64_t memoryBytes(const Submesh&) const override { return INT64_MAX; }

 private:
  void addOptions(Behind behind, int replicas, int after) {
    std::vector<std::vector<StageOption>>& options =
        options_[replicas * (planner_.levels()[level_ - 1].components + 1) + after];
    options.resize(layers_ * layers_);
    for (int64_t first = 0; first < layers_; ++first) {
      for (int64_t last = first; last < layers_; ++last) {
        const int64_t inside =
            planner_.insideNs(level_, behind, first_ + first, first_ + last, replicas, after);
        if (inside >= kNever) continue;
        StageOption option;
        option.pass_ns = Planner::passNs(inside, replicas);
        option.step_ns = planner_.weightsNs(level_, first_ + first, first_ + last, replicas);
        options[first * layers_ + last] = {option};
      }
    }
  }

  Planner& planner_;
  size_t level_;
  int64_t first_, layers_;
  std::map<int, std::vector<std::vector<StageOption>>> options_;  // by class
};

std::vector<PipeDreamStage> Planner::stagesOf(size_t level, Behind behind, int64_t first, int64_t last,
                                              int64_t* time_ns) {
  const LevelCosts costs(*this, level, behind, first, last);
  const int all = levels_[level - 1].components;
  const Cluster cluster = uniformCluster(1, all);
  AssignmentRequest request{
      .costs = costs, .cluster = cluster, .objective = AssignmentObjective::kThroughput};
  request.all_devices = true;
  const AssignmentResult found = assignStagesToMeshes(request);
  PIPESHARD_CHECK(!found.assignments.empty(),
                  "one stage on all of level {} keeps nothing beside the newest, and does not fit", level);
  std::vector<PipeDreamStage> stages;
  *time_ns = found.assignments.front().objective_ns;
  for (const AssignedStage& assigned : found.assignments.front().stages) {
    PipeDreamStage& stage = stages.emplace_back();
    stage.first_layer = static_cast<int>(first) + assigned.first_layer;
    stage.last_layer = static_cast<int>(first) + assigned.last_layer;
    stage.components = assigned.submesh.deviceCount();
    stage.pass_ns = assigned.option.pass_ns;
    stage.weights_ns = assigned.option.step_ns;
    stage.transfer_ns = assigned.transfer_ns;
    if (level == 1) continue;
    const int after = all - assigned.submesh.first_device - stage.components;
    const Behind inner = behindInside(level, behind, stage.components, after);
    int64_t inside_ns = 0;
    stage.inside = stagesOf(level - 1, inner, stage.first_layer, stage.last_layer, &inside_ns);
    const int64_t expected =
        insideNs(level, behind, stage.first_layer, stage.last_layer, stage.components, after);
    PIPESHARD_CHECK(inside_ns == expected, "layers {}..{} on level {}: {} ns, by its table {}",
                    stage.first_layer, stage.last_layer, level - 1, inside_ns, expected);
  }
  return stages;
}

void collect(const std::vector<PipeDreamStage>& stages, std::vector<const PipeDreamStage*>& found) {
  for (const PipeDreamStage& stage : stages) {
    if (stage.inside.empty()) found.push_back(&stage);
    collect(stage.inside, found);
  }
}

}  // namespace

std::vector<PipeDreamLevel> pipeDreamLevels(const Cluster& cluster) {
  if (!cluster.isUniform()) {
    fail(ErrorCode::kConfiguration,
         "cluster {}: its nodes differ; expected equal nodes with equal devices, as PipeDream's levels are",
         cluster.name);
  }
  const ClusterNode& node = cluster.nodes.front();
  std::vector<PipeDreamLevel> levels = {{node.devices, node.inside.bytes_per_ns}};
  const PipeDreamLevel nodes = {cluster.nodeCount(), node.nic.bytes_per_ns * node.nics};
  if (node.devices == 1) levels = {nodes};
  if (node.devices > 1 && nodes.components > 1) levels.push_back(nodes);
  return levels;
}

std::vector<const PipeDreamStage*> PipeDreamPlan::workerStages() const& {
  std::vector<const PipeDreamStage*> found;
  collect(stages, found);
  return found;
}

PipeDreamPlan planAsPipeDream(const PipeDreamProfile& profile, const PipeDreamRequest& request) {
  return Planner(profile, request).plan();
}

std::string stageFileOf(const PipeDreamProfile& profile, const PipeDreamPlan& plan) {
  std::string text =
      fmt::format("{{\n \"version\": 1,\n \"layers\": {},\n \"stages\": [", profile.layers.size());
  const char* separator = "";
  for (const PipeDreamStage* stage : plan.workerStages()) {
    text += fmt::format("{}\n  {{\"layers\": \"{}..{}\", \"devices\": [{}]}}", separator, stage->first_layer,
                        stage->last_layer, fmt::join(stage->workers, ", "));
    separator = ",";
  }
  return text + "\n ]\n}\n";
}

}  // namespace pipeshard
