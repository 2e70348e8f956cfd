#include "transport/control/control_socket.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace pipeshard {
namespace {

// Milliseconds, except where noted. Heartbeats only tell a broken link from a silent one: a dead process is
// seen by its pidfd and a stuck one by its progress, both faster.
constexpr int kLinger = 500;
constexpr int kReconnectFirst = 100;
constexpr int kReconnectLast = 2000;
constexpr int kConnectTimeout = 5000;
constexpr int kBacklog = 512;       // connections
constexpr size_t kEncryption = 64;  // bytes that CURVE adds to a message
constexpr rlim_t kDescriptors = 65536;

}  // namespace

void failControl(const zmq::error_t& error, ErrorCode code, std::string_view what) {
  fail(code, "control: {}: {}", what, error.what());
}

std::chrono::milliseconds Deadline::left() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

ControlSocket::ControlSocket(zmq::socket_type type, std::string_view routing_id, std::string_view endpoint,
                             const SocketTraits& traits) try
    : context_(traits.context ? traits.context : std::make_shared<zmq::context_t>(1)),
      socket_(*context_, type) {
  namespace option = zmq::sockopt;
  context_->set(zmq::ctxopt::blocky, false);
  socket_.set(option::linger, kLinger);
  socket_.set(option::maxmsgsize, static_cast<int64_t>(traits.max_bytes + kEncryption));
  socket_.set(option::handshake_ivl, kControlHandshake);
  const auto silence = static_cast<int>(traits.silence.count());
  socket_.set(option::heartbeat_ivl, static_cast<int>(traits.heartbeat.count()));
  socket_.set(option::heartbeat_timeout, silence);
  socket_.set(option::heartbeat_ttl, silence);
  socket_.set(option::reconnect_ivl, kReconnectFirst);
  socket_.set(option::reconnect_ivl_max, kReconnectLast);
  socket_.set(option::connect_timeout, kConnectTimeout);
  socket_.set(option::sndtimeo, kControlSendTimeout);
  socket_.set(option::sndhwm, traits.queued);
  socket_.set(option::rcvhwm, traits.queued);
  socket_.set(option::backlog, kBacklog);
  if (endpoint.find('[') != std::string_view::npos) socket_.set(option::ipv6, true);
  if (type == zmq::socket_type::router) socket_.set(option::router_mandatory, true);
  if (type == zmq::socket_type::dealer) {
    if (!routing_id.empty()) socket_.set(option::routing_id, routing_id);
    socket_.set(option::immediate, true);  // nothing is queued for a coordinator that is not there
  }
} catch (const zmq::error_t& error) {
  failControl(error, ErrorCode::kConfiguration, "cannot make a socket; check `ulimit -n`");
}

void ControlSocket::useKeys(const JobKeys& keys) try {
  socket_.set(zmq::sockopt::curve_server, true);
  socket_.set(zmq::sockopt::curve_secretkey, keys.server_secret);
} catch (const zmq::error_t& error) {
  failControl(error, ErrorCode::kAuthentication, "the server's keys are not keys");
}

void ControlSocket::useKeys(const ClientKeys& keys) try {
  socket_.set(zmq::sockopt::curve_serverkey, keys.server_public);
  socket_.set(zmq::sockopt::curve_publickey, keys.client_public);
  socket_.set(zmq::sockopt::curve_secretkey, keys.client_secret);
} catch (const zmq::error_t& error) {
  failControl(error, ErrorCode::kAuthentication,
              "the client's keys are not keys; use the key file of this job");
}

void raiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);  // without it only the margin is smaller
}

std::optional<ReceivedFrames> ControlSocket::receiveNow() {
  ReceivedFrames received;
  std::vector<std::string>& frames = received.frames;
  try {
    do {
      zmq::message_t frame;
      if (!socket_.recv(frame, zmq::recv_flags::dontwait)) return std::nullopt;
      // An endless message would fill the memory: only the beginning is of interest, to say that it is
      // garbage.
      if (frames.size() < 4) frames.push_back(frame.to_string());
      if (const char* address = ::zmq_msg_gets(frame.handle(), "Peer-Address")) received.address = address;
      if (const char* user = ::zmq_msg_gets(frame.handle(), "User-Id")) received.user = user;
    } while (socket_.get(zmq::sockopt::rcvmore));
  } catch (const zmq::error_t& error) {
    if (error.num() == EINTR) return std::nullopt;
    failControl(error, ErrorCode::kPeerUnavailable, "cannot receive");
  }
  return received;
}

std::vector<int> ControlSocket::wait(const Deadline& deadline, std::span<const int> descriptors,
                                     bool& has_message) {
  std::vector<zmq::pollitem_t> items = {{socket_.handle(), 0, ZMQ_POLLIN, 0}};
  for (const int descriptor : descriptors) items.push_back({nullptr, descriptor, ZMQ_POLLIN, 0});
  try {
    zmq::poll(items, deadline.left());
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) failControl(error, ErrorCode::kInternal, "cannot wait");
    for (zmq::pollitem_t& item : items) item.revents = 0;
  }
  has_message = (items[0].revents & ZMQ_POLLIN) != 0;
  std::vector<int> ready;
  for (size_t i = 1; i < items.size(); ++i) {
    if ((items[i].revents & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0) ready.push_back(items[i].fd);
  }
  return ready;
}

bool ControlSocket::send(const std::vector<std::string_view>& frames, bool patience) {
  for (size_t i = 0; i < frames.size(); ++i) {
    auto flags = patience ? zmq::send_flags::none : zmq::send_flags::dontwait;
    if (i + 1 < frames.size()) flags = flags | zmq::send_flags::sndmore;
    try {
      if (!socket_.send(zmq::buffer(frames[i]), flags)) return false;
    } catch (const zmq::error_t& error) {
      if (error.num() == EHOSTUNREACH) return false;
      if (error.num() != EINTR) failControl(error, ErrorCode::kPeerUnavailable, "cannot send");
      --i;
    }
  }
  return true;
}

}  // namespace pipeshard
