// Small files written whole or not at all, JSON of many keys, and errors that keep their kind on the way up.
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

struct Interrupted : Error {
  Interrupted() : Error(ErrorCode::kRequeue, "stopped") {}
};

TEST(Errors, KeepTheirKindWithContext) {
  const auto pass_on = [] {
    try {
      throw Interrupted();
    } catch (Error& error) {
      error.addContext("plan.json");
      throw;
    }
  };
  try {
    pass_on();
    FAIL();
  } catch (const Interrupted& error) {
    EXPECT_EQ(error.message(), "plan.json: stopped");
  } catch (const Error&) {
    FAIL() << "it has become a plain Error";
  }
}

// What they quote may be a file's only line, of megabytes.
TEST(Errors, AreNoLongerThanSomebodyReads) {
  const std::string word = "caf\xc3\xa9";  // so that a cut may fall into a character
  std::string line;
  while (line.size() < 3'000'000) line += word;
  Error error(ErrorCode::kMissingInput, "x.csv has no column 'x'; it has: " + line + "; name one\nsecond");
  error.addContext("rank 0");
  EXPECT_LT(error.message().size(), 9'000u);
  EXPECT_EQ(error.message().find("rank 0: x.csv has no column 'x'; it has: caf\xc3\xa9"), 0u);
  EXPECT_TRUE(error.message().ends_with("caf\xc3\xa9; name one\nsecond"));
  EXPECT_NE(error.message().find(" more bytes) ... "), std::string::npos);
  EXPECT_NO_THROW(Json(error.message()).dump()) << "it is UTF-8 still";
  EXPECT_LT(Error(ErrorCode::kHang, std::string(1'000'000, '\x80')).message().size(), 9'000u);
  std::string lines;
  for (int i = 0; i < 100'000; ++i) lines += fmt::format("rank {} is not there\n", i);
  EXPECT_LT(Error(ErrorCode::kHang, lines).message().size(), 300'000u);
  const std::string usual(8'000, 'x');
  EXPECT_EQ(Error(ErrorCode::kHang, usual).message(), usual);
}

TEST(TextFiles, AreReplacedWhole) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.json", "older");
  ::chmod(path.c_str(), 0640);
  std::filesystem::create_symlink(path, folder.file("link"));
  writeTextFile(folder.file("link"), "newer");
  EXPECT_EQ(requireTextFile(path), "newer");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
  EXPECT_NO_THROW(writeTextFile("/dev/null", "text"));
  EXPECT_ERROR(writeTextFile("/dev/full", "text"), ErrorCode::kDiskFull, "No space left");
  EXPECT_ERROR(writeTextFile(folder.file("none/a"), "text"), ErrorCode::kMissingInput, "there is no folder");
}

// As a dead process of the same number, or somebody who waits for this one, may have left it.
TEST(TextFiles, AreWrittenBesideWhatIsThereAlready) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.json", "older"), other = folder.write("other", "kept");
  const std::string prepared = fmt::format("{}.tmp.{}", path, ::getpid());
  std::filesystem::create_symlink(other, prepared);
  ASSERT_EQ(::mkfifo((prepared + "-1").c_str(), 0600), 0);
  std::filesystem::create_hard_link(path, folder.file("link"));
  writeTextFile(path, "newer");
  EXPECT_EQ(requireTextFile(path), "newer");
  EXPECT_EQ(requireTextFile(other), "kept");
  EXPECT_EQ(requireTextFile(folder.file("link")), "older") << "it was not replaced, but written over";
}

// Looking through all keys for every one would take a minute of the processor.
TEST(JsonTexts, ObjectsOfManyKeysAreReadInTime) {
  const auto withKeys = [](int count, const std::string& more) {
    std::string text = "{\"first\": {";
    for (int i = 0; i < count; ++i) text += fmt::format("\"key{}\": {}, ", i, i);
    return text + more + "}, \"key7\": 1}";
  };
  const std::clock_t begin = std::clock();
  const Json document = parseJson(withKeys(200'000, "\"last\": [{\"key7\": 2}]"), "it");
  EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC);
  EXPECT_EQ(document.at("first").size(), 200'001u);
  EXPECT_EQ(document.at("first").begin().key(), "key0");
  EXPECT_EQ(document.at("first").at("last").dump(), R"([{"key7":2}])");
  for (const int count : {8, 31, 32, 33, 1000}) {
    EXPECT_NO_THROW(parseJson(withKeys(count, "\"other\": 1"), "it")) << count;
    EXPECT_ERROR(parseJson(withKeys(count, "\"key3\": 1"), "it"), ErrorCode::kConfiguration,
                 "it: key \"key3\" appears twice in one object");
    EXPECT_ERROR(parseJson(withKeys(count, fmt::format("\"key{0}\": 1, \"key{0}\": 1", count)), "it"),
                 ErrorCode::kConfiguration, "appears twice in one object");
  }
}

TEST(TextFiles, ADashIsNoFile) {
  EXPECT_ERROR(requireWritable("-"), ErrorCode::kUsage, "/dev/stdout is standard output");
  EXPECT_ERROR(writeTextFile("-", "{}"), ErrorCode::kUsage, "/dev/stdout is standard output");
}

TEST(TextFiles, NobodyWaitsForAPipe) {
  const TemporaryFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_ERROR(requireWritable(pipe), ErrorCode::kConfiguration, "a named pipe that nobody reads");
  EXPECT_ERROR(writeTextFile(pipe, "text"), ErrorCode::kConfiguration, "a named pipe that nobody reads");
  requireWritable(folder.file("new"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("new")));
}

}  // namespace
}  // namespace pipeshard
