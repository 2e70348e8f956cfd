#include "tools/observe/metrics_server.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <httplib.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kThreads = 8;   // that answer
constexpr time_t kPatience = 1;  // seconds, for a reader to ask and to take the answer

[[noreturn]] void refuseAddress(const std::string& text) {
  fail(ErrorCode::kUsage,
       "--metrics {}: expected [HOST:]PORT, such as 9400, 0.0.0.0:9400 or [::1]:9400, with a port from 0 "
       "(any that is free) to 65535",
       text);
}

// Why an address cannot be listened on, found out as the server would: it says only that it failed. 0: it
// can.
int whyNot(const MetricsAddress& address) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found) != 0)
    return EADDRNOTAVAIL;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* each = found; each != nullptr && error != 0; each = each->ai_next) {
    const int socket = ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
    if (socket < 0) continue;
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    error = ::bind(socket, each->ai_addr, each->ai_addrlen) == 0 && ::listen(socket, 1) == 0 ? 0 : errno;
    ::close(socket);
  }
  ::freeaddrinfo(found);
  return error;
}

}  // namespace

MetricsAddress parseMetricsAddress(const std::string& text) {
  MetricsAddress address;
  std::string port = text;
  if (const size_t colon = text.rfind(':'); colon != std::string::npos) {
    std::string host = text.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) {
      host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string::npos) {
      refuseAddress(text);
    }
    if (!host.empty()) address.host = host;
    port = text.substr(colon + 1);
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool is_port = error == std::errc() && end == port.data() + port.size() && !port.empty();
  if (!is_port || address.port < 0 || address.port > 65535) refuseAddress(text);
  return address;
}

struct MetricsServer::Server {
  httplib::Server http;
  std::mutex mutex;
  std::shared_ptr<const std::string> page = std::make_shared<const std::string>();
  std::thread thread;  // last: started when all else is there

  std::shared_ptr<const std::string> current() {
    const std::lock_guard lock(mutex);
    return page;
  }
};

MetricsServer::MetricsServer(const MetricsAddress& address) {
  // The library's server ignores SIGPIPE for the whole process, and so for its children.
  struct sigaction before {};
  ::sigaction(SIGPIPE, nullptr, &before);
  server_ = std::make_unique<Server>();
  ::sigaction(SIGPIPE, &before, nullptr);
  httplib::Server& http = server_->http;
  http.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  http.set_payload_max_length(0);
  http.set_keep_alive_max_count(1);
  http.set_keep_alive_timeout(kPatience);
  http.set_read_timeout(kPatience);
  http.set_write_timeout(kPatience);
  // Not SO_REUSEPORT, the library's choice: a second run would share the port without a word.
  http.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  });
  http.Get("/metrics", [server = server_.get()](const httplib::Request&, httplib::Response& response) {
    response.set_content(*server->current(), "text/plain; version=0.0.4; charset=utf-8");
  });
  int port = address.port;
  errno = 0;
  const bool bound =
      port == 0 ? (port = http.bind_to_any_port(address.host)) > 0 : http.bind_to_port(address.host, port);
  if (!bound) {
    const int error = whyNot(address);
    const bool in_use = error == EADDRINUSE || error == 0;
    fail(in_use ? ErrorCode::kAddressInUse : ErrorCode::kConfiguration, "--metrics {}:{}: {}; {}",
         address.host, address.port, in_use ? "the port is in use" : strerror(error),
         in_use ? "choose another one, or 0 for any" : "give an address of this machine");
  }
  const bool is_v6 = address.host.find(':') != std::string::npos;
  url_ = fmt::format("http://{}{}{}:{}/metrics", is_v6 ? "[" : "", address.host, is_v6 ? "]" : "", port);
  server_->thread = std::thread([server = server_.get()] {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals, SIGPIPE too, are the other threads'
    server->http.listen_after_bind();
  });
  while (!http.is_running()) std::this_thread::yield();
}

MetricsServer::~MetricsServer() {
  server_->http.stop();
  server_->thread.join();
}

void MetricsServer::publish(std::string page) {
  auto shared = std::make_shared<const std::string>(std::move(page));
  const std::lock_guard lock(server_->mutex);
  server_->page = std::move(shared);
}

}  // namespace pipeshard
