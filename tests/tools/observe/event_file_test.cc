// Event files, read by another reading of the format's description than the writer's.
#include "tools/observe/event_file.h"

#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

template <typename T>
T numberAt(std::string_view bytes, size_t at) {
  T number;
  std::memcpy(&number, bytes.substr(at, sizeof number).data(), sizeof number);
  return number;
}

// Bit by bit, from the definition: x^32 + ... of iSCSI (RFC 3720, B.4), least significant bit first.
uint32_t slowChecksum(std::string_view bytes) {
  uint32_t rest = 0xFFFFFFFF;
  for (const char c : bytes) {
    rest ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) * 0x82F63B78);
  }
  return ~rest;
}

uint32_t masked(uint32_t checksum) { return ((checksum >> 15) | (checksum << 17)) + 0xA282EAD8; }

// The fields of a protobuf message: numbers as they are, the rest as bytes.
struct Message {
  std::multimap<int, uint64_t> numbers;
  std::multimap<int, std::string> bytes;
  std::map<int, double> doubles;
  std::map<int, float> floats;
};

uint64_t varintAt(std::string_view bytes, size_t& at) {
  uint64_t number = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(at++));
    number |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return number;
  }
}

Message messageOf(std::string_view bytes) {
  Message message;
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t key = varintAt(bytes, at);
    const int field = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0: message.numbers.emplace(field, varintAt(bytes, at)); break;
      case 1: message.doubles[field] = numberAt<double>(bytes, at), at += 8; break;
      case 5: message.floats[field] = numberAt<float>(bytes, at), at += 4; break;
      case 2: {
        const size_t length = varintAt(bytes, at);
        message.bytes.emplace(field, bytes.substr(at, length));
        at += length;
        break;
      }
      default: ADD_FAILURE() << "wire type " << (key & 7); return message;
    }
  }
  return message;
}

std::vector<Message> recordsOf(const std::string& path) {
  const std::string file = readFile(path);
  std::vector<Message> records;
  size_t at = 0;
  while (at < file.size()) {
    const auto length = numberAt<uint64_t>(file, at);
    EXPECT_EQ(numberAt<uint32_t>(file, at + 8), masked(slowChecksum(std::string_view(file).substr(at, 8))));
    const std::string_view content = std::string_view(file).substr(at + 12, length);
    EXPECT_EQ(numberAt<uint32_t>(file, at + 12 + length), masked(slowChecksum(content)));
    records.push_back(messageOf(content));
    at += 16 + length;
  }
  EXPECT_EQ(at, file.size());
  return records;
}

std::map<std::string, float> scalarsOf(const Message& event) {
  std::map<std::string, float> scalars;
  if (event.bytes.count(5) == 0) return scalars;
  const Message summary = messageOf(event.bytes.find(5)->second);
  for (const auto& [field, bytes] : summary.bytes) {
    const Message value = messageOf(bytes);
    scalars[value.bytes.find(1)->second] = value.floats.at(2);
  }
  return scalars;
}

TEST(EventFileTest, ChecksumsAreThoseOfTheStandard) {
  EXPECT_EQ(checksum32c("123456789"), 0xE3069283U);  // RFC 3720
  EXPECT_EQ(checksum32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(checksum32c(std::string(32, '\xFF')), 0x62A8AB43U);
  for (const char* text : {"", "a", "pipeshard writes events"}) {
    EXPECT_EQ(checksum32c(text), slowChecksum(text)) << text;
    EXPECT_EQ(maskedChecksum(text), masked(slowChecksum(text))) << text;
  }
}

TEST(EventFileTest, HasAHeadAndARecordPerStep) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.write(1700000000.25, 17, {{"train/loss", 5.5}, {"train/learning_rate", 0.25}});
  file.write(1700000001, 300, {{"evaluation/loss", NAN}});
  file.flush();
  EXPECT_NE(file.path().find("events.out.tfevents."), std::string::npos);
  const std::vector<Message> records = recordsOf(file.path());
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].bytes.find(3)->second, "brain.Event:2");
  EXPECT_EQ(records[1].doubles.at(1), 1700000000.25);
  EXPECT_EQ(records[1].numbers.find(2)->second, 17U);
  EXPECT_EQ(scalarsOf(records[1]),
            (std::map<std::string, float>{{"train/loss", 5.5F}, {"train/learning_rate", 0.25F}}));
  EXPECT_EQ(records[2].numbers.find(2)->second, 300U);
  EXPECT_TRUE(std::isnan(scalarsOf(records[2]).at("evaluation/loss")));
}

TEST(EventFileTest, SaysFromWhereStepsAreDoneAgain) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.beginAgainAt(1700000000, 21);
  file.flush();
  const std::vector<Message> records = recordsOf(file.path());
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].numbers.find(2)->second, 21U);
  const Message session = messageOf(records[1].bytes.find(7)->second);
  EXPECT_EQ(session.numbers.find(1)->second, 1U) << "SessionLog.START";
}

TEST(EventFileTest, AFolderThatIsNotThereIsAnError) {
  const TemporaryFolder folder;
  EXPECT_ERROR(EventFile(folder.file("nowhere")), ErrorCode::kMissingInput, "events.out.tfevents");
}

}  // namespace
}  // namespace pipeshard
