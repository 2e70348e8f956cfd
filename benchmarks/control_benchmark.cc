// Control between two processes: a command and its answer, and the start of a server with four clients; with
// keys and without, interleaved in one run. Prints microseconds beside the limits of the project and exits
// with 1 when one is broken.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "transport/control/control_client.h"
#include "transport/control/control_server.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kBlocks = 20;
constexpr int kRoundTrips = 200;         // per block and side
constexpr double kRoundTripLimit = 200;  // microseconds
constexpr double kStartLimit = 500'000;  // of four workers, everything included; control is a part of it
constexpr int kStarts = 20;
constexpr int kClients = 4;

double microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

ControlClientOptions withKeys(const std::string& text) {
  ControlClientOptions options;
  if (text != "-") options.keys = parseClientKeys(text);
  return options;
}

// Answers until told to stop.
void echo(const std::string& endpoint, const std::string& keys) {
  const auto client = ControlClient::connect(endpoint, "benchmark", 0, 10s, withKeys(keys));
  while (const auto message = client->receive(30s)) {
    if (message->type == "stop") return;
    client->send("pong", message->body);
  }
}

// The child: one thread per server. Two lines for each come by the pipe: endpoint and keys.
int serveEchoes(int input) {
  std::FILE* const lines = ::fdopen(input, "r");
  std::vector<std::jthread> echoes;
  for (int side = 0; side < 2; ++side) {
    char endpoint[256];
    char keys[256];
    if (std::fgets(endpoint, sizeof endpoint, lines) == nullptr ||
        std::fgets(keys, sizeof keys, lines) == nullptr)
      return 1;
    const auto stripped = [](const char* text) { return std::string(text, std::string(text).find('\n')); };
    echoes.emplace_back(echo, stripped(endpoint), stripped(keys));
  }
  return 0;
}

double roundTrip(ControlServer& server, int step) {
  const auto start = Clock::now();
  server.send(0, "ping", {{"step", step}});
  if (!server.receive(10s)) fail(ErrorCode::kHang, "no answer within 10 s");
  return microseconds(Clock::now() - start);
}

// A server that listens, and four clients of it that are registered.
double startAll(const std::optional<JobKeys>& keys) {
  const auto start = Clock::now();
  const auto server = ControlServer::bind({.job_id = "benchmark", .keys = keys});
  std::vector<std::future<std::unique_ptr<ControlClient>>> clients;
  for (int rank = 0; rank < kClients; ++rank) {
    clients.push_back(std::async(std::launch::async, [&, rank] {
      return ControlClient::connect(server->endpoint(), "benchmark", rank, 10s,
                                    withKeys(keys ? clientKeysText(keys->clientKeys()) : "-"));
    }));
  }
  for (int rank = 0; rank < kClients; ++rank) {
    if (!server->receive(10s)) fail(ErrorCode::kHang, "no client within 10 s");
  }
  std::vector<std::unique_ptr<ControlClient>> registered;
  for (auto& client : clients) registered.push_back(client.get());
  return microseconds(Clock::now() - start);
}

int run(int output) {
  const JobKeys keys = makeJobKeys();
  const std::vector<std::pair<std::string, std::optional<JobKeys>>> sides = {{"plain text", std::nullopt},
                                                                             {"with keys", keys}};
  std::vector<std::unique_ptr<ControlServer>> servers;
  for (const auto& [name, side_keys] : sides) {
    servers.push_back(ControlServer::bind({.job_id = "benchmark", .keys = side_keys}));
    const std::string lines = servers.back()->endpoint() + "\n" +
                              (side_keys ? clientKeysText(side_keys->clientKeys()) : "-") + "\n";
    if (::write(output, lines.data(), lines.size()) != static_cast<ssize_t>(lines.size())) return 1;
  }
  for (const auto& server : servers) {
    if (!server->receive(10s)) fail(ErrorCode::kHang, "the other process did not register");
  }
  std::vector<std::vector<double>> trips(2);
  std::vector<std::vector<double>> starts(2);
  for (int block = 0; block <= kBlocks; ++block) {
    for (size_t side = 0; side < 2; ++side) {
      for (int i = 0; i < kRoundTrips; ++i) {
        const double trip = roundTrip(*servers[side], i);
        if (block > 0) trips[side].push_back(trip);  // the first block warms up
      }
    }
  }
  for (int i = 0; i < kStarts; ++i) {
    for (size_t side = 0; side < 2; ++side) starts[side].push_back(startAll(sides[side].second));
  }
  for (const auto& server : servers) server->send(0, "stop", nlohmann::json::object());
  bool within = true;
  fmt::print("{:<12} {:>22} {:>12} {:>24}\n", "", "round trip, median us", "99% us",
             "server + 4 clients, us");
  for (size_t side = 0; side < 2; ++side) {
    const double median = quantile(trips[side], 0.5);
    const double start = quantile(starts[side], 0.5);
    within = within && median <= kRoundTripLimit && start <= kStartLimit;
    fmt::print("{:<12} {:>22.1f} {:>12.1f} {:>24.0f}\n", sides[side].first, median,
               quantile(trips[side], 0.99), start);
  }
  fmt::print("{:<12} {:>22.1f} {:>12} {:>24.0f}\n", "limit", kRoundTripLimit, "", kStartLimit);
  return within ? 0 : 1;
}

}  // namespace
}  // namespace pipeshard

int main() {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return 1;
  const pid_t child = ::fork();  // before any ZeroMQ
  if (child < 0) return 1;
  if (child == 0) {
    ::close(pipe_ends[1]);
    return pipeshard::serveEchoes(pipe_ends[0]);
  }
  ::close(pipe_ends[0]);
  int code = 1;
  try {
    code = pipeshard::run(pipe_ends[1]);
  } catch (const pipeshard::Error& error) {
    fmt::print(stderr, "control_benchmark: {}\n", error.message());
  }
  ::close(pipe_ends[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return code != 0 || status != 0 ? 1 : 0;
}
