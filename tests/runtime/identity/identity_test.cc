// What makes two processes parts of one job: digests of files, and programs that fit each other.

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/content_hash.h"
#include "runtime/identity/build_identity.h"
#include "runtime/identity/file_digest.h"
#include "runtime/identity/identity_reader.h"
#include "runtime/identity/job_identity.h"
#include "runtime/identity/plan_completion.h"
#include "runtime/identity/plan_programs.h"
#include "runtime/identity/source_version.h"
#include "tests/expect_error.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A cache of digests for one test.
class FileDigests : public ::testing::Test {
 protected:
  FileDigests() { ::setenv("XDG_CACHE_HOME", folder_.file("cache").c_str(), 1); }
  ~FileDigests() override { ::unsetenv("XDG_CACHE_HOME"); }

  std::string writeLarge(const std::string& name) { return folder_.write(name, std::string(6 << 20, 'x')); }
  size_t remembered() const {
    const std::filesystem::path folder = folder_.path() / "cache/pipeshard/digests";
    if (!std::filesystem::exists(folder)) return 0;
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  }
  static void setByte(const std::string& path, size_t place, char byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(place));
    file.put(byte);
  }
  // Until its time stamps are old enough to be trusted.
  static void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(3100)); }

  TemporaryFolder folder_;
};

TEST_F(FileDigests, AreOfEveryByte) {
  const std::string path = writeLarge("weights");
  const uint64_t before = digestOfFile(path);
  EXPECT_EQ(before, contentHashOfFile(path));
  setByte(path, 3'333'333, 'y');
  EXPECT_NE(digestOfFile(path), before);
  setByte(path, 3'333'333, 'x');
  EXPECT_EQ(digestOfFile(path), before);
}

TEST_F(FileDigests, AreRememberedUntilTheFileIsWritten) {
  const std::string path = writeLarge("weights");
  digestOfFile(path);
  EXPECT_EQ(remembered(), 0u) << "it may be written again within the resolution of its time stamps";
  settle();
  const uint64_t before = digestOfFile(path);
  ASSERT_EQ(remembered(), 1u);
  // What was remembered is used: so is a wrong number.
  const std::string entry =
      std::filesystem::directory_iterator(folder_.path() / "cache/pipeshard/digests")->path();
  std::string text;
  std::getline(std::ifstream(entry), text);
  std::ofstream(entry) << text << "\n" << hashText(before + 1);
  EXPECT_EQ(digestOfFile(path), before + 1);
  setByte(path, 1, 'x');
  EXPECT_EQ(digestOfFile(path), before);
}

TEST_F(FileDigests, StopWhenAsked) {
  const std::string path = writeLarge("weights");
  ReadingProgress progress;
  progress.stop = true;
  EXPECT_ERROR(digestOfFile(path, &progress), ErrorCode::kRequeue, "stopped");
  EXPECT_ERROR(digestOfFile(folder_.file("none")), ErrorCode::kMissingInput, "none");
}

TEST_F(FileDigests, OfDataAreSamplesOfLargeFiles) {
  const std::string path = folder_.file("data");
  std::ofstream(path).put('x');
  std::filesystem::resize_file(path, size_t{65} << 20);
  const uint64_t before = sampledDigestOfFile(path);
  setByte(path, 0, 'y');
  EXPECT_NE(sampledDigestOfFile(path), before);
}

TEST(BuildIdentities, AreEqualByCommitOrByBuild) {
  const BuildIdentity committed{"1.0", "aa", "11"}, elsewhere{"1.0", "aa", "22"}, other{"1.0", "bb", "11"};
  EXPECT_TRUE(isSameBuild(committed, elsewhere));
  EXPECT_FALSE(isSameBuild(committed, other));
  const BuildIdentity changed{"1.0", "", "11"}, again{"1.0", "", "22"}, newer{"2.0", "", "11"};
  EXPECT_TRUE(isSameBuild(changed, committed));
  EXPECT_FALSE(isSameBuild(changed, again));
  EXPECT_FALSE(isSameBuild(changed, newer));
}

