// Control between two processes: a command and its answer, and the start of a server with four clients; with
// keys and without, interleaved in one run. Prints microseconds beside the limits of the project and exits
// with 1 when one is broken. And what bytes cost on their way to another host, as batches and files of
// checkpoints go there, with keys: as a message's payload, and as text in it.
#include <sys/resource.h>
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
#include "runtime/files/hex.h"
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
constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr int kPieces = 256;  // per block and form
constexpr int kUnderWay = 16;
constexpr int kShipments = 5;  // blocks

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

// Of this process, with all its threads; microseconds.
int64_t processorTime() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) { return int64_t{1'000'000} * time.tv_sec + time.tv_usec; };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// Answers until told to stop. Of a piece it takes the bytes, as a host does.
void echo(const std::string& endpoint, const std::string& keys) {
  const auto client = ControlClient::connect(endpoint, "benchmark", 0, 10s, withKeys(keys));
  while (const auto message = client->receive(30s)) {
    if (message->type == "stop") return;
    if (message->body.contains("text")) (void)fromHex(message->body["text"].get<std::string>());
    if (message->body.contains("usage")) {
      client->send("pong", {{"usage", processorTime()}});
      continue;
    }
    if (message->type == "piece") {
      client->send("took", nlohmann::json::object());
      continue;
    }
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

struct Shipment {
  double wire_bytes = 0;    // per byte
  double microseconds = 0;  // of processor time of both processes, per MiB
};

int64_t processorTimeOfBoth(ControlServer& server) {
  server.send(0, "ping", {{"usage", true}});
  const auto answer = server.receive(10s);
  if (!answer) fail(ErrorCode::kHang, "no answer within 10 s");
  return processorTime() + answer->body.at("usage").get<int64_t>();
}

Shipment ship(ControlServer& server, bool as_text) {
  std::vector<std::byte> bytes(kPieceBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  const int64_t start = processorTimeOfBoth(server);
  size_t sent = 0;
  int under_way = 0;
  for (int i = 0; i < kPieces || under_way > 0;) {
    if (i < kPieces && under_way < kUnderWay) {
      nlohmann::json body = {{"offset", i}};
      if (as_text) body["text"] = toHex(bytes);
      ControlMessage message;
      message.type = "piece";
      if (i == 0) {
        message.body = body;
        sent = encodeControlMessage(message).size() + (as_text ? 0 : bytes.size());
      }
      server.send(0, "piece", std::move(body), as_text ? std::span<std::byte>() : std::span(bytes));
      ++i;
      ++under_way;
      continue;
    }
    if (!server.receive(10s)) fail(ErrorCode::kHang, "no answer within 10 s");
    --under_way;
  }
  const auto spent = static_cast<double>(processorTimeOfBoth(server) - start);
  return {static_cast<double>(sent) / kPieceBytes, spent / (double{kPieces} * kPieceBytes / (1 << 20))};
}

// The form that batches and files have had until control messages had payloads, and the one they have.
void compareShipments(ControlServer& server) {
  const std::vector<std::string> forms = {"payload", "hexadecimal"};
  std::vector<std::vector<double>> times(2);
  std::vector<double> bytes(2);
  for (int block = 0; block <= kShipments; ++block) {
    for (size_t form = 0; form < 2; ++form) {
      const Shipment shipment = ship(server, form == 1);
      bytes[form] = shipment.wire_bytes;
      if (block > 0) times[form].push_back(shipment.microseconds);
    }
  }
  fmt::print("\n{:<12} {:>22} {:>12}\n", "bytes", "processor time us/MiB", "bytes/byte");
  for (size_t form = 0; form < 2; ++form)
    fmt::print("{:<12} {:>22.0f} {:>12.3f}\n", forms[form], quantile(times[form], 0.5), bytes[form]);
  fmt::print("{:<12} {:>22.2f} {:>12.2f}\n", "ratio", quantile(times[0], 0.5) / quantile(times[1], 0.5),
             bytes[0] / bytes[1]);
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
  compareShipments(*servers[1]);
  for (const auto& server : servers) server->send(0, "stop", nlohmann::json::object());
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
