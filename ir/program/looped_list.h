// A list of which iterations are stored once: what a loop of a program is in memory (ir/program/loops.h, and
// list_json.h in files). Of an item in a loop the first iteration is stored; in iteration k, counted from 0,
// its numbers (ir/program/numbers.h) are k times its steps greater.
//
//   stored: receive 7; run 7 -> 8; free 7; zero 4     loop {first 1, period 2, count 3, steps {2,2} {2}}
//   items:  receive 7; run 7 -> 8; free 7; run 9 -> 10; free 9; run 11 -> 12; free 11; zero 4
//
// A list without loops is a vector, and can be changed like one. Reading goes by iterators, or by a Reader,
// which make an item when it is asked for: a reference is good until the next one is asked for. Whoever
// changes an item by its place unrolls the list: then all its items are stored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "ir/base/error.h"

namespace pipeshard {

// Of an item type there must be: void advance(T& item, std::span<const int64_t> steps, int64_t iterations),
// which adds so many times the steps to the item's numbers.
template <typename T>
class LoopedList {
 public:
  using value_type = T;
  // Items [first, end) of the list; of the first iteration, stored()[stored, stored + period).
  struct Loop {
    size_t first = 0, stored = 0, period = 0, count = 0;
    std::vector<std::vector<int64_t>> steps;  // by item of an iteration
    size_t end() const { return first + period * count; }
  };

  LoopedList() = default;
  LoopedList(std::vector<T> items) : items_(std::move(items)) {}
  LoopedList(std::initializer_list<T> items) : items_(items) {}

  size_t size() const { return items_.size() + repeated_; }
  bool empty() const { return items_.empty(); }
  const std::vector<Loop>& loops() const { return loops_; }

  // Every item, but of loops those of the first iteration alone. What is changed of one is changed in all
  // iterations; its numbers count on from what they are then.
  std::span<const T> stored() const { return items_; }
  std::span<T> stored() { return items_; }

  // Calls f with each of them, and where in the list it is.
  template <typename F>
  void forEachStored(const F& f) {
    size_t next = 0;  // loop
    size_t skipped = 0;
    for (size_t s = 0; s < items_.size(); ++s) {
      if (next < loops_.size() && s == loops_[next].stored + loops_[next].period) {
        skipped += loops_[next].period * (loops_[next].count - 1);
        ++next;
      }
      f(s + skipped, items_[s]);
    }
  }

  // All but the numbers of item i: the item as it is in the first iteration of its loop.
  const T& form(size_t i) const { return items_[locate(i).stored]; }
  // Which of stored() that is.
  size_t storedAt(size_t i) const { return locate(i).stored; }
  T copyAt(size_t i) const {
    T item = form(i);
    fill(locate(i), item);
    return item;
  }

  void reserve(size_t items) { items_.reserve(items); }
  void push_back(T item) { items_.push_back(std::move(item)); }
  template <typename... Parts>
  T& emplace_back(Parts&&... parts) {
    return items_.emplace_back(std::forward<Parts>(parts)...);
  }
  // `steps`: of each item of the body as many as it has numbers. Two iterations or more.
  void addLoop(std::vector<T> body, std::vector<std::vector<int64_t>> steps, size_t count);

  // Without loops from now on.
  std::vector<T>& unrolled();
  // A list that has no loops.
  const std::vector<T>& plain() const {
    PIPESHARD_CHECK(loops_.empty(), "the list has loops");
    return items_;
  }
  T& operator[](size_t i) { return unrolled()[i]; }
  T& back() { return unrolled().back(); }
  auto begin() { return unrolled().begin(); }
  auto end() { return unrolled().end(); }

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = const T*;
    using reference = const T&;

    Iterator() = default;
    Iterator(const LoopedList* list, size_t at) : list_(list), at_(at) {}
    const T& operator*() const {
      if (iteration_ == 0) return list_->items_[stored_];
      if (made_ != at_) {
        made_ = at_;
        item_ = list_->items_[stored_];
        list_->fill({stored_, loop_, iteration_}, item_);
      }
      return item_;
    }
    const T* operator->() const { return &**this; }
    Iterator& operator++();
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

