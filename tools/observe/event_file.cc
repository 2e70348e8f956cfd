#include "tools/observe/event_file.h"

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "ir/base/text_file.h"
#include "runtime/job/host_name.h"

namespace pipeshard {
namespace {

constexpr std::array<uint32_t, 256> makeTable() {
  constexpr uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest & 1) != 0 ? rest >> 1 ^ kReversedPolynomial : rest >> 1;
    table[byte] = rest;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kChecksums = makeTable();

template <typename T>
std::string littleEndian(T number) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

// ---- protobuf's wire format: a key (field number and wire type), then the value ----

std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  return bytes + static_cast<char>(number);
}
std::string numberField(int field, uint64_t number) { return varint(field << 3 | 0) + varint(number); }
std::string doubleField(int field, double number) { return varint(field << 3 | 1) + littleEndian(number); }
std::string bytesField(int field, std::string_view bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}
std::string floatField(int field, float number) { return varint(field << 3 | 5) + littleEndian(number); }

std::string eventHead(double time, int64_t step) {
  return doubleField(1, time) + numberField(2, static_cast<uint64_t>(step));
}

}  // namespace

uint32_t checksum32c(std::string_view bytes) {
  uint32_t rest = ~uint32_t{0};
  for (const char c : bytes) rest = rest >> 8 ^ kChecksums[(rest ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~rest;
}

uint32_t maskedChecksum(std::string_view bytes) { return std::rotr(checksum32c(bytes), 15) + 0xA282EAD8; }

EventFile::EventFile(const std::string& directory) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  // Readers take the files of a folder in the order of their names.
  const std::string name =
      fmt::format("events.out.tfevents.{:.6f}.{}.{}", now, hostName(), static_cast<int>(::getpid()));
  path_ = (std::filesystem::path(directory) / name).string();
  file_.reset(std::fopen(path_.c_str(), "wxe"));
  if (!file_) failToWrite(path_, errno);
  record(doubleField(1, now) + bytesField(3, "brain.Event:2"));
  flush();
}

void EventFile::record(const std::string& content) {
  const std::string length = littleEndian(static_cast<uint64_t>(content.size()));
  const std::string framed =
      length + littleEndian(maskedChecksum(length)) + content + littleEndian(maskedChecksum(content));
  if (std::fwrite(framed.data(), 1, framed.size(), file_.get()) != framed.size()) failToWrite(path_, errno);
}

void EventFile::write(double time, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars)
    summary += bytesField(1, bytesField(1, tag) + floatField(2, static_cast<float>(number)));
  record(eventHead(time, step) + bytesField(5, summary));
}

void EventFile::beginAgainAt(double time, int64_t step) {
  record(eventHead(time, step) + bytesField(7, numberField(1, 1)));
}

void EventFile::flush() {
  if (std::fflush(file_.get()) != 0) failToWrite(path_, errno);
}

}  // namespace pipeshard
