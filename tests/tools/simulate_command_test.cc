// `simulate` as a user calls it.

#include <cctype>
#include <cmath>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

CommandResult simulated(const std::string& options) {
  std::vector<std::string> line = words(options);
  line.insert(line.begin(), "simulate");
  return runPipeshard(line);
}

json jsonOf(const std::string& options) {
  const TemporaryFolder folder;
  const CommandResult result = simulated(options + " --json " + folder.file("out.json"));
  EXPECT_EQ(result.exit_code, 0) << options << ": " << result.errors;
  return result.exit_code == 0 ? json::parse(readFile(folder.file("out.json"))) : json();
}

TEST(SimulateCommand, WritesWhatWasAskedFor) {
  const json report = jsonOf("--schedule zb-h1 --p 4 --m 8 --times F=1,I=1,W=1 --comm 0.5");
  EXPECT_EQ(report.at("makespan"), 33.0);
  EXPECT_EQ(report.at("idle_per_rank"), json({9.0, 9.0, 9.0, 9.0}));
  EXPECT_DOUBLE_EQ(report.at("bubble_of_makespan").get<double>(), 9.0 / 33);
  EXPECT_DOUBLE_EQ(report.at("bubble_of_useful").get<double>(), 9.0 / 24);
  EXPECT_EQ(report.at("peak_activations"), json({4.0, 4.0, 4.0, 4.0}));
  EXPECT_EQ(report.at("orders").at(3), json(words("3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 "
                                                  "3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 3W6 3W7")));
  const json still = jsonOf("--schedule zb-h2 --p 4 --m 8");
  EXPECT_EQ(still.at("makespan"), 27.0);
  EXPECT_EQ(still.at("bubble_of_span"), 0.0);
  EXPECT_DOUBLE_EQ(still.at("bubble_of_makespan").get<double>(), 3.0 / 27);
}

TEST(SimulateCommand, ChunksShareTheTimesOfTheirRank) {
  const json two = jsonOf("--schedule interleaved --p 4 --m 8");
  EXPECT_EQ(two.at("makespan"), 28.5);
  EXPECT_EQ(two.at("peak_activations"), json({5.5, 4.5, 3.5, 2.5}));
  const json three = jsonOf("--schedule interleaved --p 4 --m 8 --v 3 --times F=1,B=2");
  EXPECT_DOUBLE_EQ(three.at("makespan").get<double>(), (8 + 3.0 / 3) * 3);
  EXPECT_EQ(three.at("stages"), 12);
}

TEST(SimulateCommand, DecimalTimesAreNotRounded) {
  const json report = jsonOf("--schedule 1f1b --p 8 --m 24 --times F=18.522,I=18.086,W=9.337 --comm 0.601");
  EXPECT_NEAR(report.at("bubble_of_span").get<double>(), .2431, 5e-5);
  // Of whole thousandths of the unit.
  const double thousandths = report.at("makespan").get<double>() * 1000;
  EXPECT_NEAR(thousandths, std::round(thousandths), 1e-6);
  EXPECT_EQ(jsonOf("--schedule gpipe --p 2 --m 2 --times F=.1,I=.2,W=0.3").at("makespan"), 1.8);
}

TEST(SimulateCommand, DrawsThePictureOfTheReference) {
  EXPECT_THAT(simulated("--schedule 1f1b --p 4 --m 8").output,
              HasSubstr("d0 0123......0b41b52b63b74b.5b.6b.7b\n"
                        "d1 .012....0b31b42b53b64b75b.6b.7b..\n"
                        "d2 ..01..0b21b32b43b54b65b76b.7b....\n"
                        "d3 ...00b11b22b33b44b55b66b77b......\n"));
  EXPECT_THAT(simulated("--schedule zb-h1 --p 4 --m 8").output,
              HasSubstr("d0 0123...00411522633744556677\n"
                        "d1 .012..031042153264375465767\n"
                        "d2 ..01.0213204315426537647567\n"
                        "d3 ...001122330441552663774567\n"));
}

