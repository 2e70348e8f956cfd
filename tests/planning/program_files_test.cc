// Folders of programs: what is written once is every rank's.
#include "planning/directory/program_files.h"

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <sched.h>

#include "ir/base/parallel.h"
#include "ir/base/text_file.h"
#include "ir/program/program_json.h"
#include "onnx_import/format/writer.h"
#include "planning/directory/plan_directory.h"
#include "planning/pipeline.h"
#include "runtime/execute/rank_image.h"
#include "runtime/identity/plan_programs.h"
#include "tests/expect_error.h"
#include "tests/ir/base/edited_text.h"
#include "tests/temporary_folder.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

PlannedTraining planOf(const std::string& stages, const std::string& method, double clip_norm = 0) {
  PlanRequest request;
  request.model_path = PIPESHARD_SOURCE_DIR "/examples/mlp.onnx";
  request.partition.cluster = parseCluster("2x4");
  request.dimensions = {{"batch", 32}};
  request.microbatches = 2;
  request.last_batch = 24;
  request.partition.stages = parseStages(stages);
  if (!method.empty()) request.partition.sharding.method = parseShardingMethod(method);
  request.given.clip_norm = clip_norm;
  return planTraining(request, [](const std::string&) {});
}

// Subgraphs have other files in a folder.
std::string textOf(Program program) {
  for (Subgraph& subgraph : program.subgraphs) subgraph.file = subgraph.name + ".onnx";
  return programToJson(program);
}

size_t filesIn(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

void expectSame(const EmittedPrograms& emitted, ProgramFolder& folder, StepSize size) {
  ASSERT_EQ(folder.ranks(), emitted.size());
  for (const RankId rank : emitted.set.ranks.ids()) {
    const RankProgram want = emitted.of(rank);
    const RankImage got = folder.image(rank, size);
    EXPECT_EQ(textOf(got.program), textOf(want.program)) << rank.index();
    ASSERT_EQ(got.subgraphs.size(), want.subgraphs.size());
    for (size_t i = 0; i < got.subgraphs.size(); ++i)
      EXPECT_EQ(serializeModel(got.subgraphs[i]), serializeModel(want.subgraphs[i])) << rank.index();
  }
}

TEST(ProgramFiles, AreEveryRanksOwnWhenTheyAreRead) {
  for (const auto& [stages, method] :
       std::vector<std::pair<std::string, std::string>>{{"uniform:2", ""},
                                                        {"uniform:2", "zero2"},
                                                        {"uniform:1", "zero3"},
                                                        {"uniform:2", "data-parallel"}}) {
    const TemporaryFolder folder;
    const PlannedTraining planned = planOf(stages, method);
    const std::string plan = folder.file("plan");
    writePlanDirectory(planned, plan);
    ProgramFolder programs(plan);
    expectSame(planned.whole.ranks, programs, StepSize::kWholeBatch);
    ASSERT_TRUE(programs.hasLastBatch());
    expectSame(planned.last->ranks, programs, StepSize::kLastBatch);
    EXPECT_LT(programs.kinds(), programs.ranks());
    std::set<std::string> files;
    for (const RankId rank : idsBelow<RankId>(programs.ranks())) {
      for (const std::string& file : programs.files(rank)) files.insert(file);
    }
    EXPECT_EQ(filesIn(plan + "/kinds") + filesIn(plan + "/subgraphs") + 1, files.size());
  }
}

// Which part of the squares a replica adds up is a number that it reads.
TEST(ProgramFiles, OfReplicasThatClipByNormAreOfAsFewKinds) {
  const EmittedPrograms clipped = planOf("uniform:2", "", 1).whole.ranks;
  EXPECT_EQ(clipped.size(), 8U);
  EXPECT_EQ(clipped.set.kinds.size(), 4U);
  EXPECT_EQ(planOf("uniform:2", "").whole.ranks.set.kinds.size(), 4U);
}

// While it lives, this thread and those that it starts have one processor.
class OneProcessor {
 public:
  OneProcessor() {
    ::sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t first;
    CPU_ZERO(&first);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &first);
    }
    ::sched_setaffinity(0, sizeof(first), &first);
  }
  ~OneProcessor() { ::sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

std::map<std::string, std::string> contentsOf(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      contents[entry.path().lexically_relative(folder).string()] = requireTextFile(entry.path().string());
  }
  return contents;
}

