// Checkpoints of which a host has a part on its own disk.
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/disks/disk_check.h"
#include "runtime/disks/disk_exchange.h"
#include "runtime/disks/dump_folder.h"
#include "runtime/disks/file_pieces.h"
#include "runtime/disks/node_disk.h"
#include "runtime/execute/dump.h"
#include "runtime/files/tensor_file.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::string kRankOne = "rank-0001.safetensors";

// Rank 0 is on this host, rank 1 on host b; each holds a tensor of its own.
class LocalDisk : public ::testing::Test {
 protected:
  static CheckpointFile writeRank(const std::string& folder, int rank, const std::string& host) {
    makeFolder(folder);
    const std::vector<float> numbers(300'000, static_cast<float>(rank));
    const std::string name = checkpointFileName(RankId(rank));
    const std::vector<TensorView> tensors = {{"parameter/" + std::to_string(rank),
                                              DataType::kFloat32,
                                              {static_cast<int64_t>(numbers.size())},
                                              numbers.data()}};
    const WrittenFile written = writeTensorFile(folder + "/" + name, tensors, {}, true);
    return {name, written.bytes, written.hash, host};
  }

  static Checkpoint checkpointOf(int64_t step, std::vector<CheckpointFile> files) {
    Checkpoint checkpoint;
    checkpoint.step = step;
    checkpoint.job = "job";
    checkpoint.files = std::move(files);
    for (const int rank : {0, 1})
      checkpoint.tensors.push_back(
          {"parameter/" + std::to_string(rank), DataType::kFloat32, {300'000}, {{rank, {0}, {300'000}}}});
    return checkpoint;
  }

  // As the coordinator on host a commits it: with all that is known of both ranks.
  Checkpoint commitHere(int keep = 2, int64_t step = 3) {
    CheckpointFolder folder(here_, "job", keep);
    Checkpoint checkpoint = checkpointOf(step, {writeRank(folder.partialOf(step), 0, "a"),
                                                writeRank(there_ + "/step-000003.partial-job", 1, "b")});
    checkpoint.elsewhere = {1};
    return folder.commit(checkpoint);
  }

  // A job on one host. The text of the manifest, in which no host is named.
  static std::string commitAlone(const std::string& path, int64_t step) {
    CheckpointFolder folder(path, "job", 2);
    const std::string partial = folder.partialOf(step);
    folder.commit(checkpointOf(step, {writeRank(partial, 0, ""), writeRank(partial, 1, "")}));
    return contentOf(path + "/" + checkpointName(step) + "/manifest.json");
  }

  // What a coordinator here that goes on from this one tells a host of it.
  std::string toldOf(const std::string& manifest) const {
    std::string told;
    const auto send = [&](int, std::string_view type, const nlohmann::json& body,
                          std::span<const std::byte>) {
      if (type == "manifest") told += body.at("text").get<std::string>();
    };
    DiskExchange exchange({here_, "a", "next", 2, manifest}, {send, [] { return std::vector{0}; }, {}});
    exchange.introduce(0, "b");
    return told;
  }

  static Checkpoint adopt(const std::string& path, const std::string& manifest) {
    CheckpointFolder(path, "next", 2, {}, FolderLock::kPatience, manifest);
    return readCheckpoint(path + "/" + checkpointName(checkpointFromJson(manifest).step));
  }

  static std::string contentOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryFolder folder_;
  std::string here_ = folder_.file("a");
  std::string there_ = folder_.file("b");
};

TEST_F(LocalDisk, WhatIsElsewhereIsSaidWithTheCommandThatCopiesIt) {
  commitHere();
  const Checkpoint read = readCheckpoint(here_ + "/step-000003");
  EXPECT_THAT(read.elsewhere, ElementsAre(1));
  verifyCheckpoint(read);
  EXPECT_ERROR(openTensors(read), ErrorCode::kMissingInput,
               "rank-0001.safetensors on host b (rsync -a --ignore-existing b:" + here_ + "/step-000003/");
  fs::remove(here_ + "/step-000003/rank-0000.safetensors");
  EXPECT_THAT(readCheckpoint(here_ + "/step-000003").elsewhere, ElementsAre(0, 1));
}

TEST_F(LocalDisk, TwoStayAtLeast) {
  for (const int64_t step : {1, 2, 3}) commitHere(1, step);
  EXPECT_THAT(listCheckpoints(here_), ElementsAre(here_ + "/step-000003", here_ + "/step-000002"));
}

