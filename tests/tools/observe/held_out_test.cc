// `run --eval`: the loss of held-out data while a plan trains. It is the one that the exported model has, as
// an evaluation of its own (which evaluation_test.cc holds against ONNX Runtime's numbers) and as ONNX
// Runtime computes it (tests/oracle/held_out.py).
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "runtime/files/npz.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<nlohmann::json> logLines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(readFile(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

uint64_t mixed(uint64_t number) {
  number = (number ^ (number >> 31)) * 0x9E3779B97F4A7C15ULL;
  return number ^ (number >> 29);
}

template <typename T>
NpzArray arrayOf(DataType type, Shape shape, const std::vector<T>& numbers) {
  NpzArray array{type, std::move(shape), {}};
  array.bytes.resize(numbers.size() * sizeof(T));
  std::memcpy(array.bytes.data(), numbers.data(), array.bytes.size());
  return array;
}

class HeldOut : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.file(name); }

  // Rows of tokens for the GPT-2 example; of labels some are ignored, as many as the row says.
  std::string writeTokens(const std::string& name, int64_t rows) {
    std::vector<int64_t> ids, labels;
    for (int64_t i = 0; i < rows * 16; ++i) {
      ids.push_back(static_cast<int64_t>(mixed(i + 1) % 64));
      labels.push_back(mixed(i + 7) % 16 < static_cast<uint64_t>(i / 16 % 9) ? -100 : ids.back());
    }
    writeNpz(at(name), {{"input_ids", arrayOf(DataType::kInt64, {rows, 16}, ids)},
                        {"labels", arrayOf(DataType::kInt64, {rows, 16}, labels)}});
    return at(name);
  }

  // Rows for the mlp example.
  std::string writeVectors(const std::string& name, int64_t rows) {
    std::vector<float> numbers;
    for (int64_t i = 0; i < rows * 32; ++i) numbers.push_back(static_cast<float>(mixed(i + 1) % 1000) / 300);
    const NpzArray array = arrayOf(DataType::kFloat32, {rows, 32}, numbers);
    writeNpz(at(name), {{"x", array}, {"y", array}});
    return at(name);
  }
  // The mlp example, changed.
  std::string writeMlp(const std::function<void(Graph&)>& change) {
    Graph graph = readModel(PIPESHARD_SOURCE_DIR "/examples/mlp.onnx");
    change(graph);
    writeModel(graph, at("mlp.onnx"));
    std::filesystem::copy(PIPESHARD_SOURCE_DIR "/examples/mlp.onnx.data", at("mlp.onnx.data"));
    return at("mlp.onnx");
  }

  CommandResult succeed(const std::vector<std::string>& arguments) {
    CommandResult result = runPipeshard(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    return result;
  }

  std::string plan(const std::string& model, std::vector<std::string> options) {
    const std::string directory = at("plan" + std::to_string(++plans_));
    options.insert(options.begin(), {"plan", model, "--dim", "batch=8", "-o", directory});
    succeed(options);
    return directory;
  }

  // The loss after the last of four steps, by `run --eval`.
  double evaluated(const std::string& plan, const std::string& data, const std::string& held_out) {
    std::filesystem::remove_all(at("saved"));
    std::filesystem::remove_all(at("log"));
    ran_ = succeed({"run", plan, "--data", data, "--steps", "4", "--eval", held_out, "--eval-every", "2",
                    "--log", at("log"), "--checkpoint", at("saved")});
    const std::vector<nlohmann::json> evaluations = logLines(at("log") + "/evaluations.jsonl");
    EXPECT_EQ(evaluations.size(), 2U);
    return evaluations.empty() ? NAN : evaluations.back()["loss"].get<double>();
  }

  // The loss of all rows at once by the model that `export` makes of the checkpoint, in an evaluation of its
  // own.
  double ofExported(const std::string& held_out, int64_t rows) {
    succeed({"export", at("saved"), "-o", at("trained.onnx")});
    Graph graph = readModel(at("trained.onnx"));
    for (Node& node : graph.nodes) {
      if (node.is("Dropout")) node.inputs.resize(1);
    }
    writeModel(graph, at("evaluated.onnx"));
    return ofModel(at("evaluated.onnx"), held_out, rows);
  }
  double ofModel(const std::string& model, const std::string& held_out, int64_t rows) {
    succeed({"plan", model, "--dim", "batch=" + std::to_string(rows), "--cluster", "1x1", "--microbatches",
             "1", "--schedule", "forward-only", "-o", at("whole")});
    succeed({"run", at("whole"), "--data", held_out, "--steps", "1", "--json", at("whole.json")});
    return nlohmann::json::parse(readFile(at("whole.json")))["steps"][0]["loss"].get<double>();
  }

  const TemporaryFolder folder_;
  CommandResult ran_;
  int plans_ = 0;
};

