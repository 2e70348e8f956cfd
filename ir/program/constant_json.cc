#include "ir/program/constant_json.h"

#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

// Three bytes are a word of 24 bits, which is four characters; '=' stands for those that hold no byte's bits.
std::string toBase64(const std::vector<std::byte>& bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j)
      word = word << 8 | (i + j < bytes.size() ? std::to_integer<uint32_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kBase64[word >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

// Character i carries 6 bits; every character but the first of each four completes a byte.
std::vector<std::byte> fromBase64(const JsonReader& json) {
  const std::string text = json.string();
  size_t length = text.size();
  while (length > 0 && text.size() - length < 2 && text[length - 1] == '=') --length;
  if (text.size() % 4 != 0) json.failExpected("base64, a multiple of four characters");
  std::vector<std::byte> bytes;
  uint32_t word = 0;
  for (size_t i = 0; i < length; ++i) {
    const size_t digit = kBase64.find(text[i]);
    if (digit == std::string_view::npos) json.failExpected("base64");
    word = word << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 0) bytes.push_back(static_cast<std::byte>(word >> (6 - 2 * (i % 4)) & 255));
  }
  return bytes;
}

Json constantToJson(const Constant& constant) {
  return {{"type", dataTypeName(constant.data_type)},
          {"shape", constant.shape},
          {"base64", toBase64(constant.bytes)}};
}

Constant constantFromJson(const JsonReader& json) {
  json.expectObject({"type", "shape", "base64"});
  Constant constant{json.at("type").dataType(), json.at("shape").shape(), fromBase64(json.at("base64"))};
  const int64_t expected = byteCount(constant.data_type, constant.shape);
  if (std::ssize(constant.bytes) != expected)
    json.at("base64").failExpected(fmt::format("{} bytes", expected));
  return constant;
}

}  // namespace pipeshard