TEST_F(LocalDisk, AHostWithoutRanksHasTheManifestAndWhatTheModelIs) {
  CheckpointFolder folder(here_, "job", 2, {{"plan.json", "{}"}});
  const std::string partial = there_ + "/step-000003.partial-job";
  Checkpoint checkpoint = checkpointOf(3, {writeRank(partial, 0, "b"), writeRank(partial, 1, "b")});
  checkpoint.elsewhere = {0, 1};
  folder.commit(checkpoint);
  EXPECT_THAT(readCheckpoint(here_ + "/step-000003").elsewhere, ElementsAre(0, 1));
  EXPECT_EQ(contentOf(here_ + "/step-000003/plan.json"), "{}");
}

TEST_F(LocalDisk, WhatOneHostHasSavedAloneIsNamedAsItsForHostsThatHaveItNot) {
  const std::string manifest = commitAlone(here_, 3);
  const std::string told = toldOf(manifest);
  Checkpoint adopted = adopt(there_, told);
  EXPECT_THAT(adopted.elsewhere, ElementsAre(0, 1));
  for (const CheckpointFile& file : adopted.files) EXPECT_EQ(file.host, "a");
  EXPECT_EQ(manifestWithoutHosts(adopted), manifest);
  commitHere(2, 4);
  const std::string of_both = contentOf(here_ + "/step-000004/manifest.json");
  EXPECT_EQ(toldOf(of_both), of_both);
}

TEST_F(LocalDisk, AWholeCopyStaysAsItIsAndOneThatIsNotSaysWhereTheRestIs) {
  const std::string told = toldOf(commitAlone(here_, 3));
  fs::copy(here_, there_, fs::copy_options::recursive);
  EXPECT_TRUE(isInOneFolder(adopt(there_, told)));
  fs::remove(there_ + "/step-000003/" + kRankOne);
  const Checkpoint adopted = adopt(there_, told);
  EXPECT_THAT(adopted.elsewhere, ElementsAre(1));
  verifyCheckpoint(adopted);
  EXPECT_THAT(adopt(there_, told).elsewhere, ElementsAre(1));
}

TEST_F(LocalDisk, AWholeOneThatIsNewerThanTheCoordinatorsIsNotThrownAway) {
  commitHere();
  commitAlone(there_, 5);
  NodeDisk disk([](std::string_view, const nlohmann::json&, std::span<const std::byte>) {});
  const std::string manifest = contentOf(here_ + "/step-000003/manifest.json");
  for (const nlohmann::json& piece : piecesOf(manifest, {{"resumed", true}}))
    disk.hear("manifest", piece, {});
  const nlohmann::json start = {{"disk", diskRequestJson({there_, ".probe-0", "next"})},
                                {"directory", folder_.file("plan")},
                                {"ranks", nlohmann::json::array()}};
  EXPECT_ERROR(
      disk.hear("start", start, {}), ErrorCode::kConfiguration,
      "a whole checkpoint on this host's own disk, " + there_ + "/step-000005, and the coordinator's");
  EXPECT_TRUE(fs::exists(there_ + "/step-000005/COMMIT"));
}

// A part of one that several hosts have saved, and whose coordinator's disk is lost, say: this job's own
// checkpoints must have come as far before it goes.
TEST_F(LocalDisk, APartOfANewerOneStaysUntilAnotherIsAsNew) {
  commitHere(5, 3);
  commitHere(5, 6);
  CheckpointFolder folder(here_, "next", 2);
  folder.goOnAfter(3, CheckpointFolder::Later::kStay);
  const auto commit = [&](int64_t step) {
    const std::string partial = folder.partialOf(step);
    Checkpoint checkpoint =
        checkpointOf(step, {writeRank(partial, 0, "a"), writeRank(folder_.file("elsewhere"), 1, "b")});
    checkpoint.job = "next";
    checkpoint.elsewhere = {1};
    folder.commit(checkpoint);
  };
  const auto at = [&](int64_t step) { return here_ + "/" + checkpointName(step); };
  commit(4);
  EXPECT_THAT(listCheckpoints(here_), ElementsAre(at(6), at(4), at(3)));
  commit(5);
  EXPECT_THAT(listCheckpoints(here_), ElementsAre(at(6), at(5), at(4)));
  commit(7);
  EXPECT_THAT(listCheckpoints(here_), ElementsAre(at(7), at(5)));
}

// A crash between the coordinator's commit and the other host's: the files there have their partial name.
TEST_F(LocalDisk, AHostThatHadNotHeardOfTheCommitMakesUpForIt) {
  commitHere();
  const std::string manifest = contentOf(here_ + "/step-000003/manifest.json");
  fs::create_directories(there_ + "/step-000009.partial-dead");
  const CheckpointFolder folder(there_, "next", 2, {}, FolderLock::kPatience, manifest);
  const Checkpoint adopted = readCheckpoint(there_ + "/step-000003");
  EXPECT_THAT(adopted.elsewhere, ElementsAre(0));
  verifyCheckpoint(adopted);
  EXPECT_FALSE(fs::exists(there_ + "/step-000003.partial-job"));
  EXPECT_FALSE(fs::exists(there_ + "/step-000009.partial-dead"));
}

