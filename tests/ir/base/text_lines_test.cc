// Lines of files that may be anything: none takes more memory than it may, and nobody waits.
#include "ir/base/text_lines.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

class TextLinesTest : public testing::Test {
 protected:
  std::string path() const { return folder_.file("a.txt"); }

  std::vector<std::string> linesOf(const std::string& text, const TextLines::Limits& limits = {}) {
    folder_.write("a.txt", text);
    TextLines lines(path(), "a list", limits);
    std::vector<std::string> found;
    for (std::string line; lines.next(line);) {
      found.push_back(line);
      EXPECT_EQ(lines.number(), std::ssize(found));
    }
    return found;
  }

  TemporaryFolder folder_;
};

using Lines = std::vector<std::string>;

TEST_F(TextLinesTest, AreThoseOfGetline) {
  const std::string block(65'536, 'b'), more(200'000, 'm');
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("a"), std::string("a\n"), std::string("a\n\n\nb"),
        "a\r\n" + more + "\n" + more, block + "\nc\n", block.substr(1) + "\nc", std::string("\0\n\0", 3)}) {
    Lines expected;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) expected.push_back(line);
    EXPECT_EQ(linesOf(text), expected) << text.substr(0, 20);
  }
}

TEST_F(TextLinesTest, TheLastMayHaveNoEnd) {
  folder_.write("a.txt", "one\ntwo");
  TextLines lines(path(), "a list");
  std::string line;
  ASSERT_TRUE(lines.next(line));
  EXPECT_TRUE(lines.isWhole());
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "two");
  EXPECT_FALSE(lines.isWhole());
  EXPECT_FALSE(lines.next(line));
  EXPECT_EQ(lines.number(), 2);
}

TEST_F(TextLinesTest, HaveAsManyBytesAsTheyMay) {
  const TextLines::Limits limits{.most_line_bytes = 4, .most_bytes = 11};
  EXPECT_EQ(linesOf("four\nfour\n3", limits), (Lines{"four", "four", "3"}));
  EXPECT_ERROR(linesOf("four\nfives\n", limits), ErrorCode::kBadModel,
               "a.txt, line 2: has more than 4 bytes, the most for a line of a list");
  EXPECT_ERROR(linesOf("fives", limits), ErrorCode::kBadModel, "a.txt, line 1: has more than 4 bytes");
  EXPECT_ERROR(linesOf("four\nfour\n33", limits), ErrorCode::kBadModel,
               "a.txt is too large for a list (12 bytes, 11 at most)");
  folder_.write("a.txt", "four\n");
  TextLines lines(path(), "a list", limits);
  std::ofstream(path(), std::ios::app) << "3\n3\n3\n3\n";  // while it is read
  std::string line;
  EXPECT_ERROR(lines.next(line), ErrorCode::kBadModel, "a.txt is too large for a list (13 bytes");
}

TEST_F(TextLinesTest, NobodyWaitsForWhatIsNoFile) {
  EXPECT_ERROR(TextLines(path(), "a list"), ErrorCode::kMissingInput, "a.txt cannot be read: No such file");
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_ERROR(TextLines(path(), "a list"), ErrorCode::kMissingInput, "is a named pipe; expected a file");
  EXPECT_ERROR(TextLines("/dev/zero", "a list"), ErrorCode::kMissingInput, "/dev/zero is a device");
  EXPECT_ERROR(TextLines(folder_.path(), "a list"), ErrorCode::kMissingInput, "is a folder");
  folder_.write("sparse", "");
  std::filesystem::resize_file(folder_.file("sparse"), uint64_t{20} << 30);
  TextLines lines(folder_.file("sparse"), "a list");
  std::string line;
  EXPECT_ERROR(lines.next(line), ErrorCode::kBadModel, "line 1: has more than 67108864 bytes");
}

}  // namespace
}  // namespace pipeshard
