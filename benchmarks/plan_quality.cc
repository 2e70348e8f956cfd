// How good plans are, and how true: Alpa's suites on p3.16xlarge, predicted beside what its authors measured.
//
//   plan_quality --models DIR [--only REGEX] [--compare [--plans]]
//
// DIR has the suites' graphs without weights; those that are missing are exported where PIPESHARD_EXPORT_VENV names PyTorch's environment,
// else their rows are skipped. The efficiency of the device is fitted on the rows of one GPU alone: that of contractions and of all that
// waits for memory on GPT and MoE, that of convolutions on Wide-ResNet. --compare ends with 1 where another way to plan is faster than the
// search.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "benchmarks/alpa_suite.h"
#include "ir/error.h"
#include "partition/layer_clustering.h"
#include "partition/layers.h"
#include "partition/plan_search.h"
#include "partition/planning_precision.h"
#include "partition/stage_costs.h"
#include "tools/console.h"
#include "tools/planning.h"
#include "tools/training_step.h"

namespace pipeshard {
namespace {

struct Efficiency {
  double contraction = 1;
  double convolution = 1;
  double memory = 1;  // of all other classes
};

Cluster clusterOf(int gpus, const Efficiency& efficiency) {
  Cluster cluster = parseCluster(gpus <= 8 ? fmt::format("p3.16xlarge:1x{}", gpus) : fmt::format("p3.16xlarge:{}", gpus / 8));
  for (DeviceKind& kind : cluster.kinds) {
    kind.efficiency.fill(efficiency.memory);
    kind.efficiency[static_cast<size_t>(WorkClass::kContraction)] = efficiency.contraction;
    kind.efficiency[static_cast<size_t>(WorkClass::kConvolution)] = efficiency.convolution;
  }
  return cluster;
}

std::string exportModel(const SuiteModel& model, const std::string& folder) {
  const std::string path = folder + "/" + model.name() + ".onnx";
  if (std::filesystem::exists(path)) return path;
  const char* environment = std::getenv("PIPESHARD_EXPORT_VENV");
  if (environment == nullptr) return "";
  const std::string module = model.family == "gpt" ? "gpt2" : model.family == "wrn" ? "resnet" : "moe";
  const std::string command = fmt::format("'{}/bin/python' '{}/tools/export/export.py' {} --size {} --no-weights --output '{}' >/dev/null",
                                          environment, PIPESHARD_SOURCE_DIR, module, model.size, path);
  return std::system(command.c_str()) == 0 ? path : "";
}

// A model's training step at one number of microbatches, in layers.
struct Step {
  TrainingGraph training;
  Clustering clustering;
  double flops = 0;  // of a whole step, with recomputation
};

class Models {
 public:
  explicit Models(std::string folder) : folder_(std::move(folder)) {}

  bool has(const SuiteModel& model) { return !exportModel(model, folder_).empty(); }

  const Step& step(const SuiteRow& row, int64_t microbatches) {
    std::unique_ptr<Step>& step = steps_[row.model.name()][{microbatches, row.layers}];
    if (step) return *step;
    PlanRequest request;
    request.model_path = exportModel(row.model, folder_);
    request.allow_missing_weights = true;
    request.optimizer = row.model.half ? "adam:lr=1e-4" : "sgd:lr=0.1,momentum=0.9,nesterov=1";
    request.dimensions = {fmt::format("batch={}", row.batch)};
    request.microbatches = microbatches;
    const ForwardModel model = loadForward(request, askedStages(request.partition), [](const std::string&) {});
    TrainingGraph training = trainingFamily(model, parseOptimizer(request.optimizer), {row.batch, microbatches, true}).base();
    step = std::make_unique<Step>();
    step->training = row.model.half ? inMixedPrecision(std::move(training)) : std::move(training);
    ClusteringOptions options;
    options.layers = row.layers;
    step->clustering = clusterTraining(step->training, options);
    step->flops = formulaFlops(row);
    if (step->flops == 0) {
      const std::vector<int64_t> forward = forwardFlops(step->training, forwardNodes(step->training));
      for (const int64_t flops : forward) step->flops += 4.0 * static_cast<double>(flops * microbatches);
    }
    return *step;
  }

