#include "ir/program/loops.h"

#include <algorithm>

namespace pipeshard {
namespace {

constexpr size_t kLeastCount = 3;
constexpr size_t kLeastSaved = 4;          // items that need not be written
constexpr size_t kTriesPerItem = 1 << 12;  // periods that are tried from one item on
constexpr size_t kSteps = 1 << 26;         // of the whole search
constexpr size_t kNone = SIZE_MAX;

size_t saved(const Loop& loop) { return loop.count < kLeastCount ? 0 : (loop.count - 1) * loop.period; }

class LoopSearch {
 public:
  explicit LoopSearch(const NumberedList& list)
      : list_(list), next_(list.size(), kNone), hashes_(list.size() + 1), steps_left_(kSteps) {
    std::unordered_map<size_t, size_t> next;  // by form
    for (size_t i = list.size(); i-- > 0;) {
      if (const auto found = next.find(list.form(i)); found != next.end()) next_[i] = found->second;
      next[list.form(i)] = i;
    }
    powers_.push_back(1);
    for (size_t i = 0; i < list.size(); ++i) {
      hashes_[i + 1] = hashes_[i] * kBase + list.form(i) + 1;
      powers_.push_back(powers_.back() * kBase);
    }
  }

  // The loop from here on that saves most; count 0 where none does.
  Loop bestFrom(size_t first) {
    Loop best;
    size_t tries = 0;
    for (size_t at = next_[first]; at != kNone && steps_left_ > 0; at = next_[at]) {
      const size_t period = at - first;
      if (++tries > kTriesPerItem || first + kLeastCount * period > list_.size()) break;
      if (saved(best) >= list_.size() - at) break;  // none that is longer saves more
      --steps_left_;
      // Several iterations of one that holds so far are no other loop.
      if (best.count > 0 && period % best.period == 0 && first + period < best.end()) continue;
      if (!stepsOn(at + period, period) || hash(first, period) != hash(at, period) ||
          hash(at, period) != hash(at + period, period))
        continue;
      if (const auto uneven = uneven_.find(period);
          uneven != uneven_.end() && uneven->second >= first && uneven->second - first < period)
        continue;
      const Loop loop{first, period, countOf(first, period)};
      if (saved(loop) > saved(best)) best = loop;
    }
    return saved(best) < kLeastSaved ? Loop{} : best;
  }

 private:
  static constexpr uint64_t kBase = 0x9E3779B97F4A7C15;

  uint64_t hash(size_t first, size_t length) const {
    return hashes_[first + length] - hashes_[first] * powers_[length];
  }

  // Whether `item` is as far from the one a period before as that from the one before it.
  bool stepsOn(size_t item, size_t period) const {
    if (list_.form(item) != list_.form(item - period)) return false;
    const std::span<const int64_t> now = list_.numbers(item), before = list_.numbers(item - period),
                                   first = list_.numbers(item - 2 * period);
    for (size_t k = 0; k < now.size(); ++k) {
      if (now[k] - before[k] != before[k] - first[k]) return false;
    }
    return true;
  }

  // Of three iterations the forms are known to be equal.
  size_t countOf(size_t first, size_t period) {
    const size_t third = first + 2 * period;
    size_t item = third;
    while (item < list_.size() && stepsOn(item, period)) ++item;
    steps_left_ -= std::min(steps_left_, item - third);
    if (item < third + period) uneven_[period] = item - 2 * period;
    return (item - first) / period;
  }

  const NumberedList& list_;
  std::vector<size_t> next_;      // by item: the next one of its form
  std::vector<uint64_t> hashes_;  // of the forms before an item
  std::vector<uint64_t> powers_;
  // By period: the last item found whose numbers do not go on by equal steps in the two iterations behind it.
  // It ends every loop of that period that begins less than an iteration before it.
  std::unordered_map<size_t, size_t> uneven_;
  size_t steps_left_;
};

}  // namespace

size_t NumberedList::numberOf(std::string_view form) {
  return known_->try_emplace(std::string(form), known_->size()).first->second;
}

void NumberedList::add(size_t form, const std::vector<int64_t>& numbers) {
  forms_.push_back(form);
  numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
  begins_.push_back(numbers_.size());
}

std::vector<int64_t> stepsOf(const NumberedList& list, const Loop& loop, size_t item) {
  std::vector<int64_t> steps(list.numbers(item).size());
  if (loop.count == 1) return steps;
  const std::span<const int64_t> now = list.numbers(item), next = list.numbers(item + loop.period);
  for (size_t k = 0; k < steps.size(); ++k) steps[k] = next[k] - now[k];
  return steps;
}

std::vector<Loop> findLoops(const NumberedList& list) {
  LoopSearch search(list);
  std::vector<Loop> loops;
  for (size_t item = 0; item < list.size();) {
    const Loop loop = search.bestFrom(item);
    if (loop.count > 0) loops.push_back(loop);
    item = loop.count > 0 ? loop.end() : item + 1;
  }
  return loops;
}

bool LoopBudget::take(int64_t iterations, const std::vector<std::string>& body) {
  const int64_t items = std::ssize(body);
  int64_t bytes = 0;
  for (const std::string& line : body) bytes += std::ssize(line);
  if (items > items_ / iterations || bytes > bytes_ / iterations) return false;
  items_ -= iterations * items;
  bytes_ -= iterations * bytes;
  return true;
}

}  // namespace pipeshard
