#include "runtime/data/prefetched_data.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

// What handing rows from thread to thread costs, at most: reads of a step that take less are made in the
// step.
constexpr std::chrono::nanoseconds kWorthwhile = std::chrono::microseconds(500);

class PrefetchedData : public DataSource {
 public:
  explicit PrefetchedData(std::unique_ptr<DataSource> source)
      : DataSource(source->inputs(), source->seed(), source->shorter()),
        source_(std::move(source)),
        reads_(2 * (source_->shorter().size() + 1)),
        thread_([this] { readAhead(); }) {}
  PrefetchedData(const PrefetchedData&) = delete;
  PrefetchedData& operator=(const PrefetchedData&) = delete;
  ~PrefetchedData() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    source_->cancel();
    thread_.join();
  }

  bool isLastBatch(int64_t step) const override { return source_->isLastBatch(step); }
  size_t lengthOf(int64_t step) const override { return source_->lengthOf(step); }
  int64_t stepsPerEpoch() const override { return source_->stepsPerEpoch(); }
  std::string describe() const override { return source_->describe(); }
  bool isSynthetic() const override { return source_->isSynthetic(); }
  std::optional<FileRow> fileRowOf(int64_t step, int64_t row) const override {
    return source_->fileRowOf(step, row);
  }
  bool mayWait() const override { return source_->mayWait(); }
  void cancel() override { source_->cancel(); }

 private:
  // A read that every step of a kind makes.
  struct Load {
    size_t input;
    Shard box;
    std::vector<std::byte> bytes;
    bool full = false;              // has what is asked for next
    std::exception_ptr error = {};  // that came up instead
  };
  // In the order in which a step of one size makes them.
  struct Reads {
    std::vector<Load> loads;
    size_t bytes = 0;
    bool known = false;  // all of them
  };

  Reads& readsOf(int64_t step) {
    const StepSize size = source_->sizeOf(step);
    return reads_[2 * size.length + (size.last_batch ? 1 : 0)];
  }

  void write(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) override {
    if (step != step_) beginStep(step);
    Reads& reads = readsOf(step);
    if (!reads.known) return learn(reads, input, step, box, out);
    const bool next =
        at_ < reads.loads.size() && reads.loads[at_].input == input && reads.loads[at_].box == box;
    if (!next || !follows_) {
      if (next) ++at_;
      return readNow(input, step, box, out);
    }
    Load& load = reads.loads[at_++];
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return load.full; });
    if (load.error) std::rethrow_exception(load.error);
    std::memcpy(out.data(), load.bytes.data(), out.size());
    load.full = false;
    lock.unlock();
    changed_.notify_all();
  }

  void readNow(size_t input, int64_t step, const Shard& box, std::span<std::byte> out) {
    const std::lock_guard reading(source_mutex_);
    const auto start = Clock::now();
    source_->fill(input, step, box, out);
    spent_ += std::chrono::nanoseconds(Clock::now() - start).count();
  }

  void learn(Reads& reads, size_t input, int64_t step, const Shard& box, std::span<std::byte> out) {
    readNow(input, step, box, out);
    if (reads.bytes + out.size() > kMostPrefetched) return;
    reads.bytes += out.size();
    reads.loads.push_back({input, box, std::vector<std::byte>(out.size())});
  }

  void beginStep(int64_t step) {
    {
      const std::lock_guard lock(mutex_);
      const bool was_known = step_ > 0 && readsOf(step_).known;
      const bool whole = step_ == 0 || !was_known || at_ == readsOf(step_).loads.size();
      if (step_ > 0) readsOf(step_).known = true;
      const int64_t spent = spent_.exchange(0);
      const bool worthwhile = std::max(spent, spent_before_) > kWorthwhile.count();
      spent_before_ = spent;
      const bool known = readsOf(step).known;
      follows_ = worthwhile && known && whole && step == step_ + 1 && ahead_ > 0;
      if (!follows_) restart(worthwhile ? step + 1 : 0);
      step_ = step;
      at_ = 0;
    }
    changed_.notify_all();
  }

  // Whatever the thread has read or is reading, it begins anew with this step; 0: it rests.
  void restart(int64_t step) {
    ++generation_;
    ahead_ = step;
    next_ = 0;
    for (Reads& reads : reads_) {
      for (Load& load : reads.loads) {
        load.full = false;
        load.error = nullptr;
      }
    }
  }

  // The read that the thread may make now; null: none.
  Load* nextLoad() {
    if (ahead_ == 0) return nullptr;
    if (Reads& reads = readsOf(ahead_); reads.known && next_ == reads.loads.size() && !reads.loads.empty()) {
      ++ahead_;
      next_ = 0;
    }
    Reads& reads = readsOf(ahead_);
    if (!reads.known || next_ >= reads.loads.size() || reads.loads[next_].full) return nullptr;
    return &reads.loads[next_];
  }

  void readAhead() {
    std::unique_lock lock(mutex_);
    while (true) {
      Load* load = nullptr;
      changed_.wait(lock, [&] { return stopping_ || (load = nextLoad()) != nullptr; });
      if (stopping_) return;
      const int64_t generation = generation_, step = ahead_;
      lock.unlock();
      std::exception_ptr error;
      try {
        readNow(load->input, step, load->box, load->bytes);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (generation != generation_) continue;
      load->error = error;
      load->full = true;
      ++next_;
      changed_.notify_all();
    }
  }

  const std::unique_ptr<DataSource> source_;
  std::mutex source_mutex_;        // held while source_ is read
  std::atomic<int64_t> spent_{0};  // nanoseconds of reading, since the step began

  // of the caller's thread
  int64_t step_ = 0;  // that is being read
  size_t at_ = 0;     // the read that it makes next
  int64_t spent_before_ = 0;
  bool follows_ = false;  // its reads have been, or are being, made ahead

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::vector<Reads> reads_;  // by size
  int64_t ahead_ = 0;         // the step that the thread reads; 0: not begun
  size_t next_ = 0;           // its next read
  int64_t generation_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: started when all else is there
};

}  // namespace

std::unique_ptr<DataSource> prefetch(std::unique_ptr<DataSource> source) {
  return std::make_unique<PrefetchedData>(std::move(source));
}

}  // namespace pipeshard
