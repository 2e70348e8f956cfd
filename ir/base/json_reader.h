// Reading and writing the JSON files of ir/ (plan.json, program.json, stage files): strict, with errors that
// name the path of the field, what was found and what is allowed. All small files
// are parsed by it. Sources that make or hold a Json include nlohmann/json.hpp themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ir/base/data_type.h"
#include "ir/base/error.h"
#include "ir/base/shape.h"

namespace pipeshard {

using Json = nlohmann::ordered_json;

// files written by people may hold // and /* */ comments
enum class JsonComments : bool { kRefused, kAllowed };

// Parses a whole document. Error(kConfiguration), with line and column, for text that is no JSON, repeats a
// key or has values in more than 64 others. `what` ("plan.json") starts every message.
Json parseJson(std::string_view text, std::string_view what, JsonComments comments = JsonComments::kRefused);

// Looks at the document's "version" before anything else: Error(kConfiguration) without one,
// Error(kVersionMismatch) with another than `version`; `advice` ends that message.
void checkJsonVersion(const Json& document, std::string_view what, int version,
                      std::string_view advice = "plan again, or use the pipeshard that wrote it");

// The document as text: one line per key of the outermost object, and one line per element of arrays in it;
// integers, strings, and numbers as given (nlohmann-json writes the shortest text that reads back as the same
// number), so the same data gives the same bytes. Error(kBadModel) for names and paths that are not UTF-8.
std::string dumpJson(const Json& document);
// A value of it, as it stands in one line. Errors likewise.
std::string dumpJsonLine(const Json& value);
// What JSON can hold as a string.
bool isUtf8(const std::string& text);

// A view of one JSON value and its path ("stages[2].devices"). The document must outlive it. Every getter
// throws Error(kConfiguration) when the value is not what it asks for.
class JsonReader {
 public:
  JsonReader(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

  // An object with these keys and no others; `required` ones must be there, `optional` ones may. The error
  // names all unknown keys, with those that may have been meant, and all that are missing.
  void expectObject(const std::vector<std::string_view>& required,
                    const std::vector<std::string_view>& optional = {}) const;
  bool has(const char* key) const;
  bool isArray() const;
  bool isString() const;
  bool isObject() const;
  JsonReader at(const char* key) const;      // of an object, after expectObject
  std::vector<JsonReader> elements() const;  // of an array
  std::vector<std::string> keys() const;     // of an object with free keys

  int64_t integer(int64_t low, int64_t high) const;  // both bounds inclusive
  double number(double low, double high) const;      // also with a decimal point; both bounds inclusive
  bool boolean() const;
  std::string string() const;
  std::string string(const std::vector<std::string>& allowed) const;
  // What `parse` makes of the string. Its error, of whatever code, is one of this field.
  template <typename Parse>
  auto parsed(const Parse& parse) const {
    const std::string text = string();
    try {
      return parse(text);
    } catch (const Error& error) {
      failWith(error.message());
    }
  }
  DataType dataType() const;
  Shape shape() const;
  std::vector<int64_t> integers(int64_t low, int64_t high) const;
  std::vector<std::string> strings() const;

  // Throws Error(kConfiguration): "<path>: found <value>; <expected>".
  [[noreturn]] void failExpected(std::string_view expected) const;
  // Throws Error(kConfiguration): "<path>: <fault>".
  [[noreturn]] void failWith(std::string_view fault) const;

 private:
  const Json* json_;
  std::string path_;
};

// The errors of parts of a document that are read each on its own, so that all are named, and not only the
// first.
class JsonFaults {
 public:
  // False: `read` threw Error(kConfiguration), which is kept. Other errors pass.
  template <typename F>
  bool attempt(const F& read) {
    try {
      read();
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfiguration) throw;
      messages_.push_back(error.message());
      return false;
    }
  }
  // Of a field, if there is one: that it is missing is for expectObject to say. False without one, too.
  template <typename F>
  bool attemptField(const JsonReader& object, const char* key, const F& read) {
    return object.has(key) && attempt([&] { read(object.at(key)); });
  }
  const std::vector<std::string>& messages() const { return messages_; }
  // Throws Error(kConfiguration) with all messages, if there are any: one alone as it is, several in a list
  // that `what` heads.
  void throwIfAny(std::string_view what) const;

 private:
  std::vector<std::string> messages_;
};

}  // namespace pipeshard