 private:
  std::string folder_;
  std::map<std::string, std::map<std::pair<int64_t, int>, std::unique_ptr<Step>>> steps_;
};

// Only some of the options of others.
class ChosenCosts : public StageCosts {
 public:
  using Filter = std::function<bool(int first_layer, int last_layer, const Submesh&, const StageOption&)>;
  ChosenCosts(const StageCosts& costs, Filter filter, bool any_memory)
      : costs_(costs), filter_(std::move(filter)), any_memory_(any_memory) {}

  int layers() const override { return costs_.layers(); }
  int submeshClass(const Submesh& submesh) const override {
    return costs_.submeshClass(submesh) * 4096 + submesh.first_device;  // filters may ask for the place
  }
  const std::vector<StageOption>& options(int first_layer, int last_layer, const Submesh& submesh) const override {
    const auto [found, added] = options_.try_emplace({first_layer, last_layer, submesh.first_device, submesh.deviceCount()});
    if (added) {
      for (const StageOption& option : costs_.options(first_layer, last_layer, submesh)) {
        if (filter_(first_layer, last_layer, submesh, option)) found->second.push_back(option);
      }
    }
    return found->second;
  }
  int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to, int to_boundary) const override {
    return costs_.transfer(layer, from, from_boundary, to, to_boundary);
  }
  int64_t memoryBytes(const Submesh& submesh) const override { return any_memory_ ? INT64_MAX : costs_.memoryBytes(submesh); }

 private:
  const StageCosts& costs_;
  Filter filter_;
  bool any_memory_;
  mutable std::map<std::array<int, 4>, std::vector<StageOption>> options_;
};

struct Prediction {
  bool fits = false;
  int64_t step_ns = 0;
  int64_t memory = 0;
};

// Alpa's plan with the boundaries that suit it best, under 1F1B.
Prediction predictStored(const SuiteRow& row, const Step& step, const Efficiency& efficiency) {
  const Cluster cluster = clusterOf(row.gpus, efficiency);
  StageCostOptions options;
  options.recomputations = {"layers"};
  options.meshes = [&](const Submesh& submesh) {
    std::vector<std::vector<int>> meshes;
    for (const SuiteStage& stage : row.stages) {
      if (stage.devices == submesh.deviceCount() && meshes.empty()) meshes.push_back(stage.mesh);
    }
    return meshes;
  };
  const ShardedStageCosts costs(step.training, step.clustering, cluster, options);
  std::map<std::array<int, 4>, bool> planned;
  int device = 0;
  for (const SuiteStage& stage : row.stages) {
    planned[{stage.first_layer, stage.last_layer, device, stage.devices}] = true;
    device += stage.devices;
  }
  const auto isPlanned = [&](int first, int last, const Submesh& submesh, const StageOption&) {
    return planned.contains({first, last, submesh.first_device, submesh.deviceCount()});
  };
  CountedCosts counted;
  counted.costs = std::shared_ptr<const StageCosts>(std::shared_ptr<void>(), &costs);
  counted.config = [&](int config) { return costs.config(config); };
  counted.parts = [&](int first, int last, const Submesh& submesh, const StageOption& option) {
    return costs.parts(first, last, submesh, option);
  };
  Prediction prediction;
  for (const bool any_memory : {false, true}) {
    const ChosenCosts chosen(costs, isPlanned, any_memory);
    AssignmentRequest request{.costs = chosen, .cluster = cluster, .microbatches = row.microbatches};
    request.allowed = [&](const Submesh& submesh) {
      return std::any_of(planned.begin(), planned.end(),
                         [&](const auto& one) { return one.first[2] == submesh.first_device && one.first[3] == submesh.deviceCount(); });
    };
    request.all_devices = true;
    const AssignmentResult result = assignStagesToMeshes(request);
    if (result.assignments.empty()) continue;
    const auto plan =
        predictPlan(counted, result.assignments.front().stages, row.microbatches, "1f1b", {.updates = 1, .exposed_transfers = true});
    if (!plan) continue;
    prediction = {!any_memory, plan->step_ns, plan->peakMemory()};
    break;
  }
  return prediction;
}

std::string planText(const PredictedPlan& plan, const CountedCosts& costs) {
  std::string text = fmt::format("{} microbatches, {}:", plan.microbatches, plan.schedule);
  for (const AssignedStage& stage : plan.stages) {
    const StageConfig config = costs.config(stage.option.config);
    text += fmt::format(" [{}..{}] {}x{} as {}{}{}", stage.first_layer, stage.last_layer, stage.submesh.nodes,
                        stage.submesh.devices_per_node, fmt::join(config.mesh, "x"), config.method == "auto" ? "" : " " + config.method,
                        config.recomputation == "never" ? "" : "*");
  }
  return text;
}

// One way to plan a row.
struct Planned {
  int64_t step_ns = 0;  // 0: none fits
  std::string plan = {};
  std::string text(int64_t beside) const {
    return step_ns == 0 ? "out of memory" : fmt::format("{:.3f}x", static_cast<double>(step_ns) / static_cast<double>(beside));
  }
};

// The best plan that the search finds among those allowed, on one row's model and cluster.
class RowSearch {
 public:
  RowSearch(const SuiteRow& row, Models& models, const Efficiency& efficiency)
      : row_(row), models_(models), cluster_(clusterOf(row.gpus, efficiency)) {}