constexpr const char* kGpt2 = "examples/gpt2.onnx";

TEST_F(HeldOut, IsTheLossOfTheExportedModelWhateverThePlan) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 22);
  const std::vector<std::vector<std::string>> plans = {
      {"--cluster", "1x1", "--microbatches", "1"},
      {"--cluster", "1x4", "--stages", "uniform:4", "--microbatches", "3"},
      {"--cluster", "1x2", "--stages", "uniform:1", "--microbatches", "2", "--method", "zero3"},
      {"--cluster", "1x4", "--method", "megatron:1,2,2", "--microbatches", "2"},
      {"--cluster", "1x2", "--schedule", "interleaved:v=2", "--microbatches", "4"},
      {"--cluster", "1x2", "--schedule", "zbv", "--microbatches", "4", "--recompute", "always"},
      {"--cluster", "1x4", "--stages", "uniform:2", "--microbatches", "2", "--optimizer", "adamw:lr=1e-2"},
  };
  for (const std::vector<std::string>& options : plans) {
    SCOPED_TRACE(::testing::PrintToString(options));
    const double loss = evaluated(plan(kGpt2, options), data, held_out);
    EXPECT_THAT(ran_.output,
                HasSubstr("22 examples in 3 batches, weighted by what their loss is divided by"));
    EXPECT_THAT(ran_.output, Not(HasSubstr("left out")));
    EXPECT_NEAR(loss, ofExported(held_out, 22), 2e-6);
  }
}

TEST_F(HeldOut, MayBeEvaluatedBeforeTheFirstStep) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 22);
  const std::string directory = plan(kGpt2, {"--cluster", "1x2", "--microbatches", "2"});
  const auto stepsOf = [&](const char* steps) {
    succeed({"run", directory, "--data", data, "--steps", steps, "--checkpoint", at("saved"), "--eval",
             held_out, "--eval-at-start", "--log", at("log")});
    std::vector<int64_t> found;
    for (const nlohmann::json& line : logLines(at("log") + "/evaluations.jsonl"))
      found.push_back(line["step"]);
    return found;
  };
  EXPECT_EQ(stepsOf("2"), (std::vector<int64_t>{0, 2}));
  EXPECT_NEAR(logLines(at("log") + "/evaluations.jsonl")[0]["loss"].get<double>(),
              ofModel(kGpt2, held_out, 22), 2e-6);
  EXPECT_EQ(stepsOf("3"), (std::vector<int64_t>{0, 2, 3}));  // it goes on
}

// Whatever is said of steps and data, which are not read.
TEST_F(HeldOut, AFinishedCheckpointIsEvaluatedAlone) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 22);
  const std::string directory = plan(kGpt2, {"--cluster", "1x2", "--microbatches", "2"});
  succeed({"run", directory, "--data", data, "--steps", "3", "--checkpoint", at("saved")});
  const double want = ofExported(held_out, 22);
  const std::string finished = at("saved") + "/step-000003 has 3 steps; more by --steps";
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {},
           {"--steps", "3", "--data", data, "--eval-at-start"},
           {"--steps", "3", "--eval-every", "3", "--operators", "--trace", at("trace.json")},
           {"--steps", "2", "--data-command", "touch " + at("started")}}) {
    SCOPED_TRACE(::testing::PrintToString(more));
    std::vector<std::string> arguments = {"run",    directory, "--checkpoint", at("saved"), "--eval",
                                          held_out, "--log",   at("log"),      "--json",    at("run.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult ran = succeed(arguments);
    EXPECT_THAT(ran.output,
                AllOf(HasSubstr("step 3: held-out loss "), HasSubstr("nothing is left to train: " + finished),
                      Not(HasSubstr("random numbers"))));
    EXPECT_THAT(ran.errors, Not(HasSubstr("going on with")));
    const nlohmann::json json = nlohmann::json::parse(readFile(at("run.json")));
    EXPECT_TRUE(json.at("steps").empty());
    const std::vector<nlohmann::json> lines = logLines(at("log") + "/evaluations.jsonl");
    ASSERT_EQ(lines.size(), 1U);
    ASSERT_EQ(json.at("evaluations").size(), 1U);
    for (const nlohmann::json& evaluation : {lines[0], json["evaluations"][0]}) {
      EXPECT_EQ(evaluation.at("step"), 3);
      EXPECT_EQ(evaluation.at("exact"), true);
      EXPECT_NEAR(evaluation.at("loss").get<double>(), want, 2e-6);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(at("started"))) << "no loader is needed";
  const nlohmann::json trace = nlohmann::json::parse(readFile(at("trace.json")));
  int passes = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] != "compute") continue;
    EXPECT_EQ(event["args"].at("step"), 3) << event;
    ++passes;
  }
  EXPECT_GT(passes, 0);
  EXPECT_THAT(succeed({"run", directory, "--data", data, "--steps", "3", "--checkpoint", at("saved")}).output,
              AllOf(HasSubstr("nothing is left to do: " + finished), Not(HasSubstr("held-out"))));
}