TEST(SimulateCommand, ThePictureKeepsToItsWidth) {
  const CommandResult result =
      simulated("--schedule 1f1b --p 16 --m 64 --times F=18.5,I=18,W=9.3 --width 72");
  std::istringstream lines(result.output);
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() < 3 || line[0] != 'd' || std::isdigit(static_cast<unsigned char>(line[1])) == 0) continue;
    ++rows;
    EXPECT_LE(line.size(), 72u + 4u);
    EXPECT_GE(line.size(), 60u);
  }
  EXPECT_EQ(rows, 16);
}

TEST(SimulateCommand, MessagesTakeTheirLinkAndMayHoldUpBothSides) {
  EXPECT_EQ(jsonOf("--schedule gpipe --p 2 --m 2 --comm 1 --occupancy 3").at("makespan"), 20.0);
  EXPECT_EQ(jsonOf("--schedule gpipe --p 2 --m 2 --comm 1 --occupancy 3 --no-contention").at("makespan"),
            17.0);
  EXPECT_EQ(jsonOf("--schedule 1f1b --p 2 --m 2 --comm 1 --exposed").at("makespan"), 13.0);
}

TEST(SimulateCommand, PairsOfPassesRunTogetherUnlessSplit) {
  EXPECT_EQ(jsonOf("--schedule dual-pipe-v --p 4 --m 8").at("makespan"), 27.0);
  EXPECT_EQ(jsonOf("--schedule dual-pipe-v --p 4 --m 8 --split-pairs").at("makespan"), 25.5);
}

TEST(SimulateCommand, TheMemoryModelDecidesWhatIsHeld) {
  EXPECT_EQ(jsonOf("--schedule zb-h1 --p 4 --m 8").at("peak_memory"), json({4.0, 4.0, 4.0, 4.0}));
  // Rank 3 runs 3F3 3I3 3W0: three microbatches without the part that I has freed, and a fourth whole.
  EXPECT_EQ(jsonOf("--schedule zb-h1 --p 4 --m 8 --memory-model F=1,I=-0.25,W=-0.75").at("peak_memory").at(3),
            3.25);
}

TEST(SimulateCommand, AScheduleCanBeTakenAndBrought) {
  const TemporaryFolder folder;
  const std::string csv = folder.file("mine.csv");
  const json taken = jsonOf("--schedule interleaved-zb --p 4 --m 8 --csv " + csv);
  const json brought = jsonOf("--schedule " + csv);
  EXPECT_EQ(brought.at("orders"), taken.at("orders"));
  EXPECT_EQ(brought.at("makespan"), taken.at("makespan"));
  EXPECT_EQ(brought.at("peak_activations"), taken.at("peak_activations"));
  // A rank with two stages, one with one: each shares the time of its rank.
  writeFile(csv, "0F0,2F0,2B0,0B0\n1F0,1B0\n");
  EXPECT_EQ(jsonOf("--schedule " + csv).at("makespan"), 6.0);
}

// Every message of a trace begins and ends, on slices.
void expectGoodTrace(const json& trace, const std::string& what) {
  std::map<int64_t, int> starts, ends;
  int slices = 0;
  for (const json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    slices += phase == "X" ? 1 : 0;
    if (phase == "s") ++starts[event.at("id")];
    if (phase == "f") ++ends[event.at("id")];
  }
  EXPECT_GT(slices, 0) << what;
  EXPECT_FALSE(starts.empty()) << what;
  EXPECT_EQ(starts, ends) << what;
}

TEST(SimulateCommand, WritesATraceWithArrows) {
  const TemporaryFolder folder;
  const std::string file = folder.file("trace.json");
  for (const char* options :
       {"--schedule zb-h1 --p 4 --m 8 --comm 0.5",
        "--schedule interleaved --p 2 --m 4 --comm 0.3 --occupancy 0.4",
        "--schedule 1f1b --p 3 --m 5 --comm 1 --exposed", "--schedule dual-pipe-v --p 2 --m 4"}) {
    ASSERT_EQ(simulated(std::string(options) + " --trace " + file).exit_code, 0) << options;
    expectGoodTrace(json::parse(readFile(file)), options);
  }
}

