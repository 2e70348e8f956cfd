// A RendezvousStore for ranks that are forked processes: shared memory, made before they are forked.
#pragma once

#include <string>

#include "transport/gloo/gloo_communicator.h"

namespace pipeshard::testing {

class SharedStore : public RendezvousStore {
 public:
  explicit SharedStore(int size);
  ~SharedStore() override;
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  int size() const { return size_; }
  void set(const std::string& key, const std::string& bytes) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  struct Entry;
  Entry& entryOf(const std::string& key);

  int size_;
  Entry* entries_;
};

}  // namespace pipeshard::testing