TEST(BuildIdentities, TellTwoProcessesApart) {
  nlohmann::json message = {{"build", buildJson(thisBuild())}};
  EXPECT_FALSE(findBuildDifference(message));
  EXPECT_FALSE(thisBuild().build_id.empty()) << "the linker makes no build ids";
  message["build"]["version"] = "0.0.9";
  const std::string text = findBuildDifference(message).value_or("");
  EXPECT_THAT(text, HasSubstr("it is pipeshard 0.0.9"));
  EXPECT_THAT(text, HasSubstr("the coordinator is " + thisBuild().version));
  EXPECT_THAT(findBuildDifference(nlohmann::json::object()).value_or(""), HasSubstr("older pipeshard"));
}

TEST(BuildIdentities, LibrariesHaveTheirOwn) {
  const std::string own = buildIdOf(kSourceVersion), library = buildIdOf(::dlsym(RTLD_DEFAULT, "getenv"));
  EXPECT_EQ(own, thisBuild().build_id);
  EXPECT_EQ(library.size(), own.size());
  EXPECT_NE(library, own);
  EXPECT_EQ(buildIdOf(nullptr), "");
}

TEST(BuildIdentities, ModulesAreComparedWhereTheyAreUsed) {
  const auto with = [](const BuildIdentity& module) { return nlohmann::json{{"module", buildJson(module)}}; };
  const BuildIdentity first{"1.0", "", "1111111111111"}, second{"1.0", "", "2222222222222"};
  RankComparison modules;
  EXPECT_FALSE(modules.add("rank 0", nlohmann::json::object()));
  EXPECT_FALSE(modules.add("rank 1", with(first)));
  EXPECT_FALSE(modules.add("rank 2", with(first)));
  EXPECT_FALSE(modules.add("rank 3", nlohmann::json::object()));
  EXPECT_EQ(modules.add("rank 4", with(second)),
            "rank 4 computes with pipeshard_cuda.so 1.0, build 222222222222, rank 1 with 1.0, build "
            "111111111111; install one build everywhere");
}

TEST(BuildIdentities, LibrariesAreComparedWhereTheyWork) {
  const auto with = [](const std::string& library, const std::string& more) {
    return nlohmann::json{{"library", library}, {"device", "cuda:0 (A), " + library + more}};
  };
  RankComparison ranks;
  EXPECT_FALSE(ranks.add("rank 0", nlohmann::json::object()));
  EXPECT_FALSE(ranks.add("rank 1", with("cuDNN 9.19.0", " for 2 of 3")));
  EXPECT_FALSE(ranks.add("rank 2", with("", "")));
  EXPECT_FALSE(ranks.add("rank 3", with("cuDNN 9.19.0", "")));
  EXPECT_EQ(ranks.add("rank 4", with("cuDNN 9.18.1", "")),
            "rank 4 computes on cuda:0 (A), cuDNN 9.18.1, rank 1 on cuda:0 (A), cuDNN 9.19.0 for 2 of 3: "
            "copies of what several ranks compute could differ in their last bits; give all hosts the same "
            "cuDNN, or set PIPESHARD_CUDNN=off on all");
  RankComparison without;
  EXPECT_FALSE(without.add("rank 0", with("no cuDNN", " (libcudnn.so.9: no such file)")));
  EXPECT_FALSE(without.add("rank 1", with("no cuDNN", " (PIPESHARD_CUDNN=off)")));
  EXPECT_TRUE(without.add("rank 2", with("cuDNN 9.19.0", "")));
}

TEST(BuildIdentities, AModuleIsOfItsProgramsSources) {
  BuildIdentity module = thisBuild();
  module.build_id = "11";
  requireModuleOfThisBuild("a.so", module);
  module.commit = "";
  requireModuleOfThisBuild("a.so", module);
  module.version = "0.0.9";
  EXPECT_ERROR(requireModuleOfThisBuild("a.so", module), ErrorCode::kVersionMismatch,
               "a.so is of pipeshard 0.0.9, build 11, which is " + thisBuild().version);
}