class SimulatedPlan : public ::testing::Test {
 protected:
  void plan(const std::string& options) {
    std::vector<std::string> line = words(options);
    line.insert(line.begin(), "plan");
    line.insert(line.end(), {"-o", folder.file("plan")});
    const CommandResult planned = runPipeshard(line);
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  json report(const std::string& options = "") { return jsonOf(folder.file("plan") + " " + options); }

  TemporaryFolder folder;
};

TEST_F(SimulatedPlan, FollowsTheProgramsOfThePlan) {
  plan("examples/mlp.onnx --cluster 1x4 --dim batch=16 --microbatches 8 --schedule 1f1b");
  const json result = report("--trace " + folder.file("trace.json") + " --csv " + folder.file("orders.csv"));
  EXPECT_EQ(result.at("peak_activations"), json({4.0, 3.0, 2.0, 1.0}));
  EXPECT_EQ(result.at("orders").at(3).at(0), "3F0");
  EXPECT_GT(result.at("makespan").get<int64_t>(), 0);
  for (const json& bytes : result.at("peak_memory_bytes")) EXPECT_GT(bytes.get<int64_t>(), 1000);
  expectGoodTrace(json::parse(readFile(folder.file("trace.json"))), "plan");
  EXPECT_THAT(readFile(folder.file("orders.csv")), HasSubstr("3F0,"));
}

// Where computing is all that takes time, the bubble is that of the formula for the stages' times, and slower
// devices change nothing.
TEST_F(SimulatedPlan, ItsTimesFollowTheRatesOfDevicesAndLinks) {
  plan("examples/gpt2.onnx --cluster 1x2 --dim batch=8 --microbatches 8 --schedule gpipe");
  const std::string fast = " --link-us 0 --link-gbytes 1000000 --device-gbytes 1000000";
  const json slow = report("--device-gflops 0.001" + fast);
  const json slower = report("--device-gflops 0.0005" + fast);
  EXPECT_NEAR(slower.at("makespan").get<double>() / slow.at("makespan").get<double>(), 2, 1e-3);
  EXPECT_NEAR(slower.at("bubble_of_makespan").get<double>(), slow.at("bubble_of_makespan").get<double>(),
              1e-3);
  EXPECT_LT(slow.at("bubble_of_makespan").get<double>(), 0.4);
  EXPECT_GT(report("--link-us 1000000").at("makespan").get<int64_t>(), int64_t{2'000'000'000});
}

// The programs of the last rank run what the schedule says, a whole backward pass as its two halves.
TEST_F(SimulatedPlan, OfEveryScheduleHasItsOrder) {
  for (const std::string schedule : {"gpipe", "zb-h1", "zb-h2", "interleaved", "zbv"}) {
    plan("examples/mlp.onnx --cluster 1x2 --dim batch=16 --microbatches 8 --schedule " + schedule);
    const json planned = report();
    const json bare = jsonOf("--schedule " + schedule + " --p 2 --m 8");
    json halves;
    for (const json& action : bare.at("orders").at(1)) {
      const std::string text = action;
      const size_t whole = text.find('B');
      halves.push_back(whole == std::string::npos ? text : std::string(text).replace(whole, 1, "I"));
      if (whole != std::string::npos) halves.push_back(std::string(text).replace(whole, 1, "W"));
    }
    EXPECT_EQ(planned.at("orders").at(1), halves) << schedule;
    EXPECT_EQ(planned.at("peak_activations"), bare.at("peak_activations")) << schedule;
  }
}

// A trace of slow devices makes fast ones as slow; that of one schedule serves another.
TEST_F(SimulatedPlan, TakesDurationsFromATrace) {
  plan("examples/mlp.onnx --cluster 1x2 --dim batch=16 --microbatches 8 --schedule 1f1b");
  const std::string slow = " --device-gflops 0.1", measured = " --measured " + folder.file("trace.json");
  const json expected = report(slow + " --trace " + folder.file("trace.json"));
  EXPECT_EQ(report(measured).at("makespan"), expected.at("makespan"));
  EXPECT_LT(report().at("makespan").get<int64_t>(), expected.at("makespan").get<int64_t>() / 2);
  plan("examples/mlp.onnx --cluster 1x2 --dim batch=16 --microbatches 8 --schedule gpipe");
  EXPECT_EQ(report(measured).at("makespan"), report(slow).at("makespan"));
  plan("examples/mlp.onnx --cluster 1x2 --dim batch=16 --microbatches 8 --schedule zb-h1");
  // The first stage's backward passes are in halves now; both together take as long.
  const auto foreseen = static_cast<double>(report(slow).at("makespan").get<int64_t>());
  EXPECT_NEAR(static_cast<double>(report(measured).at("makespan").get<int64_t>()), foreseen, foreseen / 50);
  report(slow + " --trace " + folder.file("trace.json"));
  plan("examples/mlp.onnx --cluster 1x2 --dim batch=16 --microbatches 8 --schedule 1f1b");
  EXPECT_NEAR(static_cast<double>(report(measured).at("makespan").get<int64_t>()),
              expected.at("makespan").get<double>(), expected.at("makespan").get<double>() / 50);
  plan("examples/mlp.onnx --cluster 1x1 --dim batch=16 --microbatches 8 --schedule gpipe");
  writeFile(folder.file("trace.json"), R"({"traceEvents": [{"ph": "X"}]})");
  EXPECT_EQ(simulated(folder.file("plan") + measured).exit_code, 78);
  EXPECT_EQ(simulated(folder.file("plan") + " --measured " + folder.file("nothing.json")).exit_code, 66);
}

TEST_F(SimulatedPlan, ShardedStagesMeetInTheirCollectives) {
  plan("examples/gpt2.onnx --cluster 1x4 --stages uniform:2 --method megatron:1,2 --microbatches 4");
  const json result = report("--trace " + folder.file("trace.json"));
  EXPECT_EQ(result.at("ranks"), 4);
  int collectives = 0;
  const json trace = json::parse(readFile(folder.file("trace.json")));
  for (const json& event : trace.at("traceEvents"))
    collectives += event.value("cat", "") == "collective" ? 1 : 0;
  EXPECT_GT(collectives, 100);
}

// The workspace of some convolutions grows with the threads that they are made for.
TEST(SimulateCommand, ForeseesTheArenasThatRunAllocates) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("resnet.plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/resnet.onnx", "--dim", "batch=32", "--microbatches", "4", "--cluster",
                    "1x2", "--stages", "uniform:2", "--schedule", "1f1b", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  for (const std::string threads : {"1", "2"}) {
    const json foreseen = jsonOf(plan + " --threads " + threads);
    const CommandResult ran =
        runPipeshard({"run", plan, "--steps", "1", "--threads", threads, "--json", folder.file("run.json")});
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    const json ranks = json::parse(readFile(folder.file("run.json"))).at("ranks");
    ASSERT_EQ(ranks.size(), 2U);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(foreseen.at("arena_bytes").at(rank), ranks.at(rank).at("arena_bytes"))
          << "rank " << rank << ", threads " << threads;
      EXPECT_EQ(foreseen.at("communicator_bytes").at(rank), ranks.at(rank).at("communicator_bytes"));
    }
  }
}

// The last batch has programs of its own, with constants of their own, in the same arena.
TEST_F(SimulatedPlan, ForeseesWhatRunAllocatesForALastBatchToo) {
  for (const std::string options : {"examples/gpt2.onnx --cluster 1x2 --dim batch=8 --microbatches 4",
                                    "examples/mlp.onnx --cluster 1x4 --dim batch=8 --stages uniform:1 "
                                    "--method zero2 --microbatches 2"}) {
    plan(options);
    const json whole = report("");
    plan(options + " --last-batch 4");
    const json foreseen = report("");
    EXPECT_GT(foreseen.at("constant_bytes").at(0), whole.at("constant_bytes").at(0)) << options;
    const CommandResult ran =
        runPipeshard({"run", folder.file("plan"), "--steps", "2", "--json", folder.file("run.json")});
    ASSERT_EQ(ran.exit_code, 0) << options << ran.errors;
    const json ranks = json::parse(readFile(folder.file("run.json"))).at("ranks");
    ASSERT_EQ(foreseen.at("arena_bytes").size(), ranks.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const char* figure : {"arena_bytes", "constant_bytes"})
        EXPECT_EQ(foreseen.at(figure).at(rank), ranks.at(rank).at(figure)) << options << ", rank " << rank;
    }
  }
}

void expectRefused(const std::string& options, int code, const std::string& message) {
  const CommandResult result = simulated(options);
  EXPECT_EQ(result.exit_code, code) << options;
  EXPECT_THAT(result.errors, HasSubstr(message)) << options;
}

TEST(SimulateCommand, SaysWhatIsWrong) {
  expectRefused("", 64, "Give a plan directory, or --schedule NAME --p RANKS --m MICROBATCHES");
  expectRefused("--schedule 1f2b --p 2 --m 2", 64, "there is no schedule \"1f2b\"");
  expectRefused("--schedule 1f1b --p 2", 64, "needs --p (pipeline ranks) and --m (microbatches)");
  expectRefused("--schedule 1f1b --p 0 --m 2", 64, "--p");
  expectRefused("--schedule 1f1b --p 2 --m 2 --v 2", 64, "1f1b has no options");
  expectRefused("--schedule 1f1b --p 2 --m 2 --times F=1,X=2", 64,
                "--times: found \"X=2\"; expected F=NUMBER or I=NUMBER");
  expectRefused("--schedule 1f1b --p 2 --m 2 --times F=1e3", 64,
                "--times F: expected a decimal number of at most 15 digits, found \"1e3\"");
  expectRefused("--schedule 1f1b --p 2 --m 2 --times F=-1", 64, "--times: F is negative");
  expectRefused("--schedule 1f1b --p 2 --m 2 --times B=2,W=1", 64, "give B, or I and W");
  expectRefused("--schedule 1f1b --p 2 --m 2 --times F=123456789.000001,I=999999999999999", 64,
                "expected fewer");
  expectRefused("--schedule 1f1b --p 2 --m 2 --memory-model F=2", 64,
                "--memory-model: F, I and W add up to 1; expected 0");
  expectRefused("--schedule nowhere.csv", 66, "nowhere.csv cannot be read");
  expectRefused("--schedule nowhere.csv --p 2", 64, "leave out --p, --m, --v and --limit");
  expectRefused("nowhere.plan", 66, "nowhere.plan");
  expectRefused("nowhere.plan --p 4", 64, "--p: says nothing about a plan directory");
  expectRefused("--schedule 1f1b --p 2 --m 2 --link-us 3", 64,
                "--link-us: says nothing about a bare schedule");
  expectRefused("--schedule zb-h1 --p 4 --m 8 --json /nowhere/out.json", 66,
                "/nowhere/out.json cannot be written: there is no folder /nowhere");
}

TEST(SimulateCommand, HelpTeaches) {
  const CommandResult help = simulated("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("pipeshard simulate --schedule zb-h1 --p 4 --m 8"),
                                 HasSubstr("ui.perfetto.dev"), HasSubstr("gradients of the weights"),
                                 HasSubstr("interleaved")));
}

}  // namespace
}  // namespace pipeshard
