// What the conformance tests need to know of a transport. To test another one, add it to allTransports().
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "tests/transport/ranks.h"
#include "transport/collectives/communicator.h"

namespace pipeshard::testing {

// One job of a transport, made before its ranks are forked.
class TransportJob {
 public:
  virtual ~TransportJob() = default;
  // In a rank.
  virtual std::unique_ptr<Communicator> open(RankId rank, std::chrono::milliseconds timeout) = 0;
  // In a rank: memory of the transport's own (an arena), or nothing when it has none. Once per communicator.
  virtual std::span<std::byte> ownMemory(Communicator&, size_t) { return {}; }
  // In a rank: its second communicator, for another thread; after ownMemory.
  virtual std::unique_ptr<Communicator> openSecond(Communicator& first,
                                                   std::chrono::milliseconds timeout) = 0;
  // In the launcher: the rank's process has ended.
  virtual void markDead(RankId rank) = 0;
};

struct Transport {
  std::string name;
  bool own_memory = false;  // messages of the tests lie in ownMemory()
  bool connects = false;    // open() waits for all ranks
  std::function<std::unique_ptr<TransportJob>(int size)> make;
};
std::ostream& operator<<(std::ostream& stream, const Transport& transport);

std::vector<Transport> allTransports();
std::string transportName(const ::testing::TestParamInfo<Transport>& info);

// A rank of a test: its communicator and memory for its messages.
class Rank {
 public:
  Rank(TransportJob& job, const Transport& transport, RankId rank,
       std::chrono::milliseconds timeout = std::chrono::seconds(30));

  Communicator* operator->() { return communicator_.get(); }
  Communicator& communicator() { return *communicator_; }
  std::unique_ptr<Communicator> openSecond(std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    return job_.openSecond(*communicator_, timeout);
  }
  int rank() const { return communicator_->rank().index(); }  // for tests that count with it
  int size() const { return communicator_->size(); }
  Group everybody() const;

  // Zeroed, aligned to 64 bytes, valid until release().
  std::byte* allocate(size_t bytes);
  template <typename T>
  std::span<T> allocate(size_t count) {
    return {reinterpret_cast<T*>(allocate(count * sizeof(T))), count};
  }
  void release();
  // Bytes that depend on `seed` and the position.
  std::span<std::byte> pattern(size_t bytes, size_t seed);

 private:
  TransportJob& job_;
  std::unique_ptr<Communicator> communicator_;
  std::span<std::byte> own_;
  size_t used_ = 0;
  bool use_own_;
  std::vector<std::unique_ptr<std::byte[]>> heap_;
};

// Ends the rank unless `data` is the pattern of this seed.
void requirePattern(std::span<const std::byte> data, size_t seed);

class TransportTest : public ::testing::TestWithParam<Transport> {
 protected:
  // Runs a new job of `size` ranks.
  std::vector<RankResult> run(int size, const std::function<void(Rank&)>& body,
                              std::chrono::milliseconds timeout = std::chrono::seconds(30));
};

}  // namespace pipeshard::testing
