// A communicator over a MessageMesh: the interface's handles and calls (communicator.h says what they mean).
// A transport gives its own mesh.
//
// All handles and calls are of the thread that uses the communicator; handles end before it does. A failed
// call or wait throws what the mesh throws (message_mesh.h), which is broken then.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "transport/collectives/channel_communicator.h"
#include "transport/collectives/mesh_collectives.h"
#include "transport/collectives/message_mesh.h"

namespace pipeshard::mesh {

// A posted message. done() and wait(): the receiver has all of it.
class MeshSend : public SendHandle {
 public:
  MeshSend(MessageMesh& mesh, Ticket ticket, size_t bytes) : mesh_(mesh), ticket_(ticket), bytes_(bytes) {}

  bool done() override { return mesh_.completed(ticket_); }
  void wait() override {
    mesh_.awaitCompleted(ticket_,
                         {Operation::kSend, "is to be taken by", ticket_.peer, bytes_, {&ticket_.peer, 1}});
  }

 private:
  MessageMesh& mesh_;
  Ticket ticket_;
  size_t bytes_;
};

// A message that is expected from the moment that this is made: it flows into `data` as soon as the peer
// announces it. wait() takes and checks it; its deadline begins there. Destroyed without wait(): the receive
// is given up, `data` is not touched any more, and the mesh is broken.
class MeshReceive : public ReceiveHandle {
 public:
  MeshReceive(MessageMesh& mesh, RankId peer, std::span<std::byte> data)
      : mesh_(mesh), peer_(peer), data_(data) {
    mesh_.expect(peer, data);
  }
  ~MeshReceive() override {
    if (!awaited_) mesh_.giveUp(peer_);
  }

  void wait() override {
    mesh_.waitedTime().beginOperation();
    auto incoming = mesh_.take(Channel::kPointToPoint, data_,
                               {Operation::kSend, "waits for", peer_, data_.size(), {&peer_, 1}});
    waited_ = mesh_.waitedTime().get();
    awaited_ = true;
    mesh_.finish(incoming);
  }
  std::chrono::nanoseconds waited() const override { return waited_; }

 private:
  MessageMesh& mesh_;
  RankId peer_;
  std::span<std::byte> data_;
  bool awaited_ = false;
  std::chrono::nanoseconds waited_{};
};

// Mesh: derived from MessageMesh; made from the arguments of the constructor.
template <typename Mesh>
class MeshCommunicator : public ChannelCommunicator<Communicator, Mesh> {
 public:
  using ChannelCommunicator<Communicator, Mesh>::ChannelCommunicator;

  void whileWaiting(const std::function<bool()>& work) override { this->channel_.whileWaiting(work); }

  std::unique_ptr<SendHandle> send(RankId peer, std::span<const std::byte> data) override {
    const Ticket ticket = this->channel_.post(Channel::kPointToPoint, peer, Operation::kSend, data);
    return std::make_unique<MeshSend>(this->channel_, ticket, data.size());
  }

  void receive(RankId peer, std::span<std::byte> data) override {
    this->channel_.waitedTime().beginOperation();
    auto incoming = this->channel_.take(Channel::kPointToPoint, data,
                                        {Operation::kSend, "waits for", peer, data.size(), {&peer, 1}});
    this->channel_.finish(incoming);
  }

  std::unique_ptr<ReceiveHandle> postReceive(RankId peer, std::span<std::byte> data) override {
    return std::make_unique<MeshReceive>(this->channel_, peer, data);
  }

 private:
  void checkChannel() const override { this->channel_.checkUsable(); }
};

}  // namespace pipeshard::mesh
