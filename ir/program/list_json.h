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
// numbers of its items (ir/program/numbers.h). Loops are found when a list is written, whatever its loops in
// memory are (ir/program/looped_list.h), so that equal lists make equal files.
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

template <typename List, typename ToJson>
void addList(std::string_view key, const List& items, const ToJson& to_json, std::string& text) {
  ListText list(key, text);
  for (const auto& item : items) list.add(dumpJsonLine(to_json(item)));
  list.end();
}

// What loops see of an item beside its numbers: the same for all iterations of a LoopedList.
template <typename T, typename ToJson>
std::string formText(const T& item, const ToJson& to_json) {
  std::string form = formOf(item);
  if (!form.empty()) return form;
  T without = item;
  setNumbers(without, std::vector<int64_t>(numbersOf(item).size()));
  return dumpJsonLine(to_json(without));
}

template <typename T, typename ToJson>
NumberedList numberedList(const std::vector<T>& items, const ToJson& to_json) {
  NumberedList list;
  for (const T& item : items) list.add(formText(item, to_json), numbersOf(item));
  return list;
}

template <typename T, typename ToJson>
NumberedList numberedList(const LoopedList<T>& items, const ToJson& to_json) {
  NumberedList list;
  std::vector<size_t> forms;
  for (const T& item : items.stored()) forms.push_back(list.numberOf(formText(item, to_json)));
  size_t i = 0;
  for (const T& item : items) list.add(forms[items.storedAt(i++)], numbersOf(item));
  return list;
}

template <typename T>
const std::vector<T>& readerOf(const std::vector<T>& items) {
  return items;
}
template <typename T>
typename LoopedList<T>::Reader readerOf(const LoopedList<T>& items) {
  return items.reader();
}

// The loop as one element; `body`: the lines of its first iteration.
std::string loopText(const Loop& loop, const std::vector<std::string>& body, const NumberedList& list);

// With loops, as far as the budget goes.
template <typename List, typename ToJson>
void addLoopedList(std::string_view key, const List& items, const ToJson& to_json, LoopBudget& budget,
                   std::string& text) {
  ListText list(key, text);
  const auto& reader = readerOf(items);
  size_t at = 0;
  const auto addUntil = [&](size_t end) {
    for (; at < end; ++at) list.add(dumpJsonLine(to_json(reader[at])));
  };
  const NumberedList numbered = numberedList(items, to_json);
  for (const Loop& loop : findLoops(numbered)) {
    addUntil(loop.first);
    std::vector<std::string> body;
    for (size_t i = 0; i < loop.period; ++i) body.push_back(dumpJsonLine(to_json(reader[at + i])));
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

  using Item = std::invoke_result_t<Read, const JsonReader&>;

  // Calls `take` with every item, in order, and with what it was read from.
  template <typename Take>
  void readEach(const JsonReader& list, const Take& take) {
    for (const JsonReader& element : list.elements()) {
      if (!isLoop(element)) {
        take(element, read_(element));
        continue;
      }
      Iterations loop = readLoop(element);
      for (int64_t k = 0; k < loop.count; ++k) {
        for (size_t i = 0; i < loop.body.size(); ++i) {
          take(loop.readers[i], Item(loop.body[i]));
          if (k + 1 == loop.count) continue;
          for (size_t n = 0; n < loop.steps[i].size(); ++n) loop.numbers[i][n] += loop.steps[i][n];
          setNumbers(loop.body[i], loop.numbers[i]);
        }
      }
    }
  }

  // Into an empty list, as loops; gives what its stored items were read from.
  std::vector<JsonReader> readInto(const JsonReader& list, LoopedList<Item>& items) {
    std::vector<JsonReader> readers;
    for (const JsonReader& element : list.elements()) {
      if (!isLoop(element)) {
        readers.push_back(element);
        items.push_back(read_(element));
        continue;
      }
      Iterations loop = readLoop(element);
      readers.insert(readers.end(), loop.readers.begin(), loop.readers.end());
      if (loop.count > 1) {
        items.addLoop(std::move(loop.body), std::move(loop.steps), static_cast<size_t>(loop.count));
      } else {
        for (Item& item : loop.body) items.push_back(std::move(item));
      }
    }
    return readers;
  }

 private:
  struct Iterations {
    int64_t count = 0;
    std::vector<JsonReader> readers;  // by item of the body
    std::vector<Item> body;           // the first iteration
    std::vector<std::vector<int64_t>> numbers, steps;
  };

  bool isLoop(const JsonReader& element) const { return budget_ != nullptr && element.has("repeat"); }

  Iterations readLoop(const JsonReader& loop) {
    loop.expectObject({"repeat", "steps", "body"});
    const int64_t iterations = loop.at("repeat").integer(1, budget_->mostItems());
    Iterations made{iterations, loop.at("body").elements(), {}, {}, {}};
    const std::vector<JsonReader> steps_of = loop.at("steps").elements();
    if (made.readers.empty() || made.readers.size() != steps_of.size())
      loop.failWith("\"body\" must have an item, or more, and \"steps\" a list for each of them");
    std::vector<std::string> lines;
    for (size_t i = 0; i < made.readers.size(); ++i) {
      made.body.push_back(read_(made.readers[i]));
      made.numbers.push_back(numbersOf(made.body[i]));
      made.steps.push_back(
          stepsFromJson(steps_of[i], made.numbers[i], limitsOf(made.body[i], program_), iterations));
      lines.push_back(dumpJsonLine(to_json_(made.body[i])));
    }
    if (!budget_->take(iterations, lines))
      loop.at("repeat").failExpected(fmt::format("loops that stand for {} items and {} bytes at most",
                                                 budget_->mostItems(), budget_->mostBytes()));
    return made;
  }

  const Program& program_;
  LoopBudget* budget_;
  const Read& read_;
  const ToJson& to_json_;
};

}  // namespace pipeshard
