#include "tests/fuzz/fuzz_mutation.h"

#include <array>
#include <limits>
#include <vector>

#include <google/protobuf/message.h>
#include <onnx/onnx_pb.h>
#include <nlohmann/json.hpp>

namespace pipeshard::testing {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr std::array<int64_t, 12> kNumbers = {
    0, 1, -1, 2, 3, 64, -2, int64_t{1} << 31, -7, 255, 1'000'000'007, int64_t{1} << 62};

size_t pick(size_t count, FuzzDice& dice) {
  return std::uniform_int_distribution<size_t>(0, count - 1)(dice);
}
bool oneIn(size_t count, FuzzDice& dice) { return pick(count, dice) == 0; }

int64_t number(int64_t old, FuzzDice& dice) {
  switch (pick(4, dice)) {
    case 0: return static_cast<int64_t>(static_cast<uint64_t>(old) + 1);
    case 1: return static_cast<int64_t>(static_cast<uint64_t>(old) - 1);
    case 2:
      return oneIn(8, dice) ? std::numeric_limits<int64_t>::min() : kNumbers[pick(kNumbers.size(), dice)];
    default: return kNumbers[pick(kNumbers.size(), dice)];
  }
}

void collect(Json& value, std::vector<Json*>& found) {
  found.push_back(&value);
  if (!value.is_structured()) return;
  for (Json& part : value) collect(part, found);
}

void change(Json& value, const Json& other, FuzzDice& dice) {
  if (oneIn(6, dice)) {
    value = other;
  } else if (value.is_number_integer()) {
    value = number(value.get<int64_t>(), dice);
  } else if (value.is_number()) {
    value = oneIn(2, dice) ? -value.get<double>() : 1e308;
  } else if (value.is_boolean()) {
    value = !value.get<bool>();
  } else if (value.is_array() && !value.empty()) {
    if (oneIn(2, dice))
      value.erase(value.begin() + static_cast<long>(pick(value.size(), dice)));
    else
      value.push_back(value[pick(value.size(), dice)]);
  } else if (value.is_object() && !value.empty()) {
    auto at = value.begin();
    std::advance(at, pick(value.size(), dice));
    value.erase(at.key());
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    value = oneIn(2, dice) ? text.substr(0, text.size() / 2) : text + std::to_string(number(0, dice));
  } else {
    value = other;
  }
}

// Every message in it, itself first.
void collect(Message& message, std::vector<Message*>& found) {
  found.push_back(&message);
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      collect(*reflection.MutableMessage(&message, field), found);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i)
      collect(*reflection.MutableRepeatedMessage(&message, field, i), found);
  }
}

// One value of a repeated field: left out, doubled, or swapped with another.
void changeRepeated(Message& message, const FieldDescriptor* field, FuzzDice& dice) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, field);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 && !oneIn(4, dice)) {
    const int at = static_cast<int>(pick(static_cast<size_t>(size), dice));
    reflection.SetRepeatedInt64(&message, field, at,
                                number(reflection.GetRepeatedInt64(message, field, at), dice));
  } else if (oneIn(2, dice)) {
    reflection.SwapElements(&message, field, static_cast<int>(pick(static_cast<size_t>(size), dice)),
                            size - 1);
    if (oneIn(2, dice)) reflection.RemoveLast(&message, field);
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    const Message& copied = reflection.GetRepeatedMessage(
        message, field, static_cast<int>(pick(static_cast<size_t>(size), dice)));
    const std::unique_ptr<Message> copy(copied.New());
    copy->CopyFrom(copied);
    reflection.AddMessage(&message, field)->CopyFrom(*copy);
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    reflection.AddInt64(&message, field, number(0, dice));
  }
}

void changeField(Message& message, const FieldDescriptor* field, const Message& whole, FuzzDice& dice) {
  const Reflection& reflection = *message.GetReflection();
  if (field->is_repeated()) return changeRepeated(message, field, dice);
  if (oneIn(16, dice)) return reflection.ClearField(&message, field);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      reflection.SetInt64(&message, field, number(reflection.GetInt64(message, field), dice));
      break;
    case FieldDescriptor::CPPTYPE_INT32:  // a type of elements
      reflection.SetInt32(&message, field, static_cast<int32_t>(pick(26, dice)));
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      reflection.SetFloat(&message, field, oneIn(2, dice) ? -1 : std::numeric_limits<float>::quiet_NaN());
      break;
    case FieldDescriptor::CPPTYPE_STRING: {  // often another's name: an operator's type, a value
      const auto& nodes = static_cast<const onnx::ModelProto&>(whole).graph().node();
      if (nodes.empty()) break;
      const onnx::NodeProto& node = nodes[static_cast<int>(pick(static_cast<size_t>(nodes.size()), dice))];
      const std::string name =
          field->name() == "op_type" || node.output().empty() ? node.op_type() : node.output(0);
      reflection.SetString(&message, field, name);
      break;
    }
    default: break;
  }
}

std::string mutateDocument(const std::string& input, FuzzDice& dice) {
  Json document = Json::parse(input, nullptr, false);
  if (document.is_discarded()) return "";
  std::vector<Json*> values;
  collect(document, values);
  const Json other = *values[pick(values.size(), dice)];
  change(*values[pick(values.size(), dice)], other, dice);
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string mutateJson(const std::string& input, FuzzDice& dice) {
  std::vector<size_t> starts = {0};  // of documents, with form feeds between them
  for (size_t at = 0; (at = input.find('\f', at)) != std::string::npos;) starts.push_back(++at);
  const size_t start = starts[pick(starts.size(), dice)],
               end = std::min(input.find('\f', start), input.size());
  const std::string changed = mutateDocument(input.substr(start, end - start), dice);
  return changed.empty() ? "" : input.substr(0, start) + changed + input.substr(end);
}

std::string mutateModel(const std::string& input, FuzzDice& dice) {
  onnx::ModelProto model;
  if (!model.ParseFromString(input)) return "";
  std::vector<Message*> messages;
  collect(model, messages);
  for (int tries = 0; tries < 8; ++tries) {
    Message& message = *messages[pick(messages.size(), dice)];
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    if (fields.empty()) continue;
    changeField(message, fields[pick(fields.size(), dice)], model, dice);
    break;
  }
  return model.SerializeAsString();
}

}  // namespace pipeshard::testing
