// Small files that somebody else has made: every option that takes one is given what is none, and ends at
// once, with a sentence.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class HostileFilesTest : public testing::Test {
 protected:
  static constexpr int kDeep = 400'000;
  static constexpr uint64_t kLineOfALog = uint64_t{1} << 20;

  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder();
    make();
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string file(const std::string& name) { return folder_->file(name); }

  static void make() {
    ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "-o", file("plan")}).exit_code, 0);
    ASSERT_EQ(runPipeshard({"run", file("plan"), "--steps", "1", "--checkpoint", file("saved")}).exit_code,
              0);
    const std::string open(kDeep, '['), close(kDeep, ']');
    writeFile(file("open"), open);
    writeFile(file("deep"), "{\"version\": " + open + close + "}");
    writeFile(file("empty"), "");
    writeFile(file("latin"), "{\"version\": \"\xff\xfe\x80\"}");
    ASSERT_EQ(::mkfifo(file("fifo").c_str(), 0600), 0);
    fs::create_directory(file("folder"));
    writeFile(file("sparse"), "");
    fs::resize_file(file("sparse"), uint64_t{40} << 30);
    for (const char* name : {"open", "deep", "empty", "latin", "fifo", "folder", "sparse"})
      hostile_[name] = file(name);
    for (const char* name : {"open", "deep", "empty", "latin"}) fs::permissions(file(name), fs::perms(0600));
    hostile_["zero"] = "/dev/zero";
  }

  // Not by a signal, a bug, a full disk or out of memory.
  static void expectRefused(const std::vector<std::string>& arguments, const std::string& what) {
    const CommandResult result = runPipeshard(arguments, std::chrono::seconds(20));
    const std::string shown = what + ": " + result.errors.substr(0, 1'000);
    EXPECT_LT(result.errors.size(), 20'000u) << shown;
    EXPECT_GE(result.exit_code, 64) << shown;
    EXPECT_TRUE(result.exit_code <= 78 || result.exit_code == 85) << result.exit_code << shown;
    EXPECT_NE(result.exit_code, 70) << shown;
    EXPECT_NE(result.exit_code, 73) << shown;
    EXPECT_LT(result.seconds, 2) << shown;
    EXPECT_LT(result.peak_kilobytes, 600'000) << shown;
  }

  // A copy of `whole` in which the file `inside` is a hostile one.
  static std::string with(const std::string& whole, const std::string& inside, const std::string& hostile) {
    const fs::path copy = file("copy");
    fs::remove_all(copy);
    fs::copy(whole, copy, fs::copy_options::recursive);
    fs::remove(copy / inside);
    fs::create_symlink(hostile, copy / inside);
    return copy.string();
  }

  static TemporaryFolder* folder_;
  static std::map<std::string, std::string> hostile_;
};

TemporaryFolder* HostileFilesTest::folder_ = nullptr;
std::map<std::string, std::string> HostileFilesTest::hostile_;

TEST_F(HostileFilesTest, EveryOptionRefusesThem) {
  const std::string model = "examples/mlp.onnx", plan = file("plan"), out = file("out");
  const std::vector<std::vector<std::string>> commands = {
      {"inspect", "@"},
      {"plan", "@", "-o", out},
      {"inspect", model, "--weights", "@"},
      {"plan", model, "--cluster", "@", "-o", out},
      {"cluster", "@"},
      {"plan", model, "--profile", "@", "-o", out},
      {"simulate", plan, "--profile", "@"},
      {"profile", "--model", model, "-o", "@"},
      {"profile", "--model", "@", "-o", out},
      {"plan", model, "--stages", "@", "-o", out},
      {"plan", model, "--data", "@", "-o", out},
      {"run", plan, "--data", "@"},
      {"validate", plan, "--data", "@"},
      {"plan", model, "--cluster", "1x2", "--schedule", "@", "-o", out},
      {"simulate", "--schedule", "@"},
      {"plan", "--check", "@"},
      {"plan", "--diff", plan, "@"},
      {"explain", "@"},
      {"simulate", "@"},
      {"report", "@"},
      {"validate", "@"},
      {"run", "@"},
      {"report", plan, "--trace", "@"},
      {"export", "@", "-o", out},
      {"pipedream", "@"},
      {"node", "--key-file", "@", "--join", "tcp://127.0.0.1:1"}};
  for (const std::vector<std::string>& command : commands) {
    for (const auto& [name, path] : hostile_) {
      std::vector<std::string> arguments = command;
      std::replace(arguments.begin(), arguments.end(), std::string("@"), path);
      expectRefused(arguments, testing::PrintToString(command) + " with " + name);
    }
  }
}

// A line that never ends: within what a file may have, and behind a name that is taken for a table.
TEST_F(HostileFilesTest, LinesOfTablesAndLogs) {
  writeFile(file("line"), "");
  fs::resize_file(file("line"), uint64_t{20} << 30);
  std::map<std::string, std::string> all = hostile_;
  all["line"] = file("line");
  writeFile(file("commas"), std::string(30'000'000, ','));
  all["commas"] = file("commas");
  fs::create_directory(file("log"));
  for (const auto& [name, path] : all) {
    for (const char* table : {"table.csv", "table.jsonl"}) {
      fs::remove(file(table));
      fs::create_symlink(path, file(table));
      expectRefused({"run", file("plan"), "--data", file(table)}, table + (" of " + name));
    }
    for (const char* log : {"steps.jsonl", "events.jsonl"}) {
      for (const char* old : {"log/steps.jsonl", "log/events.jsonl"}) fs::remove(file(old));
      writeFile(file("log/steps.jsonl"), "{\"step\": 1}\n");
      fs::remove(file("log") + "/" + log);
      fs::create_symlink(path, file("log") + "/" + log);
      if (fs::is_regular_file(path) && fs::file_size(path) < kLineOfALog) continue;  // a line being written
      expectRefused({"report", file("plan"), "--log", file("log"), "-o", file("out.html")},
                    log + (" of " + name));
    }
  }
  const auto errorsOf = [&](const std::string& hostile) {
    fs::remove(file("table.jsonl"));
    fs::create_symlink(hostile, file("table.jsonl"));
    const CommandResult result = runPipeshard({"run", file("plan"), "--data", file("table.jsonl")});
    EXPECT_EQ(result.exit_code, hostile == file("fifo") ? 66 : 65) << result.errors;
    return result.errors;
  };
  EXPECT_THAT(errorsOf(file("fifo")), HasSubstr("table.jsonl is a named pipe; expected a file"));
  EXPECT_THAT(errorsOf(file("sparse")), HasSubstr("table.jsonl is too large for a table"));
  EXPECT_THAT(errorsOf(file("line")), HasSubstr("table.jsonl, line 1: has more than 67108864 bytes"));
  EXPECT_THAT(errorsOf(file("open")), HasSubstr("table.jsonl, line 1: values lie in more than 64 others"));
}

TEST_F(HostileFilesTest, NoFileIsAFolderOfCheckpoints) {
  for (const auto& [name, path] : hostile_) {
    if (name == "folder") continue;
    expectRefused({"checkpoint", path}, name);
    expectRefused({"run", file("plan"), "--checkpoint", path}, name);
  }
}

TEST_F(HostileFilesTest, FilesOfAPlanDirectory) {
  const std::vector<std::pair<std::string, std::string>> files = {{"plan.json", "explain"},
                                                                  {"plan.json", "run"},
                                                                  {"plan.json", "simulate"},
                                                                  {"weights.json", "run"},
                                                                  {"ranks.json", "run"},
                                                                  {"ranks.json", "simulate"},
                                                                  {"kinds/0000.json", "run"},
                                                                  {"kinds/0000.json", "simulate"},
                                                                  {"reference/kinds/0000.json", "validate"},
                                                                  {"validation.json", "report"}};
  for (const auto& [inside, command] : files) {
    for (const auto& [name, path] : hostile_)
      expectRefused({command, with(file("plan"), inside, path)}, command + " " + inside + " " + name);
  }
}

TEST_F(HostileFilesTest, FilesOfACheckpoint) {
  for (const std::string inside : {"manifest.json", "COMMIT"}) {
    for (const auto& [name, path] : hostile_) {
      const std::string copy = with(file("saved"), "step-000001/" + inside, path);
      for (const std::vector<std::string>& command :
           std::vector<std::vector<std::string>>{{"checkpoint", copy},
                                                 {"export", copy, "-o", file("out")},
                                                 {"run", file("plan"), "--checkpoint", copy}})
        expectRefused(command, command[0] + " " + inside + " " + name);
    }
  }
  for (const std::string inside : {"plan.json", "weights.json"}) {
    for (const auto& [name, path] : hostile_) {
      const std::string copy = with(file("saved"), "step-000001/" + inside, path);
      expectRefused({"export", copy, "-o", file("out")}, inside + " " + name);
    }
  }
}

TEST_F(HostileFilesTest, MessagesNameTheFileAndWhatItIs) {
  const std::string trace = "--trace";
  const auto errors = [&](const char* name) {
    return runPipeshard({"report", file("plan"), trace, hostile_.at(name)}).errors;
  };
  EXPECT_THAT(errors("fifo"), HasSubstr(file("fifo") + " is a named pipe; expected a file"));
  EXPECT_THAT(errors("zero"), HasSubstr("/dev/zero is a device; expected a file"));
  EXPECT_THAT(errors("folder"), HasSubstr(file("folder") + " is a folder; expected a file"));
  EXPECT_THAT(errors("sparse"), HasSubstr(file("sparse") + " is too large for"));
  EXPECT_THAT(errors("deep"), HasSubstr(file("deep") + ": this is not JSON, or nested too deeply"));
  const CommandResult deep = runPipeshard({"explain", with(file("plan"), "plan.json", file("deep"))});
  EXPECT_THAT(deep.errors, HasSubstr("plan.json: values lie in more than 64 others"));
}

TEST_F(HostileFilesTest, ControlCharactersAreShownNotSent) {
  const std::string name = file("a\033[2J\r\x07z\xc2\x9b");
  const CommandResult refused = runPipeshard({"explain", name});
  EXPECT_EQ(refused.exit_code, 66);
  EXPECT_THAT(refused.errors, HasSubstr("a\\x1b[2J\\x0d\\x07z"));
  EXPECT_EQ(refused.errors.find_first_of("\033\r\x07\x9b"), std::string::npos);
  // 0x9b begins a control sequence where a terminal takes bytes as they come, and is a part of "\u01db".
  const CommandResult bytes = runPipeshard({"explain", file("a\x9b 31m\xff\xc7\x9b\xf0\x9f\x98\x80")});
  EXPECT_THAT(bytes.errors, HasSubstr("a\\x9b 31m\\xff\xc7\x9b\xf0\x9f\x98\x80"));
  // Too long a form of a control character, half of a character, one beyond the last; the last.
  const CommandResult no_characters =
      runPipeshard({"explain", file("b\xe0\x80\x9b\xed\xa0\x80\xf4\x90\x80\x80\xf4\x8f\xbf\xbf")});
  EXPECT_THAT(no_characters.errors,
              HasSubstr("b\\xe0\\x80\\x9b\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\xf4\x8f\xbf\xbf"));
  // What shows the rest of a line from right to left: "plan\u202Exnno.sh" would look like "planhs.onnx".
  const CommandResult turned = runPipeshard({"explain", file("plan\u202Exnno.sh \u2013 \u00e9")});
  EXPECT_THAT(turned.errors, HasSubstr("plan\\xe2\\x80\\xaexnno.sh \u2013 \u00e9"));
  writeFile(file("c.json"), R"({"version": 1, "nodes": [{"name": "\u001b[2J", "devices": 1}]})");
  EXPECT_EQ(runPipeshard({"cluster", file("c.json")}).errors.find('\033'), std::string::npos);
}

}  // namespace
}  // namespace pipeshard
