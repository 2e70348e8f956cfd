#include "transport/collectives/communicator.h"

namespace pipeshard {
namespace {

class LaterReceive : public ReceiveHandle {
 public:
  LaterReceive(Communicator& communicator, RankId peer, std::span<std::byte> data)
      : communicator_(communicator), peer_(peer), data_(data) {}
  void wait() override {
    communicator_.receive(peer_, data_);
    waited_ = communicator_.waited();
  }
  std::chrono::nanoseconds waited() const override { return waited_; }

 private:
  Communicator& communicator_;
  RankId peer_;
  std::span<std::byte> data_;
  std::chrono::nanoseconds waited_{};
};

}  // namespace

std::unique_ptr<ReceiveHandle> Communicator::postReceive(RankId peer, std::span<std::byte> data) {
  return std::make_unique<LaterReceive>(*this, peer, data);
}

}  // namespace pipeshard
