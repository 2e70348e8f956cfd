#include "transport/shared/shared_memory.h"

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
  EarlyReceive(shm::Endpoint& endpoint, shm::EarlyReceiver& receiver, int peer, std::span<std::byte> data)
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

class Implementation : public SharedMemoryCommunicator {
 public:
  Implementation(SharedSegments segments, std::shared_ptr<shm::Mapping> control, int rank,
                 std::chrono::milliseconds timeout, std::vector<int> names)
      : endpoint_(std::move(segments), std::move(control), rank, timeout, std::move(names)) {}
  Implementation(const shm::Endpoint& first, shm::Lane lane) : endpoint_(first, lane) {}

  int rank() const override { return endpoint_.rank(); }
  int size() const override { return endpoint_.size(); }
  std::chrono::nanoseconds waited() const override { return endpoint_.waitedTime().get(); }
  std::span<std::byte> createArena(size_t bytes) override { return endpoint_.createArena(bytes); }

  std::unique_ptr<Communicator> openSecond() override {
    return std::make_unique<Implementation>(endpoint_, shm::Lane::kSecond);
  }

  bool progress() override { return endpoint_.progress(); }
  void interrupt() override { endpoint_.interrupt(); }

  std::unique_ptr<SendHandle> send(int peer, std::span<const std::byte> data) override {
    const shm::Ticket ticket = endpoint_.post(shm::Channel::kPointToPoint, peer, shm::Operation::kSend, data);
    return std::make_unique<Handle>(endpoint_, ticket, data.size());
  }

  void receive(int peer, std::span<std::byte> data) override {
    endpoint_.checkUsable(peer);
    if (receiver_.expects(peer)) {
      endpoint_.breakWith(
          ErrorCode::kInternal,
          fmt::format("rank {} receives from rank {} before it has waited for its posted receive", rank(),
                      peer));
    }
    endpoint_.waitedTime().beginOperation();
    shm::IncomingMessage message(endpoint_, shm::Channel::kPointToPoint, peer, shm::Operation::kSend,
                                 data.size(), {&peer, 1});
    message.copyTo(data.data());
  }

  std::unique_ptr<ReceiveHandle> postReceive(int peer, std::span<std::byte> data) override {
    endpoint_.checkUsable(peer);
    return std::make_unique<EarlyReceive>(endpoint_, receiver_, peer, data);
  }

  void allReduce(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                 size_t count) override {
    check(group, type);
    shm::allReduce(endpoint_, group, type, reduction, input, output, count);
  }

  void allGather(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    check(group, type);
    shm::allGather(endpoint_, group, type, input, output, count);
  }

  void reduceScatter(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                     size_t count) override {
    check(group, type);
    shm::reduceScatter(endpoint_, group, type, reduction, input, output, count);
  }

  void allToAll(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    check(group, type);
    shm::allToAll(endpoint_, group, type, input, output, count);
  }

  void broadcast(const Group& group, DataType type, int root, void* data, size_t count) override {
    check(group, type);
    checkRoot(rank(), group, root);
    shm::broadcast(endpoint_, group, type, root, data, count);
  }

  void barrier(const Group& group) override {
    check(group, DataType::kUint8);
    shm::barrier(endpoint_, group);
  }

 private:
  void check(const Group& group, DataType type) const {
    endpoint_.checkUsable(rank());
    checkGroup(rank(), size(), group, type);
  }

  shm::Endpoint endpoint_;
  shm::EarlyReceiver receiver_{endpoint_};  // gone before the endpoint
};

}  // namespace

std::unique_ptr<SharedMemoryCommunicator> SharedMemoryCommunicator::open(SharedSegments segments, int rank,
                                                                         std::chrono::milliseconds timeout,
                                                                         std::vector<int> names) {
  const size_t bytes = shm::controlBytes(static_cast<size_t>(segments.size()));
  auto control = std::make_shared<shm::Mapping>(
      shm::Mapping::map(segments.controlDescriptor(), bytes, true, "the control segment"));
  return std::make_unique<Implementation>(std::move(segments), std::move(control), rank, timeout,
                                          std::move(names));
}

}  // namespace pipeshard
