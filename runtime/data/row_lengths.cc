#include "runtime/data/row_lengths.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/convert.h"
#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"

namespace pipeshard {
namespace {

void refuseWithoutLengths(const DataDescription& description) {
  const bool pads = !description.padding.empty() && description.end_of_text < 0;
  const char* option = description.truncate ? "--truncate" : pads ? "--pad" : nullptr;
  if (option == nullptr) return;
  fail(ErrorCode::kUsage,
       "{} goes with a plan for sequences of several lengths (plan --dim NAME=64,128,256) and --data",
       option);
}

}  // namespace

RowLengths::RowLengths(const DataDescription& description, const std::vector<ProgramInput>& inputs,
                       const ShorterInputs& shorter)
    : truncate_(description.truncate), said_(!description.padding.empty()) {
  if (shorter.empty()) refuseWithoutLengths(description);
  if (shorter.empty() && description.end_of_text < 0) return;
  shorter.empty() ? findDocumentAxes(inputs) : findAxes(inputs, shorter);
  for (const ProgramInput& input : inputs) {
    if (inputs_.contains(input.name)) decidePadding(description, input);
  }
  for (const auto& [name, number] : description.padding) {
    if (inputs_.contains(name)) continue;
    fail(ErrorCode::kUsage, "--pad {}={}: found no input of this name with sequences; those are: {}", name,
         number, fmt::join(names_, ", "));
  }
}

void RowLengths::findAxes(const std::vector<ProgramInput>& inputs, const ShorterInputs& shorter) {
  std::vector<std::vector<int64_t>> found;  // by axis of an input: its sizes, descending
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ProgramInput& input = inputs[i];
    for (const std::vector<ProgramInput>& others : shorter) {
      const bool same = others.size() == inputs.size() && others[i].name == input.name &&
                        others[i].shape.size() == input.shape.size() && others[i].axis == input.axis;
      if (!same)
        fail(ErrorCode::kConfiguration,
             "the programs of shorter sequences have other inputs than those of the longest, from '{}' on; "
             "plan again",
             input.name);
    }
    if (input.drawn) continue;
    for (size_t axis = 0; axis < input.shape.size(); ++axis) {
      if (shorter.front()[i].shape[axis] == input.shape[axis]) continue;
      std::vector<int64_t> sizes = {input.shape[axis]};
      for (const std::vector<ProgramInput>& others : shorter) sizes.push_back(others[i].shape[axis]);
      found.push_back(std::move(sizes));
      inputs_[input.name].axes.push_back(static_cast<int>(axis));
    }
    if (inputs_.contains(input.name)) names_.push_back(input.name);
  }
  const bool one = !found.empty() && std::all_of(found.begin(), found.end(), [&](const auto& sizes) {
    return sizes == found.front() && std::is_sorted(sizes.begin(), sizes.end(), std::greater_equal<>()) &&
           sizes.back() > 0;
  });
  if (!one)
    fail(ErrorCode::kConfiguration,
         "the programs of shorter sequences do not agree on how long these are; plan again");
  lengths_ = found.front();
}

// Of one length: rows of documents are shorter all the same.
void RowLengths::findDocumentAxes(const std::vector<ProgramInput>& inputs) {
  for (const ProgramInput& input : inputs) {
    if (input.drawn || input.shape.size() != 2 || input.axis > 0) continue;
    lengths_ = {input.shape[1]};
    inputs_[input.name].axes = {1};
    names_.push_back(input.name);
  }
}

void RowLengths::decidePadding(const DataDescription& description, const ProgramInput& input) {
  Input& decided = inputs_.at(input.name);
  decided.mask = input.name.find("mask") != std::string::npos;
  const std::optional<AllowedIntegers>& allowed = input.allowed;
  if (!decided.mask && allowed && allowed->ignored) {
    decided.padding = static_cast<double>(*allowed->ignored);
    decided.ignored = true;
  } else if (allowed && !allowed->contains(0)) {
    decided.padding = static_cast<double>(allowed->low);
  }
  const auto said = description.padding.find(input.name);
  if (said == description.padding.end()) return;
  decided.padding = said->second;
  // else a cast to an integer is undefined
  const bool is_whole = std::floor(said->second) == said->second && std::abs(said->second) < 0x1p63;
  const auto whole = is_whole ? static_cast<int64_t>(said->second) : 0;
  const bool takes =
      !isInteger(input.data_type) || (is_whole && (!allowed || !allowed->exact || allowed->contains(whole)));
  decided.ignored = takes && is_whole && allowed && allowed->ignored == whole;
  if (takes) return;
  fail(ErrorCode::kUsage, "--pad {}={}: the model takes {} there", input.name, said->second,
       allowed ? fmt::format("integers from {} to {}{}", allowed->low, allowed->high - 1,
                             allowed->ignored ? fmt::format(", or {}", *allowed->ignored) : "")
               : "integers of 64 bits");
}

