// Lists of program.json and kinds/NNNN.json. In a kind's file a list may hold loops beside its items:
//
//   "instructions": [
//     {"kind":"receive","microbatch":0,"peer":1,"outputs":[7]},
//     {"repeat":126,"steps":[[1,0,3],[1,0,3,3]],"body":[
//       {"kind":"receive","microbatch":1,"peer":1,"outputs":[9]},
//       {"kind":"run","subgraph":0,"stage":1,"microbatch":1,"inputs":[9],"outputs":[10]}
//     ]},
//
// stands for 252 instructions. The body is the first iteration; every other adds `steps` once more to the
// numbers of its items (ir/program/numbers.h). Loops are found when a list is written and gone when it has
// been read: here alone.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "ir/base/json_reader.h"
#include "ir/program/loops.h"
#include "ir/program/numbers.h"

namespace pipeshard {

// A list with one element per line, as dumpJson writes it, without ever holding all of it as a document.
class ListText {
 public:
  ListText(std::string_view key, std::string& text);
  void add(std::string_view element);
  void end();

 private:
  std::string& text_;
  bool empty_ = true;
};

template <typename T, typename ToJson>
void addList(std::string_view key, const std::vector<T>& items, const ToJson& to_json, std::string& text) {
  ListText list(key, text);
  for (const T& item : items) list.add(dumpJsonLine(to_json(item)));
  list.end();
}

template <typename T, typename ToJson>
NumberedList numberedList(const std::vector<T>& items, const ToJson& to_json) {
  NumberedList list;
  for (const T& item : items) {
    const std::vector<int64_t> numbers = numbersOf(item);
    std::string form = formOf(item);
    if (form.empty()) {
      T without = item;
      setNumbers(without, std::vector<int64_t>(numbers.size()));
      form = dumpJsonLine(to_json(without));
    }
    list.add(form, numbers);
  }
  return list;
}

// The loop as one element; `body`: the lines of its first iteration.
std::string loopText(const Loop& loop, const std::vector<std::string>& body, const NumberedList& list);

// With loops, as far as the budget goes.
template <typename T, typename ToJson>
void addLoopedList(std::string_view key, const std::vector<T>& items, const ToJson& to_json,
                   LoopBudget& budget, std::string& text) {
  ListText list(key, text);
  size_t at = 0;
  const auto addUntil = [&](size_t end) {
    for (; at < end; ++at) list.add(dumpJsonLine(to_json(items[at])));
  };
  const NumberedList numbered = numberedList(items, to_json);
  for (const Loop& loop : findLoops(numbered)) {
    addUntil(loop.first);
    std::vector<std::string> body;
    for (size_t i = 0; i < loop.period; ++i) body.push_back(dumpJsonLine(to_json(items[at + i])));
    if (!budget.take(static_cast<int64_t>(loop.count), body)) continue;
    list.add(loopText(loop, body, numbered));
    at = loop.end();
  }
  addUntil(items.size());
  list.end();
}

// The steps of one item of a loop: as many as it has numbers, none of which leaves its limits.
std::vector<int64_t> stepsFromJson(const JsonReader& json, const std::vector<int64_t>& numbers,
                                   const std::vector<int64_t>& limits, int64_t iterations);

// Reads a list whose items `read` makes of what is there, and `to_json` writes.
template <typename Read, typename ToJson>
class ListReader {
 public:
  // What limits the items' numbers is in `program` by then. No budget: no loops.
  ListReader(const Program& program, LoopBudget* budget, const Read& read, const ToJson& to_json)
      : program_(program), budget_(budget), read_(read), to_json_(to_json) {}

  // How many items there will be, as far as the list says so; no more than a budget's.
  size_t count(const JsonReader& list) const {
    int64_t items = 0;
    for (const JsonReader& element : list.elements()) {
      const bool is_loop = budget_ != nullptr && element.has("repeat") && element.has("body");
      const int64_t most = budget_ == nullptr ? 0 : budget_->mostItems();
      items += is_loop ? std::min(most, element.at("repeat").integer(1, most) *
                                            std::ssize(element.at("body").elements()))
                       : 1;
    }
    return static_cast<size_t>(budget_ == nullptr ? items : std::min(items, budget_->mostItems()));
  }

  // Calls `take` with every item, in order, and with what it was read from.
  template <typename Take>
  void readEach(const JsonReader& list, const Take& take) {
    for (const JsonReader& element : list.elements()) {
      if (budget_ != nullptr && element.has("repeat")) {
        readLoop(element, take);
      } else {
        take(element, read_(element));
      }
    }
  }

 private:
  using Item = std::invoke_result_t<Read, const JsonReader&>;

  template <typename Take>
  void readLoop(const JsonReader& loop, const Take& take) {
    loop.expectObject({"repeat", "steps", "body"});
    const int64_t iterations = loop.at("repeat").integer(1, budget_->mostItems());
    const std::vector<JsonReader> readers = loop.at("body").elements(),
                                  steps_of = loop.at("steps").elements();
    if (readers.empty() || readers.size() != steps_of.size())
      loop.failWith("\"body\" must have an item, or more, and \"steps\" a list for each of them");
    std::vector<Item> body;
    std::vector<std::vector<int64_t>> numbers, steps;
    std::vector<std::string> lines;
    for (size_t i = 0; i < readers.size(); ++i) {
      body.push_back(read_(readers[i]));
      numbers.push_back(numbersOf(body[i]));
      steps.push_back(stepsFromJson(steps_of[i], numbers[i], limitsOf(body[i], program_), iterations));
      lines.push_back(dumpJsonLine(to_json_(body[i])));
    }
    if (!budget_->take(iterations, lines))
      loop.at("repeat").failExpected(fmt::format("loops that stand for {} items and {} bytes at most",
                                                 budget_->mostItems(), budget_->mostBytes()));
    for (int64_t k = 0; k < iterations; ++k) {
      for (size_t i = 0; i < body.size(); ++i) {
        take(readers[i], Item(body[i]));
        if (k + 1 == iterations) continue;
        for (size_t n = 0; n < steps[i].size(); ++n) numbers[i][n] += steps[i][n];
        setNumbers(body[i], numbers[i]);
      }
    }
  }

  const Program& program_;
  LoopBudget* budget_;
  const Read& read_;
  const ToJson& to_json_;
};

}  // namespace pipeshard