TEST_F(LocalDisk, AnEmptyDiskGetsTheManifestAloneAndAnotherCheckpointOfTheStepIsRefused) {
  commitHere();
  const std::string manifest = contentOf(here_ + "/step-000003/manifest.json");
  const auto adopt = [&](const std::string& text) {
    CheckpointFolder(folder_.file("c"), "next", 2, {}, FolderLock::kPatience, text);
  };
  adopt(manifest);
  EXPECT_THAT(readCheckpoint(folder_.file("c") + "/step-000003").elsewhere, ElementsAre(0, 1));
  adopt(manifest);
  Checkpoint other = checkpointFromJson(manifest);
  other.job = "other";
  EXPECT_ERROR(adopt(checkpointToJson(other)), ErrorCode::kConfiguration,
               "is not the checkpoint of that step");
}

TEST_F(LocalDisk, AFileComesInPiecesIsVerifiedAndNothingElseIsHandedOut) {
  commitHere();
  Checkpoint wanted = readCheckpoint(here_ + "/step-000003");
  FileFetch fetch(wanted, {{1, ""}});
  int pieces = 0;
  while (!fetch.isDone()) {
    FileWant want = fetch.want();
    want.directory = there_ + "/step-000003";  // on the other host, still under its partial name
    fetch.take(readPiece(want));
    ++pieces;
  }
  EXPECT_THAT(fetch.fetched(), ElementsAre("rank-0001.safetensors"));
  EXPECT_EQ(pieces, 4);  // two of 1.2 MB, two refusals: there is no plan.json
  wanted = readCheckpoint(here_ + "/step-000003");
  EXPECT_TRUE(wanted.elsewhere.empty());
  verifyCheckpoint(wanted);
  FileWant want = {there_ + "/step-000003", "job", "", 0};
  for (const char* file : {"../job.key", "manifest.json", "rank-0001.safetensors.tmp"}) {
    want.file = file;
    EXPECT_NE(readPiece(want).error, "") << file;
  }
  want.directory = "/etc";
  want.file = "rank-0001.safetensors";
  EXPECT_THAT(readPiece(want).error, HasSubstr("no file of a checkpoint"));
}

TEST_F(LocalDisk, AFileThatNobodyHasIsAnError) {
  commitHere();
  FileFetch fetch(readCheckpoint(here_ + "/step-000003"), {{1, ""}});
  while (fetch.want().file != kRankOne) fetch.take(readPiece(fetch.want()));
  EXPECT_ERROR(fetch.take(readPiece(fetch.want())), ErrorCode::kMissingInput,
               "no host that takes part has rank-0001");
}

TEST_F(LocalDisk, WhatIsNotTheFileIsAskedForAgainAndTakesNoFilesPlace) {
  commitHere();
  const std::string path = here_ + "/step-000003/" + kRankOne;
  std::ofstream(path) << "damaged";
  FileFetch fetch(readManifest(here_ + "/step-000003"), {{1, "the one here is damaged"}});
  while (fetch.want().file != kRankOne) fetch.take(readPiece(fetch.want()));
  fetch.take({kRankOne, 0, 2, "", std::vector<std::byte>(2)});
  EXPECT_EQ(contentOf(path), "damaged");
  FileWant want = fetch.want();
  EXPECT_TRUE(want.again);
  FileFetch refused = FileFetch(readManifest(here_ + "/step-000003"), {{1, "the one here is damaged"}});
  while (refused.want().file != kRankOne) refused.take(readPiece(refused.want()));
  EXPECT_ERROR(refused.take({kRankOne, 0, 0, "nobody has"}), ErrorCode::kNoGoodCheckpoint,
               "the one here is damaged; no other host that takes part has it whole (nobody has)");
  want.directory = there_ + "/step-000003";
  while (!fetch.isDone()) {
    want.offset = fetch.want().offset;
    fetch.take(readPiece(want));
    EXPECT_TRUE(fetch.isDone() || !fetch.want().again);
  }
  EXPECT_THAT(fetch.replaced(), ElementsAre("the one here is damaged"));
  EXPECT_THAT(fetch.fetched(), ElementsAre());
  verifyCheckpoint(readCheckpoint(here_ + "/step-000003"));
}