const std::vector<int>& RowLengths::axes(std::string_view input) const {
  static const std::vector<int> kNone;
  const auto found = inputs_.find(input);
  return found == inputs_.end() ? kNone : found->second.axes;
}

double RowLengths::padding(std::string_view input) const {
  const auto found = inputs_.find(input);
  return found == inputs_.end() ? 0 : found->second.padding;
}

size_t RowLengths::shortestFor(int64_t length, std::string_view where) const {
  if (length == 0) fail(ErrorCode::kConfiguration, "{}: the sequence is empty", where);
  if (length > longest() && !truncate_) {
    fail(ErrorCode::kConfiguration,
         "{}: the sequence has {} elements, but the plan's longest sequences have {}; plan for longer ones, "
         "or cut it with --truncate",
         where, length, longest());
  }
  const auto shorter = std::find_if(lengths_.rbegin(), lengths_.rend(),
                                    [&](int64_t one) { return one >= std::min(length, longest()); });
  return lengths_.rend() - shorter - 1;
}

void RowLengths::requirePadding(const std::string& path) const {
  const bool counted = std::any_of(inputs_.begin(), inputs_.end(), [](const auto& input) {
    return input.second.mask || input.second.ignored;
  });
  if (counted || said_) return;
  fail(ErrorCode::kConfiguration,
       "{} has rows that must be padded, which would change the loss: no input of the model is a mask, and "
       "none has labels that its loss ignores (inputs with sequences: {}); give rows of exactly {} elements, "
       "or say how to pad: --pad INPUT=NUMBER",
       path, fmt::join(names_, ", "), fmt::join(lengths_.rbegin(), lengths_.rend(), ", "));
}

std::string RowLengths::describePadding() const {
  std::vector<std::string> texts;
  bool masked = false;
  for (const std::string& name : names_) {
    const Input& input = inputs_.at(name);
    masked = masked || input.mask;
    texts.push_back(
        fmt::format("{} by {}{}", name, input.padding, input.ignored ? " (which the loss ignores)" : ""));
  }
  return fmt::format("padded: {}{}", fmt::join(texts, ", "),
                     masked ? "" : "; no input is a mask: exact where no position sees those behind it");
}

std::string RowLengths::describeLengths() const { return fmt::format("{}", fmt::join(lengths_, ", ")); }

std::string RowLengths::describeRows(const std::vector<int64_t>& rows) const {
  std::vector<std::string> texts;
  for (size_t k = lengths_.size(); k-- > 0;) {
    if (rows.at(k) > 0)
      texts.push_back(fmt::format("{} of at most {}", counted(rows[k], "example"), lengths_[k]));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void writeBox(DataType type, const Shape& shape, const Shard& box, std::span<const std::byte> content,
              std::span<std::byte> out) {
  const size_t each = dataTypeSize(type);
  const std::byte* from = content.data();
  forEachRun(shape, box, [&](int64_t element, int64_t count) {
    std::memcpy(out.data() + element * each, from, count * each);
    from += count * each;
  });
}

void writePadded(DataType type, double padding, const Shape& shape, const Shard& box,
                 std::span<const std::byte> content, std::span<std::byte> out) {
  const size_t each = dataTypeSize(type);
  if (box.size != shape && !out.empty()) {
    convertElements(DataType::kFloat64, &padding, type, out.data(), 1);
    for (size_t at = each; at < out.size(); at += each) std::memcpy(out.data() + at, out.data(), each);
  }
  writeBox(type, shape, box, content, out);
}

}  // namespace pipeshard
