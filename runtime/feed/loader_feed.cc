#include "runtime/feed/loader_feed.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ir/base/counted.h"
#include "runtime/feed/row_stream.h"

namespace pipeshard {
namespace {

constexpr std::string_view kStepMark = "{step}";

// Thrown inside the feeding thread when it is to end.
struct Stopped {};

}  // namespace

LoaderFeed::LoaderFeed(const DataDescription& description, const std::vector<ProgramInput>& inputs,
                       const ShorterInputs& shorter, int64_t steps_done, int64_t last_step)
    : description_(description),
      ring_(BatchRing::create(inputs, steps_done)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      news_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      steps_done_(steps_done),
      released_(steps_done),
      last_step_(last_step) {
  if (steps_done >= last_step) return;
  std::string command = description.command;
  skips_ = steps_done > 0 && command.find(kStepMark) == std::string::npos;
  for (size_t at = 0; (at = command.find(kStepMark, at)) != std::string::npos;)
    command.replace(at, kStepMark.size(), std::to_string(steps_done));
  if (command.empty()) {
    if (::isatty(STDIN_FILENO) == 1) {
      fail(ErrorCode::kUsage,
           "--data -: standard input is a terminal; pipe a loader into it, or use --data-command");
    }
    source_ = "standard input";
    input_ = STDIN_FILENO;
  } else {
    source_ = fmt::format("the loader `{}`", command);
    process_.emplace(command);
    input_ = process_->output().get();
  }
  thread_ = std::thread(
      [this, inputs, shorter, steps_done, last_step] { feed(inputs, shorter, steps_done, last_step); });
}

LoaderFeed::~LoaderFeed() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  const uint64_t one = 1;
  // cannot be full: it is written once
  if (::write(stop_.get(), &one, sizeof one) < 0) std::terminate();
  if (thread_.joinable()) thread_.join();
}

void LoaderFeed::takeNews() const {
  uint64_t count = 0;
  if (::read(news_.get(), &count, sizeof count) < 0 && errno != EAGAIN)
    fail(ErrorCode::kInternal, "eventfd: {}", std::strerror(errno));
}

void LoaderFeed::release(int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    released_ = step;
  }
  changed_.notify_all();
}

bool LoaderFeed::isAwaited() {
  const std::lock_guard lock(mutex_);
  return ring_.published() <= released_ && released_ < last_step_;
}

std::optional<std::string> LoaderFeed::takeNotice() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notice_, std::nullopt);
}

std::optional<Error> LoaderFeed::failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, std::nullopt);
}

// False: the feeding is to end.
bool LoaderFeed::waitForPlace(int64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || step - released_ <= ring_.slots(); });
  return !stopping_;
}

void LoaderFeed::bringNews() const {
  const uint64_t one = 1;
  if (::write(news_.get(), &one, sizeof one) < 0) {
    // The counter is at its limit: it is readable already.
  }
}

void LoaderFeed::tell(const std::string& notice) {
  {
    const std::lock_guard lock(mutex_);
    notice_ = notice_ ? fmt::format("{}; {}", *notice_, notice) : fmt::format("{}: {}", source_, notice);
  }
  bringNews();
}

void LoaderFeed::skipDone(RowStream& stream, int64_t steps_done, int64_t last_step) {
  tell(fmt::format(
      "rows of the first {} are read and left out, as they are done (a --data-command with {} begins "
      "behind them)",
      counted(steps_done, "step"), kStepMark));
  // each of them may take as long as one that is used
  for (int64_t step = 1; step <= steps_done; ++step) {
    deadline_ = std::chrono::steady_clock::now() + description_.loader_timeout;
    reading_ = step;
    if (!stream.skip(1)) failEarly(stream, last_step);
  }
}

void LoaderFeed::feed(const std::vector<ProgramInput>& inputs, const ShorterInputs& shorter,
                      int64_t steps_done, int64_t last_step) {
  try {
    RowStream stream(
        inputs, source_, [this](std::span<std::byte> out) { return read(out); },
        RowLengths(description_, inputs, shorter), description_.command.find(kStepMark) != std::string::npos);
    reading_ = steps_done + 1;
    deadline_ = std::chrono::steady_clock::now() + description_.loader_timeout;
    if (skips_) skipDone(stream, steps_done, last_step);
    std::vector<std::span<std::byte>> places(inputs.size());
    for (int64_t step = steps_done + 1; step <= last_step; ++step) {
      if (!waitForPlace(step)) return;
      deadline_ = std::chrono::steady_clock::now() + description_.loader_timeout;
      reading_ = step;
      for (size_t i = 0; i < inputs.size(); ++i) places[i] = ring_.batch(step, i);
      if (!stream.next(places)) failEarly(stream, last_step);
      if (step == steps_done + 1 && !stream.unused().empty()) tell(stream.unused());
      ring_.setLength(step, stream.length());
      ring_.publish(step);
      bringNews();
    }
  } catch (const Stopped&) {
    return;
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error;
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    failure_ = Error(ErrorCode::kOutOfMemory, fmt::format("{}: there is no memory for its message", source_));
  }
}

size_t LoaderFeed::read(std::span<std::byte> out) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    ::pollfd waited[] = {{input_, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    const int ready = ::poll(waited, 2, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (waited[1].revents != 0) throw Stopped();
    if (ready == 0) {
      fail(ErrorCode::kHang,
           "{} has not sent the rows of step {} within {} s; if it may take so long, raise --data-timeout",
           source_, reading_,
           std::chrono::duration_cast<std::chrono::seconds>(description_.loader_timeout).count());
    }
    if (ready < 0 && errno != EINTR)
      fail(ErrorCode::kMissingInput, "cannot wait for {}: {}", source_, std::strerror(errno));
    if (ready <= 0) continue;
    const ssize_t got = ::read(input_, out.data(), out.size());
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR && errno != EAGAIN)
      fail(ErrorCode::kMissingInput, "cannot read {}: {}", source_, std::strerror(errno));
  }
}

void LoaderFeed::failEarly(const RowStream& stream, int64_t last_step) {
  const int64_t whole = stream.rows() / stream.batchRows(), left = stream.rows() % stream.batchRows();
  bool failed = false;
  const std::string end = process_ ? process_->describeEnd(failed) : "ended";
  fail(failed ? ErrorCode::kPeerUnavailable : ErrorCode::kMissingInput,
       "{} {} after {} rows, which are {} whole batches{}; {} steps were asked for", source_, end,
       stream.rows(), whole, left == 0 ? "" : fmt::format(" and {} rows that fill none", left), last_step);
}

}  // namespace pipeshard
