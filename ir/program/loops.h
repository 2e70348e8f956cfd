// Where a list repeats: items that come again and again, with numbers that grow by the same amount each time.
// A steady state says the same of every microbatch; written once it is a loop (ir/program/list_json.h).
//
//   run 3 -> 4; free 3; run 5 -> 6; free 5; run 7 -> 8; free 7     two forms, numbers {3,4} {3} {5,6} {5} ...
//   one loop: first 0, period 2, count 3; steps {2,2} {2}
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pipeshard {

// A list as loops see it: of every item its form (what must be equal) and its numbers (what may grow).
class NumberedList {
 public:
  NumberedList() : known_(std::make_shared<Forms>()) {}
  // Empty, with the numbers of forms of this one: their forms can be compared.
  NumberedList anotherOfTheseForms() const { return NumberedList(known_); }

  // Items of one form have equally many numbers, from 0 on.
  void add(std::string_view form, const std::vector<int64_t>& numbers) { add(numberOf(form), numbers); }
  // With the form's number, for those who add it often.
  size_t numberOf(std::string_view form);
  void add(size_t form, const std::vector<int64_t>& numbers);
  size_t size() const { return forms_.size(); }
  size_t form(size_t item) const { return forms_[item]; }
  std::span<const int64_t> numbers(size_t item) const {
    return std::span(numbers_).subspan(begins_[item], begins_[item + 1] - begins_[item]);
  }

 private:
  using Forms = std::unordered_map<std::string, size_t>;
  explicit NumberedList(std::shared_ptr<Forms> known) : known_(std::move(known)) {}

  std::shared_ptr<Forms> known_;
  std::vector<size_t> forms_;
  std::vector<int64_t> numbers_;      // of all items, one behind the other
  std::vector<size_t> begins_ = {0};  // by item, and the end
};

// Items [first, first + period) and what follows them, `count` iterations together.
struct Loop {
  size_t first = 0;
  size_t period = 0;
  size_t count = 0;
  size_t end() const { return first + period * count; }
  friend bool operator==(const Loop&, const Loop&) = default;
};

// Loops of three iterations and more, in order, none reaching into another; from each item on the one that
// saves most. A list without a period has none. The time is bounded by a count of steps, behind which no more
// are found; so the same list has the same loops.
std::vector<Loop> findLoops(const NumberedList& list);

// What an item of the loop's first iteration has less of each number than that of the next one; of a loop of
// one iteration nothing grows.
std::vector<int64_t> stepsOf(const NumberedList& list, const Loop& loop, size_t item);

// How much may come out of loops where a file is read; what is written keeps within it.
class LoopBudget {
 public:
  // `bytes`: as they would be written without loops.
  explicit LoopBudget(int64_t items = int64_t{1} << 23, int64_t bytes = int64_t{1} << 30)
      : most_items_(items), most_bytes_(bytes), items_(items), bytes_(bytes) {}
  // Whether so many iterations of a body of these lines are within it; then they are taken from it.
  bool take(int64_t iterations, const std::vector<std::string>& body);
  int64_t mostItems() const { return most_items_; }
  int64_t mostBytes() const { return most_bytes_; }

 private:
  int64_t most_items_, most_bytes_;
  int64_t items_, bytes_;  // that are left
};

}  // namespace pipeshard
