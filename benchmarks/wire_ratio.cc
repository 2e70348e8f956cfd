// Messages of 1 and 64 MiB from one process to another over loopback, as between two hosts: the encrypted
// wire, Gloo (`--data-plane private`), and bare ZeroMQ in messages of the wire's pieces, with CURVE and
// without: the cost of encryption by itself. In turn in each round; prints medians and ratios.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <zmq.hpp>

#include "benchmarks/two_processes.h"
#include "ir/base/error.h"
#include "transport/control/job_keys.h"
#include "transport/wire/host_relay.h"
#include "transport/wire/wire_communicator.h"
#include "transport/wire/wire_frame.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = 15;

// One side of two; passes texts to the other.
struct Side {
  int rank;
  int line;

  void tell(const std::string& text) const {
    const uint32_t bytes = text.size();
    if (::write(line, &bytes, sizeof bytes) < 0 || ::write(line, text.data(), bytes) < 0)
      fail(ErrorCode::kInternal, "the other side is gone");
  }
  std::string hear() const {
    uint32_t bytes = 0;
    if (::recv(line, &bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes)
      fail(ErrorCode::kInternal, "the other side is gone");
    std::string text(bytes, '\0');
    if (bytes > 0 && ::recv(line, text.data(), bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes))
      fail(ErrorCode::kInternal, "the other side is gone");
    return text;
  }
};

struct Contender {
  const char* name;
  std::function<void(std::span<std::byte>)> pass;  // from rank 0 to rank 1
  std::vector<double> milliseconds = {};
};

std::function<void(std::span<std::byte>)> over(const Side& side, Communicator& communicator) {
  return [&side, &communicator](std::span<std::byte> data) {
    if (side.rank == 0) communicator.send(RankId(1), data)->wait();
    if (side.rank == 1) communicator.receive(RankId(0), data);
  };
}

// ZeroMQ by itself.
class Bare {
 public:
  // `piece`: bytes of a message of ZeroMQ.
  Bare(const Side& side, bool encrypted, size_t piece = wire::kPieceBytes) : rank_(side.rank), piece_(piece) {
    socket_.set(zmq::sockopt::linger, 0);
    if (rank_ == 0) {
      const JobKeys keys = makeJobKeys();
      if (encrypted) {
        socket_.set(zmq::sockopt::curve_server, true);
        socket_.set(zmq::sockopt::curve_secretkey, keys.server_secret);
      }
      socket_.bind("tcp://127.0.0.1:*");
      side.tell(socket_.get(zmq::sockopt::last_endpoint));
      side.tell(clientKeysText(keys.clientKeys()));
    } else {
      const std::string endpoint = side.hear();
      const ClientKeys keys = parseClientKeys(side.hear());
      if (encrypted) {
        socket_.set(zmq::sockopt::curve_serverkey, keys.server_public);
        socket_.set(zmq::sockopt::curve_publickey, keys.client_public);
        socket_.set(zmq::sockopt::curve_secretkey, keys.client_secret);
      }
      socket_.connect(endpoint);
    }
  }
  void pass(std::span<std::byte> data) {
    for (size_t at = 0; at < data.size(); at += piece_) {
      const auto piece = data.subspan(at, std::min(piece_, data.size() - at));
      if (rank_ == 0) {
        socket_.send(zmq::buffer(piece.data(), piece.size()), zmq::send_flags::none);
      } else {
        zmq::message_t message;
        if (socket_.recv(message)) std::memcpy(piece.data(), message.data(), message.size());
      }
    }
    zmq::message_t taken;
    if (rank_ == 0) (void)socket_.recv(taken);
    if (rank_ == 1) socket_.send(taken, zmq::send_flags::none);
  }

