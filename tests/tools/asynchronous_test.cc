// Asynchronous schedules, end to end: the command and worker processes on a chain of four scalars, against a
// table computed elsewhere; the real exports against one device with the same versions.
#include <cmath>
#include <functional>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "onnx_import/format/writer.h"
#include "runtime/execute/dump.h"
#include "tests/runtime/files/npz_writer.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

constexpr size_t kStages = 4;
using Weights = std::array<double, kStages>;

// a_{s+1} = w_s a_s and the mean of (a_4 - t)^2 / 2 over the batch, in float64.
const Weights kInitial = {1, .9, 1.1, .8};
const std::vector<double> kInputs = {1, .5, -1, 2, 1.5, -.5, .25, 1};
const std::vector<double> kTargets = {.5, .5, -.25, 1, 1, 0, .5, .75};

void writeChain(const std::string& path) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const auto value = [&](const std::string& name, Shape shape = {kUnknownSize, 1}) {
    const ValueId id = builder.addValue(name, DataType::kFloat64, std::move(shape));
    if (!graph.value(id).shape->empty()) graph.value(id).symbols = {"batch", ""};
    return id;
  };
  const ValueId x = value("x"), t = value("t");
  ValueId a = x;
  for (size_t s = 0; s < kStages; ++s) {
    const ValueId next = value(fmt::format("a{}", s + 1));
    builder.addNode(
        "", "Mul",
        {a, builder.addConstant(fmt::format("w{}.weight", s), makeConstant<double>({1}, {kInitial[s]}))},
        {next});
    a = next;
  }
  const ValueId difference = value("difference"), square = value("square"), half = value("half"),
                loss = value("loss", {});
  builder.addNode("", "Sub", {a, t}, {difference});
  builder.addNode("", "Mul", {difference, difference}, {square});
  builder.addNode("", "Mul", {square, builder.addConstant("one_half", makeScalar(DataType::kFloat64, .5))},
                  {half});
  builder.addNode("", "ReduceMean", {half}, {loss}, {{"keepdims", int64_t{0}}});
  graph.inputs = {x, t};
  graph.outputs = {loss};
  writeModel(graph, path);
}

struct Outcome {
  Weights weights;
  std::vector<double> losses;  // of every update
};

struct ChainCase {
  std::string name;
  std::string schedule;
  int per_update = 1;  // microbatches
  int window = 0;      // updates of a step; 0: synchronous
  int steps = 1;
  std::string optimizer = "sgd:lr=0.05";
};

// What the case means, written down a second time: plain loops over microbatches and versions.
class ChainReference {
 public:
  explicit ChainReference(const ChainCase& c) : case_(c) {}

  Outcome run() {
    const int window = std::max(1, case_.window);
    for (int step = 0; step < case_.steps; ++step) {
      history_ = {weights_};
      for (int u = 0; u < window; ++u) runUpdate((step * window + u) * case_.per_update, u);
    }
    return {weights_, losses_};
  }
  const std::vector<double>& microbatchLosses() const { return microbatch_losses_; }

 private:
  // How many updates of the window the weights of a stage have seen, for microbatch k of the window.
  int version(size_t stage, int k, int update) const {
    if (case_.schedule == "pipedream") return std::max(0, k - (3 - static_cast<int>(stage)));
    if (case_.schedule == "pipedream-vertical") return std::max(0, k - 3);
    return case_.schedule == "pipedream-2bw" ? std::max(0, update - 1) : update;
  }

  void runUpdate(int first, int update) {
    Weights gradient{};
    double loss = 0;
    for (int i = 0; i < case_.per_update; ++i) {
      Weights w{};
      for (size_t s = 0; s < kStages; ++s)
        w[s] = history_[version(s, update * case_.per_update + i, update)][s];
      const size_t k = first + i;
      std::array<double, kStages + 1> a = {kInputs[k]};
      for (size_t s = 0; s < kStages; ++s) a[s + 1] = w[s] * a[s];
      const double difference = a[kStages] - kTargets[k];
      microbatch_losses_.push_back(difference * difference / 2);
      loss += microbatch_losses_.back() / case_.per_update;
      double reaching = difference / case_.per_update;
      for (size_t s = kStages; s-- > 0; reaching *= w[s]) gradient[s] += reaching * a[s];
    }
    losses_.push_back(loss);
    ++updates_;
    for (size_t s = 0; s < kStages; ++s) weights_[s] -= .05 * direction(s, gradient[s]);
    history_.push_back(weights_);
  }