// A plan directory with weights in a file of their own, and data.
struct Directory {
  TemporaryFolder folder;
  IdentityRequest request;

  Directory() {
    std::vector<RankImage> images = pipelineImages(2);
    for (Buffer& buffer : images[1].program.buffers) {
      if (!buffer.source) continue;
      const Constant constant = std::get<Constant>(*buffer.source);
      buffer.source = WeightReference{
          folder.write("weights.bin",
                       {reinterpret_cast<const char*>(constant.bytes.data()), constant.bytes.size()}),
          0, constant.bytes.size()};
    }
    writePlanDirectory(folder.path(), images);
    folder.write("plan.json", "{}");
    folder.write("data.u16", std::string(100, 'a'));
    recordPrograms(folder.path());
    request = {folder.path(), {RankId(0), RankId(1)}, folder.file("data.u16"), ""};
    folder.write("held.u16", std::string(100, 'b'));
    writePlanDirectory(folder.file("evaluation"), pipelineImages(2));
    for (const char* file : {"first.npy", "second.npy"})
      folder.write(std::string("adopted/") + file, "values");
    request.held_out = folder.file("held.u16");
    request.evaluation = folder.file("evaluation");
    request.adopted = folder.file("adopted");
  }
  std::string differenceAfter(const std::string& file, const std::string& content) {
    IdentityComparison comparison;
    EXPECT_EQ(comparison.add("the coordinator (host a)", readJobIdentity(request)), std::nullopt);
    folder.write(file, content);
    const JobIdentity sent = identityFromJson(identityJson(readJobIdentity(request)));
    std::string other;
    const std::optional<std::string> text = comparison.add("node 1 (host b)", sent, &other);
    EXPECT_EQ(other, text ? "the coordinator (host a)" : "");
    return text.value_or("");
  }
};

TEST(JobIdentities, NameTheFileThatDiffersAndBothHosts) {
  for (const char* file : {"plan.json", "weights.bin", "data.u16", "held.u16", "adopted/second.npy",
                           "subgraphs/0001_update_w1.onnx", "evaluation/subgraphs/0001_update_w1.onnx"}) {
    Directory directory;
    const std::string path = directory.folder.file(file);
    ASSERT_TRUE(std::filesystem::exists(path)) << path;
    const std::string before = hashText(contentHashOfFile(path));
    const std::string text = directory.differenceAfter(file, "something else");
    EXPECT_THAT(text, HasSubstr(path + " is another file on node 1 (host b)"));
    EXPECT_THAT(text, HasSubstr("on the coordinator (host a) (digest " + before + ")"));
    EXPECT_THAT(text, HasSubstr("(digest " + hashText(contentHashOfFile(path)) + ")"));
  }
}

TEST(JobIdentities, AreEqualWhereNothingDiffersOrAFileIsMissing) {
  Directory directory;
  EXPECT_EQ(directory.differenceAfter("report.html", "not part of it"), "");
  IdentityComparison comparison;
  EXPECT_EQ(comparison.add("a", readJobIdentity(directory.request)), std::nullopt);
  std::filesystem::remove(directory.folder.file("weights.bin"));
  std::filesystem::remove(directory.folder.file("data.u16"));
  EXPECT_EQ(comparison.add("b", readJobIdentity(directory.request)), std::nullopt);
}

