// Every plan of a model loads what any other has saved: parameters, optimizer states, moving averages and
// running statistics, bit for bit.
#include <algorithm>
#include <map>
#include <memory>

#include <gtest/gtest.h>

#include "ir/base/ids_format.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/checkpoint/save_shares.h"
#include "runtime/data/data.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/executor.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

// A rank that is loaded and takes no step: nothing is ever sent.
class MuteCommunicator : public Communicator {
 public:
  MuteCommunicator(RankId rank, int size) : rank_(rank), size_(size) {}
  RankId rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<SendHandle> send(RankId, std::span<const std::byte>) override { refuse(); }
  void receive(RankId, std::span<std::byte>) override { refuse(); }
  void allReduce(const Group&, DataType, Reduction, const void*, void*, size_t) override { refuse(); }
  void allGather(const Group&, DataType, const void*, void*, size_t) override { refuse(); }
  void reduceScatter(const Group&, DataType, Reduction, const void*, void*, size_t) override { refuse(); }
  void allToAll(const Group&, DataType, const void*, void*, size_t) override { refuse(); }
  void broadcast(const Group&, DataType, int, void*, size_t) override { refuse(); }
  void barrier(const Group&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { fail(ErrorCode::kInternal, "a rank that only loads communicates"); }
  RankId rank_;
  int size_;
};

struct LoadedRank {
  LoadedRank(const std::string& plan, RankId rank, int ranks)
      : executor(loadRank(plan, rank), {}),
        arena(executor.memory().total_bytes),
        communicator(rank, ranks),
        data(makeDataSource({}, executor.program())) {
    executor.attach(arena.bytes(), &communicator, data.get());
  }
  Executor executor;
  AlignedMemory arena;
  MuteCommunicator communicator;
  std::unique_ptr<DataSource> data;
};

class CheckpointMatrix : public ::testing::Test {
 protected:
  using Options = std::vector<std::string>;
  struct Saved {
    std::string plan;
    Checkpoint checkpoint;
    JoinedTensors tensors;
    std::map<std::string, JoinedTensors::Tensor> whole;  // all of them, read
  };

  // Trains two steps under the plan, whose workers save.
  Saved train(const std::string& model, const Options& common, const Options& options) {
    const std::string name = folder_.file(std::to_string(++plans_));
    Options plan = {"plan", model, "-o", name + ".plan"};
    for (const Options* more : {&common, &options}) plan.insert(plan.end(), more->begin(), more->end());
    const CommandResult planned = runPipeshard(plan);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    const CommandResult ran =
        runPipeshard({"run", name + ".plan", "--steps", "2", "--checkpoint", name, "--threads", "1"});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    Checkpoint checkpoint = readCheckpoint(listCheckpoints(name).at(0));
    JoinedTensors tensors = openTensors(checkpoint);
    Saved saved{name + ".plan", std::move(checkpoint), std::move(tensors), {}};
    for (const std::string& tensor : saved.tensors.names())
      saved.whole.emplace(tensor, saved.tensors.read(tensor));
    return saved;
  }

  static std::vector<std::unique_ptr<LoadedRank>> load(const std::string& plan) {
    std::vector<std::unique_ptr<LoadedRank>> ranks;
    const int count = countRanks(plan);
    for (const RankId rank : idsBelow<RankId>(count))
      ranks.push_back(std::make_unique<LoadedRank>(plan, rank, count));
    return ranks;
  }

  // Every rank has the boxes that it holds, and together they hold every element.
  static void expectHeld(const std::vector<std::unique_ptr<LoadedRank>>& ranks, const Saved& saved) {
    std::map<std::string, std::vector<bool>> held;
    for (const auto& [name, tensor] : saved.whole) held[name].resize(elementCount(tensor.shape));
    for (const auto& rank : ranks) {
      const Program& program = rank->executor.program();
      for (size_t b = 0; b < program.buffers.size(); ++b) {
        const Buffer& buffer = program.buffer(BufferId(b));
        const std::string name = stateTensorName(buffer);
        if (name.empty()) continue;
        expectBox(saved.whole.at(name), boxOf(buffer), rank->executor.content(BufferId(b)), held.at(name));
      }
    }
    for (const auto& [name, elements] : held)
      EXPECT_TRUE(std::all_of(elements.begin(), elements.end(), [](bool is_held) { return is_held; }))
          << name;
  }

  // Element by element, each found by its place in the whole tensor.
  static void expectBox(const JoinedTensors::Tensor& whole, const Shard& box,
                        std::span<const std::byte> content, std::vector<bool>& held) {
    const int64_t size = byteCount(whole.data_type, {});
    ASSERT_EQ(std::ssize(content), size * elementCount(box.size)) << whole.name;
    int64_t wrong = 0;
    for (int64_t element = 0; element < elementCount(box.size); ++element) {
      int64_t place = 0;
      int64_t rest = element;
      int64_t stride = 1;
      for (size_t axis = box.size.size(); axis-- > 0; rest /= box.size[axis]) {
        place += (box.start[axis] + rest % box.size[axis]) * stride;
        stride *= whole.shape[axis];
      }
      held.at(place) = true;
      const std::byte* const want = whole.bytes.data() + place * size;
      wrong += !std::equal(want, want + size, content.data() + element * size);
    }
    EXPECT_EQ(wrong, 0) << whole.name;
  }