  double direction(size_t s, double g) {
    if (case_.optimizer.starts_with("adam:")) {
      first_[s] = .9 * first_[s] + .1 * g;
      second_[s] = .999 * second_[s] + .001 * g * g;
      return first_[s] / (1 - std::pow(.9, updates_)) /
             (std::sqrt(second_[s] / (1 - std::pow(.999, updates_))) + 1e-8);
    }
    if (case_.optimizer.find("momentum") != std::string::npos) return first_[s] = .9 * first_[s] + g;
    return g;
  }

  const ChainCase& case_;
  Weights weights_ = kInitial;
  Weights first_{}, second_{};
  std::vector<Weights> history_;  // of the window
  std::vector<double> losses_, microbatch_losses_;
  int updates_ = 0;
};

Outcome runChain(const ChainCase& c, const TemporaryFolder& folder) {
  writeChain(folder.file("chain.onnx"));
  EXPECT_TRUE(writeNpz(folder.file("data.npz"), {{"x.npy", npyArray("<f8", "(8, 1)", bytesOf(kInputs))},
                                                 {"t.npy", npyArray("<f8", "(8, 1)", bytesOf(kTargets))}}));
  std::vector<std::string> line = {"plan",
                                   folder.file("chain.onnx"),
                                   "--cluster",
                                   "1x4",
                                   "--dim",
                                   fmt::format("batch={}", c.per_update),
                                   "--boundary",
                                   "a1",
                                   "--boundary",
                                   "a2",
                                   "--boundary",
                                   "a3",
                                   "--schedule",
                                   c.schedule,
                                   "--microbatches",
                                   std::to_string(c.per_update),
                                   "--optimizer",
                                   c.optimizer,
                                   "--precision",
                                   "float64",
                                   "-o",
                                   folder.file("plan")};
  line.insert(line.end(), {"--freeze", "one_half"});
  if (c.window > 0) line.insert(line.end(), {"--window", std::to_string(c.window)});
  const CommandResult planned = runPipeshard(line);
  EXPECT_EQ(planned.exit_code, 0) << planned.errors;
  std::filesystem::create_directory(folder.file("dump"));
  const CommandResult trained = runPipeshard({"run", folder.file("plan"), "--steps", std::to_string(c.steps),
                                              "--data", folder.file("data.npz"), "--dump",
                                              folder.file("dump"), "--json", folder.file("run.json")});
  EXPECT_EQ(trained.exit_code, 0) << trained.errors;
  if (planned.exit_code != 0 || trained.exit_code != 0) return {};
  Outcome outcome;
  const auto json = nlohmann::json::parse(readFile(folder.file("run.json")));
  for (const auto& step : json.at("steps")) {
    if (c.window == 0) outcome.losses.push_back(step.at("loss"));
    EXPECT_EQ(step.value("losses", nlohmann::json::array()).size(), static_cast<size_t>(c.window));
    for (const auto& loss : step.value("losses", nlohmann::json::array())) outcome.losses.push_back(loss);
  }
  const StepDump dump = StepDump::open(folder.file("dump"), c.steps, kStages);
  for (size_t s = 0; s < kStages; ++s)
    outcome.weights[s] = dump.read(fmt::format("parameter/w{}.weight", s)).elements().at(0);
  return outcome;
}

struct TableRow {
  ChainCase run;
  Weights weights;
  std::vector<double> losses;  // of every microbatch, as printed
};
void PrintTo(const TableRow& row, std::ostream* stream) { *stream << row.run.name; }

