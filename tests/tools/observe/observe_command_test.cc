// What a person sees of `run`: on terminals of any width, in a log, over HTTP.
#include <csignal>
#include <cstdlib>
#include <regex>
#include <sstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "runtime/files/durable_folder.h"
#include "runtime/files/npz.h"
#include "tests/expect_error.h"
#include "tests/tools/command.h"
#include "tools/observe/metrics_server.h"

namespace pipeshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<nlohmann::json> linesOf(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(readFile(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class ObserveCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    plan_ = folder_.file("plan");
    const CommandResult planned = runPipeshard(
        {"plan", "examples/mlp.onnx", "--dim", "batch=8", "--cluster", "1x2", "--stages", "uniform:2",
         "--microbatches", "2", "--optimizer", "sgd:lr=0.1,schedule=linear,steps=40", "-o", plan_});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }

  // What `run` prints on a terminal of so many columns; "\r\033[K" stands for where a line is written anew.
  std::string runOnTerminal(unsigned short columns, const char* kind, std::vector<std::string> arguments) {
    winsize size{24, columns, 0, 0};
    int terminal = -1;
    const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (pid == 0) {
      if (::chdir(PIPESHARD_SOURCE_DIR) != 0) ::_exit(126);
      ::setenv("TERM", kind, 1);
      ::unsetenv("COLUMNS");
      std::vector<char*> argv = {const_cast<char*>(PIPESHARD_EXECUTABLE)};
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(PIPESHARD_EXECUTABLE, argv.data());
      ::_exit(127);
    }
    std::string shown;
    std::array<char, 4096> block;
    for (ssize_t got; (got = ::read(terminal, block.data(), block.size())) > 0;)
      shown.append(block.data(), got);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ::close(terminal);
    EXPECT_EQ(status, 0) << shown;
    return shown;
  }

  // The lines that begin with a step's number, each as it was when it was written anew or ended.
  static std::vector<std::string> progressOf(const std::string& shown) {
    std::vector<std::string> lines;
    const std::regex end("\r\n|\r\033\\[K");
    for (std::sregex_token_iterator line(shown.begin(), shown.end(), end, -1), none; line != none; ++line) {
      const std::string text = *line;
      if (std::regex_search(text, std::regex(R"(^(step )?\d+(/\d+)?(  .*)?$)"))) lines.push_back(text);
    }
    return lines;
  }

  TemporaryFolder folder_;
  std::string plan_;
};

TEST_F(ObserveCommand, OneLineIsRewrittenAndFitsTheTerminal) {
  for (const unsigned short columns : {200, 80, 41, 14, 6}) {
    SCOPED_TRACE(columns);
    const std::string shown = runOnTerminal(columns, "xterm", {"run", plan_, "--steps", "300"});
    const std::vector<std::string> lines = progressOf(shown);
    ASSERT_GE(lines.size(), 2U) << shown;
    for (const std::string& line : lines) EXPECT_LT(line.size(), columns) << line;
    EXPECT_THAT(shown, HasSubstr("\r\033[K" + lines.back()));
    EXPECT_THAT(lines.back(), HasSubstr("300"));
    const auto hasFrom = [&](int least, const char* text) {
      EXPECT_EQ(lines.back().find(text) != std::string::npos, columns >= least) << lines.back();
    };
    hasFrom(41, "  loss ");
    hasFrom(80, "steps/s");
    hasFrom(200, "MiB");
  }
}

TEST_F(ObserveCommand, ADumbTerminalAndAFileGetPlainLines) {
  const std::string shown = runOnTerminal(60, "dumb", {"run", plan_, "--steps", "50"});
  EXPECT_THAT(shown, Not(HasSubstr("\033")));
  EXPECT_THAT(shown, HasSubstr("step 50/50"));
  const CommandResult ran = runPipeshard({"run", plan_, "--steps", "50"});
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_THAT(ran.output, Not(HasSubstr("\033")));
  EXPECT_THAT(ran.output, Not(HasSubstr("\r")));
  EXPECT_THAT(ran.output, HasSubstr("\nstep 50/50  loss "));
}

TEST_F(ObserveCommand, TheLogHasEveryStepOnceAlsoAfterGoingOn) {
  const std::string log = folder_.file("log"), saved = folder_.file("saved");
  const NpzArray rows{DataType::kFloat32, {12, 32}, std::vector<std::byte>(12 * 32 * sizeof(float))};
  writeNpz(folder_.file("held.npz"), {{"x", rows}, {"y", rows}});
  const std::vector<std::string> first = {
      "run",          plan_, "--steps",      "12",  "--log",   log, "--eval", folder_.file("held.npz"),
      "--eval-every", "4",   "--checkpoint", saved, "--every", "5", "--json", folder_.file("run.json")};
  ASSERT_EQ(runPipeshard(first).exit_code, 0);
  // What comes behind the checkpoint that is left is done again.
  std::filesystem::remove_all(std::filesystem::path(saved) / "step-000012");
  std::vector<std::string> second = first;
  second[3] = "20";
  const CommandResult ran = runPipeshard(second);
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_THAT(ran.output, HasSubstr("pipeshard report " + plan_ + " --log " + log));
  const std::vector<nlohmann::json> steps = linesOf(log + "/steps.jsonl");
  ASSERT_THAT(steps, SizeIs(20));
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["step"], i + 1);
    EXPECT_NEAR(steps[i]["learning_rate"].get<double>(), 0.1 * (1 - static_cast<double>(i) / 40), 1e-9);
    EXPECT_GT(steps[i]["examples_per_second"], 0);
    EXPECT_GT(steps[i]["resident_bytes"], 1 << 20);
    EXPECT_TRUE(steps[i]["tokens_per_second"].is_null());
  }
  const std::string table = readFile(log + "/steps.csv");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 21);
  std::vector<int64_t> evaluated, of_second;
  for (const nlohmann::json& line : linesOf(log + "/evaluations.jsonl")) evaluated.push_back(line["step"]);
  EXPECT_EQ(evaluated, (std::vector<int64_t>{4, 8, 12, 16, 20}));
  const nlohmann::json result = nlohmann::json::parse(readFile(folder_.file("run.json")));
  for (const nlohmann::json& of : result.at("evaluations")) of_second.push_back(of["step"]);
  EXPECT_EQ(of_second, (std::vector<int64_t>{12, 16, 20}));
  int event_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(log))
    event_files += entry.path().filename().string().starts_with("events.out.tfevents.") ? 1 : 0;
  EXPECT_EQ(event_files, 2);
}