  Planned best() {
    PlanSearchRequest request = requestFor({"auto"});
    request.costs_in_need = [this](int64_t count) { return costsOf({"auto", "zero2", "zero3", "megatron"}, count); };
    return planned(request);
  }
  // Stages of equally many layers and devices.
  Planned uniform(const std::string& method) {
    Planned best;
    for (int stages = 1; stages <= std::min(row_.gpus, row_.layers); ++stages) {
      if (row_.gpus % stages != 0) continue;
      const Planned found = only(method, stages);
      if (found.step_ns > 0 && (best.step_ns == 0 || found.step_ns < best.step_ns)) best = found;
    }
    return best;
  }
  Planned only(const std::string& method, int stages) {
    PlanSearchRequest request = requestFor({method});
    request.schedule = "1f1b";
    request.neighbours = false;
    request.least_stages = request.most_stages = stages;
    const int devices = row_.gpus / stages;
    request.allowed = [devices](const Submesh& submesh) { return submesh.deviceCount() == devices && submesh.first_device % devices == 0; };
    const auto all = request.costs;
    request.costs = [this, all, stages, devices](int64_t count) {
      CountedCosts counted = all(count);
      const auto isEqual = [this, stages, devices](int first, int last, const Submesh& submesh, const StageOption&) {
        const int s = submesh.first_device / devices;
        return first == s * row_.layers / stages && last == (s + 1) * row_.layers / stages - 1;
      };
      filtered_.push_back(std::make_shared<ChosenCosts>(*counted.costs, isEqual, false));
      counted.costs = filtered_.back();
      return counted;
    };
    return planned(request);
  }
  // Under 1F1B with these methods, on submeshes of so many devices (0: any); where nothing fits, the least memory that would do.
  std::pair<Planned, int64_t> within(const std::vector<std::string>& methods, int devices) {
    PlanSearchRequest request = requestFor(methods);
    request.schedule = "1f1b";
    request.neighbours = false;
    if (devices > 0) request.allowed = [devices](const Submesh& submesh) { return submesh.deviceCount() == devices; };
    const Planned found = planned(request);
    return {found, found.step_ns > 0 ? 0 : leastMemory(request).bytes};
  }

