#include "transport/shared/shared_memory.h"

#include "ir/base/ids_format.h"
#include "transport/collectives/channel_communicator.h"
#include "transport/collectives/operation.h"
#include "transport/shared/early_receiver.h"
#include "transport/shared/shared_collectives.h"
#include "transport/shared/shared_endpoint.h"

namespace pipeshard {
namespace {

class Handle : public SendHandle {
 public:
  Handle(shm::Endpoint& endpoint, shm::Ticket ticket, size_t bytes)
      : endpoint_(endpoint), ticket_(ticket), bytes_(bytes) {}

  bool done() override {
    endpoint_.progress();
    return endpoint_.completed(ticket_);
  }

  void wait() override {
    if (endpoint_.completed(ticket_)) return;
    endpoint_.checkUsable(ticket_.peer);
    endpoint_.await({shm::Operation::kSend, "is to be taken by", ticket_.peer, bytes_, {&ticket_.peer, 1}},
                    [this] { return endpoint_.completed(ticket_); });
  }

 private:
  shm::Endpoint& endpoint_;
  shm::Ticket ticket_;
  size_t bytes_;
};

class EarlyReceive : public ReceiveHandle {
 public:
  EarlyReceive(shm::Endpoint& endpoint, shm::EarlyReceiver& receiver, RankId peer, std::span<std::byte> data)
      : endpoint_(endpoint), receiver_(receiver), message_{.source = peer, .to = data} {
    receiver_.post(message_);
  }
  ~EarlyReceive() override {
    if (awaited_) return;
    receiver_.release(message_);
    endpoint_.giveUp(message_.source);
  }

  void wait() override {
    receiver_.takeOver(message_);
    if (!message_.finished) takeRest();
    receiver_.release(message_);
    awaited_ = true;
  }
  std::chrono::nanoseconds waited() const override { return waited_; }

 private:
  void takeRest() {
    endpoint_.checkUsable(message_.source);
    endpoint_.waitedTime().beginOperation();
    shm::IncomingMessage rest(endpoint_, shm::Channel::kPointToPoint, message_.source, shm::Operation::kSend,
                              message_.to.size(), {&message_.source, 1});
    rest.resume(message_.position);
    waited_ = endpoint_.waitedTime().get();
    rest.copyTo(message_.to.data());
  }

  shm::Endpoint& endpoint_;
  shm::EarlyReceiver& receiver_;
  shm::EarlyMessage message_;
  bool awaited_ = false;
  std::chrono::nanoseconds waited_{};
};

class Implementation : public ChannelCommunicator<SharedMemoryCommunicator, shm::Endpoint> {
 public:
  using ChannelCommunicator::ChannelCommunicator;

  std::span<std::byte> createArena(size_t bytes) override { return channel_.createArena(bytes); }

  std::unique_ptr<Communicator> openSecond() override {
    return std::make_unique<Implementation>(channel_, shm::Lane::kSecond);
  }

  bool progress() override { return channel_.progress(); }

  std::unique_ptr<SendHandle> send(RankId peer, std::span<const std::byte> data) override {
    const shm::Ticket ticket = channel_.post(shm::Channel::kPointToPoint, peer, shm::Operation::kSend, data);
    return std::make_unique<Handle>(channel_, ticket, data.size());
  }

  void receive(RankId peer, std::span<std::byte> data) override {
    channel_.checkUsable(peer);
    if (receiver_.expects(peer)) {
      channel_.breakWith(
          ErrorCode::kInternal,
          fmt::format("rank {} receives from rank {} before it has waited for its posted receive", rank(),
                      peer));
    }
    channel_.waitedTime().beginOperation();
    shm::IncomingMessage message(channel_, shm::Channel::kPointToPoint, peer, shm::Operation::kSend,
                                 data.size(), {&peer, 1});
    message.copyTo(data.data());
  }

  std::unique_ptr<ReceiveHandle> postReceive(RankId peer, std::span<std::byte> data) override {
    channel_.checkUsable(peer);
    return std::make_unique<EarlyReceive>(channel_, receiver_, peer, data);
  }

 private:
  void checkChannel() const override { channel_.checkUsable(rank()); }

  shm::EarlyReceiver receiver_{channel_};  // gone before the channel
};

}  // namespace

std::unique_ptr<SharedMemoryCommunicator> SharedMemoryCommunicator::open(SharedSegments segments, RankId rank,
                                                                         std::chrono::milliseconds timeout,
                                                                         std::vector<RankId> names) {
  const size_t bytes = shm::controlBytes(segments.size());
  auto control = std::make_shared<shm::Mapping>(
      shm::Mapping::map(segments.controlDescriptor(), bytes, true, "the control segment"));
  return std::make_unique<Implementation>(std::move(segments), std::move(control), rank, timeout,
                                          std::move(names));
}

}  // namespace pipeshard
