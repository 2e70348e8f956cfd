#include "runtime/data/number_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/text_lines.h"

namespace pipeshard {
namespace {

// Of a field in a message.
constexpr size_t kMostShown = 40;
// Of a line of CSV: commas alone would take 32 times their size.
constexpr size_t kMostFields = size_t{1} << 22;
// Of values in each other on a line of JSON; no input has so many axes.
constexpr int kDeepest = 64;

// A line of a table, for messages.
struct LinePlace {
  const std::string& path;
  int64_t line = 0;  // from 1 on

  template <typename... Args>
  [[noreturn]] void refuse(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) const {
    fail(code, "{}, line {}: {}", path, line, fmt::format(text, std::forward<Args>(args)...));
  }
};

// Lines without their ends. Empty ones are refused but at the end of the file.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : lines_(path, "a table"), place_{path} {}
  bool next(std::string& line) {
    int64_t empty = 0;
    while (lines_.next(line)) {
      place_.line = lines_.number();
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.empty()) {
        if (empty == 0) empty = place_.line;
        continue;
      }
      if (empty != 0) LinePlace{place_.path, empty}.refuse(ErrorCode::kBadModel, "is empty");
      return true;
    }
    return false;
  }
  const LinePlace& place() const { return place_; }

 private:
  TextLines lines_;
  LinePlace place_;
};

// The parser and the end of a document take memory for every open list: a line of them would take gigabytes.
bool isTooDeep(std::string_view line) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      if (++depth > kDeepest) return true;
    } else if (!quoted && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

// The numbers of an input, example by example: whole ones as int64, others as float64.
class NumberColumn {
 public:
  explicit NumberColumn(const ProgramInput& input)
      : input_(input),
        type_(input.data_type == DataType::kUndefined || isFloatingPoint(input.data_type)
                  ? DataType::kFloat64
                  : DataType::kInt64) {
    if (!input.shape.empty() && input.axis <= 0) return;
    fail(ErrorCode::kConfiguration,
         "input '{}' is {}, with the batch on axis {}; a line is an example, which needs the batch on axis 0",
         input.name, shapeToString(input.shape), input.axis);
  }

  bool wantsIntegers() const { return type_ == DataType::kInt64; }
  bool takesBooleans() const { return !isFloatingPoint(input_.data_type); }
  Shape rowShape() const { return {input_.shape.begin() + 1, input_.shape.end()}; }
  void add(int64_t number) { append(number); }
  // False for integers: it has a fraction, or it is so large that a double may have rounded it.
  bool addNumber(double number) {
    constexpr double kMostExact = 9007199254740992;  // 2^53
    if (!wantsIntegers()) {
      append(number);
    } else if (std::trunc(number) == number && std::abs(number) < kMostExact) {
      append(static_cast<int64_t>(number));
    } else {
      return false;
    }
    return true;
  }
  void pad(int64_t count, double number) {
    for (; count > 0; --count) wantsIntegers() ? append(static_cast<int64_t>(number)) : append(number);
  }
  // Of the example that follows.
  void addLength(int64_t length) { lengths_.push_back(length); }

  [[noreturn]] void refuse(const LinePlace& place, std::string_view found, std::string_view expected) const {
    place.refuse(ErrorCode::kConfiguration, "input '{}': found {}, expected {}", input_.name, found,
                 expected);
  }
  [[noreturn]] void refuse(const LinePlace& place, std::string_view found) const {
    refuse(place, found, expectedNumber());
  }
  std::string_view expectedNumber() const { return wantsIntegers() ? "an integer of 64 bits" : "a number"; }

  std::unique_ptr<StoredArray> finish(int64_t rows) {
    Shape shape = input_.shape;
    shape[0] = rows;
    return std::make_unique<MemoryArray>(type_, std::move(shape), std::move(bytes_), std::move(lengths_));
  }

 private:
  template <typename T>
  void append(T number) {
    const auto* from = reinterpret_cast<const std::byte*>(&number);
    bytes_.insert(bytes_.end(), from, from + sizeof number);
  }

  const ProgramInput& input_;
  DataType type_;
  std::vector<std::byte> bytes_;
  std::vector<int64_t> lengths_;  // of every example; none where all are as long as the input
};

// Fields between commas; a field in quotes may hold commas. Spaces around fields do not count.
std::vector<std::string> splitFields(const std::string& line, const LinePlace& place) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      if (fields.size() == kMostFields)
        place.refuse(ErrorCode::kBadModel, "has more than {} fields", kMostFields);
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  for (std::string& field : fields) {
    field.erase(0, field.find_first_not_of(" \t"));
    field.erase(field.find_last_not_of(" \t") + 1);
  }
  return fields;
}