// Groups of devices are worked at on several threads, and graphs and kinds are printed on several.
TEST(ProgramFiles, AreTheSameOnOneProcessorAndOnAll) {
  for (const auto& [stages, method] : std::vector<std::pair<std::string, std::string>>{
           {"uniform:4", ""}, {"uniform:2", "exhaustive"}, {"uniform:8", ""}}) {
    const TemporaryFolder folder;
    const std::string plan = folder.file("plan");
    const auto written = [&, &stages = stages, &method = method] {
      writePlanDirectory(planOf(stages, method), plan);
      return contentsOf(plan);
    };
    const std::map<std::string, std::string> on_all = written();
    const OneProcessor alone;
    ASSERT_EQ(processorCount(), 1);
    const std::map<std::string, std::string> on_one = written();
    EXPECT_GT(on_all.size(), 10U);
    EXPECT_TRUE(on_one == on_all) << stages << " " << method;
  }
}

// What an emission throws when it is told how far it is ends it, whichever threads are at work.
TEST(ProgramFiles, AreNotMadeWhereTheCallerHasHadEnough) {
  struct Enough {};
  for (const int limit : {0, 1, 2}) {
    PlanRequest request;
    request.model_path = PIPESHARD_SOURCE_DIR "/examples/mlp.onnx";
    request.partition.cluster = parseCluster("2x4");
    request.dimensions = {{"batch", 32}};
    request.microbatches = 8;
    request.partition.stages = parseStages("uniform:8");
    int told = 0;
    const auto progress = [&](const std::string& phase) {
      if (phase.starts_with("writing the programs") && ++told > limit) throw Enough();
    };
    EXPECT_THROW(planTraining(request, progress), Enough) << limit;
    EXPECT_EQ(told, limit + 1);
  }
}

// Between stages that are sharded otherwise, a value is resharded by one subgraph for all microbatches.
TEST(ProgramFiles, HaveOneSubgraphPerValueOnItsWay) {
  int reshardings = 0;
  for (const ProgramKind& kind : planOf("uniform:2", "exhaustive").whole.ranks.set.kinds) {
    const Program& program = kind.program;
    for (size_t s = 0; s < program.subgraphs.size(); ++s) {
      if (!program.subgraphs[s].name.starts_with("reshard_")) continue;
      ++reshardings;
      std::set<int> microbatches;
      for (const Instruction& instruction : program.instructions) {
        if (instruction.subgraph == SubgraphId(s)) microbatches.insert(instruction.microbatch);
      }
      EXPECT_EQ(microbatches, (std::set<int>{0, 1})) << program.subgraphs[s].name;
    }
  }
  EXPECT_GT(reshardings, 0);
}

TEST(ProgramFiles, ExpandedHaveTheNamesOfTheirSubgraphs) {
  const TemporaryFolder folder;
  const PlannedTraining planned = planOf("uniform:2", "zero2");
  const std::string plan = folder.file("plan"), own = folder.file("own");
  writePlanDirectory(planned, plan);
  const CommandResult expanded = runPipeshard({"plan", plan, "--expand-rank", "6", "-o", own});
  ASSERT_EQ(expanded.exit_code, 0) << expanded.errors;
  for (const auto& [step, inside] :
       {std::pair{&planned.whole, own}, std::pair{&*planned.last, own + "/last_batch"}}) {
    const RankProgram want = step->ranks.of(RankId(6));
    EXPECT_EQ(readFile(inside + "/program.json"), programToJson(want.program));
    for (size_t i = 0; i < want.subgraphs.size(); ++i)
      EXPECT_EQ(readFile(inside + "/" + want.program.subgraphs[i].file), serializeModel(want.subgraphs[i]));
  }
  EXPECT_EQ(runPipeshard({"plan", plan, "--expand-rank", "6", "-o", own}).exit_code, 78);  // is not empty
  EXPECT_EQ(runPipeshard({"plan", plan, "--expand-rank", "8", "-o", folder.file("x")}).exit_code, 64);
  EXPECT_EQ(runPipeshard({"plan", plan, "--expand-rank", "6"}).exit_code, 64);
  EXPECT_EQ(runPipeshard({"plan", plan, "--expand-rank", "6", "--cluster", "1x2", "-o", own}).exit_code, 64);
  EXPECT_EQ(runPipeshard({"plan", folder.file("none"), "--expand-rank", "0", "-o", own + "2"}).exit_code, 66);
}