// The root of a mean over rows: of several batches the mean of these is another number, of one it is not.
TEST_F(HeldOut, ALossThatIsApproximateSaysSo) {
  const std::string model = writeMlp([](Graph& graph) {
    GraphBuilder builder(graph);
    const ValueId root = builder.addValue("root", DataType::kFloat32, {});
    builder.addNode("", "Sqrt", {graph.outputs.at(0)}, {root});
    graph.outputs = {root};
  });
  const std::string directory = plan(model, {"--cluster", "1x2", "--microbatches", "1"});
  const std::string data = writeVectors("data.npz", 16), several = writeVectors("several.npz", 20),
                    one = writeVectors("one.npz", 8);
  evaluated(directory, data, several);
  EXPECT_THAT(ran_.output, AllOf(HasSubstr("in 3 batches, weighted by their rows; the loss is approximate: "),
                                 HasSubstr(" (approximate; ")));
  EXPECT_EQ(logLines(at("log") + "/evaluations.jsonl").back().at("exact"), false);
  EXPECT_THAT(readFile(at("log") + "/events.jsonl"), HasSubstr(" (approximate)\""));
  evaluated(directory, data, one);
  EXPECT_THAT(ran_.output, AllOf(HasSubstr("in 1 batch, "), Not(HasSubstr("approximate"))));
  EXPECT_EQ(logLines(at("log") + "/evaluations.jsonl").back().at("exact"), true);
}

// Whatever ranks there are, replicas of the last stage too; a mean over rows is weighted by them.
TEST_F(HeldOut, LossesThatAreSumsAreAddedUp) {
  const std::string data = writeVectors("data.npz", 16), held_out = writeVectors("held.npz", 21);
  const std::string model = writeMlp([](Graph& graph) {
    for (Node& node : graph.nodes) {
      if (node.is("ReduceMean")) node.op_type = "ReduceSum";
    }
  });
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--cluster", "1x2", "--microbatches", "1", "--optimizer", "sgd:lr=1e-5"},
           {"--cluster", "1x2", "--stages", "uniform:1", "--optimizer", "sgd:lr=1e-5"}}) {
    const double loss = evaluated(plan(model, options), data, held_out);
    EXPECT_THAT(ran_.output,
                AllOf(HasSubstr("21 examples in 3 batches, added up: the loss is a sum over all "),
                      Not(HasSubstr("approximate"))));
    EXPECT_NEAR(loss, ofExported(held_out, 21), 1e-5 * loss);
    evaluated(plan("examples/mlp.onnx", options), data, held_out);
    EXPECT_THAT(ran_.output, AllOf(HasSubstr("weighted by their rows"), Not(HasSubstr("approximate"))));
  }
}

// What the loss is divided by is told by a batch of one row, too.
TEST_F(HeldOut, OneRowMayBeLeftOver) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 17);
  const double loss = evaluated(plan(kGpt2, {"--cluster", "1x2", "--microbatches", "1"}), data, held_out);
  EXPECT_NEAR(loss, ofExported(held_out, 17), 2e-6);
}

TEST_F(HeldOut, ChangesNothingOfTheTraining) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 20);
  const std::string directory =
      plan(kGpt2, {"--cluster", "1x2", "--microbatches", "2", "--optimizer", "adam"});
  succeed({"run", directory, "--data", data, "--steps", "5", "--checkpoint", at("without")});
  succeed({"run", directory, "--data", data, "--steps", "5", "--checkpoint", at("with"), "--eval", held_out,
           "--eval-every", "1"});
  const CommandResult compared = runPipeshard({"checkpoint", at("with"), "--compare", at("without")});
  EXPECT_EQ(compared.exit_code, 0) << compared.output;
}