 private:
  int rank_;
  size_t piece_;
  zmq::context_t context_{1};
  zmq::socket_t socket_{context_, zmq::socket_type::pair};
};

// One warm-up, then rounds in which each contender has its turn; every message is checked.
void race(const Side& side, std::vector<Contender>& contenders, std::vector<std::byte>& data, size_t bytes) {
  for (Contender& contender : contenders) contender.milliseconds.clear();
  const std::span<std::byte> message = std::span(data).first(bytes);
  for (int round = 0; round <= kRounds; ++round) {
    for (Contender& contender : contenders) {
      std::fill(message.begin(), message.end(), static_cast<std::byte>(side.rank == 0 ? round + 1 : 0));
      side.tell("");
      side.hear();
      const auto start = std::chrono::steady_clock::now();
      contender.pass(message);
      const double took =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      if (round > 0) contender.milliseconds.push_back(took);
      if (std::count(message.begin(), message.end(), static_cast<std::byte>(round + 1)) !=
          std::ssize(message))
        fail(ErrorCode::kInternal, "{}: something else came", contender.name);
    }
  }
}

void print(const std::vector<Contender>& contenders, size_t bytes) {
  const double gloo = median(contenders[1].milliseconds), plain = median(contenders[3].milliseconds);
  fmt::print("{} MiB, median of {} interleaved rounds\n", bytes >> 20, kRounds);
  for (const Contender& contender : contenders) {
    const double took = median(contender.milliseconds);
    fmt::print("  {:<38}{:>9.2f} ms {:>7.2f} GB/s   {:>5.2f} times Gloo   {:>5.2f} times plain ZeroMQ\n",
               contender.name, took, static_cast<double>(bytes) / took / 1e6, took / gloo, took / plain);
  }
}

void runSide(const Side& side, const std::string& folder) {
  const IdVector<RankId, int> host_of_rank = {0, 1};
  const auto relay = HostRelay::open({side.rank, host_of_rank, "127.0.0.1"});
  const int end = relay->attach(RankId(side.rank), 0);
  side.tell(relay->address().endpoint);
  side.tell(relay->address().public_key);
  std::string endpoint = side.hear();
  relay->introduce({{1 - side.rank, {std::move(endpoint), side.hear()}}});
  side.tell("introduced");
  side.hear();
  relay->connect();
  const auto wire = openWire({RankId(side.rank), 2, end, 60s});
  FileStore store(folder);
  const auto gloo = openGloo({RankId(side.rank), 2, "127.0.0.1", 60s}, store);
  Bare encrypted(side, true), plain(side, false);
  Bare large(side, true, wire::kPieceBytes * 8);
  std::vector<Contender> contenders;
  contenders.push_back({"wire (curve)", over(side, *wire)});
  contenders.push_back({"Gloo (private)", over(side, *gloo)});
  contenders.push_back({"ZeroMQ with CURVE", [&](std::span<std::byte> data) { encrypted.pass(data); }});
  contenders.push_back({"ZeroMQ in plain", [&](std::span<std::byte> data) { plain.pass(data); }});
  contenders.push_back(
      {"with CURVE, messages 8 times as long", [&](std::span<std::byte> data) { large.pass(data); }});
  std::vector<std::byte> data(size_t{64} << 20);
  for (const size_t bytes : {size_t{1} << 20, size_t{64} << 20}) {
    race(side, contenders, data, bytes);
    if (side.rank == 0) print(contenders, bytes);
  }
}

int runBoth() {
  std::string folder = (std::filesystem::temp_directory_path() / "wire.XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) fail(ErrorCode::kDiskFull, "cannot make a folder in {}", folder);
  std::array<int, 2> line{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, line.data()) != 0) fail(ErrorCode::kInternal, "socketpair");
  const auto run = [&](int rank) {
    try {
      runSide({rank, line[rank]}, folder);
      return 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      return 1;
    }
  };
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run(1));
  const int own = run(0);
  int status = 1;
  ::waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return own != 0 || status != 0 ? 1 : 0;
}

}  // namespace
}  // namespace pipeshard

int main() { return pipeshard::runBoth(); }
