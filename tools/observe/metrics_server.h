// Serves a page to whoever asks, while a run goes on (`run --metrics`).
#pragma once

#include <memory>
#include <string>

namespace pipeshard {

struct MetricsAddress {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any that is free
};
// "9400", ":9400", "0.0.0.0:9400", "[::1]:9400", "localhost:9400". Error(kUsage) otherwise.
MetricsAddress parseMetricsAddress(const std::string& text);

// Answers GET /metrics, and nothing else, from threads of its own: readers can do nothing but read, and a
// reader that is slow or hangs holds up none but other readers. Requests are small and answered once; bodies
// are refused.
class MetricsServer {
 public:
  // Listens. Errors: kAddressInUse for a port that is taken, kConfiguration for an address that is not this
  // machine's or may not be used.
  explicit MetricsServer(const MetricsAddress& address);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // "http://127.0.0.1:9400/metrics"
  const std::string& url() const { return url_; }
  // What is served from now on. Never waits for a reader.
  void publish(std::string page);

 private:
  struct Server;
  std::unique_ptr<Server> server_;
  std::string url_;
};

}  // namespace pipeshard