// The GPT-2 example with dropouts: three quarters are dropped in training, nothing in evaluation.
TEST_F(HeldOut, DropoutsAreOff) {
  Graph graph = readModel(PIPESHARD_SOURCE_DIR "/examples/gpt2.onnx");
  GraphBuilder builder(graph);
  const ValueId ratio = builder.addConstant("ratio", makeConstant<float>({}, {0.75F}));
  const ValueId training = builder.addConstant("training", Constant{DataType::kBool, {}, {std::byte{1}}});
  std::vector<Node> nodes;
  nodes.swap(graph.nodes);
  for (Node& node : nodes) {
    const bool drops = node.is("Softmax") || node.is("LayerNormalization");
    const ValueId output = node.outputs[0];
    if (drops) {
      node.outputs[0] = builder.addValue("whole", graph.dataType(output), {});
      graph.value(node.outputs[0]).shape.reset();
    }
    const ValueId whole = node.outputs[0];
    graph.nodes.push_back(std::move(node));
    if (drops) builder.addNode("", "Dropout", {whole, ratio, training}, {output});
  }
  writeModel(graph, at("dropping.onnx"));
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 22);
  std::filesystem::copy(PIPESHARD_SOURCE_DIR "/examples/gpt2.onnx.data", at("gpt2.onnx.data"));
  const std::string staged = plan(at("dropping.onnx"), {"--cluster", "1x2", "--microbatches", "2"});
  double loss = evaluated(staged, data, held_out);
  EXPECT_NEAR(loss, ofExported(held_out, 22), 2e-6);
  const std::string sharded = plan(at("dropping.onnx"), {"--cluster", "1x2", "--stages", "uniform:1",
                                                         "--method", "megatron:1,2", "--microbatches", "2"});
  loss = evaluated(sharded, data, held_out);
  EXPECT_NEAR(loss, ofExported(held_out, 22), 2e-6);
}

// The statistics of the ResNet example's normalisations are those that training has kept, and stay so.
TEST_F(HeldOut, NormalizationsUseRunningStatistics) {
  const auto write = [&](const std::string& name, int64_t rows) {
    std::vector<float> x;
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < rows * 3 * 32 * 32; ++i)
      x.push_back(static_cast<float>(mixed(i + 1) % 1000) / 300 - 1);
    for (int64_t i = 0; i < rows; ++i) labels.push_back(static_cast<int64_t>(mixed(i + 1) % 10));
    writeNpz(at(name), {{"images", arrayOf(DataType::kFloat32, {rows, 3, 32, 32}, x)},
                        {"labels", arrayOf(DataType::kInt64, {rows}, labels)}});
    return at(name);
  };
  const std::string data = write("data.npz", 16), held_out = write("held.npz", 13);
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--cluster", "1x2", "--microbatches", "2"},
           {"--cluster", "1x2", "--stages", "uniform:1", "--microbatches", "1"}}) {
    SCOPED_TRACE(::testing::PrintToString(options));
    const double loss = evaluated(plan("examples/resnet.onnx", options), data, held_out);
    succeed({"export", at("saved"), "-o", at("trained.onnx")});
    Graph trained = readModel(at("trained.onnx"));
    for (Node& node : trained.nodes) {
      if (!node.is("BatchNormalization")) continue;
      node.attributes.erase("training_mode");
      node.outputs.resize(1);
    }
    trained.outputs = {findValue(trained, "loss")};
    removeDeadCode(trained);
    writeModel(trained, at("evaluated.onnx"));
    succeed({"plan", at("evaluated.onnx"), "--dim", "batch=13", "--cluster", "1x1", "--microbatches", "1",
             "--schedule", "forward-only", "-o", at("whole")});
    succeed({"run", at("whole"), "--data", held_out, "--steps", "1", "--json", at("whole.json")});
    const auto whole = nlohmann::json::parse(readFile(at("whole.json")))["steps"][0]["loss"].get<double>();
    EXPECT_NEAR(loss, whole, 1e-5 * whole);
  }
}