 private:
  PlanSearchRequest requestFor(const std::vector<std::string>& methods) {
    PlanSearchRequest request{.cluster = cluster_, .microbatches = {}, .costs = {}};
    for (int64_t count = 1; count <= row_.batch; ++count) {
      if (row_.batch % count == 0) request.microbatches.push_back(count);
    }
    const auto stored = std::find(request.microbatches.begin(), request.microbatches.end(), row_.microbatches);
    request.first = static_cast<size_t>(stored - request.microbatches.begin());
    request.exposed_transfers = true;
    request.costs = [this, methods](int64_t count) { return costsOf(methods, count); };
    request.allowed = [this](const Submesh& submesh) {
      const auto is_power = [](int number) { return (number & (number - 1)) == 0; };
      return row_.gpus <= 8 || (is_power(submesh.nodes) && is_power(submesh.devices_per_node));
    };
    return request;
  }

  CountedCosts costsOf(const std::vector<std::string>& methods, int64_t count) {
    std::shared_ptr<ShardedStageCosts>& costs = costs_[{fmt::format("{}", fmt::join(methods, " ")), count}];
    if (!costs) {
      const Step& step = models_.step(row_, count);
      StageCostOptions options;
      options.methods = methods;
      options.recomputations = {"never", "layers"};
      options.threads = 2;
      costs = std::make_shared<ShardedStageCosts>(step.training, step.clustering, cluster_, options);
    }
    CountedCosts counted;
    counted.costs = costs;
    counted.config = [costs](int config) { return costs->config(config); };
    counted.parts = [costs](int first, int last, const Submesh& submesh, const StageOption& option) {
      return costs->parts(first, last, submesh, option);
    };
    return counted;
  }

  static Planned planned(const PlanSearchRequest& request) {
    try {
      const PlanSearchResult result = searchPlans(request);
      if (result.plans.empty()) return {};
      return {result.plans.front().step_ns, planText(result.plans.front(), result.costs)};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfiguration && error.code() != ErrorCode::kOutOfMemory) throw;
      return {};
    }
  }

  const SuiteRow& row_;
  Models& models_;
  Cluster cluster_;
  std::map<std::pair<std::string, int64_t>, std::shared_ptr<ShardedStageCosts>> costs_;
  std::vector<std::shared_ptr<StageCosts>> filtered_;
};

class Quality {
 public:
  Quality(std::string folder, std::string only, bool plans) : models_(std::move(folder)), only_(only), plans_(plans) {}

  // Our search beside other ways to plan, in the same simulator: how many times slower they are. False: one is faster.
  bool compare() {
    const std::vector<std::string> ways = {"auto", "stored", "uniform stages", "megatron grid", "data parallel", "ZeRO-3"};
    std::vector<std::vector<std::string>> rows = {{"model", "GPUs"}};
    rows[0].insert(rows[0].end(), ways.begin(), ways.end());
    std::string slower;
    for (const SuiteRow& row : alpaSuite()) {
      if (!std::regex_search(row.model.name(), only_) || !models_.has(row.model)) continue;
      RowSearch search(row, models_, efficiency_);
      const Prediction stored = predictStored(row, models_.step(row, row.microbatches), efficiency_);
      const std::vector<Planned> found = {search.best(),
                                          {stored.fits ? stored.step_ns : 0, "Alpa's"},
                                          search.uniform("auto"),
                                          search.uniform("megatron"),
                                          search.only("data-parallel", 1),
                                          search.only("zero3", 1)};
      const int64_t ours = found[0].step_ns;
      rows.push_back({row.model.name(), fmt::format("{}", row.gpus),
                      ours == 0 ? "out of memory" : fmt::format("{:.2f} s", static_cast<double>(ours) / 1e9)});
      for (size_t way = 0; way < ways.size(); ++way) {
        if (way > 0) rows.back().push_back(found[way].text(ours));
        const bool faster = found[way].step_ns > 0 && (ours == 0 || found[way].step_ns < ours);
        if (faster) slower += fmt::format("slower than {}: {} on {}\n", ways[way], row.model.name(), row.gpus);
        if (!plans_ && !faster) continue;
        fmt::print("{} on {}, {}: {}\n", row.model.name(), row.gpus, ways[way], found[way].step_ns == 0 ? "none fits" : found[way].plan);
      }
      fmt::print(stderr, "{}\n", fmt::join(rows.back(), "  "));
      std::fflush(stdout);
    }
    fmt::print("\n{}{}", formatTable(rows), slower.empty() ? "no other way to plan is faster in any row\n" : slower);
    return slower.empty();
  }