class ScalarChain : public ::testing::TestWithParam<TableRow> {};

TEST_P(ScalarChain, EqualsTheTable) {
  const TableRow& row = GetParam();
  ChainReference reference(row.run);
  const Outcome expected = reference.run();
  for (size_t k = 0; k < row.losses.size(); ++k) {
    EXPECT_EQ(fmt::format("{:.6f}", reference.microbatchLosses()[k]), fmt::format("{:.6f}", row.losses[k]));
  }
  const TemporaryFolder folder;
  const Outcome got = runChain(row.run, folder);
  for (size_t s = 0; s < kStages; ++s) EXPECT_NEAR(got.weights[s], row.weights[s], 1e-8) << "w" << s;
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (size_t u = 0; u < got.losses.size(); ++u)
    EXPECT_NEAR(got.losses[u], expected.losses[u], 1e-14) << "update " << u;
}

INSTANTIATE_TEST_SUITE_P(
    PipeDream, ScalarChain,
    ::testing::Values(TableRow{{"sequential_sgd", "1f1b", 1, 0, 8},
                               {.950650217, .845025186, 1.055222669, .737931897},
                               {.042632, .007782, .129476, .073629, .004285, .047837, .060974, .009564}},
                      TableRow{{"stashing", "pipedream", 1, 8},
                               {.937469297, .830069615, 1.042529770, .719239310},
                               {.042632, .006178, .136742, .113736, .000096, .051127, .061999, .016253}},
                      TableRow{{"flush", "1f1b", 4, 0, 2},
                               {.978824453, .876461973, 1.080755293, .773504386},
                               {.042632, .005408, .146882, .170528, .003646, .065449, .050913, .000349}},
                      TableRow{{"two_buffers", "pipedream-2bw", 4, 2},
                               {.976274650, .873638500, 1.078431500, .770343312},
                               {.042632, .005408, .146882, .170528, .017672, .078408, .045602, .000882}}),
    [](const auto& info) { return info.param.run.name; });

class ScalarChainWindows : public ::testing::TestWithParam<ChainCase> {};
void PrintTo(const ChainCase& c, std::ostream* stream) { *stream << c.name; }

// A window drains at its end: the next one starts from its last version. The optimizers' states and step
// numbers go on.
TEST_P(ScalarChainWindows, EqualPlainLoopsOverVersions) {
  const Outcome expected = ChainReference(GetParam()).run();
  const TemporaryFolder folder;
  const Outcome got = runChain(GetParam(), folder);
  for (size_t s = 0; s < kStages; ++s) EXPECT_NEAR(got.weights[s], expected.weights[s], 1e-13) << "w" << s;
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (size_t u = 0; u < got.losses.size(); ++u)
    EXPECT_NEAR(got.losses[u], expected.losses[u], 1e-14) << "update " << u;
}

INSTANTIATE_TEST_SUITE_P(
    PipeDream, ScalarChainWindows,
    ::testing::Values(ChainCase{"vertical_sync", "pipedream-vertical", 1, 8},
                      ChainCase{"two_windows_adam", "pipedream", 1, 4, 2, "adam:lr=0.05"},
                      ChainCase{"short_window_momentum", "pipedream", 1, 2, 4, "sgd:lr=0.05,momentum=0.9"}),
    [](const auto& info) { return info.param.name; });

struct ReplicaCase {
  std::string name;
  std::string schedule;
  std::vector<size_t> weights;  // of each stage
  std::vector<int> replicas;    // of each stage
  int window = 6;
  int steps = 1;
  std::string optimizer = "sgd:lr=0.05";
  int per_update = 1;  // pipedream-2bw: microbatches
};
void PrintTo(const ReplicaCase& c, std::ostream* stream) { *stream << c.name; }

