#include "runtime/profiling/profiling_rank.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <utility>

#include "ir/base/convert.h"
#include "ir/base/tensor_box.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

using Bytes = std::span<std::byte>;

constexpr size_t kNoiseCount = size_t{1} << 16;
constexpr uint64_t kSeed = 7;

// Standard normal, over and over.
const std::vector<float>& noise() {
  static const std::vector<float> numbers = [] {
    std::mt19937 random(kSeed);
    std::normal_distribution<float> normal;
    std::vector<float> made(kNoiseCount);
    for (float& number : made) number = normal(random);
    return made;
  }();
  return numbers;
}

void fillNormal(DataType type, float mean, float deviation, Bytes out) {
  std::vector<float> scaled = noise();
  for (float& number : scaled) number = mean + deviation * number;
  const size_t size = dataTypeSize(type);
  for (size_t done = 0; done < out.size(); done += kNoiseCount * size) {
    const size_t count = std::min(kNoiseCount, (out.size() - done) / size);
    convertElements(DataType::kFloat32, scaled.data(), type, out.data() + done, count);
  }
}

void fillIntegers(DataType type, int64_t low, int64_t high, Bytes out) {
  std::mt19937_64 random(kSeed);
  const size_t size = dataTypeSize(type);
  for (size_t at = 0; at + size <= out.size(); at += size) {
    const int64_t number =
        low + static_cast<int64_t>(random() % static_cast<uint64_t>(std::max<int64_t>(1, high - low)));
    std::memcpy(out.data() + at, &number, std::min(size, sizeof(number)));
  }
}

// So that products of it keep the size of what they multiply (Glorot and Bengio 2010); vectors, which shift
// and scale, are about 1.
void fillWeight(const Buffer& buffer, Bytes out) {
  if (buffer.shape.size() < 2) return fillNormal(buffer.data_type, 1.0F, 0.1F, out);
  int64_t fan = buffer.shape[0] + buffer.shape[1];
  for (size_t axis = 2; axis < buffer.shape.size(); ++axis) fan *= buffer.shape[axis];
  fillNormal(buffer.data_type, 0, std::sqrt(2.0F / static_cast<float>(std::max<int64_t>(1, fan))), out);
}

// Whole batches, made once.
class RepeatedData : public DataSource {
 public:
  explicit RepeatedData(const Program& program) : DataSource(program.inputs) {
    std::vector<ProgramInput> inputs = program.inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<std::byte>& batch = batches_.emplace_back();
      if (!isLoaded(program, inputs[i].name)) continue;
      batch.resize(byteCount(inputs[i].data_type, inputs[i].shape));
      if (isFloatingPoint(inputs[i].data_type)) {
        fillNormal(inputs[i].data_type, 0, 1, batch);
      } else {
        fillIntegers(inputs[i].data_type, inputs[i].low, inputs[i].high, batch);
      }
    }
  }
  bool isLastBatch(int64_t) const override { return false; }

 protected:
  void write(size_t input, int64_t, const Shard& box, Bytes out) override {
    const size_t size = dataTypeSize(inputs_[input].data_type);
    std::byte* to = out.data();
    forEachRun(inputs_[input].shape, box, [&](int64_t first, int64_t count) {
      std::memcpy(to, batches_[input].data() + first * size, count * size);
      to += count * size;
    });
  }

 private:
  static bool isLoaded(const Program& program, const std::string& name) {
    return std::any_of(program.instructions.begin(), program.instructions.end(),
                       [&](const Instruction& instruction) {
                         return instruction.kind == InstructionKind::kLoadInput &&
                                program.buffer(instruction.outputs[0]).value == name;
                       });
  }

  std::vector<std::vector<std::byte>> batches_;
};

struct Sent : SendHandle {
  bool done() override { return true; }
  void wait() override {}
};

