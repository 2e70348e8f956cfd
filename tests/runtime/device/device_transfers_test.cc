// What a rank gives its device, and when: in the order that was proven, whatever the order of its
// instructions.
#include "runtime/device/device_transfers.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/ids_format.h"
#include "runtime/device/cpu_device.h"
#include "tests/expect_error.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

// Keeps what it was given.
class RecordingCommunicator : public DeviceCommunicator {
 public:
  void send(DeviceQueue&, RankId peer, std::span<const std::byte> data) override {
    given.push_back(fmt::format("send {} to {}", data.size(), peer));
  }
  void receive(DeviceQueue&, RankId peer, std::span<std::byte> data) override {
    if (fails) fail(ErrorCode::kPeerUnavailable, "gone");
    given.push_back(fmt::format("receive {} from {}", data.size(), peer));
  }
  void collective(DeviceQueue&, const std::vector<RankId>& group, const CollectiveCall& call) override {
    given.push_back(fmt::format("collective of {} over {}", call.count, group.size()));
  }
  bool hasFailedHere() const override { return false; }
  void check() override {
    if (interrupted) fail(ErrorCode::kPeerUnavailable, "interrupted");
  }
  void interrupt() override { interrupted = true; }
  void abort() noexcept override { aborted = true; }

  std::vector<std::string> given;
  bool fails = false, interrupted = false, aborted = false;
};

// Sends two messages before it receives one, and sums beside that.
Program program() {
  ProgramWriter writer(0, 2, 1);
  writer.program().groups = {idsAt<RankId>({0, 1})};
  writer.zero("a");
  writer.send(1, "a");
  writer.zero("sum");
  writer.allReduce(0, "sum");
  writer.inBackground();
  writer.zero("b");
  writer.send(1, "b");
  writer.receive(1, "c");
  writer.release("b");
  return writer.program();
}
constexpr CommunicationStep kSendA{1, 0}, kSum{3, 0}, kSendB{5, 0}, kReceiveC{6, 0};

class DeviceTransfersTest : public ::testing::Test {
 protected:
  std::unique_ptr<DeviceTransfers> make(std::vector<CommunicationStep> order) {
    return std::make_unique<DeviceTransfers>(
        program_, DeviceTransfersPlan{&communicator_, std::move(order), milliseconds(100)}, *compute_,
        *lane_);
  }

  Program program_ = program();
  RecordingCommunicator communicator_;
  std::unique_ptr<DeviceQueue> compute_ = cpuDevice().makeQueue(), lane_ = cpuDevice().makeQueue();
  std::byte memory_[64] = {};
};

TEST_F(DeviceTransfersTest, WaitForTheirTurnAndTakeWhatWasPostedBefore) {
  const auto transfers = make({kSendA, kReceiveC, kSendB, kSum});
  for (int step = 0; step < 2; ++step) {
    communicator_.given.clear();
    transfers->beginStep();
    Communicator& foreground = transfers->foreground();
    const auto a = foreground.send(RankId(1), std::span(memory_, 1));
    const auto b = foreground.send(RankId(1), std::span(memory_, 2));
    EXPECT_THAT(communicator_.given, ElementsAre("send 1 to 1"));
    foreground.receive(RankId(1), std::span(memory_, 3));
    EXPECT_THAT(communicator_.given, ElementsAre("send 1 to 1", "receive 3 from 1", "send 2 to 1"));
    b->wait();
    transfers->background().allReduce(program_.groups[GroupId(0)], DataType::kFloat32, Reduction::kSum,
                                      memory_, memory_, 4);
    EXPECT_EQ(communicator_.given.back(), "collective of 4 over 2");
    transfers->look();
    EXPECT_FALSE(transfers->isWaiting());
    EXPECT_EQ(transfers->ended(), 4u * (step + 1));
  }
}

TEST_F(DeviceTransfersTest, OfOneThreadWaitForThatOfTheOther) {
  const auto transfers = make({kSendA, kSum, kReceiveC, kSendB});
  transfers->beginStep();
  Communicator& foreground = transfers->foreground();
  const auto a = foreground.send(RankId(1), std::span(memory_, 1));
  const auto b = foreground.send(RankId(1), std::span(memory_, 2));
  std::thread lane([&] {
    std::this_thread::sleep_for(milliseconds(20));
    transfers->background().allReduce(program_.groups[GroupId(0)], DataType::kFloat32, Reduction::kSum,
                                      memory_, memory_, 4);
  });
  foreground.receive(RankId(1), std::span(memory_, 3));
  lane.join();
  EXPECT_THAT(communicator_.given,
              ElementsAre("send 1 to 1", "collective of 4 over 2", "receive 3 from 1", "send 2 to 1"));
}

TEST_F(DeviceTransfersTest, ThatAreLeftOutHoldUpNobody) {
  const auto transfers = make({kSendA, kReceiveC, kSendB, kSum});
  transfers->beginStep();
  const auto a = transfers->foreground().send(RankId(1), std::span(memory_, 1));
  const auto b = transfers->foreground().send(RankId(1), std::span(memory_, 2));
  transfers->leaveOut(kReceiveC.instruction);
  EXPECT_THAT(communicator_.given, ElementsAre("send 1 to 1", "send 2 to 1"));
}

TEST_F(DeviceTransfersTest, ErrorsSayWhichInstructionAndAnInterruptEndsEveryWait) {
  const auto transfers = make({kSendA, kSum, kReceiveC, kSendB});
  transfers->beginStep();
  const auto a = transfers->foreground().send(RankId(1), std::span(memory_, 1));
  const auto b = transfers->foreground().send(RankId(1), std::span(memory_, 2));
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    transfers->abort();
  });
  EXPECT_ERROR(transfers->foreground().receive(RankId(1), std::span(memory_, 3)), ErrorCode::kPeerUnavailable,
               "interrupted");
  other.join();
  EXPECT_TRUE(communicator_.aborted);
  EXPECT_ERROR(transfers->look(), ErrorCode::kPeerUnavailable, "interrupted");

  RecordingCommunicator broken;
  broken.fails = true;
  DeviceTransfers others(program_, {&broken, {kReceiveC, kSendA, kSum, kSendB}, milliseconds(100)}, *compute_,
                         *lane_);
  others.beginStep();
  const auto first = others.foreground().send(RankId(1), std::span(memory_, 1));
  const auto second = others.foreground().send(RankId(1), std::span(memory_, 2));
  EXPECT_ERROR(others.foreground().receive(RankId(1), std::span(memory_, 3)), ErrorCode::kPeerUnavailable,
               "receive peer=1 -> \"c\": gone");
}

TEST_F(DeviceTransfersTest, CallsThatAreNotTheProgramsAreRefused) {
  const auto transfers = make({kSendA, kReceiveC, kSendB, kSum});
  transfers->beginStep();
  EXPECT_ERROR(transfers->foreground().receive(RankId(1), std::span(memory_, 1)), ErrorCode::kInternal,
               "where send peer=1 \"a\" is next");
}

}  // namespace
}  // namespace pipeshard