// What replicas that take minibatches in turn mean, in plain loops: stage s updates its weights after one
// minibatch of each of its R_s replicas, by the mean of their gradients; minibatch i, the (i / R_s)-th of its
// replica, reads there what has been made warm-up updates before.
class ReplicaReference {
 public:
  explicit ReplicaReference(const ReplicaCase& c) : case_(c) {
    for (size_t s = 0; s < c.weights.size(); ++s) stage_of_.insert(stage_of_.end(), c.weights[s], s);
  }

  Outcome run() {
    const int count = case_.window * case_.per_update;
    for (int step = 0; step < case_.steps; ++step) {
      history_.assign(case_.weights.size(), {weights_});
      pending_.assign(case_.weights.size(), Weights{});
      for (int k = 0; k < count; ++k) runMicrobatch(step * count + k, k);
    }
    return {weights_, losses_};
  }

 private:
  int version(size_t stage, int k) const {
    const auto newest = [&](size_t s, int ranks_before) {
      const int devices = std::accumulate(case_.replicas.begin(), case_.replicas.end(), 0);
      return std::max(0, k / case_.replicas[s] - (devices - 1 - ranks_before) / case_.replicas[s]);
    };
    if (case_.schedule == "pipedream-2bw") return std::max(0, k / case_.per_update - 1);
    if (case_.schedule == "pipedream-vertical")
      return newest(0, 0) * case_.replicas[0] / case_.replicas[stage];
    return newest(stage, std::accumulate(case_.replicas.begin(), case_.replicas.begin() + stage, 0));
  }

  void runMicrobatch(int sample, int k) {
    Weights w{};
    for (size_t i = 0; i < kStages; ++i) {
      w[i] = history_[stage_of_[i]][version(stage_of_[i], k)][i];
    }
    std::array<double, kStages + 1> a = {kInputs[sample]};
    for (size_t i = 0; i < kStages; ++i) a[i + 1] = w[i] * a[i];
    const double difference = a[kStages] - kTargets[sample];
    if (k % case_.per_update == 0) losses_.push_back(0);
    losses_.back() += difference * difference / 2 / case_.per_update;
    double reaching = difference;
    for (size_t i = kStages; i-- > 0; reaching *= w[i]) pending_[stage_of_[i]][i] += reaching * a[i];
    for (size_t s = 0; s < case_.weights.size(); ++s) {
      const int together = case_.schedule == "pipedream-2bw" ? case_.per_update : case_.replicas[s];
      if ((k + 1) % together == 0) update(s, together);
    }
  }

  void update(size_t stage, int together) {
    for (size_t i = 0; i < kStages; ++i) {
      if (stage_of_[i] == stage) weights_[i] -= .05 * direction(i, pending_[stage][i] / together);
    }
    pending_[stage] = {};
    history_[stage].push_back(weights_);
  }

  double direction(size_t i, double g) {
    if (!case_.optimizer.starts_with("adam:")) return g;
    ++updates_[i];
    first_[i] = .9 * first_[i] + .1 * g;
    second_[i] = .999 * second_[i] + .001 * g * g;
    return first_[i] / (1 - std::pow(.9, updates_[i])) /
           (std::sqrt(second_[i] / (1 - std::pow(.999, updates_[i]))) + 1e-8);
  }

  const ReplicaCase& case_;
  std::vector<size_t> stage_of_;  // by weight
  Weights weights_ = kInitial;
  Weights first_{}, second_{};
  std::array<int, kStages> updates_{};
  std::vector<std::vector<Weights>> history_;  // of the window, by stage
  std::vector<Weights> pending_;               // sums of gradients, by stage
  std::vector<double> losses_;
};

class ScalarChainReplicas : public ::testing::TestWithParam<ReplicaCase> {};