// Peers that take everything and give noise.
class NoPeers : public Communicator {
 public:
  explicit NoPeers(const Program& program) : rank_(program.rank), size_(program.world_size) {
    for (const Instruction& instruction : program.instructions) {
      if (instruction.kind != InstructionKind::kReceive) continue;
      const Buffer& buffer = program.buffer(instruction.outputs[0]);
      std::vector<std::byte>& content = received_[byteCount(buffer.data_type, buffer.shape)];
      if (!content.empty()) continue;
      content.resize(byteCount(buffer.data_type, buffer.shape));
      // else zeros, which are valid indices
      if (isFloatingPoint(buffer.data_type)) fillNormal(buffer.data_type, 0, 1, content);
    }
  }

  RankId rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<SendHandle> send(RankId, std::span<const std::byte>) override {
    return std::make_unique<Sent>();
  }
  void receive(RankId, Bytes data) override {
    const auto content = received_.find(data.size());
    if (content != received_.end() && !data.empty())
      std::memcpy(data.data(), content->second.data(), data.size());
  }
  void allReduce(const Group&, DataType type, Reduction, const void* input, void* output,
                 size_t count) override {
    copy(input, output, count * dataTypeSize(type));
  }
  void allGather(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    const size_t bytes = count * dataTypeSize(type);
    for (size_t member = 0; member < group.size(); ++member)
      copy(input, static_cast<std::byte*>(output) + member * bytes, bytes);
  }
  void reduceScatter(const Group&, DataType type, Reduction, const void* input, void* output,
                     size_t count) override {
    copy(input, output, count * dataTypeSize(type));
  }
  void allToAll(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    copy(input, output, group.size() * count * dataTypeSize(type));
  }
  void broadcast(const Group&, DataType, int, void*, size_t) override {}
  void barrier(const Group&) override {}

 private:
  static void copy(const void* from, void* to, size_t bytes) {
    if (from != to && bytes > 0) std::memmove(to, from, bytes);
  }

  RankId rank_;
  int size_;
  std::map<size_t, std::vector<std::byte>> received_;  // by size
};

bool isFile(const Buffer& buffer) {
  return buffer.source && std::holds_alternative<WeightReference>(*buffer.source);
}

bool isFilled(const Buffer& buffer) {
  return !buffer.source && (buffer.kind == BufferKind::kParameter || buffer.kind == BufferKind::kWeight ||
                            buffer.kind == BufferKind::kForwardState);
}

RankImage withoutFiles(RankImage image) {
  for (Buffer& buffer : image.program.buffers) {
    if (isFile(buffer)) buffer.source.reset();
  }
  return image;
}

}  // namespace

StandaloneRank::StandaloneRank(RankImage image, const ExecutorOptions& options)
    : executor_(withoutFiles(std::move(image)), options) {
  const size_t bytes = executor_.memory().total_bytes;
  Bytes arena;
  if (executor_.device().isHostMemory()) {
    memory_ = SharedMemoryCommunicator::open(SharedSegments::create(1), RankId(0), std::chrono::seconds(1));
    arena = memory_->createArena(bytes);
  } else {
    device_memory_ = executor_.device().allocate(bytes);
    arena = device_memory_.bytes;
  }
  peers_ = std::make_unique<NoPeers>(program());
  background_peers_ = std::make_unique<NoPeers>(program());
  data_ = std::make_unique<RepeatedData>(program());
  executor_.attach(arena, peers_.get(), data_.get(), background_peers_.get());
  fillPersistent();
}

StandaloneRank::~StandaloneRank() = default;

void StandaloneRank::fillPersistent() {
  for (size_t b = 0; b < program().buffers.size(); ++b) {
    const Buffer& buffer = program().buffer(BufferId(b));
    if (!isFilled(buffer)) continue;
    if (isFloatingPoint(buffer.data_type)) {
      executor_.write(BufferId(b), [&](Bytes content) { fillWeight(buffer, content); });
      continue;
    }
    const auto input = std::find_if(program().inputs.begin(), program().inputs.end(),
                                    [&](const ProgramInput& i) { return i.name == buffer.value; });
    if (input == program().inputs.end()) continue;
    executor_.write(BufferId(b),
                    [&](Bytes content) { fillIntegers(buffer.data_type, input->low, input->high, content); });
  }
}

void StandaloneRank::runStep() { executor_.runStep(++step_); }

}  // namespace pipeshard