// Spreadsheets save "Unicode text" so, with zeros between the letters.
void refuseUtf16(const std::string& first_line, const std::string& path) {
  if (!first_line.starts_with("\xff\xfe") && !first_line.starts_with("\xfe\xff")) return;
  fail(ErrorCode::kBadModel,
       "{} is UTF-16 (it starts with a byte order mark); save it as UTF-8, such as by "
       "iconv -f UTF-16 -t UTF-8",
       path);
}

// What stands between the names in place of commas; "": nothing that is known.
std::string_view otherSeparator(const std::vector<std::string>& names) {
  if (names.size() != 1) return "";
  if (names[0].find(';') != std::string::npos) return "';'";
  return names[0].find('\t') != std::string::npos ? "a tab" : "";
}

template <typename T>
bool parseWhole(const std::string& text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

class CsvTable : public ArrayStore {
 public:
  explicit CsvTable(std::string path) : path_(std::move(path)) {
    LineReader lines(path_);
    std::string line;
    if (!lines.next(line)) fail(ErrorCode::kBadModel, "{} is empty; expected a line with the names", path_);
    refuseUtf16(line, path_);
    if (line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);  // a byte order mark
    names_ = splitFields(line, lines.place());
    taken_.resize(names_.size(), false);
  }

  std::unique_ptr<StoredArray> open(const ProgramInput& input) override {
    NumberColumn column(input);
    const std::vector<size_t> wanted = columnsOf(input.name, elementCount(column.rowShape()));
    for (const size_t place : wanted) taken_[place] = true;
    LineReader lines(path_);
    std::string line;
    lines.next(line);
    int64_t rows = 0;
    for (; lines.next(line); ++rows) {
      const std::vector<std::string> fields = splitFields(line, lines.place());
      if (fields.size() != names_.size()) {
        lines.place().refuse(ErrorCode::kBadModel, "has {} fields, but the first line names {}",
                             fields.size(), names_.size());
      }
      for (const size_t place : wanted)
        addField(fields[place], input.name, names_[place], lines.place(), column);
    }
    return column.finish(rows);
  }
  int rowAxis(const ProgramInput&) const override { return 0; }
  std::vector<std::string> unused() const override {
    std::vector<std::string> unused;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (!taken_[i]) unused.push_back(names_[i]);
    }
    return unused;
  }

 private:
  static void addField(const std::string& field, const std::string& input, const std::string& name,
                       const LinePlace& place, NumberColumn& column) {
    int64_t whole = 0;
    double number = 0;
    if (column.wantsIntegers() && parseWhole(field, whole)) {
      column.add(whole);
    } else if (!parseWhole(field, number) || !column.addNumber(number)) {
      place.refuse(ErrorCode::kConfiguration, "input '{}'{}: found {}, expected {}", input,
                   name == input ? "" : fmt::format(", column '{}'", name),
                   field.empty() ? "nothing" : fmt::format("'{}'", field.substr(0, kMostShown)),
                   column.expectedNumber());
    }
  }

  std::vector<size_t> columnsOf(const std::string& name, int64_t count) const {
    std::vector<size_t> found;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == name) found.push_back(i);
    }
    const bool numbered = found.empty();
    for (int64_t k = 0; numbered && k < count; ++k) {
      const std::string wanted = fmt::format("{}[{}]", name, k);
      for (size_t i = 0; i < names_.size(); ++i) {
        if (names_[i] == wanted) found.push_back(i);
      }
      if (std::ssize(found) == k + 1) continue;
      if (k == 0) break;
      fail(ErrorCode::kConfiguration,
           "{}, input '{}': found {} columns '{}', expected one of each from '{}[0]' to '{}[{}]'", path_,
           name, std::ssize(found) - k, wanted, name, name, count - 1);
    }
    if (found.empty()) refuseMissing(name, count);
    if (std::ssize(found) == count) return found;
    fail(ErrorCode::kConfiguration, "{}, input '{}': found {} columns of this name, expected {}", path_, name,
         found.size(), count);
  }

  [[noreturn]] void refuseMissing(const std::string& name, int64_t count) const {
    const std::string_view separator = otherSeparator(names_);
    fail(ErrorCode::kMissingInput, "{} has no column '{}'{}; its columns are: {}{}", path_, name,
         count == 1 ? "" : fmt::format(" or '{}[0]'", name), fmt::join(names_, ", "),
         separator.empty() ? ""
                           : fmt::format(" (one column: its first line has {}, but columns are separated by "
                                         "commas)",
                                         separator));
  }

  std::string path_;
  std::vector<std::string> names_;
  std::vector<bool> taken_;  // as names_
};

