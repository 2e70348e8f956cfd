#include "transport/control/control_schema.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace pipeshard {
namespace {

std::optional<std::string> fieldsFault(const std::vector<ControlField>& fields, const nlohmann::json& object);

bool fitsSigned(const nlohmann::json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() ||
          value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
}

bool isFromTo(const nlohmann::json& value, int64_t low, int64_t high) {
  return fitsSigned(value) && value.get<int64_t>() >= low && value.get<int64_t>() <= high;
}

bool hasType(ControlType type, const nlohmann::json& value) {
  switch (type) {
    case ControlType::kBoolean: return value.is_boolean();
    case ControlType::kInteger: return fitsSigned(value);
    case ControlType::kCount: return isFromTo(value, 0, INT64_MAX);
    case ControlType::kInt: return isFromTo(value, INT_MIN, INT_MAX);
    case ControlType::kIntCount: return isFromTo(value, 0, INT_MAX);
    case ControlType::kNumber: return value.is_number();
    case ControlType::kString: return value.is_string();
    case ControlType::kObject: return value.is_object();
    case ControlType::kArray: return value.is_array();
    case ControlType::kAny: return true;
  }
  return false;
}

std::string_view typeName(ControlType type) {
  switch (type) {
    case ControlType::kBoolean: return "true or false";
    case ControlType::kInteger: return "an integer";
    case ControlType::kCount: return "an integer that is not negative";
    case ControlType::kInt: return "an integer of 32 bits";
    case ControlType::kIntCount: return "an integer from 0 to 2147483647";
    case ControlType::kNumber: return "a number";
    case ControlType::kString: return "a string";
    case ControlType::kObject: return "an object";
    case ControlType::kArray: return "an array";
    case ControlType::kAny: return "anything";
  }
  return "";
}

std::optional<std::string> valueFault(const ControlField& field, const nlohmann::json& value) {
  if (value.is_null() && (field.flags & kNullable) != 0) return std::nullopt;
  if (!hasType(field.type, value))
    return fmt::format("field '{}' is {}, not {}", field.name, value.type_name(), typeName(field.type));
  if (field.inner.empty()) return std::nullopt;
  std::optional<std::string> fault;
  if (field.type == ControlType::kObject) fault = fieldsFault(field.inner, value);
  if (field.type == ControlType::kArray) {
    for (size_t i = 0; i < value.size() && !fault; ++i) fault = valueFault(field.inner[0], value[i]);
  }
  if (fault) return fmt::format("in '{}': {}", field.name, *fault);
  return std::nullopt;
}

std::optional<std::string> fieldsFault(const std::vector<ControlField>& fields,
                                       const nlohmann::json& object) {
  size_t present = 0;
  for (const ControlField& field : fields) {
    const auto found = object.find(field.name);
    if (found == object.end()) {
      if ((field.flags & kOptional) != 0) continue;
      return fmt::format("no field '{}'", field.name);
    }
    ++present;
    if (auto fault = valueFault(field, *found)) return fault;
  }
  if (present == object.size()) return std::nullopt;
  for (const auto& item : object.items()) {
    const bool is_known = std::any_of(fields.begin(), fields.end(),
                                      [&](const ControlField& field) { return field.name == item.key(); });
    if (!is_known) return fmt::format("surplus field '{}'", printableBeginning(item.key()));
  }
  return std::nullopt;
}

}  // namespace

std::string printableBeginning(std::string_view text) {
  std::string beginning(text.substr(0, 40));
  for (char& c : beginning) {
    if (c < ' ' || c > '~') c = '?';
  }
  return beginning;
}

std::optional<std::string> controlFault(const ControlSchema& schema, std::string_view type,
                                        const nlohmann::json& body, size_t payload_bytes) {
  if (schema.empty()) return std::nullopt;
  const auto form =
      std::find_if(schema.begin(), schema.end(), [&](const ControlForm& each) { return each.type == type; });
  if (form == schema.end()) return fmt::format("'{}': unknown type of message", printableBeginning(type));
  if (payload_bytes > 0 && form->payload == ControlPayload::kNone)
    return fmt::format("'{}': a payload of {} bytes, it has none", form->type, payload_bytes);
  if (body.is_null() && form->fields.empty()) return std::nullopt;
  if (!body.is_object())
    return fmt::format("'{}': its body is {}, not an object", form->type, body.type_name());
  if (auto fault = fieldsFault(form->fields, body)) return fmt::format("'{}': {}", form->type, *fault);
  return std::nullopt;
}

}  // namespace pipeshard