  // What was published as out of memory, by ways to plan that our search knows.
  void compareMemory() {
    struct Published {
      std::string model, what;
      std::vector<std::string> methods;
      int devices;  // of a stage; 0: any
    };
    std::vector<std::vector<std::string>> rows = {{"model", "GPUs", "published as out of memory", "predicted", "least memory"}};
    for (const Published& entry : std::vector<Published>{{"moe_27B", "pipeline alone", {"auto"}, 1},
                                                         {"moe_70B", "pipeline alone", {"auto"}, 1},
                                                         {"wrn_6.8B", "pipeline alone", {"auto"}, 1},
                                                         {"wrn_13B", "pipeline alone", {"auto"}, 1},
                                                         {"wrn_6.8B", "pipeline and data parallelism", {"data-parallel"}, 0},
                                                         {"wrn_13B", "pipeline and data parallelism", {"data-parallel"}, 0}}) {
      for (SuiteRow row : alpaSuite()) {
        if (row.model.name() != entry.model || !std::regex_search(entry.model, only_) || !models_.has(row.model)) continue;
        if (row.model.layers > 0) row.layers = static_cast<int>(row.model.layers);
        const auto [found, least] = RowSearch(row, models_, efficiency_).within(entry.methods, entry.devices);
        rows.push_back({entry.model, fmt::format("{}", row.gpus), entry.what, found.step_ns == 0 ? "out of memory" : "fits: " + found.plan,
                        least == 0 ? "" : formatBytes(least)});
      }
    }
    if (rows.size() > 1) fmt::print("\n{}", formatTable(rows));
  }

  void run() {
    fit();
    fmt::print("fitted on one GPU: contraction {:.2f}, convolution {:.2f}, memory {:.2f} of the data sheet\n\n", efficiency_.contraction,
               efficiency_.convolution, efficiency_.memory);
    std::vector<std::vector<std::string>> rows = {
        {"model", "GPUs", "microbatches", "stages", "step", "memory", "TFLOP/s", "measured", "ratio"}};
    int close = 0;
    int fitting = 0;
    int judged = 0;
    for (const SuiteRow& row : alpaSuite()) {
      if (!std::regex_search(row.model.name(), only_)) continue;
      rows.push_back(
          {row.model.name(), fmt::format("{}", row.gpus), fmt::format("{}", row.microbatches), fmt::format("{}", row.stages.size())});
      std::vector<std::string>& cells = rows.back();
      if (!models_.has(row.model)) {
        cells.insert(cells.end(), {"skipped: no PIPESHARD_EXPORT_VENV to export it", "", "", "", ""});
        continue;
      }
      const Step& step = models_.step(row, row.microbatches);
      const Prediction prediction = predictStored(row, step, efficiency_);
      if (prediction.step_ns == 0) {
        cells.insert(cells.end(), {"no such plan", "", "", "", ""});
        continue;
      }
      const double tflops = step.flops / static_cast<double>(prediction.step_ns) / 1e3 / row.gpus;
      cells.insert(cells.end(), {fmt::format("{:.2f} s", static_cast<double>(prediction.step_ns) / 1e9),
                                 formatBytes(prediction.memory) + (prediction.fits ? "" : ": too much"), fmt::format("{:.1f}", tflops),
                                 row.measured > 0 ? fmt::format("{:.1f}", row.measured) : "", ""});
      if (row.measured == 0) continue;
      cells.back() = fmt::format("{:.2f}", tflops / row.measured);
      if (row.gpus == 1) continue;
      ++judged;
      close += std::abs(tflops / row.measured - 1) <= 0.2;
      fitting += prediction.fits;
    }
    fmt::print("{}\n{} of {} rows of several GPUs within 20 % of what was measured; {} of {} are said to fit into memory, as all did\n",
               formatTable(rows), close, judged, fitting, judged);
  }

