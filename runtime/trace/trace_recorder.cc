#include "runtime/trace/trace_recorder.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr uint64_t kMagic = 0x3230435254534350;  // "PCSTRC02"
constexpr size_t kLine = 64;

size_t aligned(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

int64_t nanoseconds(TraceRecorder::Time time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

struct Header {
  uint64_t magic;
  int64_t rank;
  uint64_t slots;
  uint64_t used;  // slots: those behind have never been written
  uint64_t capacity[kTraceLanes];
  uint64_t live_counts[kMostTracedPrograms];  // by program; the tables follow the header
};

// Written last, so that a reader never sees more than there is.
void publish(uint64_t& place, uint64_t value) {
  std::atomic_ref<uint64_t>(place).store(value, std::memory_order_release);
}

uint64_t published(const uint64_t& place) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(place)).load(std::memory_order_acquire);
}

struct SlotImage {
  uint64_t number;  // of the step among those that have begun, from 1 on; 0: unused, or being reset
  int64_t step;
  int64_t batch;
  uint64_t program;
  int64_t start_ns;
  int64_t end_ns;
  uint64_t counts[kTraceLanes];
};

size_t slotBytes(const size_t (&capacity)[kTraceLanes]) {
  return aligned(sizeof(SlotImage)) +
         aligned((capacity[0] + capacity[1] + capacity[2]) * sizeof(TraceRecord));
}

TraceLane laneOf(const Instruction& instruction) {
  if (!instruction.background) return TraceLane::kForeground;
  return instruction.kind == InstructionKind::kReceive ? TraceLane::kPosted : TraceLane::kBackground;
}

size_t collectivesOf(const Program& program, const Instruction& instruction) {
  return instruction.subgraph.valid() ? program.subgraphs[instruction.subgraph.index()].collectives.size()
                                      : 0;
}

}  // namespace

struct TraceRecorder::Slot : SlotImage {};

TraceRecorder::TraceRecorder(RankId rank, std::vector<TracedProgram> programs, int64_t steps,
                             size_t most_bytes)
    : rank_(rank), programs_(std::move(programs)) {
  PIPESHARD_CHECK(steps >= 1, "a recording of {} steps", steps);
  PIPESHARD_CHECK(!programs_.empty() && programs_.size() <= kMostTracedPrograms, "{} programs",
                  programs_.size());
  size_t tables = 0, rings = 1;
  for (const TracedProgram& traced : programs_) {
    size_t counts[kTraceLanes] = {};
    for (const Instruction& instruction : traced.program->instructions) {
      counts[static_cast<size_t>(laneOf(instruction))] += 1 + collectivesOf(*traced.program, instruction);
    }
    for (size_t lane = 0; lane < kTraceLanes; ++lane)
      capacity_[lane] = std::max(capacity_[lane], counts[lane]);
    tables += traced.live_bytes.size() * sizeof(int64_t);
    if (traced.evaluates) rings = 2;
  }
  slot_bytes_ = slotBytes(capacity_);
  ring_slots_ = std::clamp<size_t>(most_bytes / slot_bytes_ / rings, 1, steps);
  slots_ = rings * ring_slots_;
  slots_offset_ = aligned(sizeof(Header) + tables);
  bytes_ = slots_offset_ + slots_ * slot_bytes_;
}

void TraceRecorder::place(std::span<std::byte> memory) {
  PIPESHARD_CHECK(memory.size() >= bytes_, "{} bytes for a recording of {}", memory.size(), bytes_);
  memory_ = memory.data();
  Header header{0, static_cast<int64_t>(rank_.index()),        slots_,
                0, {capacity_[0], capacity_[1], capacity_[2]}, {}};
  std::byte* table = memory_ + sizeof(Header);
  for (size_t p = 0; p < programs_.size(); ++p) {
    const std::vector<int64_t>& live = programs_[p].live_bytes;
    header.live_counts[p] = live.size();
    if (!live.empty()) std::memcpy(table, live.data(), live.size() * sizeof(int64_t));
    table += live.size() * sizeof(int64_t);
  }
  std::memcpy(memory_, &header, sizeof header);
  publish(reinterpret_cast<Header*>(memory_)->magic, kMagic);
}

