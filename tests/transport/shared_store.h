// A RendezvousStore for ranks that are forked processes: shared memory, made before they are forked.
#pragma once

#include <chrono>
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

// Ranks say that they have come to a point; who watches them waits until all have.
class Arrivals {
 public:
  explicit Arrivals(int size) : store_(size) {}
  void here(int rank) { store_.set(std::to_string(rank), "here"); }
  void waitForAll() {
    for (int rank = 0; rank < store_.size(); ++rank)
      store_.get(std::to_string(rank), std::chrono::seconds(20));
  }

 private:
  SharedStore store_;
};

// Says so where its block is left, also by an error: others wait for it with what would hide that error.
class HereAtEnd {
 public:
  HereAtEnd(Arrivals& arrivals, int rank) : arrivals_(arrivals), rank_(rank) {}
  ~HereAtEnd() { arrivals_.here(rank_); }
  HereAtEnd(const HereAtEnd&) = delete;
  HereAtEnd& operator=(const HereAtEnd&) = delete;

 private:
  Arrivals& arrivals_;
  int rank_;
};

}  // namespace pipeshard::testing
