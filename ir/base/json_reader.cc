#include "ir/base/json_reader.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/faults.h"
#include "ir/base/near_matches.h"

namespace pipeshard {
namespace {

// The start of a value, short enough for a message.
std::string excerpt(const Json& json) {
  constexpr size_t kLongest = 80;
  std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// What walks a document calls itself for what lies in it: without a limit, deep ones would end the process.
constexpr size_t kDeepest = 64;
constexpr size_t kFewKeys = 32;

// Builds the document from a parser's events. (The library's own parser with a callback, which could look at
// keys too, searches an array again from its beginning whenever an object in it ends.)
class DocumentBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit DocumentBuilder(std::string_view what) : what_(what) {}
  Json take() { return std::move(document_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    if (hasKey(members, name))
      fail(ErrorCode::kConfiguration, "{}: key {} appears twice in one object; keep one of them", what_,
           excerpt(Json(name)));
    members.emplace_back(name, Json());
    member_ = &members.back().second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    fail(ErrorCode::kConfiguration, "{}: this is not JSON: {}", what_, error.what());
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (open_.size() == kDeepest)
      fail(ErrorCode::kConfiguration,
           "{}: values lie in more than {} others; no file of this kind is so deep", what_, kDeepest);
    open_.push_back(place(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  // The library's objects with an order look through all their keys; vocabularies have 100,000. Remembers it.
  bool hasKey(const Json::object_t& members, const std::string& name) {
    std::unordered_set<std::string>& keys = keys_.back();
    if (members.size() < kFewKeys)
      return std::ranges::any_of(members, [&](const auto& member) { return member.first == name; });
    if (keys.empty()) {
      for (const auto& member : members) keys.insert(member.first);
    }
    return !keys.insert(name).second;
  }

  Json* place(Json value) {
    if (open_.empty()) {
      document_ = std::move(value);
      return &document_;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    auto& elements = open_.back()->get_ref<Json::array_t&>();
    elements.push_back(std::move(value));
    return &elements.back();
  }

  std::string_view what_;
  Json document_;
  // an outer one gets no new elements before the inner ones are closed, so pointers stay valid
  std::vector<Json*> open_;
  std::vector<std::unordered_set<std::string>> keys_;  // of each of them that has many
  Json* member_ = nullptr;                             // of the innermost object: whose key was read last
};

}  // namespace

Json parseJson(std::string_view text, std::string_view what, JsonComments comments) {
  DocumentBuilder builder(what);
  Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json, true,
                  comments == JsonComments::kAllowed);
  return builder.take();
}

void checkJsonVersion(const Json& document, std::string_view what, int version, std::string_view advice) {
  if (!document.is_object() || !document.contains("version")) {
    fail(ErrorCode::kConfiguration, "{}: key \"version\" is missing; is this the right file?", what);
  }
  const int64_t found =
      JsonReader(document.at("version"), std::string(what) + ".version").integer(0, INT32_MAX);
  if (found != version) {
    fail(ErrorCode::kVersionMismatch, "{}: version {} was found, this pipeshard reads version {}; {}", what,
         found, version, advice);
  }
}

std::string dumpJsonLine(const Json& value) {
  try {
    return value.dump();
  } catch (const Json::exception& error) {
    const std::string_view text = error.what();  // "[json.exception.type_error.316] invalid UTF-8 ..."
    const size_t told = text.find("] ");
    fail(ErrorCode::kBadModel,
         "a name in the model, or a path, cannot be written to JSON: {}; names and paths must be UTF-8",
         told == text.npos ? text : text.substr(told + 2));
  }
}

bool isUtf8(const std::string& text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

std::string dumpJson(const Json& document) {
  std::string text = "{\n";
  size_t left = document.size();
  for (const auto& [key, value] : document.items()) {
    text += "  " + dumpJsonLine(Json(key)) + ": ";
    if (value.is_array() && !value.empty()) {
      text += "[\n";
      for (size_t i = 0; i < value.size(); ++i)
        text += "    " + dumpJsonLine(value[i]) + (i + 1 < value.size() ? ",\n" : "\n");
      text += "  ]";
    } else {
      text += dumpJsonLine(value);
    }
    text += --left > 0 ? ",\n" : "\n";
  }
  return text + "}\n";
}

// A JsonReader is a value and the path that leads to it ("plan.json.stages[2].devices"), so every accessor
// can say where it found what. Each checks before it converts; none has a default.
void JsonReader::failExpected(std::string_view expected) const {
  fail(ErrorCode::kConfiguration, "{}: found {}; expected {}", path_, excerpt(*json_), expected);
}

void JsonReader::failWith(std::string_view fault) const {
  fail(ErrorCode::kConfiguration, "{}: {}", path_, fault);
}

void JsonReader::expectObject(const std::vector<std::string_view>& required,
                              const std::vector<std::string_view>& optional) const {
  if (!json_->is_object()) failExpected("an object");
  std::vector<std::string_view> allowed = required;
  allowed.insert(allowed.end(), optional.begin(), optional.end());
  std::vector<std::string> unknown, meant, missing;
  for (const auto& [key, value] : json_->items()) {
    if (std::find(allowed.begin(), allowed.end(), key) != allowed.end()) continue;
    unknown.push_back(excerpt(Json(key)));
    for (std::string& near : nearMatches(key, {allowed.begin(), allowed.end()})) {
      const bool is_new =
          !json_->contains(near) && std::find(meant.begin(), meant.end(), near) == meant.end();
      if (is_new) meant.push_back(std::move(near));
    }
  }
  for (std::string_view key : required) {
    if (!json_->contains(key) && std::find(meant.begin(), meant.end(), key) == meant.end())
      missing.push_back(fmt::format("\"{}\"", key));
  }
  if (unknown.empty() && missing.empty()) return;
  std::vector<std::string> faults;
  if (!unknown.empty())
    faults.push_back(fmt::format("found {} {}", unknown.size() == 1 ? "an unknown key" : "unknown keys",
                                 fmt::join(unknown, ", ")));
  if (missing.size() == 1) faults.push_back(fmt::format("key {} is missing", missing[0]));
  if (missing.size() > 1) faults.push_back(fmt::format("keys {} are missing", fmt::join(missing, ", ")));
  fail(ErrorCode::kConfiguration, "{}: {}; the keys here are {}{}", path_, fmt::join(faults, "; "),
       fmt::join(allowed, ", "),
       meant.empty() ? "" : fmt::format("; did you mean \"{}\"?", fmt::join(meant, "\" or \"")));
}

void JsonFaults::throwIfAny(std::string_view what) const { throwFaults(what, messages_); }

bool JsonReader::has(const char* key) const { return json_->contains(key); }
bool JsonReader::isArray() const { return json_->is_array(); }
bool JsonReader::isString() const { return json_->is_string(); }
bool JsonReader::isObject() const { return json_->is_object(); }

JsonReader JsonReader::at(const char* key) const { return {json_->at(key), path_ + "." + key}; }

std::vector<JsonReader> JsonReader::elements() const {
  if (!json_->is_array()) failExpected("an array");
  std::vector<JsonReader> result;
  for (size_t i = 0; i < json_->size(); ++i)
    result.emplace_back((*json_)[i], fmt::format("{}[{}]", path_, i));
  return result;
}

std::vector<std::string> JsonReader::keys() const {
  if (!json_->is_object()) failExpected("an object");
  std::vector<std::string> result;
  for (const auto& [key, value] : json_->items()) result.push_back(key);
  return result;
}

int64_t JsonReader::integer(int64_t low, int64_t high) const {
  const bool fits =
      json_->is_number_integer() &&
      (!json_->is_number_unsigned() || json_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) &&
      json_->get<int64_t>() >= low && json_->get<int64_t>() <= high;
  if (!fits && high == INT64_MAX) failExpected(fmt::format("an integer of at least {}", low));
  if (!fits) failExpected(fmt::format("an integer from {} to {}", low, high));
  return json_->get<int64_t>();
}

double JsonReader::number(double low, double high) const {
  const bool fits = json_->is_number() && json_->get<double>() >= low && json_->get<double>() <= high;
  if (!fits) failExpected(fmt::format("a number from {} to {}", low, high));
  return json_->get<double>();
}

bool JsonReader::boolean() const {
  if (!json_->is_boolean()) failExpected("true or false");
  return json_->get<bool>();
}

std::string JsonReader::string() const {
  if (!json_->is_string()) failExpected("a string");
  return json_->get<std::string>();
}

std::string JsonReader::string(const std::vector<std::string>& allowed) const {
  if (!json_->is_string() ||
      std::find(allowed.begin(), allowed.end(), json_->get<std::string>()) == allowed.end()) {
    const std::vector<std::string> near =
        json_->is_string() ? nearMatches(json_->get<std::string>(), allowed) : std::vector<std::string>();
    failExpected(
        fmt::format("one of \"{}\"{}", fmt::join(allowed, "\", \""),
                    near.empty() ? "" : fmt::format("; did you mean \"{}\"?", fmt::join(near, "\" or \""))));
  }
  return json_->get<std::string>();
}

DataType JsonReader::dataType() const {
  const DataType type = dataTypeFromName(string());
  if (dataTypeSize(type) == 0)
    failExpected("the name of a type of whole bytes, such as \"float32\" or \"int64\"");
  return type;
}

Shape JsonReader::shape() const { return integers(0, INT64_MAX); }

std::vector<int64_t> JsonReader::integers(int64_t low, int64_t high) const {
  std::vector<int64_t> result;
  for (const JsonReader& element : elements()) result.push_back(element.integer(low, high));
  return result;
}

std::vector<std::string> JsonReader::strings() const {
  std::vector<std::string> result;
  for (const JsonReader& element : elements()) result.push_back(element.string());
  return result;
}

}  // namespace pipeshard
