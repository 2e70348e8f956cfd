// Small files written whole or not at all, and errors that keep their kind on the way up.
#include <sys/stat.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "ir/base/error.h"
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