  // What ranks of any plan save of it is the same again.
  void expectSavedAgain(const std::string& plan, const std::vector<std::unique_ptr<LoadedRank>>& ranks,
                        const Saved& saved) {
    const std::string name = folder_.file("again" + std::to_string(++plans_));
    CheckpointFolder folder(name, "job", 1);
    Checkpoint checkpoint = saved.checkpoint;
    checkpoint.files.clear();
    const SaveShares shares = shareSaves(ProgramFolder(plan).takeSet(), {ranks.size(), std::string()});
    for (const auto& rank : ranks) {
      CheckpointWriter writer([&](const SavedPart& part) {
        EXPECT_EQ(part.error, "");
        checkpoint.files.push_back(part.file);
      });
      for (const SavedBuffer& saved : shares.buffers[rank->executor.program().rank])
        cut_ += saved.rows ? 1 : 0;
      writer.save(rank->executor, shares.buffers[rank->executor.program().rank], 2, folder.partialOf(2), {});
    }
    const JoinedTensors again = openTensors(folder.commit(std::move(checkpoint)));
    ASSERT_EQ(again.names(), saved.tensors.names());
    for (const std::string& tensor : again.names())
      EXPECT_EQ(again.read(tensor).bytes, saved.whole.at(tensor).bytes) << tensor;
  }

  void expectAllPairs(const std::string& model, const Options& common, const std::vector<Options>& plans) {
    std::vector<Saved> saved;
    for (const Options& options : plans) saved.push_back(train(model, common, options));
    for (size_t to = 0; to < plans.size(); ++to) {
      const auto ranks = load(saved[to].plan);
      for (size_t from = 0; from < plans.size(); ++from) {
        SCOPED_TRACE("saved by plan " + std::to_string(from) + ", loaded by plan " + std::to_string(to));
        ASSERT_EQ(saved[from].tensors.names(), saved[to].tensors.names());
        for (const auto& rank : ranks) {
          std::fill(rank->arena.bytes().begin(), rank->arena.bytes().end(), std::byte{0x5a});
          adoptState(rank->executor, saved[from].tensors);
        }
        expectHeld(ranks, saved[from]);
      }
      expectSavedAgain(saved[to].plan, ranks, saved.back());
    }
  }

  TemporaryFolder folder_;
  int plans_ = 0;
  int cut_ = 0;  // tensors that were saved again in rows
};

// Tied weights, Adam's states and a moving average. Steps are cut in rows that three devices can share.
TEST_F(CheckpointMatrix, OfTwelvePlansOfATransformer) {
  expectAllPairs("examples/gpt2.onnx",
                 {"--dim", "batch=24", "--microbatches", "4", "--optimizer", "adamw:lr=1e-3", "--clip-norm",
                  "1", "--ema", "0.9"},
                 {{"--cluster", "1x1"},
                  {"--cluster", "1x4", "--stages", "uniform:4"},
                  {"--cluster", "2x2", "--stages", "uniform:2"},
                  {"--cluster", "1x4", "--stages", "uniform:1", "--method", "data-parallel"},
                  {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero2"},
                  {"--cluster", "1x4", "--stages", "uniform:1", "--method", "zero3"},
                  {"--cluster", "2x2", "--method", "megatron:2,2,1"},
                  {"--cluster", "1x4", "--method", "megatron:1,2,2"},
                  {"--cluster", "1x2", "--schedule", "interleaved"},
                  {"--cluster", "1x4", "--stage-devices", "3,1"},
                  {"--cluster", "1x3", "--stages", "uniform:3", "--schedule", "zb-h1"},
                  {"--cluster", "1x4", "--stages", "uniform:2", "--method", "auto"}});
}

TEST_F(CheckpointMatrix, OfPlansWithRunningStatistics) {
  expectAllPairs("examples/resnet.onnx",
                 {"--dim", "batch=24", "--microbatches", "2", "--optimizer", "sgd:lr=0.01,momentum=0.9"},
                 {{"--cluster", "1x1"},
                  {"--cluster", "1x2", "--stages", "uniform:2"},
                  {"--cluster", "2x2", "--stages", "uniform:2"},
                  {"--cluster", "1x4", "--stages", "uniform:1", "--method", "zero3"},
                  {"--cluster", "1x4", "--stage-devices", "1,3"}});
}

// States that have fewer axes than their parameters.
TEST_F(CheckpointMatrix, OfPlansWhoseStatesAreRowsAndColumns) {
  expectAllPairs("examples/mlp.onnx",
                 {"--dim", "batch=16", "--microbatches", "2", "--optimizer", "adafactor"},
                 {{"--cluster", "1x1"},
                  {"--cluster", "1x2", "--stages", "uniform:2"},
                  {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero3"},
                  {"--cluster", "1x8", "--stages", "uniform:1", "--method", "data-parallel"},
                  {"--cluster", "2x2", "--stages", "uniform:2", "--method", "tensor-parallel"}});
  EXPECT_GT(cut_, 0);
}

}  // namespace
}  // namespace pipeshard
