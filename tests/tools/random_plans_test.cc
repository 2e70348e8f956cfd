// Plans drawn at random from what stage files and options can say (unequal stages, operators sharded inside
// stages, several stages per rank, recomputation, schedules, microbatches), each trained for two steps and
// compared with one device at the usual bounds.
//
// Ten of them by default; PIPESHARD_RANDOM_PLANS=100 draws more, PIPESHARD_RANDOM_SEED=7 others.

#include <cstdlib>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

int numberFrom(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct DrawnPlan {
  std::string stage_file;
  std::vector<std::string> options;
  std::string text() const {
    std::string all;
    for (const std::string& option : options) all += option + " ";
    return all + "\n" + stage_file;
  }
};

class Drawer {
 public:
  explicit Drawer(uint32_t seed) : random_(seed) {}

  DrawnPlan draw() {
    DrawnPlan drawn;
    widest_ = 1;
    const std::vector<int> widths = pick<std::vector<int>>({{1, 3},
                                                            {3, 1},
                                                            {2, 1, 1},
                                                            {1, 2, 1},
                                                            {1, 1, 2},
                                                            {2, 2},
                                                            {1, 1, 1, 1},
                                                            {4},
                                                            {1, 1, 1},
                                                            {1, 2},
                                                            {2, 1},
                                                            {3}});
    const int ranks = widths.size();
    const std::vector<std::string> names = {"1f1b",  "gpipe",       "eager-1f1b",      "zb-h1",
                                            "zb-h2", "zb-1p",       "interleaved:v=2", "looped-bfs:v=2",
                                            "zbv",   "dual-pipe-v", "v-half"};
    int microbatches = 0;
    std::string schedule;
    std::vector<int> rank_of_stage;
    do {  // one that exists
      schedule = pick(names);
      microbatches = below(8) + 1;
      rank_of_stage = placement(schedule, ranks, microbatches);
    } while (rank_of_stage.empty());
    nlohmann::ordered_json file = {{"version", 1}, {"stages", nlohmann::ordered_json::array()}};
    const std::vector<nlohmann::ordered_json> devices = stagesOf(widths);
    for (const int rank : rank_of_stage) {
      nlohmann::ordered_json stage = devices[rank];
      stage["layer_count"] = below(3) + 1;
      file["stages"].push_back(std::move(stage));
    }
    drawn.stage_file = file.dump();
    const int rows = std::max(widest_, below(3) + 1);
    const std::string model = pick<std::string>({"mlp", "mlp", "gpt2", "llama", "resnet"});
    // microbatches may differ by a row
    const int batch = microbatches * rows + (below(2) == 0 ? 0 : below(microbatches));
    // Convolutions, batch normalisation over few rows and ReLU: rounding that puts an element on the other
    // side of 0 changes a float32 gradient by far more than its bound.
    const std::string precision = model == "resnet" ? "float64" : pick<std::string>({"float32", "float64"});
    drawn.options = {
        "validate",       "examples/" + model + ".onnx",
        "--cluster",      pick<std::string>({"1x4", "2x2"}),
        "--schedule",     schedule,
        "--microbatches", std::to_string(microbatches),
        "--dim",          "batch=" + std::to_string(batch),
        "--steps",        "2",
        "--optimizer",    pick<std::string>({"sgd:lr=0.1", "sgd:lr=0.1,momentum=0.9", "adamw:lr=1e-3"}),
        "--precision",    precision,
        "--recompute",    recomputation(rank_of_stage.size()),
        "--threads",      "1"};
    return drawn;
  }

 private:
  int below(int end) { return random_() % static_cast<uint32_t>(end); }
  template <typename T>
  T pick(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }

  // The pipeline rank of each stage; empty where the schedule does not exist.
  static std::vector<int> placement(const std::string& schedule, int ranks, int microbatches) {
    try {
      std::vector<int> rank_of_stage;
      for (const PipelineRankId rank : makeSchedule(schedule, ranks, microbatches).rank_of_stage)
        rank_of_stage.push_back(rank.index());
      return rank_of_stage;
    } catch (const Error&) {
      return {};
    }
  }

  // By pipeline rank: devices, mesh and sharding. A sharded rank leaves rows alone; others need one for each
  // data-parallel device.
  std::vector<nlohmann::ordered_json> stagesOf(const std::vector<int>& widths) {
    std::vector<nlohmann::ordered_json> stages;
    int next = 0;
    for (const int width : widths) {
      nlohmann::ordered_json& stage = stages.emplace_back();
      for (int i = 0; i < width; ++i) stage["devices"].push_back(next++);
      if (width == 1) continue;
      const std::string method = pick<std::string>({"", "data-parallel", "replicated", "auto", "auto",
                                                    "zero2", "zero3", "tensor-parallel", "megatron"});
      if (method.empty()) {
        stage["mesh"] = {width, 1};
      } else if (method == "megatron") {
        const int tensor = width == 4 ? pick<int>({1, 2, 4}) : pick<int>({1, width});
        stage["sharding"]["method"] =
            "megatron:" + std::to_string(width / tensor) + "," + std::to_string(tensor);
      } else {
        stage["sharding"]["method"] = method;
        if (method == "auto" && width == 4) stage["mesh"] = pick<std::vector<int>>({{4}, {2, 2}});
      }
      widest_ = std::max(widest_, width);
    }
    return stages;
  }

  std::string recomputation(int stages) {
    const int kind = below(4);
    if (kind < 2) return "never";
    if (kind == 2) return pick<std::string>({"always", "except-last", "layers", "selective"});
    return std::to_string(below(stages)) +
           pick<std::string>({":always", ":except-last", ":layers", ":selective"});
  }

  std::mt19937 random_;
  int widest_ = 1;
};

TEST(RandomPlans, EqualOneDevice) {
  const int wanted = numberFrom("PIPESHARD_RANDOM_PLANS", 10);
  Drawer drawer(numberFrom("PIPESHARD_RANDOM_SEED", 1));
  const TemporaryFolder folder;
  int passed = 0, refused = 0;
  while (passed < wanted) {
    const DrawnPlan drawn = drawer.draw();
    writeFile(folder.file("stages.json"), drawn.stage_file);
    std::vector<std::string> line = drawn.options;
    line.insert(line.end(), {"--stages", folder.file("stages.json")});
    const CommandResult result = runPipeshard(line);
    // Some combinations do not exist, and say why; nothing else may go wrong.
    if (result.exit_code == 78) {
      ++refused;
      if (wanted > 10) std::printf("refused: %s%s\n", result.errors.c_str(), drawn.text().c_str());
    } else {
      ASSERT_EQ(result.exit_code, 0) << drawn.text() << "\n" << result.output << result.errors;
      ++passed;
    }
    ASSERT_LE(refused, wanted) << "most plans are refused: " << result.errors << drawn.text();
  }
  std::printf("%d plans equal one device, %d were refused\n", passed, refused);
}

}  // namespace
}  // namespace pipeshard
