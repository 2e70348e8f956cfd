// `profile` as a user calls it, and what others make of its file. Nothing here depends on how long something
// took.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <set>

#include "ir/base/error.h"
#include "ir/cluster/profile.h"
#include "planning/request/profile_store.h"
#include "tests/tools/command.h"
#include "tools/options/plan_options.h"
#include "tools/profile_ladder.h"
#include "tools/profile_samples.h"

namespace pipeshard {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Profile profileIn(const std::string& path) { return profileFromJson(readFile(path), path); }

// A profile in which every product takes so long.
Profile slowProducts(const Profile& measured, int64_t factor) {
  Profile slow = measured;
  for (ProfilePoint& point : slow.points) {
    point.ns *= factor;
    point.busy_ns *= factor;
  }
  return slow;
}

TEST(ProfileCommand, MeasuresAModelAndSimulatesWithIt) {
  const TemporaryFolder folder;
  const std::string file = folder.file("p.json");
  const CommandResult made =
      runPipeshard({"profile", "--quick", "--model", "examples/mlp.onnx", "--dim", "batch=64",
                    "--microbatches", "2", "--cluster", "1x2", "--optimizer", "adamw:lr=1e-3", "-o", file});
  ASSERT_EQ(made.exit_code, 0) << made.errors;
  EXPECT_THAT(made.output,
              AllOf(HasSubstr("pipeshard::AdamW"), HasSubstr("message inside a node"), HasSubstr("digest ")));
  const Profile profile = profileIn(file);
  EXPECT_EQ(profile.device, thisDevice(1));
  EXPECT_FALSE(profile.points.empty());
  EXPECT_FALSE(profile.rates.empty());
  for (const ProfilePoint& point : profile.points) EXPECT_GT(point.ns, 0) << point.work.op;

  const auto planned = [&](const std::string& from, const std::string& name) {
    const CommandResult plan =
        runPipeshard({"plan", "examples/mlp.onnx", "--dim", "batch=64", "--microbatches", "2", "--cluster",
                      "1x2", "--optimizer", "adamw:lr=1e-3", "--profile", from, "-o", folder.file(name)});
    EXPECT_EQ(plan.exit_code, 0) << plan.errors;
    return readFile(folder.file(name) + "/plan.json");
  };
  const std::string text = planned(file, "a.plan");
  EXPECT_EQ(json::parse(text).at("profile"), profileDigest(profile));
  EXPECT_EQ(planned(file, "b.plan"), text);
  EXPECT_FALSE(json::parse(planned("off", "c.plan")).contains("profile"));

  const auto makespan = [&](const std::string& from) {
    const CommandResult result =
        runPipeshard({"simulate", folder.file("a.plan"), "--profile", from, "--json", folder.file("s.json")});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return json::parse(readFile(folder.file("s.json"))).at("makespan").get<int64_t>();
  };
  writeFile(folder.file("slow.json"), profileToJson(slowProducts(profile, 1000)));
  const int64_t fast = makespan(file);
  EXPECT_GT(fast, 0);
  EXPECT_EQ(makespan(file), fast);
  EXPECT_GT(makespan(folder.file("slow.json")), 3 * fast);  // messages cost as much as before
}

TEST(ProfileCommand, AddsToAFileOfThisDeviceOnly) {
  const TemporaryFolder folder;
  const std::string file = folder.file("p.json");
  Profile before;
  before.device = thisDevice(1);
  before.memory = {{{0, 0}, {1000, 100}}};
  before.rates = {{WorkClass::kMovement, DataType::kFloat32, {}, before.memory}};
  before.points = {{{.op = "Other", .flops = 1, .bytes = 1}, 5, 0}};
  const std::vector<std::string> command = {"profile", "--quick",           "--workers", "1",
                                            "--model", "examples/mlp.onnx", "-o",        file};
  writeFile(file, profileToJson(before));
  const CommandResult first = runPipeshard(command);
  ASSERT_EQ(first.exit_code, 0) << first.errors;
  const Profile after = profileIn(file);
  EXPECT_EQ(after.memory, before.memory);
  EXPECT_TRUE(std::any_of(after.points.begin(), after.points.end(),
                          [](const ProfilePoint& point) { return point.work.op == "Other"; }));
  before.device.processor = "another";
  writeFile(file, profileToJson(before));
  const CommandResult second = runPipeshard(command);
  ASSERT_EQ(second.exit_code, 0) << second.errors;
  for (const ProfilePoint& point : profileIn(file).points) EXPECT_NE(point.work.op, "Other");
}

// A graph in which a parameter is updated in place after a lookup; weights and indices are made up.
GraphPass lookupAndUpdate() {
  GraphPass pass;
  Graph& graph = pass.graph;
  graph.opset_imports = {{"", 18}, {"pipeshard", 1}};
  GraphBuilder builder(graph);
  const ValueId table = builder.addValue("table", DataType::kFloat32, {50, 7});
  const ValueId rows = builder.addValue("rows", DataType::kInt64, {100});
  const ValueId gradient = builder.addValue("gradient", DataType::kFloat32, {50, 7});
  const ValueId first = builder.addValue("first", DataType::kFloat32, {50, 7});
  const ValueId second = builder.addValue("second", DataType::kFloat32, {50, 7});
  const ValueId step = builder.addValue("step", DataType::kInt64, {});
  graph.inputs = {table, rows, gradient, first, second, step};
  const ValueId found = builder.addValue("found", DataType::kFloat32, {100, 7});
  builder.addNode("", "Gather", {table, rows}, {found});
  std::vector<ValueId> operands = {table, gradient, first, second, step};
  for (const double number : {1e-3, 0.9, 0.99, 1e-8, 0.01})
    operands.push_back(builder.addConstant("c", makeScalar(DataType::kFloat32, number)));
  graph.outputs = {found};
  for (const ValueId id : {table, first, second}) {
    graph.outputs.push_back(builder.addValue("next " + graph.value(id).name, DataType::kFloat32, {50, 7}));
    pass.in_place[graph.outputs.back()] = id;
  }
  builder.addNode("pipeshard", "AdamW", operands, {graph.outputs[1], graph.outputs[2], graph.outputs[3]});
  pass.states = {first, second};
  pass.below[rows] = 50;
  return pass;
}

TEST(ProfileSamples, AGraphIsAProgram) {
  const RankImage image = imageOf(lookupAndUpdate());
  const Program& program = image.program;
  ASSERT_EQ(program.instructions.size(), 1U);
  EXPECT_EQ(program.buffers.size(), 7U);  // the updates have no memory of their own
  const std::vector<BufferId>& outputs = program.instructions.plain()[0].outputs;
  EXPECT_EQ(outputs[1], program.instructions.plain()[0].inputs[0]);
  EXPECT_EQ(program.buffer(outputs[2]).kind, BufferKind::kOptimizerState);
  EXPECT_EQ(program.buffer(program.instructions.plain()[0].inputs[5]).kind, BufferKind::kStep);
  EXPECT_EQ(program.inputs.at(0).high, 50);
}

// The same operators, in the program's order or, where that is too large, one by one.
TEST(ProfileSamples, ProgramsThatDoNotFitAreTakenApart) {
  ProfilingOptions options;
  options.sample_ns = 1'000'000;
  ProfileSamples samples;
  samples.add(imageOf(lookupAndUpdate()));
  samples.add(imageOf(lookupAndUpdate()));
  EXPECT_EQ(samples.size(), 2U);
  size_t programs = 0;
  const auto count = [&](size_t, size_t all) { programs = all; };
  for (const int64_t most_bytes : {int64_t{1} << 30, int64_t{1}}) {
    const std::vector<OperatorTime> times = samples.measure(options, count, most_bytes);
    EXPECT_EQ(programs, most_bytes == 1 ? 2U : 1U);
    for (const ProfilePoint& point : samples.points(times)) EXPECT_GT(point.ns, 0) << point.work.op;
    EXPECT_EQ(samples.points(times).size(), 2U);
  }
}

std::set<std::string> operatorsOfTheLadder() {
  ProfileSamples samples;
  addLadder(samples, true);
  std::set<std::string> operators;
  for (const ProfilePoint& point : samples.points(std::vector<OperatorTime>(samples.size(), {1, 1, 1})))
    operators.insert(point.work.op);
  return operators;
}

// The operators of convolutional models, with and without a model's own profile.
TEST(ProfileLadder, HasBatchNormalization) {
  const std::set<std::string> operators = operatorsOfTheLadder();
  for (const std::string op : {"BatchNormalization", "pipeshard::BatchNormalizationInputGrad",
                               "pipeshard::BatchNormalizationWeightGrad", "Conv", "Gather",
                               "pipeshard::GatherGrad", "pipeshard::AdamW", "Softmax"}) {
    EXPECT_TRUE(operators.contains(op)) << op;
  }
}

// What a plan has of a model, and what it has with --patterns off.
TEST(ProfileLadder, HasPatternsAndTheirNodes) {
  const std::set<std::string> operators = operatorsOfTheLadder();
  for (const std::string op : {"pipeshard::Attention", "pipeshard::AttentionGrad", "pipeshard::Gelu",
                               "pipeshard::Swish", "pipeshard::RMSNormalization", "Gelu", "Sigmoid"}) {
    EXPECT_TRUE(operators.contains(op)) << op;
  }
}

TEST(ProfileCommand, SaysWhatCannotBe) {
  const TemporaryFolder folder;
  const CommandResult cuda = runPipeshard({"profile", "--device", "cuda", "-o", folder.file("p.json")});
  EXPECT_EQ(cuda.exit_code, static_cast<int>(ErrorCode::kConfiguration));
  EXPECT_THAT(cuda.errors, HasSubstr("--device cuda: "));
  const CommandResult missing = runPipeshard(
      {"plan", "examples/mlp.onnx", "--profile", folder.file("none.json"), "-o", folder.file("p")});
  EXPECT_EQ(missing.exit_code, static_cast<int>(ErrorCode::kMissingInput));
  EXPECT_THAT(missing.errors, AllOf(HasSubstr("none.json"), HasSubstr("pipeshard profile")));
  writeFile(folder.file("bad.json"), "{\"version\": 7}");
  const CommandResult bad = runPipeshard(
      {"plan", "examples/mlp.onnx", "--profile", folder.file("bad.json"), "-o", folder.file("p")});
  EXPECT_EQ(bad.exit_code, static_cast<int>(ErrorCode::kVersionMismatch));
}

// The default file: only of this machine, and never when the environment says off, as it does for tests.
TEST(ChooseProfile, TakesTheDefaultFileOfThisMachine) {
  const TemporaryFolder folder;
  ::setenv("XDG_CONFIG_HOME", folder.file("").c_str(), 1);
  ::unsetenv("PIPESHARD_PROFILE");
  EXPECT_FALSE(chooseProfile(""));
  Profile profile;
  profile.device = thisDevice(1);
  writeProfile(profile, defaultProfilePath());
  EXPECT_TRUE(chooseProfile(""));
  EXPECT_FALSE(chooseProfile("off"));
  ::setenv("PIPESHARD_PROFILE", "off", 1);
  EXPECT_FALSE(chooseProfile(""));
  EXPECT_TRUE(chooseProfile(defaultProfilePath()));
  ::unsetenv("PIPESHARD_PROFILE");
  profile.device.processors += 1;
  writeProfile(profile, defaultProfilePath());
  std::string note;
  EXPECT_FALSE(chooseProfile("", &note));
  EXPECT_THAT(note, HasSubstr("another machine"));
  EXPECT_TRUE(chooseProfile(defaultProfilePath()));  // asked for by name: for planning for that machine
  ::setenv("PIPESHARD_PROFILE", "off", 1);
}

// What only looks at a model does not stumble over a profile that cannot be read.
TEST(ModelRequest, ReadsNoProfile) {
  const TemporaryFolder folder;
  folder.write("pipeshard/profile.json", "{broken");
  ::setenv("XDG_CONFIG_HOME", folder.path().c_str(), 1);
  ::unsetenv("PIPESHARD_PROFILE");
  EXPECT_NO_THROW(modelRequest(PlanOptions()));
  EXPECT_THROW(planRequest(PlanOptions()), Error);
  ::setenv("PIPESHARD_PROFILE", "off", 1);
}

TEST(ApplyProfile, FillsWhatIsUnknownAndNothingElse) {
  StoredProfile stored;
  stored.profile.device = {"P", "avx2", 2, 1};
  stored.profile.memory = {{{0, 0}, {1000, 100}}};
  stored.profile.inside = {{{0, 1000}, {1000000, 101000}}};
  stored.times = std::make_shared<OperatorTimes>(stored.profile);
  Cluster cluster = uniformCluster(1, 4);
  EXPECT_TRUE(applyProfile(cluster, stored));
  EXPECT_EQ(cluster.kinds[0].memory, stored.profile.memory);
  EXPECT_EQ(cluster.kinds[0].measured, stored.times);
  EXPECT_EQ(cluster.nodes[0].inside.latency_ns, 1000);
  EXPECT_DOUBLE_EQ(cluster.nodes[0].inside.bytes_per_ns, 10);
  EXPECT_EQ(cluster.nodes[0].cores, 2);
  EXPECT_EQ(cluster.nodes[0].nic, ClusterNode().nic);
  Cluster preset = parseCluster("v100:2");
  EXPECT_FALSE(applyProfile(preset, stored));
  EXPECT_EQ(preset, parseCluster("v100:2"));
}

}  // namespace
}  // namespace pipeshard
