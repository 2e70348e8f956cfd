// What communicators over one channel have in common: the checks before every collective, said once. A
// channel is one rank's end of the bytes (shm::Endpoint, mesh::Mesh); in its namespace lie the collectives
// over it, functions like allReduce(channel, group, ...), which are found there by the channel's type.
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>

#include "transport/collectives/communicator.h"
#include "transport/collectives/operation.h"

namespace pipeshard {

// A member function called allReduce would hide the channel's.
namespace of_channel {
template <typename Channel, typename... Arguments>
void callAllReduce(Channel& channel, const Arguments&... arguments) {
  allReduce(channel, arguments...);
}
template <typename Channel, typename... Arguments>
void callAllGather(Channel& channel, const Arguments&... arguments) {
  allGather(channel, arguments...);
}
template <typename Channel, typename... Arguments>
void callReduceScatter(Channel& channel, const Arguments&... arguments) {
  reduceScatter(channel, arguments...);
}
template <typename Channel, typename... Arguments>
void callAllToAll(Channel& channel, const Arguments&... arguments) {
  allToAll(channel, arguments...);
}
template <typename Channel, typename... Arguments>
void callBroadcast(Channel& channel, const Arguments&... arguments) {
  broadcast(channel, arguments...);
}
template <typename Channel>
void callBarrier(Channel& channel, const Group& group) {
  barrier(channel, group);
}
}  // namespace of_channel

// Base: Communicator, or an interface that extends it.
template <typename Base, typename Channel>
class ChannelCommunicator : public Base {
 public:
  template <typename... Arguments>
  explicit ChannelCommunicator(Arguments&&... arguments) : channel_(std::forward<Arguments>(arguments)...) {}

  RankId rank() const override { return channel_.rank(); }
  int size() const override { return channel_.size(); }
  std::chrono::nanoseconds waited() const override { return channel_.waitedTime().get(); }
  void interrupt() override { channel_.interrupt(); }

  void allReduce(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                 size_t count) override {
    check(group, type);
    of_channel::callAllReduce(channel_, group, type, reduction, input, output, count);
  }
  void allGather(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    check(group, type);
    of_channel::callAllGather(channel_, group, type, input, output, count);
  }
  void reduceScatter(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                     size_t count) override {
    check(group, type);
    of_channel::callReduceScatter(channel_, group, type, reduction, input, output, count);
  }
  void allToAll(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    check(group, type);
    of_channel::callAllToAll(channel_, group, type, input, output, count);
  }
  void broadcast(const Group& group, DataType type, int root, void* data, size_t count) override {
    check(group, type);
    checkRoot(rank(), group, root);
    of_channel::callBroadcast(channel_, group, type, root, data, count);
  }
  void barrier(const Group& group) override {
    check(group, DataType::kUint8);
    of_channel::callBarrier(channel_, group);
  }

 protected:
  // Throws where an earlier failure has broken the channel.
  virtual void checkChannel() const = 0;

  Channel channel_;

 private:
  void check(const Group& group, DataType type) const {
    checkChannel();
    checkGroup(rank(), size(), group, type);
  }
};

}  // namespace pipeshard
