#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/execute/executor_parts.h"
#include "runtime/files/weights.h"

// How a loaded program gets its memory, communicators and data: alone, beside another that keeps the same
// tensors, or as the guest of one that keeps more.
namespace pipeshard {
namespace {

int64_t bytesOf(const Buffer& buffer) { return byteCount(buffer.data_type, buffer.shape); }

}  // namespace

void Executor::bind(std::span<std::byte> arena, Communicator* communicator, DataSource* data,
                    Communicator* background) {
  PIPESHARD_CHECK(actions_.empty(), "attach was called twice");
  PIPESHARD_CHECK(std::ssize(arena) >= memory_.total_bytes, "arena of {} bytes, needed {}", arena.size(),
                  memory_.total_bytes);
  const int size = communicator == nullptr ? 1 : communicator->size();
  if (size != program().world_size) {
    fail(ErrorCode::kConfiguration, "rank {}: the program is for {} ranks, the communicator has {}",
         program().rank, program().world_size, size);
  }
  arena_ = arena;
  if (transfers_plan_) {
    const auto behind = waitsOfMessages(program(), accumulation_, memory_, memoryOfRuns());
    transfers_ = std::make_unique<DeviceTransfers>(program(), std::move(*transfers_plan_), *compute_,
                                                   *lane_queue_, behind);
    communicator = &transfers_->foreground();
    if (background != nullptr) background = &transfers_->background();
  }
  communicator_ = communicator;
  background_ = background;
  if (communicator != nullptr) collectives_ = makeCollectives(*communicator, watch_.waiting, *compute_);
  if (background != nullptr)
    background_collectives_ = makeCollectives(*background, watch_.lane_waiting, *lane_queue_);
  data_ = data;
  if (program().guard.valid())
    guard_.emplace(program(), *compute_, [this](BufferId id) { return place(id); });
  makeActions();
  placeStaging();
  placeFaults();
  startLane();
}

std::unique_ptr<Executor::GroupCollectives> Executor::makeCollectives(Communicator& communicator,
                                                                      std::atomic<bool>& waiting,
                                                                      DeviceQueue& queue) const {
  MemoryBlock staging;
  if (isStaged()) {
    size_t bytes = 0;
    for (const auto& subgraph : subgraphs_) bytes = std::max(bytes, subgraph->collectiveBytes());
    staging = device_->allocateHost(bytes);
  }
  return std::make_unique<GroupCollectives>(program(), communicator, waiting, queue,
                                            isStaged() ? std::optional(std::move(staging)) : std::nullopt);
}

void Executor::communicateBy(DeviceTransfersPlan plan) {
  PIPESHARD_CHECK(actions_.empty(), "attach was called before");
  transfers_plan_ = std::move(plan);
}

void Executor::attach(std::span<std::byte> arena, Communicator* communicator, DataSource* data,
                      Communicator* background) {
  bind(arena, communicator, data, background);
  for (size_t b = 0; b < program().buffers.size(); ++b) {
    watch_.buffers_loaded.store(b, std::memory_order_relaxed);
    if (!isPersistent(program().buffer(BufferId(b)).kind)) continue;
    try {
      write(BufferId(b), [&](std::span<std::byte> out) {
        loadInitialContent(program().buffer(BufferId(b)), image_.directory, options_.seed, out);
      });
    } catch (Error& error) {
      error.addContext(fmt::format("rank {}", program().rank));
      throw;
    }
  }
  watch_.buffers_loaded.store(program().buffers.size());
}

void Executor::attachBeside(const Executor& other, std::span<std::byte> arena, Communicator* communicator,
                            DataSource* data, Communicator* background) {
  const auto persistent = [](const Executor& executor) {
    std::map<std::string, std::tuple<BufferKind, DataType, Shape, Shape, Shape, int64_t>> found;
    for (size_t b = 0; b < executor.program().buffers.size(); ++b) {
      const Buffer& buffer = executor.program().buffer(BufferId(b));
      if (!isPersistent(buffer.kind)) continue;
      const Shard box = boxOf(buffer);
      found[buffer.name] = {buffer.kind, buffer.data_type, wholeShape(buffer),
                            box.start,   box.size,         executor.memory().offsets[b]};
    }
    return found;
  };
  if (persistent(*this) != persistent(other)) {
    fail(ErrorCode::kConfiguration,
         "rank {}: the program of a shorter batch, or of shorter sequences, keeps other tensors across steps "
         "than that of whole batches; plan again",
         program().rank);
  }
  keeper_ = &other;
  bind(arena, communicator, data, background);
}

// Its queue is another: what it has written between steps is awaited before they are read.
void Executor::awaitKeeper() const {
  if (keeper_ != nullptr) keeper_->compute_->synchronize();
}

// Of what lives across steps, which is first in the arena.
int64_t Executor::persistentBytes() const {
  int64_t end = 0;
  for (size_t b = 0; b < program().buffers.size(); ++b) {
    if (isPersistent(program().buffer(BufferId(b)).kind))
      end = std::max(end, memory_.offsets[b] + bytesOf(program().buffer(BufferId(b))));
  }
  return alignedBytes(end, device_->alignment());
}

int64_t Executor::guestBytes(const Executor& host) const {
  return memory_.total_bytes - persistentBytes() + host.persistentBytes();
}

void Executor::attachAsGuest(const Executor& host, std::span<std::byte> arena, Communicator* communicator,
                             DataSource* data, Communicator* background) {
  std::map<std::string, BufferId> kept;
  for (size_t b = 0; b < host.program().buffers.size(); ++b) {
    const Buffer& buffer = host.program().buffer(BufferId(b));
    if (isPersistent(buffer.kind)) kept[buffer.name] = BufferId(b);
  }
  const int64_t shift = host.persistentBytes() - persistentBytes();
  std::vector<int64_t> offsets = memory_.offsets;
  for (size_t b = 0; b < offsets.size(); ++b) {
    const Buffer& buffer = program().buffer(accumulation_.placeOf(BufferId(b)));
    offsets[b] += shift;
    if (!isPersistent(buffer.kind)) continue;
    const auto found = kept.find(buffer.name);
    const Buffer* of_host = found == kept.end() ? nullptr : &host.program().buffer(found->second);
    if (of_host == nullptr || of_host->data_type != buffer.data_type ||
        wholeShape(*of_host) != wholeShape(buffer) || boxOf(*of_host) != boxOf(buffer)) {
      fail(ErrorCode::kConfiguration,
           "rank {}: the evaluation works on '{}' {}, which the program that trains does not keep so; plan "
           "again",
           program().rank, buffer.name, shapeToString(buffer.shape));
    }
    offsets[b] = host.memory_.offsets[found->second.index()];
  }
  memory_.offsets = std::move(offsets);
  memory_.run_base += shift;
  memory_.lane_offset += shift;
  memory_.total_bytes += shift;
  keeper_ = &host;
  bind(arena, communicator, data, background);
}

}  // namespace pipeshard
