#include "runtime/data/onnx_test_data.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "onnx_import/format/stored_tensor.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSetPrefix = "test_data_set_";
constexpr std::string_view kInputPrefix = "input_";

// The number between a prefix and a suffix that make up all the rest of a name.
std::optional<int64_t> numberIn(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  name.remove_suffix(std::min(suffix.size(), name.size()));
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = error == std::errc() && end == name.data() + name.size() && number >= 0;
  return whole ? std::optional(number) : std::nullopt;
}

// What a folder holds under such names, by number.
std::map<int64_t, std::string> numbered(const std::string& folder, std::string_view prefix,
                                        std::string_view suffix) {
  std::map<int64_t, std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (const auto number = numberIn(entry.path().filename().string(), prefix, suffix))
      found[*number] = entry.path().string();
  }
  return found;
}

// The folders of sets, in order; the folder itself where it is one.
std::vector<std::string> setsOf(const std::string& path) {
  std::vector<std::string> sets;
  for (const auto& [number, set] : numbered(path, kSetPrefix, "")) sets.push_back(set);
  if (sets.empty() && !numbered(path, kInputPrefix, ".pb").empty()) sets.push_back(path);
  return sets;
}

class OnnxTestData : public ArrayStore {
 public:
  OnnxTestData(const std::string& path, std::span<const ProgramInput* const> inputs) : sets_(setsOf(path)) {
    const std::map<int64_t, std::string> files = numbered(sets_.at(0), kInputPrefix, ".pb");
    for (const auto& [number, file] : files) {
      const std::string name = readStoredTensor(file).name;
      if (!name.empty()) by_name_[name] = number;
      if (name.empty()) without_name_.push_back(fmt::format("{}{}.pb", kInputPrefix, number));
    }
    if (!by_name_.empty()) return;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (files.contains(static_cast<int64_t>(i))) by_name_[inputs[i]->name] = static_cast<int64_t>(i);
    }
    std::erase_if(without_name_, [&](const std::string& file) {
      return *numberIn(file, kInputPrefix, ".pb") < std::ssize(inputs);
    });
  }

  std::unique_ptr<StoredArray> open(const ProgramInput& input) override {
    taken_.insert(input.name);
    const auto found = by_name_.find(input.name);
    if (found == by_name_.end()) {
      fail(ErrorCode::kMissingInput, "{} holds no tensor '{}'; it holds: {}", sets_.at(0), input.name,
           fmt::join(names(), ", "));
    }
    const std::string file = fmt::format("{}{}.pb", kInputPrefix, found->second);
    std::vector<StoredTensor> tensors;
    for (const std::string& set : sets_) {
      const std::string path = set + "/" + file;
      if (!fs::exists(path))
        fail(ErrorCode::kMissingInput, "there is no file {}, but {}/{} holds '{}'", path, sets_.at(0), file,
             input.name);
      tensors.push_back(readStoredTensor(path));
      checkFits(input, path, tensors.front().content, tensors.back().content);
    }
    return join(input, tensors);
  }

  std::string decisions() const override { return fmt::format("{} test data set(s)", sets_.size()); }
  std::vector<std::string> unused() const override {
    std::vector<std::string> unused = namesBut(names(), taken_);
    unused.insert(unused.end(), without_name_.begin(), without_name_.end());
    return unused;
  }

 private:
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, number] : by_name_) names.push_back(name);
    return names;
  }

  static bool hasRows(const ProgramInput& input, const Constant& tensor) {
    return input.axis >= 0 && input.axis < std::ssize(tensor.shape);
  }

  static void checkFits(const ProgramInput& input, const std::string& path, const Constant& first,
                        const Constant& next) {
    Shape comparable = next.shape;
    const bool rows = hasRows(input, first) && hasRows(input, next);
    if (rows) comparable[input.axis] = first.shape[input.axis];
    const bool fits = next.data_type == first.data_type && comparable == first.shape;
    if (!fits) {
      fail(ErrorCode::kConfiguration, "{}: found {}{}, but the first set has {}{}", path,
           dataTypeName(next.data_type), shapeToString(next.shape), dataTypeName(first.data_type),
           shapeToString(first.shape));
    }
    if (!rows && next.bytes != first.bytes)
      fail(ErrorCode::kConfiguration,
           "{}: '{}' has no batch axis, so it is the same in every step, but the first set has another", path,
           input.name);
  }

  static std::unique_ptr<StoredArray> join(const ProgramInput& input, std::vector<StoredTensor>& tensors) {
    Constant& first = tensors.front().content;
    if (tensors.size() == 1 || !hasRows(input, first))
      return std::make_unique<MemoryArray>(first.data_type, first.shape, std::move(first.bytes));
    Shape shape = first.shape;
    shape[input.axis] = 0;
    size_t bytes = 0;
    for (const StoredTensor& tensor : tensors) {
      shape[input.axis] += tensor.content.shape[input.axis];
      bytes += tensor.content.bytes.size();
    }
    const int64_t outer = elementCount({shape.begin(), shape.begin() + input.axis});
    std::vector<std::byte> joined;
    joined.reserve(bytes);
    for (int64_t k = 0; k < outer; ++k) {
      for (const StoredTensor& tensor : tensors) {
        const size_t each = tensor.content.bytes.size() / outer;
        const auto begin = tensor.content.bytes.begin() + static_cast<std::ptrdiff_t>(k * each);
        joined.insert(joined.end(), begin, begin + static_cast<std::ptrdiff_t>(each));
      }
    }
    return std::make_unique<MemoryArray>(first.data_type, std::move(shape), std::move(joined));
  }

  std::vector<std::string> sets_;
  std::map<std::string, int64_t> by_name_;  // the numbers of files
  std::vector<std::string> without_name_;   // files that stand for no input
  std::set<std::string> taken_;
};

}  // namespace

bool isOnnxTestData(const std::string& path) { return !setsOf(path).empty(); }

std::unique_ptr<ArrayStore> openOnnxTestData(const std::string& path,
                                             std::span<const ProgramInput* const> inputs) {
  return std::make_unique<OnnxTestData>(path, inputs);
}

}  // namespace pipeshard
