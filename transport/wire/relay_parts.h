// The relay of a host: what relay_hosts.cc (connections to other hosts) and relay_ranks.cc (those to the
// ranks of this one) share. Internal to host_relay.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <zmq.hpp>

#include "transport/control/control_gate.h"
#include "transport/control/control_link.h"
#include "transport/control/control_monitor.h"
#include "transport/control/control_socket.h"
#include "transport/wire/host_relay.h"
#include "transport/wire/wire_frame.h"

namespace pipeshard::wire {

// What is known of one rank's end of a lane, and told to whoever opens the same lane.
struct EndState {
  Kind kind = Kind::kHello;  // kOpen, kFarewell, kLost; kHello: nothing yet
  Frame frame = {};
  std::string reason = {};
};

class Relay : public HostRelay {
 public:
  explicit Relay(const RelayOptions& options);
  ~Relay() override;
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const RelayAddress& address() const override { return address_; }
  int attach(RankId rank, int lane) override;
  void introduce(const std::map<int, RelayAddress>& hosts) override;
  void connect() override;
  std::vector<int> unanswered() override;
  std::optional<std::string> takeNotice() override;

 private:
  // The socket to one end of a rank here.
  struct RankLink {
    RankId rank;
    uint8_t lane = 0;
    int descriptor = -1;
    bool opened = false;
    bool closed = false;
    Frame head;            // of what is being read
    size_t done = 0;       // of it
    zmq::message_t frame;  // with its header, once that is whole
    bool held = false;     // `frame` waits for the line to its host
    std::deque<zmq::message_t> queue;
    size_t written = 0;  // of the first in the queue
  };
  // The connection to one other host.
  struct HostLine {
    int number = -1;
    RelayAddress address;
    std::optional<ControlSocket> socket;    // where this one connects; else it comes to the listening one
    std::optional<ControlMonitor> monitor;  // of `socket`
    std::string route;                      // of the listening socket
    bool greeted = false;
    bool lost = false;
    uint64_t sent = 0;      // frames
    uint64_t received = 0;  // frames
    size_t on_line = 0;     // bytes sent that it has not taken
    size_t taken = 0;       // bytes received since it was told last
  };

  void run();
  void wake();
  void turn();
  void probeHosts();

  // relay_hosts.cc
  void hearListening();
  void hearConnecting(HostLine& line);
  void hearMonitor(HostLine& line);
  void take(HostLine& line, zmq::message_t message);
  void greet(HostLine& line);
  bool sendOn(HostLine& line, zmq::message_t& message);
  void sendFrame(HostLine& line, Frame frame, std::string_view payload = {});
  void noteAnswer(const HostLine& line);
  void loseHost(HostLine& line, const std::string& reason);
  void refuse(HostLine& line, const std::string& what);
  HostLine* lineOf(int host);
  // Of two hosts, the one with the larger number connects.
  bool connectsTo(const HostLine& line) const { return line.number < options_.host; }

  // relay_ranks.cc
  void readLink(RankLink& link);
  bool readLinkSome(RankLink& link);
  bool checkHead(RankLink& link);
  bool route(RankLink& link);
  void deliver(zmq::message_t message);
  void writeLink(RankLink& link);
  void closeLink(RankLink& link);
  void endOf(RankId rank, uint8_t lane, const Frame& frame, std::string_view reason);
  void tellEnds(RankLink& link);
  void tell(RankLink& link, const EndState& end);
  bool isHere(RankId rank) const { return options_.host_of_rank[rank] == options_.host; }

  RelayOptions options_;
  RelayAddress address_;
  std::string secret_key_;
  std::optional<ControlSocket> listening_;
  std::optional<ControlGate> gate_;
  std::deque<HostLine> lines_;  // stay where they are
  std::vector<RankLink> links_;
  std::array<IdVector<RankId, EndState>, kLanes> ends_;
  int wake_ = -1;  // eventfd
  std::atomic<bool> stopping_{false};
  NoticeRate notices_;
  std::atomic<bool> some_ended_{false};  // connections of the listening socket, perhaps that of a host
  std::chrono::steady_clock::time_point probe_until_, next_probe_;
  std::mutex mutex_;  // guards the three below
  std::set<int> unanswered_;
  uint64_t refused_ = 0;  // messages, and keys by others
  std::string last_refused_;
  std::thread thread_;
};

// A frame and its payload as one message.
zmq::message_t messageOf(const Frame& frame, std::string_view payload);
Frame frameOf(const zmq::message_t& message);

}  // namespace pipeshard::wire
