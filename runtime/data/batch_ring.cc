#include "runtime/data/batch_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "runtime/data/batch_check.h"
#include "runtime/data/row_lengths.h"

namespace pipeshard {
namespace {

constexpr size_t kHeaderBytes = 4096;
constexpr size_t kAlignment = 64;
// As many batches are kept as fit into this, from two to kMostSlots.
constexpr size_t kWorthKeeping = size_t{256} << 20;
constexpr int64_t kMostSlots = 8;
constexpr std::chrono::microseconds kFirstNap{20}, kLongestNap{1'000};

class RingData : public DataSource {
 public:
  RingData(const DataDescription& description, const std::vector<ProgramInput>& inputs,
           const ShorterInputs& shorter)
      : DataSource(inputs, description.seed, shorter),
        ring_(BatchRing::inherit(description.ring_descriptor, inputs)) {}
  bool isLastBatch(int64_t) const override { return false; }
  size_t lengthOf(int64_t step) const override {
    if (shorter_.empty()) return 0;
    waitFor(step);
    return ring_.length(step);
  }
  bool mayWait() const override { return true; }
  void cancel() override { cancelled_.store(true); }

 private:
  void waitFor(int64_t step) const {
    for (auto nap = kFirstNap; ring_.published() < step; nap = std::min(2 * nap, kLongestNap)) {
      if (cancelled_.load()) fail(ErrorCode::kPeerUnavailable, "the wait for step {} was given up", step);
      std::this_thread::sleep_for(nap);
    }
  }

  void write(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) override {
    waitFor(step);
    const std::span<const std::byte> batch = ring_.batch(step, input);
    const size_t each = dataTypeSize(inputs_[input].data_type);
    size_t done = 0;
    forEachRun(inputIn(step, input).shape, box, [&](int64_t first, int64_t count) {
      std::memcpy(out.data() + done, batch.data() + first * each, count * each);
      done += count * each;
    });
  }

  BatchRing ring_;
  std::atomic<bool> cancelled_{false};
};

class DescribedPipe : public DataSource {
 public:
  DescribedPipe(const DataDescription& description, const std::vector<ProgramInput>& inputs,
                const ShorterInputs& shorter)
      : DataSource(inputs, description.seed, shorter),
        description_(description),
        lengths_(description, inputs, shorter) {}
  bool isLastBatch(int64_t) const override { return false; }
  std::string describe() const override {
    const std::string source = printData(description_);
    const std::string text =
        fmt::format("{}; {} examples a step, as they come", source, batchRowsOf(inputs_, source));
    if (!lengths_.several()) return text;
    return fmt::format("{}, in sequences of {}; {}", text, lengths_.describeLengths(),
                       lengths_.describePadding());
  }

 private:
  void write(size_t, int64_t, const Shard&, std::span<std::byte>) override {
    PIPESHARD_CHECK(false, "a pipe is read by the coordinator alone");
  }

  DataDescription description_;
  RowLengths lengths_;
};

}  // namespace

struct BatchRing::Header {
  std::atomic<int64_t> published;
  int64_t slots;
  uint64_t slot_bytes;
  std::atomic<uint32_t> lengths[kMostSlots];
};

BatchRing::Header& BatchRing::header() const { return *reinterpret_cast<Header*>(mapping_.data()); }

void BatchRing::place(const std::vector<ProgramInput>& inputs) {
  for (const ProgramInput& input : inputs) {
    offsets_.push_back(slot_bytes_);
    bytes_.push_back(input.drawn ? 0 : byteCount(input.data_type, input.shape));
    slot_bytes_ += (bytes_.back() + kAlignment - 1) / kAlignment * kAlignment;
  }
}

BatchRing BatchRing::create(const std::vector<ProgramInput>& inputs, int64_t steps_done) {
  BatchRing ring;
  ring.place(inputs);
  const int64_t fitting = static_cast<int64_t>(kWorthKeeping / std::max<size_t>(1, ring.slot_bytes_));
  const int64_t slots = std::clamp<int64_t>(fitting, 2, kMostSlots);
  const size_t bytes = kHeaderBytes + slots * ring.slot_bytes_;
  ring.memory_ = Descriptor(::memfd_create("pipeshard-batches", 0));
  // taken now: memory that is missing later would be a signal
  const int reason =
      ring.memory_.valid() ? ::posix_fallocate(ring.memory_.get(), 0, static_cast<off_t>(bytes)) : errno;
  if (reason != 0) {
    fail(ErrorCode::kOutOfMemory, "cannot take {} bytes for {} batches of the loader: {}", bytes, slots,
         std::strerror(reason));
  }
  ring.mapping_ = shm::Mapping::map(ring.memory_.get(), bytes, true, "batches of the loader");
  new (ring.mapping_.data()) Header{steps_done, slots, ring.slot_bytes_, {}};
  return ring;
}

BatchRing BatchRing::inherit(int descriptor, const std::vector<ProgramInput>& inputs) {
  BatchRing ring;
  ring.place(inputs);
  struct stat status {};
  const int flags = ::fcntl(descriptor, F_GETFD);
  if (flags < 0 || ::fstat(descriptor, &status) != 0 || ::fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC) < 0)
    fail(ErrorCode::kConfiguration, "descriptor {} for batches is not open in this process", descriptor);
  const auto bytes = static_cast<size_t>(status.st_size);
  ring.memory_ = Descriptor(descriptor);
  const bool has_header = bytes >= kHeaderBytes;
  if (has_header) ring.mapping_ = shm::Mapping::map(descriptor, bytes, false, "batches of the loader");
  if (!has_header || ring.header().slot_bytes != ring.slot_bytes_ ||
      bytes != kHeaderBytes + ring.header().slots * ring.slot_bytes_)
    fail(ErrorCode::kConfiguration, "the batches behind descriptor {} are of other inputs", descriptor);
  return ring;
}

int64_t BatchRing::slots() const { return header().slots; }

std::span<std::byte> BatchRing::batch(int64_t step, size_t input) const {
  std::byte* const slot = mapping_.data() + kHeaderBytes + step % slots() * slot_bytes_;
  return {slot + offsets_.at(input), bytes_.at(input)};
}

void BatchRing::setLength(int64_t step, size_t length) const {
  header().lengths[step % slots()].store(static_cast<uint32_t>(length), std::memory_order_relaxed);
}

size_t BatchRing::length(int64_t step) const {
  return header().lengths[step % slots()].load(std::memory_order_relaxed);
}

void BatchRing::publish(int64_t step) const { header().published.store(step, std::memory_order_release); }

int64_t BatchRing::published() const { return header().published.load(std::memory_order_acquire); }

std::unique_ptr<DataSource> makeRingData(const DataDescription& description,
                                         const std::vector<ProgramInput>& inputs,
                                         const ShorterInputs& shorter) {
  return std::make_unique<RingData>(description, inputs, shorter);
}

std::unique_ptr<DataSource> describePipe(const DataDescription& description,
                                         const std::vector<ProgramInput>& inputs,
                                         const ShorterInputs& shorter) {
  return std::make_unique<DescribedPipe>(description, inputs, shorter);
}

}  // namespace pipeshard