// One that takes no part by now: what it lacks counts, too, but for what each host can make, or has of its
// own.
TEST(JobIdentities, OfASpareAreNotRemembered) {
  Directory directory;
  IdentityComparison comparison;
  const JobIdentity ours = readJobIdentity(directory.request);
  EXPECT_EQ(comparison.add("a", ours), std::nullopt);
  EXPECT_EQ(comparison.difference("b", ours), std::nullopt);
  JobIdentity theirs{{"program", "subgraphs/x.onnx", "12"}, {"weights", "elsewhere.bin", "34"}};
  EXPECT_EQ(comparison.difference("b", theirs), std::nullopt);
  for (const IdentityPart& part : ours) {
    theirs = {part};
    theirs[0].digest = "0123456789abcdef";
    EXPECT_THAT(comparison.difference("b", theirs).value_or(""),
                AllOf(HasSubstr(part.path), HasSubstr(" on b ")));
    theirs[0].digest = "";
    const bool may_lack = part.what == "program" || part.what == "checkpoint";
    EXPECT_EQ(comparison.difference("b", theirs).has_value(), !may_lack) << part.what << " " << part.path;
  }
  EXPECT_EQ(comparison.add("c", ours), std::nullopt);
}

TEST(JobIdentities, AreOfWhichFilesAFolderOfDataHas) {
  Directory directory;
  const std::string folder = directory.folder.file("adopted");
  EXPECT_THAT(directory.differenceAfter("adopted/third.npy", "values"),
              HasSubstr("the adopted values folder " + folder + " has other files on node 1 (host b)"));
  // A host that has no such folder has other ranks.
  IdentityComparison comparison;
  EXPECT_EQ(comparison.add("a", readJobIdentity(directory.request)), std::nullopt);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(comparison.add("b", readJobIdentity(directory.request)), std::nullopt);
}

// Hosts with disks of their own may say in other ways where they are.
TEST(JobIdentities, OfACheckpointAreNotOfWhereItsFilesAre) {
  Directory directory;
  directory.request.checkpoint = directory.folder.file("step-000003");
  const std::string manifest = "step-000003/manifest.json";
  Checkpoint checkpoint;
  checkpoint.step = 3;
  checkpoint.files = {{"rank-0000.safetensors", 8, 1}};
  directory.folder.write(manifest, checkpointToJson(checkpoint));
  checkpoint.files[0].host = "a";
  EXPECT_EQ(directory.differenceAfter(manifest, checkpointToJson(checkpoint)), "");
  checkpoint.files[0].hash = 2;
  EXPECT_THAT(directory.differenceAfter(manifest, checkpointToJson(checkpoint)),
              HasSubstr("step-000003/manifest.json is another file on node 1 (host b)"));
}

TEST(JobIdentities, NeedTheProgramsThatEvaluate) {
  const Directory directory;
  std::filesystem::remove_all(directory.request.evaluation);
  EXPECT_ERROR(readJobIdentity(directory.request), ErrorCode::kMissingInput,
               directory.request.evaluation + ", are not on this host; copy the folder");
}

// A spare makes programs when it takes over: until then it lacks nothing, and what else it has is compared.
TEST(JobIdentities, OfWhatAHostHasYetToMakeAreNotAskedFor) {
  Directory directory;
  IdentityComparison comparison;
  EXPECT_EQ(comparison.add("a", readJobIdentity(directory.request)), std::nullopt);
  std::filesystem::remove_all(directory.request.evaluation);
  IdentityRequest spare = directory.request;
  spare.may_be_unmade = true;
  EXPECT_EQ(comparison.difference("b", readJobIdentity(spare)), std::nullopt);
  std::filesystem::remove(directory.folder.file("ranks.json"));
  EXPECT_ERROR(readJobIdentity(directory.request), ErrorCode::kMissingInput,
               directory.request.plan_directory);
  EXPECT_EQ(comparison.difference("b", readJobIdentity(spare)), std::nullopt);
  spare.plan_directory = directory.folder.file("fewer/1");
  EXPECT_EQ(comparison.difference("b", readJobIdentity(spare)), std::nullopt);
  directory.folder.write("data.u16", std::string(100, 'c'));
  EXPECT_THAT(comparison.difference("b", readJobIdentity(spare)).value_or(""),
              HasSubstr("data.u16 is another file on b"));
  std::filesystem::remove(directory.folder.file("plan.json"));
  EXPECT_ERROR(readJobIdentity(spare), ErrorCode::kMissingInput, "is not on this host");
}