TEST_F(HeldOut, ItsProgramsAreKeptAndFollowPlanAndData) {
  const std::string data = writeTokens("data.npz", 24);
  const std::string directory = plan(kGpt2, {"--cluster", "1x2", "--microbatches", "2"});
  const std::string record = directory + "/evaluation/evaluation.json";
  const std::vector<std::string> run = {"run", directory, "--data", data, "--steps", "1", "--eval"};
  const auto evaluate = [&](const std::string& held_out) {
    std::vector<std::string> arguments = run;
    arguments.push_back(held_out);
    succeed(arguments);
    return std::filesystem::last_write_time(record);
  };
  const auto first = evaluate(writeTokens("a.npz", 16));
  EXPECT_EQ(evaluate(writeTokens("b.npz", 16)), first);
  EXPECT_FALSE(std::filesystem::exists(directory + "/evaluation/kinds/last_0000.json"));
  EXPECT_NE(evaluate(writeTokens("c.npz", 19)), first);
  EXPECT_TRUE(std::filesystem::exists(directory + "/evaluation/kinds/last_0000.json"));
  writeFile(record, "{ damaged");
  evaluate(writeTokens("c.npz", 19));
  EXPECT_THAT(readFile(record), HasSubstr("\"rows\": 19"));
}

// As steps have it: passes of every rank, microbatch and batch, messages that find each other.
TEST_F(HeldOut, ATraceHasItsBatches) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 20);
  const std::string directory =
      plan(kGpt2, {"--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "2"});
  const auto ran = [&](const std::string& kept) {
    succeed({"run", directory, "--data", data, "--steps", "4", "--eval", held_out, "--eval-every", "2",
             "--eval-at-start", "--trace", at("trace.json"), "--trace-steps", kept});
    // by step and batch, what kind of pass, and how many
    std::map<std::tuple<int64_t, int64_t, std::string>, int> passes;
    int arrows = 0;
    const nlohmann::json trace = nlohmann::json::parse(readFile(at("trace.json")));
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event["ph"] == "f") ++arrows;
      if (event["ph"] != "X" || event["cat"] != "compute") continue;
      const nlohmann::json& about = event["args"];
      const int64_t batch = about.value("batch", int64_t{0});
      if (about.contains("microbatch")) ++passes[{about["step"], batch, about["work"]}];
      EXPECT_EQ(event["name"].get<std::string>().starts_with("evaluate "), batch > 0) << event;
    }
    for (const auto& [of, count] : passes) {
      const auto& [step, batch, work] = of;
      // a label count is taken before the passes; of two stages, two microbatches, one of the last batch
      EXPECT_TRUE(batch == 0 || work == "forward" || work == "other") << step << " " << work;
      EXPECT_TRUE(work != "forward" || count >= (batch == 3 ? 2 : 4)) << step << " " << batch;
    }
    EXPECT_GT(arrows, 0);
    std::set<std::pair<int64_t, int64_t>> seen;
    for (const auto& [of, count] : passes) seen.emplace(std::get<0>(of), std::get<1>(of));
    return seen;
  };
  using Seen = std::set<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(ran("20"), (Seen{{0, 1},
                             {0, 2},
                             {0, 3},
                             {1, 0},
                             {2, 0},
                             {2, 1},
                             {2, 2},
                             {2, 3},
                             {3, 0},
                             {4, 0},
                             {4, 1},
                             {4, 2},
                             {4, 3}}));
  EXPECT_EQ(ran("2"), (Seen{{3, 0}, {4, 0}, {4, 2}, {4, 3}}));
  succeed({"report", directory, "--trace", at("trace.json"), "-o", at("page.html")});
  EXPECT_THAT(readFile(at("page.html")), HasSubstr("measured, 2 batches of held-out data after step 4"));
  succeed({"simulate", directory, "--measured", at("trace.json")});
}

TEST_F(HeldOut, ASetThatIsSmallerThanABatchIsOne) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 3);
  const std::string directory = plan(kGpt2, {"--cluster", "1x2", "--microbatches", "4"});
  const double loss = evaluated(directory, data, held_out);
  EXPECT_THAT(ran_.output, HasSubstr("3 examples in 1 batch,"));
  EXPECT_NEAR(loss, ofExported(held_out, 3), 2e-6);
}