TraceRecorder::Slot& TraceRecorder::slot(size_t index) const {
  return *reinterpret_cast<Slot*>(memory_ + slots_offset_ + index * slot_bytes_);
}

void TraceRecorder::beginStep(int64_t step, uint32_t program, Time start) {
  const bool evaluates = programs_[program].evaluates;
  const size_t index = (evaluates ? ring_slots_ : 0) + begun_[evaluates ? 1 : 0]++ % ring_slots_;
  current_ = &slot(index);
  publish(current_->number, 0);
  if (!evaluates) last_step_ = step;
  current_->step = last_step_;
  current_->batch = evaluates ? step : 0;
  current_->program = program;
  current_->start_ns = nanoseconds(start);
  current_->end_ns = 0;
  auto* records =
      reinterpret_cast<TraceRecord*>(reinterpret_cast<std::byte*>(current_) + aligned(sizeof(Slot)));
  for (size_t lane = 0; lane < kTraceLanes; ++lane) {
    publish(current_->counts[lane], 0);
    tracks_[lane] = {.records = records, .capacity = capacity_[lane]};
    records += capacity_[lane];
  }
  publish(current_->number, begun_[0] + begun_[1]);
  uint64_t& used = reinterpret_cast<Header*>(memory_)->used;
  publish(used, std::max<uint64_t>(used, index + 1));
}

void TraceRecorder::endStep(Time end) { current_->end_ns = nanoseconds(end); }

TraceRecord* TraceRecorder::append(TraceLane lane) {
  Track& track = tracks_[static_cast<size_t>(lane)];
  PIPESHARD_CHECK(track.count < track.capacity, "more than the {} records that a step has", track.capacity);
  return &track.records[track.count++];
}

void TraceRecorder::begin(TraceLane lane, size_t instruction, Time start) {
  Track& track = tracks_[static_cast<size_t>(lane)];
  track.current = track.count;
  track.parts = 0;
  *append(lane) = {.start_ns = nanoseconds(start), .instruction = static_cast<uint32_t>(instruction)};
  publish(current_->counts[static_cast<size_t>(lane)], track.count);
}

void TraceRecorder::end(TraceLane lane, Time end, std::chrono::nanoseconds waited) {
  Track& track = tracks_[static_cast<size_t>(lane)];
  TraceRecord& record = track.records[track.current];
  record.waited_ns = waited.count();
  record.end_ns = nanoseconds(end);
}

void TraceRecorder::endPosted(size_t instruction, Time arrived, Time end) {
  Track& track = tracks_[static_cast<size_t>(TraceLane::kPosted)];
  for (size_t i = track.count; i-- > 0;) {  // few have been posted since
    TraceRecord& record = track.records[i];
    if (record.instruction != instruction) continue;
    record.waited_ns = nanoseconds(arrived) - record.start_ns;
    record.end_ns = nanoseconds(end);
    return;
  }
}

void TraceRecorder::beginPart(TraceLane lane, Time start) {
  Track& track = tracks_[static_cast<size_t>(lane)];
  const uint32_t instruction = track.records[track.current].instruction;
  *append(lane) = {.start_ns = nanoseconds(start), .instruction = instruction, .part = ++track.parts};
  publish(current_->counts[static_cast<size_t>(lane)], track.count);
}

void TraceRecorder::correct(TraceLane lane, size_t record, Time start, Time end,
                            std::chrono::nanoseconds waited) {
  TraceRecord& of = tracks_[static_cast<size_t>(lane)].records[record];
  of.start_ns = nanoseconds(start);
  of.end_ns = nanoseconds(end);
  of.waited_ns = waited.count();
}

void TraceRecorder::endPart(TraceLane lane, Time end, std::chrono::nanoseconds waited) {
  Track& track = tracks_[static_cast<size_t>(lane)];
  TraceRecord& record = track.records[track.count - 1];
  record.waited_ns = waited.count();
  record.end_ns = nanoseconds(end);
}

