// A forked helper of a measurement: does what it is told until this process is done with it. Internal to
// profiling.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/files/posix_file.h"

namespace pipeshard {

class ProfilingPeer {
 public:
  // What the helper sees. Everything else that it has is a copy of this process at the fork.
  class Orders {
   public:
    // The next number that tell() was called with; nullopt: there is no more to do.
    std::optional<int64_t> next();
    void answer();         // lets awaitAnswer() return
    bool stopped() const;  // stop() has been called since the last order

   private:
    friend class ProfilingPeer;
    int socket_ = -1;
    const std::atomic<bool>* stop_ = nullptr;
  };

  // `work` runs in the fork; its end, also by an exception, is the process's. Error(kOutOfMemory) when there
  // can be no process.
  explicit ProfilingPeer(const std::function<void(Orders&)>& work);
  ProfilingPeer(const ProfilingPeer&) = delete;
  ProfilingPeer& operator=(const ProfilingPeer&) = delete;
  ~ProfilingPeer();  // kills and reaps

  // Error(kPeerUnavailable) when the helper has ended.
  void tell(int64_t order);
  void awaitAnswer();
  void stop();

 private:
  Descriptor socket_;
  std::atomic<bool>* stop_ = nullptr;  // shared memory
  pid_t pid_ = -1;
};

}  // namespace pipeshard