TEST_F(HeldOut, RowsThatDevicesCannotShareAreNamed) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 9);
  const std::string directory =
      plan(kGpt2, {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero2", "--microbatches", "2"});
  evaluated(directory, data, held_out);
  EXPECT_THAT(ran_.output, HasSubstr("the last example that the plan's devices cannot share is left out"));
}

TEST_F(HeldOut, WhatCannotBeIsRefusedByName) {
  const std::string held_out = writeTokens("held.npz", 16);
  const std::string directory = plan(kGpt2, {"--cluster", "1x2", "--microbatches", "2"});
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::string& text) {
    arguments.insert(arguments.begin(), {"run", directory, "--steps", "1"});
    const CommandResult result = runPipeshard(arguments);
    EXPECT_EQ(result.exit_code, code) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(text));
  };
  refused({"--eval", at("none.npz")}, 66, "none.npz");
  refused({"--eval-every", "2"}, 64, "--eval");
  refused({"--eval", held_out, "--eval-every", "0"}, 64, "--eval-every");
  refused({"--eval", "-"}, 64, "--eval");
  std::vector<int64_t> ids(16 * 16, 64'000);
  writeNpz(at("beyond.npz"), {{"input_ids", arrayOf(DataType::kInt64, {16, 16}, ids)},
                              {"labels", arrayOf(DataType::kInt64, {16, 16}, ids)}});
  refused({"--eval", at("beyond.npz")}, 78, "beyond.npz");
  const std::string evaluation = plan(kGpt2, {"--cluster", "1x1", "--schedule", "forward-only"});
  const CommandResult result = runPipeshard({"run", evaluation, "--eval", held_out});
  EXPECT_EQ(result.exit_code, 64) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("is an evaluation itself"));
  // also where the evaluation's programs are there already
  succeed({"run", directory, "--steps", "1", "--eval", held_out});
  refused({"--eval", at("none.npz")}, 66, "--eval " + at("none.npz") + ": ");
}

TEST_F(HeldOut, ASignalEndsALongEvaluationAndSavesTheStep) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 8 * 4000);
  const std::string directory = plan(kGpt2, {"--cluster", "1x2", "--microbatches", "2"});
  const std::filesystem::path out = at("out"), err = at("err");
  const pid_t pid =
      startPipeshard({"run", directory, "--data", data, "--steps", "3", "--checkpoint", at("saved"), "--eval",
                      held_out, "--eval-every", "1", "--json", at("run.json")},
                     out, err);
  EXPECT_TRUE(eventually([&] { return readFile(out).find("step 1/3") != std::string::npos; },
                         std::chrono::seconds(30)))
      << readFile(err);
  ::kill(pid, SIGTERM);
  const CommandResult result = finishPipeshard(pid, out, err, std::chrono::seconds(20));
  EXPECT_EQ(result.exit_code, 75) << result.errors;
  EXPECT_TRUE(std::filesystem::exists(at("saved") + "/step-000001/COMMIT")) << result.output;
  EXPECT_THAT(result.errors, HasSubstr("not evaluated after step 1; the run that goes on begins with that"));
  const nlohmann::json json = nlohmann::json::parse(readFile(at("run.json")));
  EXPECT_EQ(json.at("steps").size(), 1U);
  EXPECT_THAT(json.at("ended").get<std::string>(), HasSubstr("stopped by SIGTERM"));
}

TEST_F(HeldOut, ARunThatGoesOnMakesUpForTheEvaluationThatWasDue) {
  const std::string data = writeTokens("data.npz", 24), held_out = writeTokens("held.npz", 8);
  const std::string directory = plan(kGpt2, {"--cluster", "1x2", "--microbatches", "2"});
  const auto run = [&](const char* steps, std::vector<std::string> more) {
    more.insert(more.begin(),
                {"run", directory, "--data", data, "--steps", steps, "--checkpoint", at("saved")});
    return succeed(more);
  };
  run("2", {});  // as one that was stopped before it could evaluate
  const std::vector<std::string> evaluates = {"--eval", held_out,  "--eval-every", "2",
                                              "--log",  at("log"), "--json",       at("run.json")};
  run("5", evaluates);
  const auto stepsOf = [](const auto& lines) {
    std::vector<int64_t> steps;
    for (const nlohmann::json& line : lines) steps.push_back(line.at("step"));
    return steps;
  };
  const std::vector<int64_t> expected = {2, 4, 5};
  EXPECT_EQ(stepsOf(logLines(at("log") + "/evaluations.jsonl")), expected);
  EXPECT_EQ(stepsOf(nlohmann::json::parse(readFile(at("run.json"))).at("evaluations")), expected);
}

}  // namespace
}  // namespace pipeshard