TEST_P(ScalarChainReplicas, EqualPlainLoopsOverVersions) {
  const ReplicaCase& c = GetParam();
  const Outcome expected = ReplicaReference(c).run();
  const TemporaryFolder folder;
  writeChain(folder.file("chain.onnx"));
  ASSERT_TRUE(writeNpz(folder.file("data.npz"), {{"x.npy", npyArray("<f8", "(8, 1)", bytesOf(kInputs))},
                                                 {"t.npy", npyArray("<f8", "(8, 1)", bytesOf(kTargets))}}));
  const int devices = std::accumulate(c.replicas.begin(), c.replicas.end(), 0);
  std::vector<std::string> line = {"plan",
                                   folder.file("chain.onnx"),
                                   "--cluster",
                                   fmt::format("1x{}", devices),
                                   "--schedule",
                                   c.schedule,
                                   "--dim",
                                   fmt::format("batch={}", c.per_update),
                                   "--microbatches",
                                   std::to_string(c.per_update),
                                   "--window",
                                   std::to_string(c.window),
                                   "--stage-devices",
                                   fmt::format("{}", fmt::join(c.replicas, ",")),
                                   "--optimizer",
                                   c.optimizer,
                                   "--precision",
                                   "float64",
                                   "--freeze",
                                   "one_half",
                                   "-o",
                                   folder.file("plan")};
  size_t before = 0;
  for (size_t s = 0; s + 1 < c.weights.size(); ++s)
    line.insert(line.end(), {"--boundary", fmt::format("a{}", before += c.weights[s])});
  const CommandResult planned = runPipeshard(line);
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  std::filesystem::create_directory(folder.file("dump"));
  const CommandResult trained = runPipeshard(
      {"run", folder.file("plan"), "--steps", std::to_string(c.steps), "--data", folder.file("data.npz"),
       "--dump", folder.file("dump"), "--json", folder.file("run.json"), "--drop-last"});
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  std::vector<double> losses;
  const auto document = nlohmann::json::parse(readFile(folder.file("run.json")));
  for (const auto& step : document.at("steps")) {
    for (const auto& loss : step.at("losses")) losses.push_back(loss);
  }
  const StepDump dump = StepDump::open(folder.file("dump"), c.steps, devices);
  for (size_t i = 0; i < kStages; ++i) {
    EXPECT_NEAR(dump.read(fmt::format("parameter/w{}.weight", i)).elements().at(0), expected.weights[i],
                1e-13)
        << "w" << i;
  }
  ASSERT_EQ(losses.size(), expected.losses.size());
  for (size_t u = 0; u < losses.size(); ++u)
    EXPECT_NEAR(losses[u], expected.losses[u], 1e-14) << "minibatch " << u;
}

INSTANTIATE_TEST_SUITE_P(
    PipeDream, ScalarChainReplicas,
    ::testing::Values(ReplicaCase{"three_one", "pipedream", {3, 1}, {3, 1}},
                      ReplicaCase{"one_three_adam", "pipedream", {1, 3}, {1, 3}, 3, 2, "adam:lr=0.05"},
                      ReplicaCase{"two_one_one", "pipedream", {1, 1, 2}, {2, 1, 1}, 8},
                      ReplicaCase{
                          "one_two_one_adam", "pipedream", {1, 2, 1}, {1, 2, 1}, 4, 2, "adam:lr=0.05"},
                      ReplicaCase{"three_two", "pipedream", {2, 2}, {3, 2}},
                      ReplicaCase{"vertical_two_one_one", "pipedream-vertical", {2, 1, 1}, {2, 1, 1}, 8},
                      ReplicaCase{"two_buffers", "pipedream-2bw", {2, 2}, {2, 1}, 2, 1, "sgd:lr=0.05", 4}),
    [](const auto& info) { return info.param.name; });

struct ExampleCase {
  std::string name;
  std::vector<std::string> options;
};
void PrintTo(const ExampleCase& c, std::ostream* stream) { *stream << c.name; }

class AsynchronousValidate : public ::testing::TestWithParam<ExampleCase> {};

TEST_P(AsynchronousValidate, EqualsOneDeviceWithTheSameVersions) {
  const TemporaryFolder folder;
  std::vector<std::string> line = {
      "validate", "--cluster", "1x4", "--steps", "2", "--json", folder.file("result.json")};
  line.insert(line.end(), GetParam().options.begin(), GetParam().options.end());
  const CommandResult result = runPipeshard(line);
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));
  const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
  std::set<std::pair<int, int>> losses;
  for (const auto& tensor : json.at("tensors")) {
    if (tensor.at("kind") == "loss") losses.emplace(tensor.at("step"), tensor.at("update"));
  }
  EXPECT_EQ(losses.size(), json.at("steps").size());
  EXPECT_GT(losses.size(), 4u);  // several updates in each of two windows
}