   private:
    const LoopedList* list_ = nullptr;
    size_t at_ = 0, stored_ = 0, iteration_ = 0;
    size_t loop_ = 0;                 // that `at` is in, or the next one
    mutable size_t made_ = SIZE_MAX;  // the item that item_ is
    mutable T item_ = {};
  };
  using const_iterator = Iterator;
  Iterator begin() const { return Iterator(this, 0); }
  Iterator end() const { return Iterator(this, size()); }

  // Items by their places, in any order. The list must outlive it, unchanged. For one thread.
  class Reader {
   public:
    explicit Reader(const LoopedList& list) : list_(&list) {}
    size_t size() const { return list_->size(); }
    const T& operator[](size_t i) const {
      const Place place = list_->locate(i);
      if (place.iteration == 0) return list_->items_[place.stored];
      if (made_ == i) return item_;
      made_ = i;
      item_ = list_->items_[place.stored];
      list_->fill(place, item_);
      return item_;
    }

   private:
    const LoopedList* list_;
    mutable size_t made_ = SIZE_MAX;
    mutable T item_ = {};
  };
  Reader reader() const { return Reader(*this); }

 private:
  struct Place {
    size_t stored = 0, loop = 0, iteration = 0;
  };

  Place locate(size_t i) const {
    if (loops_.empty()) return {i, 0, 0};
    const auto next = std::upper_bound(loops_.begin(), loops_.end(), i,
                                       [](size_t at, const Loop& loop) { return at < loop.first; });
    if (next == loops_.begin()) return {i, 0, 0};
    const Loop& loop = *std::prev(next);
    if (i >= loop.end()) return {loop.stored + loop.period + (i - loop.end()), 0, 0};
    const size_t inside = i - loop.first;
    return {loop.stored + inside % loop.period, static_cast<size_t>(&loop - loops_.data()),
            inside / loop.period};
  }

  void fill(const Place& place, T& item) const {
    if (place.iteration == 0) return;
    const Loop& loop = loops_[place.loop];
    advance(item, loop.steps[place.stored - loop.stored], static_cast<int64_t>(place.iteration));
  }

  std::vector<T> items_;
  std::vector<Loop> loops_;  // in order, none reaching into another
  size_t repeated_ = 0;      // items that are not stored
};

template <typename T>
typename LoopedList<T>::Iterator& LoopedList<T>::Iterator::operator++() {
  const std::vector<Loop>& loops = list_->loops_;
  ++at_;
  ++stored_;
  if (loop_ == loops.size() || at_ <= loops[loop_].first) return *this;
  const Loop& loop = loops[loop_];
  if (at_ == loop.end()) {
    ++loop_;
    iteration_ = 0;
  } else if (stored_ == loop.stored + loop.period) {
    stored_ = loop.stored;
    ++iteration_;
  }
  return *this;
}

template <typename T>
void LoopedList<T>::addLoop(std::vector<T> body, std::vector<std::vector<int64_t>> steps, size_t count) {
  PIPESHARD_CHECK(!body.empty() && steps.size() == body.size() && count > 1, "no loop: {} items {} times",
                  body.size(), count);
  loops_.push_back({size(), items_.size(), body.size(), count, std::move(steps)});
  repeated_ += body.size() * (count - 1);
  items_.insert(items_.end(), std::move_iterator(body.begin()), std::move_iterator(body.end()));
}

template <typename T>
std::vector<T>& LoopedList<T>::unrolled() {
  if (loops_.empty()) return items_;
  std::vector<T> all;
  all.reserve(size());
  const LoopedList& looped = *this;
  for (const T& item : looped) all.push_back(item);
  items_ = std::move(all);
  loops_.clear();
  repeated_ = 0;
  return items_;
}

template <typename T>
bool operator==(const LoopedList<T>& a, const LoopedList<T>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

}  // namespace pipeshard