TEST_F(ObserveCommand, ATableOfOtherColumnsIsNotAddedTo) {
  const std::string log = folder_.file("log");
  makeFolder(log);
  writeFile(log + "/steps.csv", "step,loss\n1,2\n");
  const CommandResult ran = runPipeshard({"run", plan_, "--steps", "1", "--log", log});
  EXPECT_EQ(ran.exit_code, 78);
  EXPECT_THAT(ran.errors, HasSubstr("other columns"));
  EXPECT_EQ(readFile(log + "/steps.csv"), "step,loss\n1,2\n");
}

// ---- metrics ----

// The answer to a request, as it comes.
std::string ask(int port, const std::string& request) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    EXPECT_EQ(::send(socket, request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
    std::array<char, 4096> block;
    for (ssize_t got; (got = ::recv(socket, block.data(), block.size(), 0)) > 0;)
      answer.append(block.data(), got);
  }
  ::close(socket);
  return answer;
}

int portOf(const std::string& url) { return std::stoi(url.substr(url.find(':', 7) + 1)); }

std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: here\r\n\r\n"; }

TEST(MetricsServerTest, GivesThePageAndNothingElse) {
  MetricsServer server(parseMetricsAddress("0"));
  EXPECT_THAT(server.url(), ::testing::StartsWith("http://127.0.0.1:"));
  const int port = portOf(server.url());
  server.publish("pipeshard_step 1\n");
  EXPECT_THAT(ask(port, get("/metrics")),
              ::testing::AllOf(HasSubstr("200 OK"), HasSubstr("version=0.0.4"),
                               ::testing::EndsWith("\r\n\r\npipeshard_step 1\n")));
  server.publish("pipeshard_step 2\n");
  EXPECT_THAT(ask(port, get("/metrics")), ::testing::EndsWith("pipeshard_step 2\n"));
  for (const char* path : {"/", "/metrics/..", "/../../etc/passwd", "/metrics2"})
    EXPECT_THAT(ask(port, get(path)), HasSubstr("404")) << path;
  const std::string posted =
      ask(port, "POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_THAT(posted, Not(HasSubstr("200")));
  EXPECT_THAT(ask(port, "garbage\r\n\r\n"), Not(HasSubstr("200")));
}

TEST(MetricsServerTest, AReaderThatHangsHoldsUpNobody) {
  std::optional<MetricsServer> server(parseMetricsAddress("0"));
  const int port = portOf(server->url());
  const int hanging = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(hanging, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  server->publish("there\n");
  EXPECT_THAT(ask(port, get("/metrics")), HasSubstr("there"));
  const auto start = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  ::close(hanging);
}

TEST(MetricsServerTest, APortThatIsTakenAndAForeignAddressAreErrors) {
  const MetricsServer server(parseMetricsAddress("0"));
  const std::string address = "127.0.0.1:" + std::to_string(portOf(server.url()));
  EXPECT_ERROR(MetricsServer(parseMetricsAddress(address)), ErrorCode::kAddressInUse,
               address + ": the port is in use");
  EXPECT_ERROR(MetricsServer(parseMetricsAddress("192.0.2.1:9400")), ErrorCode::kConfiguration, "192.0.2.1");
}

TEST(MetricsServerTest, AddressesAreParsed) {
  EXPECT_EQ(parseMetricsAddress("9400").host, "127.0.0.1");
  EXPECT_EQ(parseMetricsAddress(":9400").port, 9400);
  EXPECT_EQ(parseMetricsAddress("0.0.0.0:1").host, "0.0.0.0");
  EXPECT_EQ(parseMetricsAddress("[::1]:9400").host, "::1");
  for (const char* wrong : {"", "host", "host:", "1:2:3", "65536", "-1", "9400x", "::1"})
    EXPECT_ERROR(parseMetricsAddress(wrong), ErrorCode::kUsage, "expected [HOST:]PORT");
}

TEST_F(ObserveCommand, MetricsAreServedWhileTheRunGoesOn) {
  const std::filesystem::path out = folder_.file("out"), err = folder_.file("err");
  const pid_t pid = startPipeshard({"run", plan_, "--steps", "100000000", "--metrics", "0"}, out, err);
  std::string url;
  EXPECT_TRUE(eventually(
      [&] {
        std::smatch found;
        const std::string text = readFile(out);
        if (!std::regex_search(text, found, std::regex("http://127.0.0.1:[0-9]+/metrics"))) return false;
        url = found.str();
        return true;
      },
      std::chrono::seconds(20)))
      << readFile(err);
  std::string page;
  EXPECT_TRUE(eventually(
      [&] {
        page = ask(portOf(url), get("/metrics"));
        return page.find("\npipeshard_step ") != std::string::npos;
      },
      std::chrono::seconds(20)))
      << page;
  EXPECT_THAT(page, HasSubstr("\npipeshard_rank_compute_seconds{rank=\"1\"} "));
  const CommandResult second =
      runPipeshard({"run", plan_, "--steps", "1", "--metrics", std::to_string(portOf(url))});
  EXPECT_EQ(second.exit_code, 84) << second.output << second.errors;
  ::kill(pid, SIGTERM);
  EXPECT_EQ(finishPipeshard(pid, out, err, std::chrono::seconds(20)).exit_code, 128 + SIGTERM);
}

}  // namespace
}  // namespace pipeshard