 private:
  const SuiteRow* single(const std::string& family) {
    for (const SuiteRow& row : alpaSuite()) {
      if (row.gpus == 1 && row.model.family == family && models_.has(row.model)) return &row;
    }
    return nullptr;
  }

  double seconds(const SuiteRow& row, const Efficiency& efficiency) {
    return static_cast<double>(predictStored(row, models_.step(row, row.microbatches), efficiency).step_ns) / 1e9;
  }
  double measuredSeconds(const SuiteRow& row) { return models_.step(row, row.microbatches).flops / row.measured / 1e12; }

  // Times add up by class of work, so they are linear in one over the efficiencies.
  void fit() {
    const SuiteRow* gpt = single("gpt");
    const SuiteRow* moe = single("moe");
    const SuiteRow* wrn = single("wrn");
    if (gpt != nullptr && moe != nullptr) {
      std::array<std::array<double, 3>, 2> equations{};  // a / contraction + b / memory = c
      size_t i = 0;
      for (const SuiteRow* row : {gpt, moe}) {
        const double base = seconds(*row, {1, 1, 1});
        const double contraction = seconds(*row, {0.5, 1, 1}) - base;
        equations[i++] = {contraction, base - contraction, measuredSeconds(*row)};
        fmt::print("{}: contractions {:.2f} s, memory {:.2f} s at the data sheet's rates, measured {:.2f} s\n", row->model.name(),
                   contraction, base - contraction, measuredSeconds(*row));
      }
      const auto& [one, two] = equations;
      const double determinant = one[0] * two[1] - two[0] * one[1];
      const double x = (one[2] * two[1] - two[2] * one[1]) / determinant;
      const double y = (one[0] * two[2] - two[0] * one[2]) / determinant;
      if (x >= 1 && y > 0) {
        efficiency_.contraction = 1 / x;
        efficiency_.memory = 1 / y;
      } else {  // no such pair is physical: one factor for both
        fmt::print("the two rows fit no pair of efficiencies (1/{:.2f}, 1/{:.2f}): one is fitted for both\n", x, y);
        efficiency_.contraction = efficiency_.memory = (one[0] + one[1] + two[0] + two[1]) / (one[2] + two[2]);
      }
    }
    if (wrn != nullptr) {
      const double base = seconds(*wrn, {efficiency_.contraction, 1, efficiency_.memory});
      const double convolution = seconds(*wrn, {efficiency_.contraction, 0.5, efficiency_.memory}) - base;
      const double left = measuredSeconds(*wrn) - (base - convolution);
      fmt::print("{}: convolutions {:.2f} s at the data sheet's rate, the rest {:.2f} s, measured {:.2f} s\n", wrn->model.name(),
                 convolution, base - convolution, measuredSeconds(*wrn));
      if (left > 0) efficiency_.convolution = std::min(1.0, convolution / left);
    }
  }

  Models models_;
  std::regex only_;
  bool plans_;  // printed, too
  Efficiency efficiency_;
};

}  // namespace
}  // namespace pipeshard

int main(int argc, char** argv) {
  CLI::App app("Alpa's suites, predicted beside measured");
  std::string folder;
  std::string only = ".";
  app.add_option("--models", folder, "Where the graphs are, or are exported to")->required();
  app.add_option("--only", only, "Rows whose model matches this regular expression");
  bool compare = false;
  app.add_flag("--compare", compare, "Also search plans, and compare them with other ways to plan");
  bool plans = false;
  app.add_flag("--plans", plans, "Print the plans that are compared");
  CLI11_PARSE(app, argc, argv);
  try {
    pipeshard::Quality quality(folder, only, plans);
    quality.run();
    if (!compare) return 0;
    const bool best = quality.compare();
    quality.compareMemory();
    return best ? 0 : 1;
  } catch (const pipeshard::Error& error) {
    fmt::print(stderr, "plan_quality: {}\n", error.message());
    return static_cast<int>(error.code());
  }
  return 0;
}