namespace {

[[noreturn]] void failBroken(const char* why) {
  fail(ErrorCode::kConfiguration, "the recording of a rank is broken: {}", why);
}

struct Recording {
  Header header;
  size_t capacity[kTraceLanes];
  size_t slots_offset;
  size_t slot_bytes;
  size_t slots;  // that were used
};

std::optional<Recording> findRecording(std::span<const std::byte> memory) {
  if (memory.size() < sizeof(Header)) return std::nullopt;
  const auto& shared = *reinterpret_cast<const Header*>(memory.data());
  if (published(shared.magic) == 0) return std::nullopt;
  Recording found{};
  std::memcpy(&found.header, memory.data(), sizeof(Header));
  const Header& header = found.header;
  if (header.magic != kMagic) failBroken("it does not begin as one");
  constexpr uint64_t kMost = uint64_t{1} << 31;
  uint64_t live_count = 0;
  uint64_t largest = std::max({header.capacity[0], header.capacity[1], header.capacity[2], header.slots});
  for (const uint64_t count : header.live_counts) {
    largest = std::max(largest, count);
    live_count += std::min(count, kMost);
  }
  if (largest > kMost) {
    failBroken("it claims to be impossibly large");
  }
  std::copy(std::begin(header.capacity), std::end(header.capacity), found.capacity);
  found.slots_offset = aligned(sizeof(Header) + live_count * sizeof(int64_t));
  found.slot_bytes = slotBytes(found.capacity);
  found.slots = std::min(header.slots, published(shared.used));
  if (found.slots_offset > memory.size() ||
      (memory.size() - found.slots_offset) / found.slot_bytes < found.slots) {
    failBroken("it is cut off");
  }
  return found;
}

TraceStepRecords readStep(const std::byte* place, const Recording& recording) {
  const auto& slot = *reinterpret_cast<const SlotImage*>(place);
  TraceStepRecords step{slot.step,     slot.batch,  static_cast<uint32_t>(slot.program),
                        slot.start_ns, slot.end_ns, {}};
  const auto* records = reinterpret_cast<const TraceRecord*>(place + aligned(sizeof(SlotImage)));
  for (size_t lane = 0; lane < kTraceLanes; ++lane) {
    const uint64_t count = published(slot.counts[lane]);
    if (count > recording.capacity[lane]) failBroken("a step has more records than fit");
    step.lanes[lane].assign(records, records + count);
    records += recording.capacity[lane];
  }
  return step;
}

}  // namespace

size_t usedTraceBytes(std::span<const std::byte> memory) {
  const std::optional<Recording> recording = findRecording(memory);
  return recording ? recording->slots_offset + recording->slots * recording->slot_bytes : 0;
}

std::optional<TraceRecords> readTraceRecords(std::span<const std::byte> memory) {
  const std::optional<Recording> recording = findRecording(memory);
  if (!recording) return std::nullopt;
  TraceRecords result{.rank = RankId(recording->header.rank), .live_bytes = {}, .steps = {}};
  const std::byte* table = memory.data() + sizeof(Header);
  for (const uint64_t count : recording->header.live_counts) {
    std::vector<int64_t> live(count);
    if (count > 0) std::memcpy(live.data(), table, count * sizeof(int64_t));
    table += count * sizeof(int64_t);
    result.live_bytes.push_back(std::move(live));
  }
  std::vector<std::pair<uint64_t, TraceStepRecords>> steps;
  for (size_t s = 0; s < recording->slots; ++s) {
    const std::byte* place = memory.data() + recording->slots_offset + s * recording->slot_bytes;
    const uint64_t number = published(reinterpret_cast<const SlotImage*>(place)->number);
    if (number > 0) steps.emplace_back(number, readStep(place, *recording));
  }
  std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [number, step] : steps) result.steps.push_back(std::move(step));
  return result;
}

}  // namespace pipeshard