// What a plan writes it need not read again: the record is that of what is read.
TEST(ProgramFiles, AreRecordedAsTheyAreRead) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan");
  writePlanDirectory(planOf("uniform:2", "zero2"), plan);
  const std::string recorded = readFile(plan + "/" + kProgramsRecordName);
  recordPrograms(plan);
  EXPECT_EQ(readFile(plan + "/" + kProgramsRecordName), recorded);
}

// Attention over a large batch has tensors that no device ever holds.
TEST(ProgramFiles, AreOfMicrobatchesHoweverLargeTheBatchIs) {
  PlanRequest request;
  request.model_path = PIPESHARD_SOURCE_DIR "/examples/mlp.onnx";
  request.partition.cluster = parseCluster("1x2");
  request.dimensions = {{"batch", int64_t{1} << 36}};
  request.programs = false;
  request.microbatches = 1024;
  EXPECT_EQ(planTraining(request, [](const std::string&) {}).plan.microbatches, 1024);
  request.microbatches = 2;
  EXPECT_ERROR(planTraining(request, [](const std::string&) {}), ErrorCode::kBadModel,
               "check the dimensions");
}

TEST(ProgramFiles, OfAnOlderFormAreRefused) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan");
  writePlanDirectory(planOf("uniform:2", ""), plan);
  const auto refuses = [&](const std::string& found) {
    for (const char* command : {"run", "validate", "simulate", "report"}) {
      const CommandResult refused = runPipeshard({command, plan});
      EXPECT_EQ(refused.exit_code, 76) << command << refused.errors;
      EXPECT_NE(refused.errors.find(found), std::string::npos) << command << refused.errors;
      EXPECT_NE(refused.errors.find("plan again"), std::string::npos) << command;
    }
  };
  const std::string current = readFile(plan + "/ranks.json");
  writeFile(plan + "/ranks.json", replaced(current, "\"version\": 6", "\"version\": 5"));
  refuses("version 5 was found");
  fs::remove(plan + "/ranks.json");
  fs::create_directories(plan + "/ranks/0000");
  refuses("older pipeshard");
}

TEST(ProgramFiles, ThatWereChangedAreRefusedByName) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan"), ranks = plan + "/ranks.json";
  writePlanDirectory(planOf("uniform:2", ""), plan);
  const std::string text = readFile(ranks);
  const auto refuses = [&](const std::string& from, const std::string& to, const std::string& message) {
    std::string changed = text;
    const size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    writeFile(ranks, changed.replace(at, from.size(), to));
    const CommandResult refused = runPipeshard({"run", plan});
    EXPECT_EQ(refused.exit_code, 78) << to << refused.errors;
    EXPECT_NE(refused.errors.find(message), std::string::npos) << refused.errors;
  };
  refuses("{\"kind\":0,", "{\"kind\":99,", "kind: found 99");
  refuses("\"ranks\": 8", "\"ranks\": 9", "found those of 8 ranks; expected 9");
  refuses("\"peers\":[", "\"peers\":[7,6,5,", "plan again");
  refuses("\"peers\":[", "\"peer\":[", "peer");
}

}  // namespace
}  // namespace pipeshard
