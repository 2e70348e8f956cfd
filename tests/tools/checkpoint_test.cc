// `run --checkpoint`, `checkpoint` and `export`, as a user calls them.
#include <algorithm>
#include <csignal>
#include <cstring>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/training_info.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/files/npz.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

class CheckpointCommand : public ::testing::Test {
 protected:
  CommandResult succeed(const std::vector<std::string>& arguments) {
    CommandResult result = runPipeshard(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    return result;
  }

  std::string plan(const std::string& model, std::vector<std::string> options) {
    const std::string directory = folder_.file("plan" + std::to_string(++plans_));
    options.insert(options.begin(), {"plan", model, "--optimizer", "adamw:lr=1e-2", "-o", directory});
    succeed(options);
    return directory;
  }

  CommandResult run(const std::string& plan, int steps, const std::string& folder,
                    const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"run",          plan,      "--steps", std::to_string(steps),
                                          "--checkpoint", at(folder)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return runPipeshard(arguments);
  }

  std::string at(const std::string& name) const { return folder_.file(name); }

  std::vector<double> lossesOf(const std::string& json) const {
    std::vector<double> losses;
    const nlohmann::json document = nlohmann::json::parse(readFile(json));
    for (const nlohmann::json& step : document["steps"]) losses.push_back(step["loss"].get<double>());
    return losses;
  }

  std::vector<nlohmann::json> eventsIn(const std::string& log, const std::string& name) const {
    std::vector<nlohmann::json> events;
    std::istringstream lines(readFile(at(log) + "/events.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json event = nlohmann::json::parse(line);
      if (event["event"] == name) events.push_back(std::move(event));
    }
    return events;
  }

  // Its step, by what a run has said; 0: none.
  static int64_t newestCheckpoint(const std::string& said) {
    const size_t line = said.rfind("checkpoint: ");
    const size_t at = line == std::string::npos ? line : said.find("step-", line);
    return at == std::string::npos ? 0 : std::atoll(said.c_str() + at + std::strlen("step-"));
  }

  // The two newest checkpoints hold the same, bit for bit.
  void expectEqual(const std::string& a, const std::string& b) {
    const CommandResult compared = runPipeshard({"checkpoint", at(a), "--compare", at(b)});
    EXPECT_EQ(compared.exit_code, 0) << compared.output;
  }

  TemporaryFolder folder_;
  int plans_ = 0;
};

TEST_F(CheckpointCommand, AResumedRunEqualsOneWithoutPause) {
  const std::vector<std::vector<std::string>> ways = {
      {"--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "4"},
      {"--cluster", "2x2", "--stages", "uniform:2", "--microbatches", "2"},  // rows are shared
      {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero2"},
      {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero3"}};
  for (size_t i = 0; i < ways.size(); ++i) {
    const std::string directory = plan("examples/gpt2.onnx", ways[i]);
    const std::string whole = "whole" + std::to_string(i), paused = "paused" + std::to_string(i);
    ASSERT_EQ(run(directory, 7, whole, {"--json", at("whole.json")}).exit_code, 0);
    ASSERT_EQ(run(directory, 4, paused).exit_code, 0);
    const CommandResult resumed = run(directory, 7, paused, {"--json", at("resumed.json")});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.errors;
    EXPECT_THAT(resumed.output, HasSubstr("going on after step 4"));
    expectEqual(whole, paused);
    const std::vector<double> all = lossesOf(at("whole.json")), rest = lossesOf(at("resumed.json"));
    EXPECT_EQ(rest, std::vector<double>(all.begin() + 4, all.end()));
    EXPECT_THAT(run(directory, 7, paused).output, HasSubstr("nothing is left to do"));
  }
}

// In float64, where another order of sums is seen in the last digits only. Without patterns queries, keys and
// values are one axis of a weight, with them two.
TEST_F(CheckpointCommand, AnotherPlanOfTheModelGoesOn) {
  const auto withPrecision = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--precision", "float64"});
    return plan("examples/gpt2.onnx", options);
  };
  const std::vector<std::string> plans = {
      withPrecision({"--cluster", "1x1"}),
      withPrecision(
          {"--cluster", "1x4", "--stages", "uniform:4", "--schedule", "zb-h1", "--microbatches", "4"}),
      withPrecision({"--cluster", "1x2", "--schedule", "interleaved", "--microbatches", "4"}),
      withPrecision({"--cluster", "2x2", "--method", "megatron:2,1,2"}),
      withPrecision({"--cluster", "1x1", "--patterns", "off"}),
      withPrecision({"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero3"})};
  ASSERT_EQ(run(plans[0], 5, "want", {"--json", at("want.json")}).exit_code, 0);
  const std::vector<double> want = lossesOf(at("want.json"));
  for (size_t from = 0; from < plans.size(); ++from) {
    for (size_t to = 0; to < plans.size(); ++to) {
      const std::string saved = "saved" + std::to_string(from) + std::to_string(to);
      ASSERT_EQ(run(plans[from], 3, saved).exit_code, 0);
      const CommandResult resumed = run(plans[to], 5, saved, {"--json", at("got.json")});
      ASSERT_EQ(resumed.exit_code, 0) << from << to << resumed.errors;
      EXPECT_EQ(resumed.errors.find("saved under another plan") != std::string::npos, from != to);
      const std::vector<double> got = lossesOf(at("got.json"));
      ASSERT_EQ(got.size(), 2u);
      EXPECT_NEAR(got[0], want[3], 1e-10) << from << to;
      EXPECT_NEAR(got[1], want[4], 1e-10) << from << to;
    }
  }
}

TEST_F(CheckpointCommand, TheLogHasEveryStepOnce) {
  const std::string directory = plan("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  ASSERT_EQ(run(directory, 6, "saved", {"--log", at("log"), "--every", "2"}).exit_code, 0);
  std::filesystem::remove_all(at("saved") + "/step-000006");  // so steps 5 to 8 are done by the second run
  writeFile(at("log") + "/steps.jsonl",
            readFile(at("log") + "/steps.jsonl") + "{\"step\":7,\"lo");  // cut off
  ASSERT_EQ(run(directory, 8, "saved", {"--log", at("log"), "--json", at("run.json")}).exit_code, 0);
  std::vector<int64_t> steps;
  std::vector<double> losses;
  std::istringstream lines(readFile(at("log") + "/steps.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json entry = nlohmann::json::parse(line);
    steps.push_back(entry["step"].get<int64_t>());
    losses.push_back(entry["loss"].get<double>());
    EXPECT_GT(entry["examples_per_second"].get<double>(), 0);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  const std::vector<double> last = lossesOf(at("run.json"));
  ASSERT_EQ(last.size(), 4u);
  EXPECT_NEAR(losses[7], last[3], 1e-7);
  const std::string table = readFile(at("log") + "/steps.csv");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 9);
  EXPECT_TRUE(table.starts_with("step,loss,seconds,examples_per_second,time,learning_rate,gradient_norm,"));
  EXPECT_THAT(table, HasSubstr("resident_bytes\n1,"));
  EXPECT_THAT(readFile(at("log") + "/events.jsonl"), HasSubstr("\"event\":\"resumed\",\"step\":4"));
}

TEST_F(CheckpointCommand, AskedToEndItSavesAndCanBeRequeued) {
  const std::string directory = plan("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    const CommandProcess process(
        folder_.path(), fmt::format("run{}", signal),
        {"run", directory, "--steps", "500000", "--checkpoint", at("saved"), "--every", "1h"});
    ASSERT_TRUE(process.comes("/500000")) << process.errors();  // a step of its own
    ::kill(process.pid(), signal);
    const CommandResult ended = process.finish();
    EXPECT_EQ(ended.exit_code, 75) << ended.errors;
    EXPECT_THAT(ended.errors, HasSubstr("the same command goes on from it"));
    EXPECT_THAT(processesMentioning(directory), ::testing::IsEmpty());
    EXPECT_EQ(ended.output.find("going on after step") != std::string::npos, signal != SIGTERM);
  }
}

// Ten times a worker is killed; the weights at the end are those of a run without kills, bit for bit. The
// processes of the others stay.
TEST_F(CheckpointCommand, KilledWorkersCostStepsAndNothingElse) {
  const std::string directory =
      plan("examples/gpt2.onnx", {"--cluster", "2x2", "--stages", "uniform:2", "--microbatches", "4"});
  constexpr int kSteps = 1500;
  ASSERT_EQ(run(directory, kSteps, "whole", {"--every", "1000"}).exit_code, 0);
  const CommandProcess process(folder_.path(), "run",
                               {"run", directory, "--steps", std::to_string(kSteps), "--checkpoint",
                                at("killed"), "--every", "50", "--restarts", "10", "--log", at("log")});
  int kills = 0;
  size_t stayed = 0;
  std::vector<pid_t> others;
  size_t seen = 0;               // of the output, when the one before was killed
  for (; kills < 10; ++kills) {  // each time after another checkpoint, or two
    const auto has_saved = [&] {
      const std::string said = process.output();
      return workersOf(directory).size() == 4 && seen < said.size() &&
             said.find("checkpoint: ", seen) != std::string::npos;
    };
    if (!eventually(has_saved, kPatience)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(37 * (kills % 5)));
    const std::string said = process.output();
    if (newestCheckpoint(said) > kSteps - 300) break;  // soon all is done
    const std::vector<pid_t> workers = workersOf(directory);
    if (workers.size() != 4) break;
    for (const pid_t other : others) stayed += std::count(workers.begin(), workers.end(), other);
    others = workers;
    others.erase(others.begin() + kills % 4);
    seen = said.size();
    ::kill(workers[kills % 4], SIGKILL);
  }
  const CommandResult ended = process.finish(std::chrono::seconds(120));
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_GE(kills, 5);
  EXPECT_GE(stayed, 2U * (kills - 1));  // of three; a busy machine may be too slow for one
  EXPECT_THAT(ended.errors, HasSubstr("; 3 of 4 worker processes stayed"));
  EXPECT_THAT(ended.errors, HasSubstr("restart 1 of 10: worker of rank"));
  EXPECT_THAT(ended.errors,
              ::testing::ContainsRegex("restart 1 of 10 .worker of rank .*: step [0-9]+ is done "
                                       "[0-9.]+ s after the loss; [0-9]+ had been done before"));
  EXPECT_THAT(ended.errors, HasSubstr("killed by signal 9"));
  expectEqual("whole", "killed");
  const auto events = eventsIn("log", "restart");
  ASSERT_EQ(std::ssize(events), kills);
  for (const nlohmann::json& event : events) {
    EXPECT_THAT(event["text"].get<std::string>(), HasSubstr("killed by signal 9"));
    EXPECT_GE(event["step"].get<int64_t>(), event["from"].get<int64_t>());
    EXPECT_GT(event["seconds"].get<double>(), 0);
  }
  succeed({"report", directory, "--log", at("log"), "-o", at("page.html")});
  EXPECT_THAT(readFile(at("page.html")), HasSubstr(fmt::format("{} restarts after a loss took", kills)));
  EXPECT_THAT(processesMentioning(directory), ::testing::IsEmpty());
}

// It is asked to leave the step that will not end, and cannot hear it.
TEST_F(CheckpointCommand, AWorkerThatDoesNotAnswerIsReplacedWithTheOneThatIsLost) {
  const std::string directory = plan("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  const CommandProcess process(folder_.path(), "run",
                               {"run", directory, "--steps", "100000000", "--checkpoint", at("saved"),
                                "--every", "50", "--restarts", "3"});
  ASSERT_TRUE(process.comes("checkpoint: ")) << process.errors();
  const pid_t stopped = workersOf(directory, 0).at(0), lost = workersOf(directory, 1).at(0);
  ::kill(stopped, SIGSTOP);
  ::kill(lost, SIGKILL);
  EXPECT_TRUE(process.comes("; 0 of 2 worker processes stayed")) << process.errors();
  EXPECT_NE(workersOf(directory, 0).at(0), stopped);
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.finish().exit_code, 75);
  EXPECT_THAT(processesMentioning(directory), ::testing::IsEmpty());
}

// Its memory is gone as soon as it begins: no restart gets further.
TEST_F(CheckpointCommand, RestartsWithoutProgressEnd) {
  const std::string directory = plan("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  const CommandProcess process(folder_.path(), "run",
                               {"run", directory, "--steps", "100000", "--checkpoint", at("saved"), "--every",
                                "1h", "--restarts", "100"});
  ASSERT_TRUE(process.comes("step ")) << process.errors();
  // A worker that is killed as soon as it is seen has not done a step.
  const auto has_ended = [&] {
    for (const pid_t worker : workersOf(directory)) ::kill(worker, SIGKILL);
    return process.errors().find("no step was done") != std::string::npos;
  };
  EXPECT_TRUE(eventually(has_ended, kPatience));
  const CommandResult ended = process.finish();
  EXPECT_EQ(ended.exit_code, 80) << ended.errors;
}

TEST_F(CheckpointCommand, BadOnesAreToldAndOlderOnesTaken) {
  const std::string directory = plan("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  ASSERT_EQ(run(directory, 6, "saved", {"--every", "3"}).exit_code, 0);
  const auto damage = [&](int64_t step) {
    const std::string file = at("saved") + "/" + checkpointName(step) + "/rank-0001.safetensors";
    std::string bytes = readFile(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    writeFile(file, bytes);
  };
  damage(6);
  EXPECT_EQ(runPipeshard({"checkpoint", at("saved")}).exit_code, 0);
  const CommandResult verified = runPipeshard({"checkpoint", at("saved"), "--verify"});
  EXPECT_EQ(verified.exit_code, 85);
  EXPECT_THAT(verified.output, HasSubstr("has the hash"));
  const CommandResult resumed = run(directory, 7, "saved");
  EXPECT_EQ(resumed.exit_code, 0);
  EXPECT_THAT(resumed.output, HasSubstr("going on after step 3"));
  EXPECT_THAT(resumed.errors, HasSubstr("looking for an older one"));
  const CommandResult listed =
      succeed({"checkpoint", at("saved")});  // the bad one is gone, the good one is not
  EXPECT_THAT(listed.output, ::testing::Not(HasSubstr("step-000006")));
  EXPECT_THAT(listed.output, HasSubstr("step-000003"));
  for (const int64_t step : {3, 7}) damage(step);
  EXPECT_EQ(run(directory, 9, "saved").exit_code, 85);
  EXPECT_EQ(run(directory, 9, "other", {"--seed", "1"}).exit_code, 0);
  const CommandResult other_seed = run(directory, 10, "other", {"--seed", "2"});
  EXPECT_EQ(other_seed.exit_code, 78);
  EXPECT_THAT(other_seed.errors, HasSubstr("was made with --seed 1, this run has --seed 2"));
  const std::string another_model = plan("examples/gpt2.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  const CommandResult refused = run(another_model, 10, "other", {"--seed", "1"});
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.errors, HasSubstr("it was made of another model"));
  EXPECT_EQ(runPipeshard({"checkpoint", at("other"), "--delete", "9"}).exit_code, 0);
  EXPECT_THAT(runPipeshard({"checkpoint", at("other")}).output, HasSubstr("no checkpoint in"));
  EXPECT_EQ(runPipeshard({"run", directory, "--every", "3"}).exit_code, 64);
  EXPECT_EQ(run(directory, 3, "third", {"--every", "soon"}).exit_code, 64);
}

// What the model's file has of them is what was there before training.
TEST_F(CheckpointCommand, NoPlanLosesWhatACheckpointHasLearned) {
  const std::vector<std::string> place = {"--cluster", "1x2", "--stages", "uniform:2"};
  const auto planWith = [&](std::vector<std::string> options) {
    options.insert(options.end(), place.begin(), place.end());
    return plan("examples/mlp.onnx", options);
  };
  const std::string all = planWith({}), frozen = planWith({"--freeze", "dense1"});
  const auto expectRefused = [&](const std::string& directory, const std::string& saved,
                                 const std::string& reason) {
    const CommandResult refused = run(directory, 4, saved);
    EXPECT_EQ(refused.exit_code, 78) << refused.output;
    EXPECT_THAT(refused.errors, HasSubstr(reason));
    EXPECT_THAT(refused.errors, HasSubstr("`pipeshard export " + at(saved)));
  };
  ASSERT_EQ(run(all, 2, "all").exit_code, 0);
  ASSERT_EQ(run(frozen, 2, "frozen").exit_code, 0);
  expectRefused(frozen, "all", "has 2 parameters that this plan does not train: dense1.bias, dense1.weight.");
  expectRefused(all, "frozen",
                "has not 2 parameters that this plan trains: dense1.bias, dense1.weight. The "
                "plan that saved it did not train them");
  expectRefused(planWith({"--ema", "0.9"}), "all",
                "has no moving averages of parameters, which this plan's --ema");
  expectRefused(planWith({"--precision", "float16"}), "all", "has no scale of the loss, which this plan's");
  EXPECT_EQ(run(frozen, 4, "frozen").exit_code, 0);

  // What the message says to do.
  succeed({"export", at("all"), "-o", at("trained.onnx"), "--safetensors", at("before.safetensors")});
  const std::string goes_on = plan(at("trained.onnx"), {"--freeze", "dense1"});
  ASSERT_EQ(run(goes_on, 1, "other").exit_code, 0);
  succeed({"export", at("other"), "--safetensors", at("after.safetensors")});
  const TensorFile before = TensorFile::open(at("before.safetensors")),
                   after = TensorFile::open(at("after.safetensors"));
  for (const char* name : {"dense1.weight", "dense1.bias"})
    EXPECT_EQ(before.read(*before.find(name)), after.read(*after.find(name)));
  EXPECT_NE(before.read(*before.find("dense2.weight")), after.read(*after.find("dense2.weight")));
}

// docs/checkpoints.md says which.
TEST_F(CheckpointCommand, OptimizersAndPrecisionsOfTheSameStatesGoOn) {
  const auto planWith = [&](std::vector<std::string> options) {
    const std::string directory = folder_.file("plan" + std::to_string(++plans_));
    options.insert(options.begin(), {"plan", "examples/mlp.onnx", "--cluster", "1x1", "-o", directory});
    succeed(options);
    return directory;
  };
  const std::string first = planWith({"--optimizer", "adamw:lr=1e-2", "--ema", "0.9"});
  const std::vector<std::pair<std::vector<std::string>, std::string>> plans = {
      {{"--optimizer", "adam:lr=1e-2", "--ema", "0.9"}, "under another plan; all of it goes on"},
      {{"--optimizer", "lamb:lr=1e-2"}, "this one does not keep moving_average, the rest goes on"},
      {{"--optimizer", "sgd:lr=1e-2"},
       "this one does not keep first_moment, moving_average, second_moment, the rest goes on"},
      {{"--optimizer", "adamw:lr=1e-2", "--ema", "0.9", "--precision", "bfloat16"}, "all of it goes on"}};
  for (size_t i = 0; i < plans.size(); ++i) {
    const std::string saved = "saved" + std::to_string(i);
    ASSERT_EQ(run(first, 2, saved).exit_code, 0);
    const CommandResult resumed = run(planWith(plans[i].first), 3, saved);
    EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
    EXPECT_THAT(resumed.errors, HasSubstr(plans[i].second));
  }
  ASSERT_EQ(run(first, 2, "other").exit_code, 0);
  const CommandResult wider =
      run(planWith({"--optimizer", "adamw:lr=1e-2", "--ema", "0.9", "--precision", "float64"}), 3, "other");
  EXPECT_EQ(wider.exit_code, 78);
  EXPECT_THAT(wider.errors, HasSubstr("as float32, this plan keeps it as float64"));
  const CommandResult factored = run(planWith({"--optimizer", "adafactor", "--ema", "0.9"}), 3, "other");
  EXPECT_EQ(factored.exit_code, 78);
  EXPECT_THAT(factored.errors, HasSubstr("which this plan's --optimizer keeps"));
}

// What a step of training says of the weights that it begins with, an evaluation of the exported model says
// too.
TEST_F(CheckpointCommand, TheExportedModelHasTheTrainedWeights) {
  NpzArray x{DataType::kInt64, {8, 16}, {}}, labels = x;
  std::vector<int64_t> ids(8 * 16);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7 % 50);
  for (NpzArray* array : {&x, &labels}) {
    array->bytes.resize(ids.size() * sizeof(int64_t));
    std::memcpy(array->bytes.data(), ids.data(), array->bytes.size());
  }
  writeNpz(at("data.npz"), {{"input_ids", x}, {"labels", labels}});
  for (const char* precision : {"float32", "float64"}) {
    const std::string saved = std::string("saved-") + precision;
    const std::string directory = plan("examples/gpt2.onnx", {"--cluster", "1x2", "--stages", "uniform:2",
                                                              "--dim", "batch=8", "--precision", precision});
    ASSERT_EQ(run(directory, 6, saved, {"--data", at("data.npz"), "--json", at("run.json")}).exit_code, 0);
    ASSERT_EQ(run(directory, 7, saved, {"--data", at("data.npz"), "--json", at("next.json")}).exit_code, 0);
    const std::string trained = at(std::string(precision) + ".onnx");
    const CommandResult exported = succeed({"export", at(saved) + "/step-000006", "-o", trained});
    EXPECT_THAT(exported.output, HasSubstr("step 6: 52 trained parameters"));
    const std::string evaluation = folder_.file(std::string("evaluation-") + precision);
    succeed({"plan", trained, "--schedule", "forward-only", "--dim", "batch=8", "-o", evaluation});
    succeed({"run", evaluation, "--data", at("data.npz"), "--json", at("evaluation.json")});
    const double before = lossesOf(at("run.json")).front();
    const double want = lossesOf(at("next.json")).front();
    EXPECT_NEAR(lossesOf(at("evaluation.json")).front(), want, 1e-6 * want);
    EXPECT_LT(want, 0.9 * before);
  }
}

TEST_F(CheckpointCommand, TheExportedModelMaySayHowItWasTrained) {
  const std::string directory = plan("examples/gpt2.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  ASSERT_EQ(run(directory, 3, "saved").exit_code, 0);
  succeed({"export", at("saved"), "-o", at("trained.onnx"), "--training-info", "--safetensors",
           at("t.safetensors")});
  const CommandResult looked = succeed({"inspect", at("trained.onnx")});
  EXPECT_THAT(looked.output, HasSubstr("forward pass with a TrainingInfoProto"));
  EXPECT_THAT(looked.output, HasSubstr("adamw:lr=0.01,"));
  const std::vector<TrainingInfo> infos = trainingInfo(readModel(at("trained.onnx")));
  ASSERT_EQ(infos.size(), 1u);
  const Graph& algorithm = infos[0].algorithm;
  EXPECT_EQ(*algorithm.constant(findValue(algorithm, "step")), makeScalar(DataType::kInt64, 3));
  const JoinedTensors saved = openTensors(readCheckpoint(at("saved") + "/step-000003"));
  const std::string state = "transformer.wpe.weight.first_moment";
  EXPECT_EQ(algorithm.constant(findValue(algorithm, state))->bytes, saved.read("state/" + state).bytes);
  const TensorFile tensors = TensorFile::open(at("t.safetensors"));  // the tied weight has both names
  const TensorEntry* head = tensors.find("lm_head.weight");
  const TensorEntry* words = tensors.find("transformer.wte.weight");
  ASSERT_TRUE(head != nullptr && words != nullptr);
  EXPECT_EQ(tensors.read(*head), tensors.read(*words));
  EXPECT_EQ(tensors.read(*head), saved.read("parameter/lm_head.weight").bytes);
}

// Of a module, what an exporter has folded, or what is small and frozen in a file that lists no parameters.
TEST_F(CheckpointCommand, TensorsSayWhichOfTheModuleTheyAreNot) {
  using Case = std::tuple<const char*, std::vector<std::string>, std::string, std::vector<std::string>>;
  const std::vector<Case> cases = {
      {"positions_folded",
       {"--freeze", "positions"},
       "note: 1 parameter of the module not in the model's "
       "file, so not here: positions.weight (folded into the constant 'embedding_1'); load_state_dict(",
       {"head.bias", "head.weight", "words.weight"}},
      {"batch_norm_folded",
       {"--train", "weight|bias"},
       "note: 2 parameters here as the model's file has them, "
       "not as the module: layers.0.weight (a batch normalisation is folded into it",
       {"layers.0.bias", "layers.0.weight"}},
      {"batch_norm_folded_torchscript",
       {"--train", "Conv"},
       "note: 2 tensors under the exporter's names, which the module does not have",
       {"onnx::Conv_13", "onnx::Conv_14"}},
      {"frozen_torchscript",
       {"--freeze", "^layers.0.weight$"},
       "tensors: ",
       {"layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"}}};
  for (const auto& [trap, options, said, names] : cases) {
    SCOPED_TRACE(trap);
    ASSERT_EQ(run(plan(fmt::format("tests/golden/traps/{}.onnx", trap), options), 1, trap).exit_code, 0);
    const CommandResult exported = succeed({"export", at(trap), "--safetensors", at("t.safetensors")});
    EXPECT_THAT(exported.output, HasSubstr(said));
    const TensorFile tensors = TensorFile::open(at("t.safetensors"));
    std::vector<std::string> found;
    for (const TensorEntry& tensor : tensors.tensors()) found.push_back(tensor.name);
    EXPECT_THAT(found, ::testing::UnorderedElementsAreArray(names));
  }
}

// Names that the module has, and no call of it.
TEST_F(CheckpointCommand, TheTensorsMayHaveOtherNamesToo) {
  const std::string directory = plan("examples/mlp.onnx", {"--cluster", "1x1"});
  ASSERT_EQ(run(directory, 1, "saved").exit_code, 0);
  const auto exported = [&](const std::vector<std::string>& tied) {
    std::vector<std::string> words = {"export", at("saved"), "--safetensors", at("t.safetensors"), "--tied"};
    words.insert(words.end(), tied.begin(), tied.end());
    return runPipeshard(words);
  };
  const CommandResult written = exported({"dense1.weight=a,b.weight", "--tied", "dense2.weight=c"});
  ASSERT_EQ(written.exit_code, 0) << written.errors;
  const TensorFile tensors = TensorFile::open(at("t.safetensors"));
  const auto bytesOf = [&](const std::string& name) {
    const TensorEntry* const found = tensors.find(name);
    EXPECT_NE(found, nullptr) << name;
    return found == nullptr ? std::vector<std::byte>() : tensors.read(*found);
  };
  for (const char* const name : {"a", "b.weight"}) EXPECT_EQ(bytesOf(name), bytesOf("dense1.weight"));
  EXPECT_EQ(bytesOf("c"), bytesOf("dense2.weight"));
  EXPECT_NE(bytesOf("c"), bytesOf("a"));
  std::filesystem::remove(at("t.safetensors"));
  for (const auto& [tied, message] :
       {std::pair("dense9.weight=a", "have no 'dense9.weight'; they are: dense1.bias, dense1.weight"),
        std::pair("dense1.weight=dense2.weight", "have already a 'dense2.weight'"),
        std::pair("dense1.weight=a,a", "have already a 'a'"),
        std::pair("dense1.weight", "expected NAME=NAME[,NAME...]"),
        std::pair("dense1.weight=a,", "expected NAME=NAME[,NAME...]"),
        std::pair("=a", "expected NAME=NAME[,NAME...]")}) {
    const CommandResult refused = exported({tied});
    EXPECT_EQ(refused.exit_code, 64) << tied;
    EXPECT_THAT(refused.errors, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(at("t.safetensors")));
  }
  EXPECT_EQ(runPipeshard({"export", at("saved"), "-o", at("m.onnx"), "--tied", "dense1.weight=a"}).exit_code,
            64);
}

}  // namespace
}  // namespace pipeshard