// The coordinator on host a, nodes 0 to 2 elsewhere: node 0 asks.
TEST_F(LocalDisk, WhatOneHostHasDamagedComesFromTheNextUntilNobodyIsLeft) {
  commitHere();
  std::vector<std::string> sent;
  const auto send = [&](int node, std::string_view type, const nlohmann::json& body,
                        std::span<const std::byte> payload) {
    sent.push_back(fmt::format("{} to {}, {} bytes{}", type, node, payload.size(),
                               body.contains("error") ? ": " + body["error"].get<std::string>() : ""));
  };
  DiskExchange exchange({here_, "a", "job", 2, ""}, {send, [] { return std::vector{0, 1, 2}; }, {}});
  FileWant want = {here_ + "/step-000003", "job", kRankOne};
  exchange.hear(0, "want", wantJson(want), {});
  nlohmann::json piece = pieceJson({kRankOne, 0, 2});
  piece["for"] = 0;
  exchange.hear(2, "piece", piece, std::vector<std::byte>(2));
  want.again = true;
  exchange.hear(0, "want", wantJson(want), {});
  exchange.hear(2, "piece", piece, std::vector<std::byte>(2));  // not asked any more
  piece["error"] = "it is not there";
  exchange.hear(1, "piece", piece, {});
  EXPECT_THAT(sent, ElementsAre("want to 2, 0 bytes", "piece to 0, 2 bytes", "want to 1, 0 bytes",
                                "piece to 0, 0 bytes: it is not there"));
  sent.clear();
  want = {here_ + "/step-000003", "job", "rank-0000.safetensors"};
  exchange.hear(0, "want", wantJson(want), {});
  EXPECT_THAT(sent, ElementsAre(HasSubstr("piece to 0, 1048576 bytes")));
}

LackedFiles lackedIn(const std::string& directory, std::vector<int> needed, DiskCheck::Content content) {
  DiskCheck check(readManifest(directory), std::move(needed), content);
  while (!check.isDone()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return check.take();
}

TEST_F(LocalDisk, AFileIsLackedWhereARankNeedsItAndWhereItIsNotWhatWasWritten) {
  using enum DiskCheck::Content;
  commitHere();
  const std::string directory = here_ + "/step-000003";
  EXPECT_THAT(lackedIn(directory, {0}, kRead), ElementsAre());
  EXPECT_THAT(lackedIn(directory, {0, 1}, kRead), ElementsAre(Pair(1, "")));
  std::fstream(directory + "/rank-0000.safetensors", std::ios::in | std::ios::out).seekp(700) << "x";
  EXPECT_THAT(lackedIn(directory, {0}, kRead), ElementsAre(Pair(0, HasSubstr("has the hash"))));
  EXPECT_THAT(lackedIn(directory, {0}, kTrusted), ElementsAre());
  EXPECT_THAT(lackedIn(directory, {}, kRead), ElementsAre());
  fs::resize_file(directory + "/rank-0000.safetensors", 100);
  EXPECT_THAT(lackedIn(directory, {}, kTrusted), ElementsAre(Pair(0, HasSubstr("has 100 bytes"))));
}

// ---- dumps ----

TEST_F(LocalDisk, DumpsAreOnlyForHostsThatShareTheFolder) {
  makeFolder(there_);
  folder_.write("a/.probe-0000000000000000", "");
  {
    const DumpFolder dumps(here_, true);
    EXPECT_FALSE(fs::exists(here_ + "/.probe-0000000000000000")) << "of one that was killed";
    requireSameDumps(here_, dumps.probe());
    requireSameDumps(there_, "");
    for (const std::string& other : {there_, folder_.file("c")}) {
      EXPECT_ERROR(requireSameDumps(other, dumps.probe()), ErrorCode::kConfiguration,
                   "which all hosts must share: name one with --dump");
    }
  }
  EXPECT_TRUE(fs::is_empty(here_));
  EXPECT_EQ(DumpFolder(here_, false).probe(), "");
}

TEST_F(LocalDisk, DumpsOfStepsThatAreDoneAgainAreTakenOut) {
  const DumpFolder dumps(here_, false);
  for (const int64_t step : {9, 10, 11, 1'000'000}) {
    for (const int rank : {0, 3, 10'000}) folder_.write("a/" + dumpFileName(step, RankId(rank)), "");
  }
  for (const char* other : {"step-10.rank-0000.safetensors", "step-000010.rank-0000.json", "step-000010"})
    folder_.write(std::string("a/") + other, "");
  EXPECT_EQ(dumps.clear(12, 20), "");
  EXPECT_EQ(dumps.clear(11, 10), "");
  EXPECT_THAT(dumps.clear(10, 999'999), HasSubstr("steps 10 to 11 is taken out; they are done again"));
  EXPECT_THAT(dumps.clear(1'000'000, 1'000'000), HasSubstr("step 1000000 is taken out; it is done again"));
  EXPECT_EQ(std::distance(fs::directory_iterator(here_), fs::directory_iterator()), 3 + 3 + 1)
      << "those of step 9, the others, and the lock";
  EXPECT_TRUE(fs::exists(here_ + "/" + dumpFileName(9, RankId(10'000))));
}

}  // namespace
}  // namespace pipeshard
