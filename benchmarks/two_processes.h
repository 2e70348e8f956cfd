// What benchmarks between two processes of this machine share.
#pragma once

#include <gloo/rendezvous/file_store.h>

#include <algorithm>
#include <string>
#include <vector>

#include "transport/gloo/gloo_communicator.h"

namespace pipeshard {

// Addresses travel by files of a folder.
class FileStore : public RendezvousStore {
 public:
  explicit FileStore(const std::string& folder) : store_(folder) {}
  void set(const std::string& key, const std::string& bytes) override {
    store_.set(key, {bytes.begin(), bytes.end()});
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    store_.wait({key}, timeout);
    const std::vector<char> bytes = store_.get(key);
    return {bytes.begin(), bytes.end()};
  }

 private:
  ::gloo::rendezvous::FileStore store_;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace pipeshard