class JsonLines : public ArrayStore {
 public:
  JsonLines(std::string path, const RowLengths& lengths) : path_(std::move(path)), lengths_(lengths) {
    LineReader lines(path_);
    std::string line;
    if (!lines.next(line)) fail(ErrorCode::kBadModel, "{} is empty; expected a JSON object a line", path_);
  }

  std::unique_ptr<StoredArray> open(const ProgramInput& input) override {
    NumberColumn column(input);
    taken_.insert(input.name);
    const Shape shape = column.rowShape();
    const double padding = lengths_.padding(input.name);
    std::vector<int> axes;  // of an example
    for (const int axis : lengths_.axes(input.name)) axes.push_back(axis - 1);
    LineReader lines(path_);
    std::string line;
    int64_t rows = 0;
    for (; lines.next(line); ++rows) {
      if (isTooDeep(line))
        lines.place().refuse(ErrorCode::kBadModel, "values lie in more than {} others", kDeepest);
      const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
      if (!object.is_object()) lines.place().refuse(ErrorCode::kBadModel, "is no JSON object");
      if (rows == 0 && keys_.empty()) {
        for (const auto& [key, value] : object.items()) keys_.push_back(key);
      }
      const auto found = object.find(input.name);
      if (found == object.end())
        lines.place().refuse(ErrorCode::kMissingInput, "has no key '{}'", input.name);
      const Extents extents = extentsOf(*found, shape, axes, input.name, lines.place(), column);
      addValue(*found, {extents.found, extents.taken, shape}, padding, lines.place(), column);
    }
    return column.finish(rows);
  }
  int rowAxis(const ProgramInput&) const override { return 0; }
  std::vector<std::string> unused() const override { return namesBut(keys_, taken_); }

 private:
  struct Extents {
    Shape found;  // of an example, as lists should have it
    Shape taken;  // what is kept of it
  };

  Extents extentsOf(const nlohmann::json& value, const Shape& shape, const std::vector<int>& axes,
                    const std::string& name, const LinePlace& place, NumberColumn& column) const {
    Extents extents{shape, shape};
    if (axes.empty()) return extents;
    const nlohmann::json* list = &value;
    for (int axis = 0; axis < axes.front() && list->is_array() && !list->empty(); ++axis)
      list = &list->front();
    if (!list->is_array()) column.refuse(place, describeFound(*list), "a list");
    const int64_t length = std::ssize(*list);
    lengths_.shortestFor(length, fmt::format("{}, line {}, input '{}'", place.path, place.line, name));
    for (const int axis : axes) {
      extents.found[axis] = length;
      extents.taken[axis] = std::min(length, lengths_.longest());
    }
    column.addLength(extents.taken[axes.front()]);
    return extents;
  }

  // Of an example, or of a part of it: as it is found, as much as is taken, and padded.
  struct Parts {
    std::span<const int64_t> found, taken, padded;
    Parts inner() const { return {found.subspan(1), taken.subspan(1), padded.subspan(1)}; }
  };

  static std::string describeFound(const nlohmann::json& value) {
    if (value.is_array()) return fmt::format("a list of {}", value.size());
    return value.is_object() || value.is_string() ? fmt::format("a {}", value.type_name()) : value.dump();
  }

  static void addValue(const nlohmann::json& value, const Parts& parts, double padding,
                       const LinePlace& place, NumberColumn& column) {
    if (!parts.padded.empty()) {
      if (!value.is_array() || std::ssize(value) != parts.found[0])
        column.refuse(place, describeFound(value), fmt::format("a list of {}", parts.found[0]));
      const Parts inner = parts.inner();
      for (int64_t k = 0; k < parts.taken[0]; ++k) addValue(value[k], inner, padding, place, column);
      column.pad(
          (parts.padded[0] - parts.taken[0]) * elementCount({inner.padded.begin(), inner.padded.end()}),
          padding);
    } else if (column.takesBooleans() && value.is_boolean()) {
      column.addNumber(value.get<bool>() ? 1 : 0);
    } else if (column.wantsIntegers() && value.is_number_integer() &&
               (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX)) {
      column.add(value.get<int64_t>());
    } else if (!value.is_number() || !column.addNumber(value.get<double>())) {
      column.refuse(place, describeFound(value));
    }
  }

  std::string path_;
  const RowLengths& lengths_;
  std::vector<std::string> keys_;  // of the first line
  std::set<std::string> taken_;
};

}  // namespace

std::unique_ptr<ArrayStore> openCsvTable(const std::string& path) { return std::make_unique<CsvTable>(path); }

std::unique_ptr<ArrayStore> openJsonLines(const std::string& path, const RowLengths& lengths) {
  return std::make_unique<JsonLines>(path, lengths);
}

}  // namespace pipeshard
