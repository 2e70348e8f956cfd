#include "runtime/trace/straggler_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr int kLeastSteps = 16;
constexpr double kLeastSeconds = 2;
constexpr double kSlow = 1.5;
constexpr double kGrown = 1.2;  // all have become slower: that is nobody's fault

double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<long>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

}  // namespace

StragglerWatch::StragglerWatch(IdVector<RankId, size_t> kinds)
    : kinds_(std::move(kinds)), ranks_(kinds_.size()) {}

std::optional<Straggler> StragglerWatch::take(const IdVector<RankId, double>& compute_seconds) {
  PIPESHARD_CHECK(compute_seconds.size() == ranks_.size(), "{} ranks", compute_seconds.size());
  if (std::exchange(is_first_step_, false)) return std::nullopt;  // caches are cold
  ++steps_;
  double longest = 0;
  for (const RankId rank : ranks_.ids()) {
    ranks_[rank].sum += compute_seconds[rank];
    longest = std::max(longest, ranks_[rank].sum);
  }
  if (steps_ < kLeastSteps || longest < kLeastSeconds) return std::nullopt;
  return endSpan();
}

// How much slower it is than those of its kind, or, where it is alone, than before.
Straggler StragglerWatch::lookAt(RankId rank, double others_growth) const {
  const double seconds = ranks_[rank].sum / steps_;
  std::vector<double> alike;
  for (const RankId other : ranks_.ids()) {
    if (other != rank && kinds_[other] == kinds_[rank]) alike.push_back(ranks_[other].sum / steps_);
  }
  const double usual = alike.empty() ? ranks_[rank].best * std::max(1.0, others_growth) : median(alike);
  return {rank, usual > 0 ? seconds / usual : 1, alike.empty(), seconds};
}

// How much slower the others are than before; alone it is its own measure. Its own growth is no part of it:
// of two ranks it would be half of what is usual.
double StragglerWatch::growthOfOthers(RankId rank) const {
  std::vector<double> growths;
  for (const RankId other : ranks_.ids()) {
    if (other == rank && ranks_.size() > 1) continue;
    growths.push_back(ranks_[other].best > 0 ? ranks_[other].sum / steps_ / ranks_[other].best : 1);
  }
  return median(std::move(growths));
}

std::optional<Straggler> StragglerWatch::endSpan() {
  std::optional<Straggler> worst;
  for (const RankId id : ranks_.ids()) {
    Rank& rank = ranks_[id];
    const double growth = growthOfOthers(id);
    const Straggler found = lookAt(id, growth > kGrown ? growth : 1);
    const bool is_slow = found.times >= kSlow;
    if (is_slow && rank.was_slow && !rank.was_told && (!worst || found.times > worst->times)) worst = found;
    if (!is_slow) rank.was_told = false;
    rank.was_slow = is_slow;
  }
  for (Rank& rank : ranks_) {
    const double mean = rank.sum / steps_;
    if (rank.best == 0 || mean < rank.best) rank.best = mean;
    rank.sum = 0;
  }
  steps_ = 0;
  if (worst) ranks_[worst->rank].was_told = true;
  return worst;
}

}  // namespace pipeshard
