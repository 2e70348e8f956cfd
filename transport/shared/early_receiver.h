// Posted receives of shared memory: a thread of the rank copies their messages as they come, while the rank
// computes.
//
//   EarlyMessage message{.source = 0, .to = memory};
//   receiver.post(message);      // from here on the mailbox from rank 0 belongs to the receiver
//   ...                          // the caller computes
//   receiver.takeOver(message);  // from here on it belongs to the caller again, who takes what is missing
//   ...                          // (nothing is, if message.finished)
//   receiver.release(message);   // the receiver may go on with the next one from rank 0
//
// The thread never waits for one message: it copies what is there, and sleeps on the rank's doorbell when
// nothing is. So it cannot fail. What is wrong with a message (its size, its operation, a sender that has
// died in the middle of it) is found by the caller, who takes the rest the usual way: with a deadline, and
// with an error that names the peer.
//
// Thread rules: all calls by the thread that uses the endpoint. The receiver touches nothing of the endpoint
// but the receiving side of mailboxes, its memory of peers' arenas (which is guarded) and the doorbell; both
// threads may sleep on that.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "transport/shared/shared_endpoint.h"

namespace pipeshard::shm {

struct EarlyMessage {
  RankId source;
  std::span<std::byte> to;
  size_t position = 0;    // so many bytes are there
  bool finished = false;  // all of it is there, and the sender knows
  bool refused = false;   // it is not what was expected
  bool taken_over = false;
};

class EarlyReceiver {
 public:
  // The thread is started by the first post().
  explicit EarlyReceiver(Endpoint& endpoint) : endpoint_(endpoint) {}
  ~EarlyReceiver();
  EarlyReceiver(const EarlyReceiver&) = delete;
  EarlyReceiver& operator=(const EarlyReceiver&) = delete;

  // The next point-to-point message from message.source that is not posted yet. The object stays where it is
  // until it is released.
  void post(EarlyMessage& message);
  // The thread touches neither the message nor its memory, nor others of its source, any more. Waits while it
  // copies. Error(kInternal) unless those posted before have been released.
  void takeOver(EarlyMessage& message);
  void release(EarlyMessage& message);
  // Something is posted from this source.
  bool expects(RankId source);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void run();
  void wake();
  bool copyAll();
  bool isNext(const EarlyMessage& message) const;
  bool copySome(EarlyMessage& message);
  bool copyBlock(EarlyMessage& message, Mailbox& mailbox, const Descriptor& descriptor);

  Endpoint& endpoint_;
  std::mutex mutex_;  // guards all below, and the messages that are posted
  std::condition_variable changed_;
  std::vector<EarlyMessage*> posted_;  // in order
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace pipeshard::shm
