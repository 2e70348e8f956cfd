// Communicator::waited(): waiting for a peer told apart from transfer.
#include <algorithm>
#include <thread>

#include "tests/transport/transports.h"

namespace pipeshard::testing {
namespace {

using std::chrono::milliseconds;

class Waited : public TransportTest {
 protected:
  // Processes that a busy machine does not let run look like late peers: what a transport gets right, it gets
  // right in one of the runs of some seconds.
  void expectOnce(int size, const std::function<void(Rank&)>& body) {
    std::vector<RankResult> results;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      results = run(size, body);
      if (std::all_of(results.begin(), results.end(),
                      [](const RankResult& result) { return result.exit_code == 0; }))
        return;
    }
    expectSuccess(results);
  }
};

constexpr milliseconds kLate{60};
constexpr milliseconds kWaits{50};     // at least, for one that comes kLate
constexpr milliseconds kPromptly{25};  // at most, for one that is there

void require(bool holds, const std::string& what, Rank& rank) {
  if (holds) return;
  const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(rank->waited()).count();
  throw std::runtime_error(what + ": waited() is " + std::to_string(waited) + " us");
}

TEST_P(Waited, OfAReceiveIsTheTimeUntilItsMessageCame) {
  expectOnce(2, [](Rank& rank) {
    for (const size_t bytes : {size_t{8}, size_t{4} << 20}) {
      const std::span<std::byte> data = rank.pattern(bytes, 1);
      if (rank.rank() == 0) {
        std::this_thread::sleep_for(kLate);
        const auto late = rank->send(RankId(1), data);
        const auto prompt = rank->send(RankId(1), data);
        late->wait();
        prompt->wait();
      } else {
        rank->receive(RankId(0), data);
        require(rank->waited() >= kWaits, "of a late message", rank);
        std::this_thread::sleep_for(milliseconds(20));  // the second one comes meanwhile
        rank->receive(RankId(0), data);
        require(rank->waited() < kPromptly, "of a message that is there", rank);
      }
      rank->barrier(rank.everybody());
    }
  });
}

TEST_P(Waited, OfAPostedReceiveIsWhatItsWaitWaited) {
  expectOnce(2, [](Rank& rank) {
    const std::span<std::byte> data = rank.pattern(1 << 20, 1);
    if (rank.rank() == 0) {
      rank->send(RankId(1), data)->wait();
      std::this_thread::sleep_for(kLate);
      rank->send(RankId(1), data)->wait();
    } else {
      const auto first = rank->postReceive(RankId(0), data);
      std::this_thread::sleep_for(milliseconds(20));
      first->wait();
      require(first->waited() < kPromptly, "of a message that is there", rank);
      const auto second = rank->postReceive(RankId(0), data);
      second->wait();
      require(second->waited() >= kWaits - milliseconds(20), "of a late message", rank);
    }
  });
}

TEST_P(Waited, OfACollectiveIsTheTimeUntilTheLastOneCame) {
  expectOnce(3, [](Rank& rank) {
    for (const size_t count : {size_t{8}, size_t{1} << 20}) {
      const std::span<float> data = rank.allocate<float>(count);
      rank->barrier(rank.everybody());
      if (rank.rank() == 2) std::this_thread::sleep_for(kLate);
      rank->allReduce(rank.everybody(), DataType::kFloat32, Reduction::kSum, data.data(), data.data(), count);
      if (rank.rank() == 2) {
        require(rank->waited() < kPromptly, "of the last one", rank);
      } else {
        require(rank->waited() >= kWaits, "of one that came early", rank);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Waited, ::testing::ValuesIn(allTransports()), transportName);

}  // namespace
}  // namespace pipeshard::testing
