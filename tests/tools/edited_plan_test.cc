// Plans that people edited: every rule that they violate is named, and those that hold are what runs.

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

class EditedPlan : public ::testing::Test {
 protected:
  void plan(const std::string& model, const std::vector<std::string>& more,
            const std::string& cluster = "1x4") {
    std::vector<std::string> line = {
        "plan", "examples/" + model + ".onnx", "--cluster", cluster, "--dim", "batch=16", "-o", directory()};
    line.insert(line.end(), more.begin(), more.end());
    const CommandResult planned = runPipeshard(line);
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  std::string directory() const { return folder_.file("p.plan"); }
  Json read() const { return Json::parse(readFile(directory() + "/plan.json")); }
  template <typename F>
  void edit(const F& change) const {
    Json json = read();
    change(json);
    writeFile(directory() + "/plan.json", json.dump(2));
  }
  CommandResult check() const { return runPipeshard({"plan", "--check", directory()}); }
  static size_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

  TemporaryFolder folder_;
};

// Layers moved from one stage to the other, other schedule and microbatches: the programs are made again, and
// equal one device.
TEST_F(EditedPlan, RunsAsEdited) {
  plan("mlp", {"--stages", "uniform:2", "--microbatches", "4", "--layers", "6"});
  const CommandResult untouched = check();
  EXPECT_EQ(untouched.exit_code, 0) << untouched.output;
  EXPECT_THAT(untouched.output, AllOf(HasSubstr("the plan holds"), Not(HasSubstr("edited"))));
  edit([](Json& json) {
    json["stages"][0]["last_layer"] = 0;
    json["stages"][1]["first_layer"] = 1;
    json["schedule"] = "gpipe";
    json["microbatches"] = 8;
  });
  EXPECT_THAT(check().output,
              AllOf(HasSubstr("was edited since the programs were made"), HasSubstr("the plan holds")));
  const CommandResult validated = runPipeshard({"validate", directory(), "--precision", "float64"});
  EXPECT_EQ(validated.exit_code, 64);  // planning options are refused as ever
  const CommandResult run = runPipeshard({"validate", directory(), "--steps", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.output << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("its programs were made again"));
  EXPECT_THAT(run.output, AllOf(HasSubstr("gpipe, 8 microbatches"), HasSubstr("PASS")));
  const Json json = read();
  EXPECT_EQ(json["stages"][0]["peak_activations"], 8);  // what follows from the edit is filled in
  EXPECT_LT(json["stages"][0]["forward_flops"], json["stages"][1]["forward_flops"]);
  EXPECT_EQ(Json::parse(readFile(directory() + "/kinds/0000.json"))["microbatches"], 8);
  const CommandResult again = runPipeshard({"run", directory(), "--steps", "1"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.errors, Not(HasSubstr("made again")));
}

// The spec of a weight changed by hand, and how its product is computed with it.
TEST_F(EditedPlan, RunsWithEditedShardings) {
  plan("mlp", {"--stages", "uniform:1", "--method", "tensor-parallel", "--mesh", "4"});
  edit([](Json& json) {
    for (const char* list : {"strategies", "specs"}) json[list] = Json::array();  // everything replicated
  });
  const CommandResult run = runPipeshard({"validate", directory()});
  ASSERT_EQ(run.exit_code, 0) << run.output << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("its programs were made again"));
  EXPECT_TRUE(read()["specs"].empty());
  EXPECT_THAT(run.output, HasSubstr("predicted times and memory of shardings are those from before"));
}

// One message for each rule, with the value that broke it.
TEST_F(EditedPlan, NamesEveryRuleThatIsViolated) {
  plan("mlp", {"--stages", "uniform:2", "--method", "auto", "--microbatches", "4", "--layers", "6"});
  edit([](Json& json) {
    json["stages"][0]["devices"] = Json::array({0, 2});
    json["stages"][1]["mesh_shape"] = Json::array({2, 2});
    json["stages"][1]["first_layer"] = 4;
    json["microbatchs"] = 4;
    json["cluster"]["nodes"] = "one";
  });
  const CommandResult found = check();
  EXPECT_EQ(found.exit_code, 78);
  EXPECT_THAT(
      found.output,
      AllOf(HasSubstr("an unknown key \"microbatchs\""), HasSubstr("plan.json.cluster.nodes: found \"one\""),
            HasSubstr("plan.json.stages[1].devices[0]: found 2; expected a device that no stage has"),
            HasSubstr("plan.json.stages[1].first_layer: found 4; expected"),
            HasSubstr(": 4 rules violated")));
  EXPECT_EQ(lines(found.output), 5U) << found.output;
  // The same when it is run: nothing is done with the old programs.
  const CommandResult run = runPipeshard({"validate", directory()});
  EXPECT_EQ(run.exit_code, 78);
  EXPECT_THAT(run.errors,
              AllOf(HasSubstr("plan.json: 4 faults"), HasSubstr("plan.json.cluster.nodes: found \"one\"")));
}

// What only the model can tell.
TEST_F(EditedPlan, NamesWhatDoesNotFitTheModel) {
  plan("mlp", {"--stages", "uniform:2", "--method", "auto", "--microbatches", "4", "--layers", "6"});
  std::string value;
  edit([&](Json& json) {
    json["layers"].back()["last"] = json["layers"].back()["last"].get<int>() - 1;
    json["schedule"] = "2f2b";
  });
  CommandResult found = check();
  EXPECT_EQ(found.exit_code, 78);
  EXPECT_THAT(found.output, AllOf(HasSubstr("plan.json.layers: found layers of"),
                                  HasSubstr("plan.json.schedule: there is no schedule \"2f2b\""),
                                  HasSubstr(": 2 rules violated")));
  edit([&](Json& json) {
    json["layers"].back()["last"] = json["layers"].back()["last"].get<int>() + 1;
    value = json["specs"][0]["value"];
    json["specs"][0]["value"] = value + "x";
    json["strategies"][0]["uses"] = "0:zz";
  });
  for (const char* schedule : {"2f2b", "interleaved:v=2"}) {  // there is none; not for so many stages
    edit([&](Json& json) { json["schedule"] = schedule; });
    found = check();
    EXPECT_EQ(found.exit_code, 78);
    EXPECT_THAT(
        found.output,
        AllOf(HasSubstr("plan.json.schedule: "),
              HasSubstr("specs." + value + "x: the stage has no value of this name; did you mean " + value),
              HasSubstr("plan.json.stages[0].sharding.strategies."), HasSubstr(": 3 rules violated")));
  }
  const CommandResult run = runPipeshard({"run", directory()});
  EXPECT_EQ(run.exit_code, 78);
  EXPECT_THAT(run.errors, AllOf(HasSubstr("was edited since its programs were made"),
                                HasSubstr("plan --check"), HasSubstr("3 faults")));
}

TEST_F(EditedPlan, NamesDevicesThatNeedMoreMemoryThanTheyHave) {
  plan("mlp", {"--stages", "uniform:1", "--method", "auto", "--memory", "16MB"});
  edit([](Json& json) { json["shardings"][0]["memory_limit"] = 1000; });
  const CommandResult found =
      runPipeshard({"plan", "--check", directory() + "/plan.json", "--json", folder_.file("c.json")});
  EXPECT_EQ(found.exit_code, 78);
  EXPECT_THAT(found.output, AllOf(HasSubstr("plan.json.stages[0]: device 0 needs "),
                                  HasSubstr("bytes; expected at most 1000"), HasSubstr("device 3 needs "),
                                  HasSubstr("4 rules violated")));
  EXPECT_EQ(Json::parse(readFile(folder_.file("c.json")))["faults"].size(), 4U);
}

// --memory counts, below and above what the cluster says, with a sharding and without.
TEST_F(EditedPlan, HoldsWithTheMemoryThatItWasMadeWith) {
  writeFile(folder_.path() / "tiny.json", R"({"version": 1, "kinds": {"tiny": {"memory": 4000}},
    "nodes": [{"kind": "tiny", "devices": 2}]})");
  for (const char* stages : {"uniform:1", "uniform:2"}) {
    const CommandResult planned =
        runPipeshard({"plan", "examples/mlp.onnx", "--cluster", folder_.file("tiny.json"), "--stages", stages,
                      "--method", "auto", "--memory", "16MB", "-o", directory()});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    const std::string note =
        "--memory 16000000: above the 3.91 KiB (4000 bytes) that the cluster says of "
        "device 0 (tiny)";
    ASSERT_THAT(planned.output, HasSubstr(note));
    EXPECT_EQ(planned.output.find(note), planned.output.rfind(note));
    EXPECT_EQ(read()["memory"], 16'000'000);
    const CommandResult checked = check();
    EXPECT_EQ(checked.exit_code, 0) << checked.output;
    edit([](Json& json) { json["memory"] = 5000; });
    EXPECT_THAT(check().output, HasSubstr("bytes; expected at most 5000"));
  }
}

TEST_F(EditedPlan, SaysWhatIsSeldomMeant) {
  plan("mlp", {"--stage-devices", "1,3", "--microbatches", "4"}, "2x2");
  const CommandResult checked = check();
  EXPECT_EQ(checked.exit_code, 0) << checked.output;
  EXPECT_THAT(checked.output,
              HasSubstr("note: plan.json.stages[1].devices: devices 1,2,3 are parts of nodes 0,1"));
}

TEST(MegatronGridCommand, EqualsOneDevice) {
  for (const char* grid :
       {"--stages megatron:2,2,1", "--stages megatron:1,2,2", "--method megatron:1,2,2,2"}) {
    const std::string text = grid;
    const size_t space = text.find(' ');
    const CommandResult validated =
        runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x4", "--microbatches", "4",
                      "--precision", "float64", text.substr(0, space), text.substr(space + 1)});
    EXPECT_EQ(validated.exit_code, 0) << grid << validated.output << validated.errors;
  }
}

// What a job would read is read, too.
TEST_F(EditedPlan, DamagedProgramsDoNotHold) {
  plan("mlp", {"--stages", "uniform:2", "--microbatches", "4"});
  const auto firstOf = [&](const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory() + "/" + folder))
      files.push_back(entry.path().string());
    return *std::min_element(files.begin(), files.end());
  };
  for (const std::string& file : {directory() + "/ranks.json", firstOf("kinds"), firstOf("subgraphs")}) {
    const std::string whole = readFile(file);
    writeFile(file, "");
    const CommandResult damaged = check();
    EXPECT_NE(damaged.exit_code, 0) << file << damaged.output;
    EXPECT_THAT(damaged.output + damaged.errors, Not(HasSubstr("the plan holds"))) << file;
    writeFile(file, whole);
    EXPECT_THAT(check().output, HasSubstr("the plan holds"));
  }
}

}  // namespace
}  // namespace pipeshard