INSTANTIATE_TEST_SUITE_P(
    Examples, AsynchronousValidate,
    ::testing::Values(
        ExampleCase{"mlp_adamw",
                    {"examples/mlp.onnx", "--schedule", "pipedream", "--window", "6", "--optimizer",
                     "adamw:lr=1e-3"}},
        ExampleCase{"mlp_momentum",
                    {"examples/mlp.onnx", "--schedule", "pipedream-vertical", "--window", "5", "--optimizer",
                     "sgd:lr=0.05,momentum=0.9", "--precision", "float64"}},
        ExampleCase{"mlp_three_and_one_devices_sharing_rows",
                    {"examples/mlp.onnx", "--stages", "uniform:2", "--stage-devices", "3,1", "--dim",
                     "batch=6", "--schedule", "pipedream:rows=1", "--window", "5"}},
        ExampleCase{"mlp_three_and_one_replicas",
                    {"examples/mlp.onnx", "--stages", "uniform:2", "--stage-devices", "3,1", "--dim",
                     "batch=2", "--schedule", "pipedream", "--window", "9", "--optimizer", "adamw:lr=1e-3"}},
        ExampleCase{"mlp_one_and_three_replicas_recomputed",
                    {"examples/mlp.onnx", "--stages", "uniform:2", "--stage-devices", "1,3", "--schedule",
                     "pipedream-vertical", "--window", "6", "--recompute", "always"}},
        ExampleCase{"mlp_two_one_and_one_replicas",
                    {"examples/mlp.onnx", "--stages", "uniform:3", "--stage-devices", "2,1,1", "--schedule",
                     "pipedream", "--window", "6", "--precision", "float64"}},
        ExampleCase{"llama_three_and_one_replicas",
                    {"examples/llama.onnx", "--stages", "uniform:2", "--stage-devices", "3,1", "--schedule",
                     "pipedream", "--window", "6"}},
        ExampleCase{"llama_one_and_three_replicas_two_buffers",
                    {"examples/llama.onnx", "--stages", "uniform:2", "--stage-devices", "1,3", "--schedule",
                     "pipedream-2bw", "--window", "3"}},
        ExampleCase{
            "mlp_recomputed",
            {"examples/mlp.onnx", "--schedule", "pipedream", "--window", "6", "--recompute", "always"}},
        ExampleCase{"llama_adamw",
                    {"examples/llama.onnx", "--schedule", "pipedream-2bw", "--window", "3", "--optimizer",
                     "adamw:lr=1e-3"}}),
    [](const auto& info) { return info.param.name; });

TEST(Asynchronous, ModelsWithoutVersionsAreRefusedByName) {
  const auto errorsOf = [](const std::string& model) {
    const CommandResult result = runPipeshard(
        {"validate", "examples/" + model + ".onnx", "--cluster", "1x4", "--schedule", "pipedream"});
    EXPECT_EQ(result.exit_code, 78) << result.output;
    return result.errors;
  };
  EXPECT_THAT(errorsOf("gpt2"), HasSubstr("the weight 'lm_head.weight' belongs to stages 0 and 3"));
  EXPECT_THAT(errorsOf("resnet"), HasSubstr("is a running statistic"));
}

TEST(Asynchronous, AWindowBelongsToAnAsynchronousSchedule) {
  const CommandResult result = runPipeshard(
      {"validate", "examples/mlp.onnx", "--cluster", "1x2", "--schedule", "1f1b", "--window", "4"});
  EXPECT_EQ(result.exit_code, 64);
  EXPECT_THAT(result.errors, HasSubstr("--window"));
}

}  // namespace
}  // namespace pipeshard
