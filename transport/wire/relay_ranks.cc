// The relay's connections to the ranks of its own host.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ir/base/ids_format.h"
#include "transport/wire/relay_parts.h"

namespace pipeshard::wire {
namespace {

// From one rank, before others have their turn.
constexpr int kFramesAtOnce = 16;

}  // namespace

void Relay::readLink(RankLink& link) {
  for (int i = 0; i < kFramesAtOnce && !link.closed && !link.held; ++i) {
    if (!readLinkSome(link)) return;
  }
}

// One frame, and where it goes. False: there is no whole one now.
bool Relay::readLinkSome(RankLink& link) {
  while (true) {
    char* to = nullptr;
    size_t bytes = 0;
    if (link.done < sizeof(Frame)) {
      to = reinterpret_cast<char*>(&link.head) + link.done;
      bytes = sizeof(Frame) - link.done;
    } else {
      to = link.frame.data<char>() + link.done;
      bytes = link.frame.size() - link.done;
    }
    if (bytes > 0) {
      const ssize_t got = ::recv(link.descriptor, to, bytes, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
      if (got <= 0) {
        closeLink(link);
        return false;
      }
      link.done += static_cast<size_t>(got);
    }
    if (link.done == sizeof(Frame) && !checkHead(link)) return false;
    if (link.done < sizeof(Frame) || link.done < link.frame.size()) continue;
    link.done = 0;
    return route(link);
  }
}

// A rank that does not keep to the form is not heard any more: that is a bug of pipeshard.
bool Relay::checkHead(RankLink& link) {
  Frame& head = link.head;
  head.source = link.rank.index();
  head.lane = link.lane;
  const bool known = isForEverybody(head.kind)
                         ? head.kind != Kind::kLost
                         : head.kind >= Kind::kMessage && head.kind <= Kind::kCompleted &&
                               RankId(head.target) < options_.host_of_rank.nextId();
  if (!known || head.payload > kPieceBytes) {
    closeLink(link);
    return false;
  }
  link.frame.rebuild(sizeof(Frame) + head.payload);
  std::memcpy(link.frame.data(), &head, sizeof(head));
  return true;
}

// False: the line to its host is full; the rank is not read until it is not.
bool Relay::route(RankLink& link) {
  link.held = false;
  const Frame frame = frameOf(link.frame);
  if (isForEverybody(frame.kind)) {
    endOf(link.rank, link.lane, frame, {});
    if (frame.kind == Kind::kOpen) tellEnds(link);
    return true;
  }
  const int host = options_.host_of_rank[RankId(frame.target)];
  if (host == options_.host) {
    deliver(std::move(link.frame));
    return true;
  }
  HostLine* line = lineOf(host);
  if (line == nullptr || line->lost || !line->greeted) return true;  // who waits for an answer was told
  const size_t bytes = link.frame.size();
  if (line->on_line + bytes > kLineWindow) {
    link.held = true;
    return false;
  }
  if (sendOn(*line, link.frame)) {
    line->on_line += bytes;
  } else {
    loseHost(*line, fmt::format("the connection to host {} broke", host));
  }
  return true;
}

void Relay::deliver(zmq::message_t message) {
  const Frame frame = frameOf(message);
  const auto link = std::find_if(links_.begin(), links_.end(), [&](const RankLink& other) {
    return other.rank == RankId(frame.target) && other.lane == frame.lane;
  });
  if (link == links_.end() || link->closed) return;
  link->queue.push_back(std::move(message));
  if (link->queue.size() == 1) writeLink(*link);
}

void Relay::writeLink(RankLink& link) {
  while (!link.closed && !link.queue.empty()) {
    zmq::message_t& first = link.queue.front();
    const ssize_t written = ::send(link.descriptor, first.data<char>() + link.written,
                                   first.size() - link.written, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (written < 0) return link.queue.clear();  // reading finds its end, after what it had sent before
    link.written += static_cast<size_t>(written);
    if (link.written < first.size()) continue;
    link.written = 0;
    link.queue.pop_front();
  }
}

void Relay::closeLink(RankLink& link) {
  ::close(link.descriptor);
  link.descriptor = -1;
  link.closed = true;
  link.queue.clear();
  endOf(link.rank, link.lane,
        {.source = static_cast<uint32_t>(link.rank.index()),
         .target = kEverybody,
         .kind = Kind::kLost,
         .lane = link.lane},
        "its process is gone");
}

// What has become of one end. Whoever said farewell is not lost afterwards.
void Relay::endOf(RankId rank, uint8_t lane, const Frame& frame, std::string_view reason) {
  EndState& end = ends_[lane][rank];
  const bool over = end.kind == Kind::kFarewell || end.kind == Kind::kLost;
  if (over || end.kind == frame.kind) return;
  end = {frame.kind, frame, std::string(reason)};
  for (RankLink& link : links_) {
    if (link.lane == lane && link.rank != rank && link.opened) tell(link, end);
  }
  if (!isHere(rank)) return;
  for (HostLine& line : lines_) {
    if (line.greeted) sendFrame(line, end.frame, end.reason);
  }
}

// To one that has just opened: what became of the others' ends before.
void Relay::tellEnds(RankLink& link) {
  link.opened = true;
  for (RankId rank : ends_[link.lane].ids()) {
    const EndState& end = ends_[link.lane][rank];
    if (rank != link.rank && end.kind != Kind::kHello) tell(link, end);
  }
}

void Relay::tell(RankLink& link, const EndState& end) {
  if (link.closed) return;
  link.queue.push_back(messageOf(end.frame, end.reason));
  if (link.queue.size() == 1) writeLink(link);
}

}  // namespace pipeshard::wire
