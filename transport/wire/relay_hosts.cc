// The relay's connections to other hosts.
#include <algorithm>
#include <charconv>
#include <cstring>

#include "ir/base/ids_format.h"
#include "transport/wire/relay_parts.h"

namespace pipeshard::wire {
namespace {

// At once, from one connection, before others have their turn.
constexpr int kMessagesAtOnce = 64;

}  // namespace

zmq::message_t messageOf(const Frame& frame, std::string_view payload) {
  zmq::message_t message(sizeof(Frame) + payload.size());
  Frame head = frame;
  head.payload = payload.size();
  std::memcpy(message.data(), &head, sizeof(head));
  if (!payload.empty()) std::memcpy(message.data<char>() + sizeof(head), payload.data(), payload.size());
  return message;
}

Frame frameOf(const zmq::message_t& message) {
  Frame frame;
  std::memcpy(&frame, message.data(), sizeof(frame));
  return frame;
}

Relay::HostLine* Relay::lineOf(int host) {
  const auto found =
      std::find_if(lines_.begin(), lines_.end(), [&](const HostLine& line) { return line.number == host; });
  return found == lines_.end() ? nullptr : &*found;
}

// Each message says by whose key it came (ControlGate::allow); routes change with connections.
void Relay::hearListening() {
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    zmq::message_t route;
    if (!listening_->socket().recv(route, zmq::recv_flags::dontwait)) return;
    zmq::message_t message;
    size_t parts = 0;
    for (bool more = route.more(); more; ++parts) {
      zmq::message_t part;
      (void)listening_->socket().recv(part);
      more = part.more();
      if (parts == 0) message = std::move(part);
    }
    const char* user = parts == 1 ? ::zmq_msg_gets(message.handle(), "User-Id") : nullptr;
    int host = -1;
    if (user != nullptr) std::from_chars(user, user + std::strlen(user), host);
    HostLine* line = lineOf(host);
    if (line == nullptr || line->lost) continue;
    const std::string from = route.to_string();
    if (line->greeted && from != line->route) {
      loseHost(*line, fmt::format("the connection to host {} broke, and was made again", host));
      continue;
    }
    line->route = from;
    take(*line, std::move(message));
  }
}

void Relay::hearConnecting(HostLine& line) {
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    zmq::message_t message;
    if (!line.socket->socket().recv(message, zmq::recv_flags::dontwait)) return;
    if (!line.lost) take(line, std::move(message));
  }
}

void Relay::hearMonitor(HostLine& line) {
  using Kind = HandshakeEvent::Kind;
  while (const auto event = line.monitor->next()) {
    if (event->kind == Kind::kEnded && line.greeted)
      loseHost(line, fmt::format("the connection to host {} broke", line.number));
    if (event->kind == Kind::kRefused || event->kind == Kind::kMismatch)
      loseHost(line, fmt::format("host {} refused the key of this one", line.number));
  }
}

// What does not fit the rules ends the connection: it may be replayed, or somebody poses as a rank.
void Relay::take(HostLine& line, zmq::message_t message) {
  if (message.size() < sizeof(Frame)) return refuse(line, "a message without a header");
  const Frame frame = frameOf(message);
  if (frame.payload != message.size() - sizeof(Frame) || frame.lane >= kLanes)
    return refuse(line, "a message that is not one");
  if (frame.sequence != line.received++)
    return refuse(line,
                  fmt::format("message {} where message {} was due", frame.sequence, line.received - 1));
  if (frame.kind == Kind::kHello) {
    if (frame.bytes != kProtocol || frame.number != static_cast<uint64_t>(line.number))
      return refuse(line, "a greeting of another protocol or host");
    return greet(line);
  }
  if (frame.kind == Kind::kCredit) {
    line.on_line -= std::min<size_t>(line.on_line, frame.bytes);
    for (RankLink& link : links_) {
      if (link.held && route(link)) readLink(link);
    }
    return;
  }
  line.taken += message.size();
  if (line.taken >= kLineStep) {
    sendFrame(line, {.kind = Kind::kCredit, .bytes = line.taken});
    line.taken = 0;
  }
  const RankId source(frame.source);
  if (source >= options_.host_of_rank.nextId() || options_.host_of_rank[source] != line.number) {
    return refuse(line,
                  fmt::format("a message in the name of rank {}, which it does not have", frame.source));
  }
  if (isForEverybody(frame.kind)) {
    const std::string_view reason(message.data<char>() + sizeof(Frame), frame.payload);
    return endOf(source, frame.lane, frame, reason);
  }
  const RankId target(frame.target);
  if (target >= options_.host_of_rank.nextId() || !isHere(target))
    return refuse(line, fmt::format("a message for rank {}, which is not here", frame.target));
  deliver(std::move(message));
}

void Relay::greet(HostLine& line) {
  if (line.greeted) return refuse(line, "a second greeting");
  line.greeted = true;
  noteAnswer(line);
  if (!line.socket) {
    sendFrame(line,
              {.kind = Kind::kHello, .number = static_cast<uint64_t>(options_.host), .bytes = kProtocol});
  }
  for (auto& lane : ends_) {
    for (RankId rank : lane.ids()) {
      const EndState& end = lane[rank];
      if (isHere(rank) && end.kind != Kind::kHello) sendFrame(line, end.frame, end.reason);
    }
  }
}

void Relay::noteAnswer(const HostLine& line) {
  const std::lock_guard lock(mutex_);
  unanswered_.erase(line.number);
}

bool Relay::sendOn(HostLine& line, zmq::message_t& message) {
  const uint64_t number = line.sent;
  std::memcpy(message.data<char>() + offsetof(Frame, sequence), &number, sizeof(number));
  try {
    zmq::socket_t& socket = line.socket ? line.socket->socket() : listening_->socket();
    if (!line.socket &&
        !socket.send(zmq::buffer(line.route), zmq::send_flags::sndmore | zmq::send_flags::dontwait))
      return false;
    if (!socket.send(message, zmq::send_flags::dontwait)) return false;
  } catch (const zmq::error_t& error) {
    if (error.num() != EHOSTUNREACH) throw;
    return false;
  }
  ++line.sent;
  return true;
}

void Relay::sendFrame(HostLine& line, Frame frame, std::string_view payload) {
  if (line.lost) return;
  zmq::message_t message = messageOf(frame, payload);
  if (!sendOn(line, message)) loseHost(line, fmt::format("the connection to host {} broke", line.number));
}

void Relay::refuse(HostLine& line, const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    ++refused_;
    last_refused_ = fmt::format("host {} sent {}", line.number, what);
  }
  loseHost(line, fmt::format("host {} sent {}, and is not heard any more", line.number, what));
}

// Its ranks cannot be reached any more.
void Relay::loseHost(HostLine& line, const std::string& reason) {
  if (line.lost) return;
  line.lost = true;
  noteAnswer(line);
  for (uint8_t lane = 0; lane < kLanes; ++lane) {
    for (RankId rank : ends_[lane].ids()) {
      if (options_.host_of_rank[rank] != line.number) continue;
      endOf(rank, lane,
            {.source = static_cast<uint32_t>(rank.index()),
             .target = kEverybody,
             .kind = Kind::kLost,
             .lane = lane},
            reason);
    }
  }
  for (RankLink& link : links_) {
    if (link.held && route(link)) readLink(link);
  }
}

}  // namespace pipeshard::wire
