#include "transport/gloo/gloo_communicator.h"

#include <gloo/transport/unbound_buffer.h>

#include "transport/collectives/channel_communicator.h"
#include "transport/collectives/operation.h"
#include "transport/gloo/gloo_collectives.h"
#include "transport/gloo/gloo_mesh.h"

namespace pipeshard {
namespace {

class Handle : public SendHandle {
 public:
  Handle(mesh::Mesh& mesh, mesh::Ticket ticket, size_t bytes) : mesh_(mesh), ticket_(ticket), bytes_(bytes) {}

  bool done() override { return mesh_.completed(ticket_); }
  void wait() override {
    mesh_.awaitCompleted(ticket_,
                         {Operation::kSend, "is to be taken by", ticket_.peer, bytes_, {&ticket_.peer, 1}});
  }

 private:
  mesh::Mesh& mesh_;
  mesh::Ticket ticket_;
  size_t bytes_;
};

class EarlyReceive : public ReceiveHandle {
 public:
  EarlyReceive(mesh::Mesh& mesh, RankId peer, std::span<std::byte> data)
      : mesh_(mesh), peer_(peer), data_(data) {
    mesh_.expect(peer, data);
  }
  ~EarlyReceive() override {
    if (!awaited_) mesh_.giveUp(peer_);
  }

  void wait() override {
    mesh_.waitedTime().beginOperation();
    auto incoming = mesh_.take(mesh::Channel::kPointToPoint, data_,
                               {Operation::kSend, "waits for", peer_, data_.size(), {&peer_, 1}});
    waited_ = mesh_.waitedTime().get();
    awaited_ = true;
    mesh_.finish(incoming);
  }
  std::chrono::nanoseconds waited() const override { return waited_; }

 private:
  mesh::Mesh& mesh_;
  RankId peer_;
  std::span<std::byte> data_;
  bool awaited_ = false;
  std::chrono::nanoseconds waited_{};
};

class GlooCommunicator : public ChannelCommunicator<Communicator, mesh::Mesh> {
 public:
  using ChannelCommunicator::ChannelCommunicator;

  void whileWaiting(const std::function<bool()>& work) override { channel_.whileWaiting(work); }

  std::unique_ptr<SendHandle> send(RankId peer, std::span<const std::byte> data) override {
    return std::make_unique<Handle>(
        channel_, channel_.post(mesh::Channel::kPointToPoint, peer, Operation::kSend, data), data.size());
  }

  void receive(RankId peer, std::span<std::byte> data) override {
    channel_.waitedTime().beginOperation();
    auto incoming = channel_.take(mesh::Channel::kPointToPoint, data,
                                  {Operation::kSend, "waits for", peer, data.size(), {&peer, 1}});
    channel_.finish(incoming);
  }

  std::unique_ptr<ReceiveHandle> postReceive(RankId peer, std::span<std::byte> data) override {
    return std::make_unique<EarlyReceive>(channel_, peer, data);
  }

 private:
  void checkChannel() const override { channel_.checkUsable(); }
};

}  // namespace

std::unique_ptr<Communicator> openGloo(const GlooOptions& options, RendezvousStore& store) {
  return std::make_unique<GlooCommunicator>(options, store);
}

}  // namespace pipeshard