TEST(PlanCompletions, AreMadeBesideOtherWork) {
  std::atomic<bool> may_end = false;
  PlanCompletion work(
      [&](const std::string& directory, int64_t rows, const auto& goes_on) {
        EXPECT_EQ(directory, "job.plan");
        EXPECT_EQ(rows, 61);
        EXPECT_TRUE(goes_on("reading the model"));
        while (!may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        fail(ErrorCode::kMissingInput, "there is no model");
      },
      "job.plan", 61);
  std::optional<std::string> notice;
  while (!notice) notice = work.takeNotice();
  EXPECT_EQ(notice, "making what is not here of job.plan: reading the model");
  EXPECT_EQ(work.takeNotice(), std::nullopt);
  EXPECT_FALSE(work.isDone());
  may_end = true;
  while (!work.isDone()) std::this_thread::yield();
  EXPECT_ERROR(work.take(), ErrorCode::kMissingInput, "job.plan is not whole on this host");
}

TEST(PlanCompletions, EndBeforeTheirNextPhase) {
  std::atomic<int> phases = 0;
  {
    const PlanCompletion work(
        [&](const std::string&, int64_t, const auto& goes_on) {
          while (goes_on("a phase")) {
            ++phases;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        },
        "job.plan", 0);
    while (phases == 0) std::this_thread::yield();
    EXPECT_FALSE(work.isDone());
  }
  EXPECT_GT(phases, 0);
}

TEST(JobIdentities, OfANodeAreOfTheFilesThatItsRanksRead) {
  const Directory directory;
  IdentityRequest request = directory.request;
  request.ranks = {RankId(0)};
  for (const IdentityPart& part : readJobIdentity(request)) {
    EXPECT_THAT(part.path, ::testing::Not(HasSubstr("kinds/0001")));
    EXPECT_NE(part.what, "weights");
  }
}

TEST(JobIdentities, AreReadBesideOtherWork) {
  const Directory directory;
  IdentityReader reader(directory.request);
  while (!reader.isDone()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(reader.take(), readJobIdentity(directory.request));
  IdentityRequest missing = directory.request;
  missing.plan_directory = directory.folder.file("none");
  IdentityReader failing(missing);
  while (!failing.isDone()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_ERROR(failing.take(), ErrorCode::kMissingInput, "is not on this host");
}

std::vector<std::string> noticesOf(const std::string& directory) {
  std::vector<std::string> notices;
  ProgramFolder programs(directory);
  requireSoundPrograms(programs, [&](const std::string& text) { notices.push_back(text); });
  return notices;
}

// It would take minutes to read, and nothing could use it.
TEST(PlanPrograms, AFileBeyondWhatIsEverReadIsRefusedAtOnce) {
  const TemporaryFolder folder;
  writePlanDirectory(folder.path(), pipelineImages(2));
  ProgramFolder programs(folder.path());
  const std::string subgraph = programs.subgraphFiles(RankId(0)).at(0);
  std::filesystem::resize_file(subgraph, uint64_t{40} << 30);
  EXPECT_ERROR(noticesOf(folder.path()), ErrorCode::kBadModel, "subgraphs");
  std::filesystem::resize_file(subgraph, 0);
  std::filesystem::resize_file(folder.file(kindFileName(KindId(0), StepSize::kWholeBatch)),
                               uint64_t{40} << 30);
  EXPECT_ERROR(noticesOf(folder.path()), ErrorCode::kConfiguration, "kinds");
}

// What a worker says that it has loaded is what it has loaded, whatever becomes of the files meanwhile.
TEST(PlanPrograms, AreReadOnceAndTheirDigestIsOfWhatWasRead) {
  const TemporaryFolder folder;
  writePlanDirectory(folder.path(), pipelineImages(2));
  ProgramFolder fresh(folder.path());
  const std::string digest = programsDigest(fresh, RankId(1));
  ProgramFolder programs(folder.path());
  EXPECT_EQ(programs.takeImage(RankId(1)).program.rank, RankId(1));
  const std::string changed = programs.subgraphFiles(RankId(1)).at(0);
  std::ofstream(changed, std::ios::app) << "something else";
  std::filesystem::remove(folder.file("ranks.json"));
  std::filesystem::remove_all(folder.file("kinds"));
  EXPECT_EQ(programsDigest(programs, RankId(1)), digest);
  EXPECT_ERROR(programs.program(RankId(1)), ErrorCode::kMissingInput, "kinds/0001.json");
  EXPECT_ERROR(ProgramFolder(folder.path()), ErrorCode::kMissingInput, "ranks.json");
}

// Who gives a set of programs away, and reads some of them again, does not mix two plans.
TEST(PlanPrograms, AreNotReadAgainWhenTheyAreOthers) {
  const TemporaryFolder folder;
  writePlanDirectory(folder.path(), pipelineImages(2));
  ProgramFolder kept(folder.path()), programs(folder.path());
  kept.readAll();
  EXPECT_EQ(programs.takeSet().ranks.size(), 2U);
  std::ofstream(folder.file("kinds/0001.json"), std::ios::app) << "\n";
  EXPECT_ERROR(programs.program(RankId(1)), ErrorCode::kVersionMismatch, "was replaced");
  EXPECT_ERROR(programs.takeSet(), ErrorCode::kVersionMismatch, "kinds/0001.json is another file");
  EXPECT_EQ(kept.program(RankId(1)).rank, RankId(1));
  EXPECT_EQ(kept.takeSet().kinds.size(), 2U);
}

TEST(PlanPrograms, AreVerifiedWhenTheyAreNotAsRecorded) {
  const TemporaryFolder folder;
  std::vector<RankImage> images = pipelineImages(2);
  writePlanDirectory(folder.path(), images);
  EXPECT_TRUE(noticesOf(folder.path()).empty());  // made by hand
  recordPrograms(folder.path());
  EXPECT_TRUE(noticesOf(folder.path()).empty());
  folder.write("kinds/notes.txt", "a strange file");
  EXPECT_TRUE(noticesOf(folder.path()).empty());
  std::ofstream(folder.file("kinds/0001.json"), std::ios::app) << "\n";
  EXPECT_THAT(noticesOf(folder.path()),
              ::testing::ElementsAre(HasSubstr("were changed since they were made")));
}

// Each instruction of each rank left out, doubled, or exchanged with the next.
TEST(PlanPrograms, ThatWereAlteredAreRefusedOrStillSound) {
  int refused = 0, sound = 0;
  for (const int rank : {0, 1}) {
    const size_t count = pipelineImages(2)[rank].program.instructions.size();
    for (size_t i = 0; i < count; ++i) {
      for (int change = 0; change < 3; ++change) {
        std::vector<RankImage> images = pipelineImages(2);
        std::vector<Instruction>& list = images[rank].program.instructions.unrolled();
        if (change == 0) list.erase(list.begin() + static_cast<ptrdiff_t>(i));
        if (change == 1) list.insert(list.begin() + static_cast<ptrdiff_t>(i), Instruction(list[i]));
        if (change == 2 && i + 1 < count) std::swap(list[i], list[i + 1]);
        const TemporaryFolder folder;
        writePlanDirectory(folder.path(), images);
        try {
          noticesOf(folder.path());
          ++sound;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kConfiguration) << error.message();
          EXPECT_THAT(error.message(), HasSubstr("plan again"));
          EXPECT_THAT(error.message(), HasSubstr("rank "));
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 60);
  EXPECT_GT(sound, 5);
}

}  // namespace
}  // namespace pipeshard
