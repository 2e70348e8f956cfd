#include "runtime/files/zip_offsets.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50, kLocatorSignature = 0x07064b50,
                   kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46, kLocalBytes = 30;
constexpr size_t kLongestComment = 65'535;
constexpr uint64_t kMostDirectoryBytes = uint64_t{256} << 20;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kEncryptedFlag = 1;
constexpr uint32_t kElsewhere32 = 0xffffffff;  // the number is in the zip64 extra field

// Little-endian numbers of a record; whoever makes one has compared its size.
template <typename T>
T numberAt(std::span<const std::byte> record, size_t at) {
  T number;
  std::memcpy(&number, record.data() + at, sizeof number);
  return number;
}

class DirectoryReader {
 public:
  DirectoryReader(const Descriptor& file, const std::string& path)
      : file_(file), path_(path), file_bytes_(fileBytes(file, path)) {}

  std::vector<ZipMember> read() {
    findDirectory();
    if (directory_bytes_ > kMostDirectoryBytes || directory_offset_ > file_bytes_ ||
        directory_bytes_ > file_bytes_ - directory_offset_)
      damaged("its directory lies outside of the file");
    std::vector<std::byte> directory(directory_bytes_);
    readExactly(file_, directory_offset_, directory, path_);
    std::span<const std::byte> left = directory;
    std::vector<ZipMember> members;
    while (!left.empty()) left = left.subspan(takeEntry(left, members));
    return members;
  }

 private:
  [[noreturn]] void damaged(const char* what) const {
    fail(ErrorCode::kBadModel, "{} cannot be read as .npz: {}; it is damaged or cut off", path_, what);
  }

  std::vector<std::byte> bytesAt(uint64_t offset, size_t bytes) const {
    if (offset > file_bytes_ || bytes > file_bytes_ - offset) damaged("a record lies outside of the file");
    std::vector<std::byte> found(bytes);
    readExactly(file_, offset, found, path_);
    return found;
  }

  // The record that ends the file, but for a comment.
  void findDirectory() {
    const size_t tail_bytes = std::min<uint64_t>(file_bytes_, kEndBytes + kLongestComment);
    const std::vector<std::byte> tail = bytesAt(file_bytes_ - tail_bytes, tail_bytes);
    for (size_t at = tail.size(); at-- > 0;) {
      if (tail.size() - at < kEndBytes || numberAt<uint32_t>(tail, at) != kEndSignature) continue;
      const auto end = std::span(tail).subspan(at);
      directory_bytes_ = numberAt<uint32_t>(end, 12);
      directory_offset_ = numberAt<uint32_t>(end, 16);
      const uint64_t place = file_bytes_ - tail.size() + at;
      if (directory_bytes_ == kElsewhere32 || directory_offset_ == kElsewhere32) findDirectory64(place);
      return;
    }
    damaged("it has no end-of-archive record");
  }

  void findDirectory64(uint64_t end) {
    if (end < kLocatorBytes) damaged("its zip64 record is missing");
    const std::vector<std::byte> locator = bytesAt(end - kLocatorBytes, kLocatorBytes);
    if (numberAt<uint32_t>(locator, 0) != kLocatorSignature) damaged("its zip64 record is missing");
    const std::vector<std::byte> record = bytesAt(numberAt<uint64_t>(locator, 8), kEnd64Bytes);
    if (numberAt<uint32_t>(record, 0) != kEnd64Signature) damaged("its zip64 record is missing");
    directory_bytes_ = numberAt<uint64_t>(record, 40);
    directory_offset_ = numberAt<uint64_t>(record, 48);
  }

  // How many bytes of `directory` it took.
  size_t takeEntry(std::span<const std::byte> directory, std::vector<ZipMember>& members) const {
    if (directory.size() < kEntryBytes || numberAt<uint32_t>(directory, 0) != kEntrySignature)
      damaged("an entry of its directory is malformed");
    const size_t name_bytes = numberAt<uint16_t>(directory, 28),
                 extra_bytes = numberAt<uint16_t>(directory, 30),
                 comment_bytes = numberAt<uint16_t>(directory, 32);
    const size_t entry_bytes = kEntryBytes + name_bytes + extra_bytes + comment_bytes;
    if (directory.size() < entry_bytes) damaged("an entry of its directory is cut off");
    ZipMember member;
    member.name.assign(reinterpret_cast<const char*>(directory.data()) + kEntryBytes, name_bytes);
    member.stored =
        numberAt<uint16_t>(directory, 10) == 0 && (numberAt<uint16_t>(directory, 8) & kEncryptedFlag) == 0;
    member.compressed_bytes = numberAt<uint32_t>(directory, 20);
    member.bytes = numberAt<uint32_t>(directory, 24);
    uint64_t local = numberAt<uint32_t>(directory, 42);
    takeExtra(directory.subspan(kEntryBytes + name_bytes, extra_bytes), member, local);
    const std::vector<std::byte> header = bytesAt(local, kLocalBytes);
    if (numberAt<uint32_t>(header, 0) != kLocalSignature) damaged("a member's header is malformed");
    member.offset = local + kLocalBytes + numberAt<uint16_t>(header, 26) + numberAt<uint16_t>(header, 28);
    if (member.offset > file_bytes_ || member.compressed_bytes > file_bytes_ - member.offset)
      damaged("a member lies outside of the file");
    if (member.stored && member.bytes != member.compressed_bytes) damaged("a stored member has two sizes");
    members.push_back(std::move(member));
    return entry_bytes;
  }

  // Numbers that do not fit into 32 bits, in this order.
  void takeExtra(std::span<const std::byte> extra, ZipMember& member, uint64_t& local) const {
    while (extra.size() >= 4) {
      const size_t bytes = numberAt<uint16_t>(extra, 2);
      if (bytes > extra.size() - 4) damaged("an extra field is cut off");
      std::span<const std::byte> field = extra.subspan(4, bytes);
      const bool is_zip64 = numberAt<uint16_t>(extra, 0) == kZip64Extra;
      extra = extra.subspan(4 + bytes);
      if (!is_zip64) continue;
      for (uint64_t* number : {&member.bytes, &member.compressed_bytes, &local}) {
        if (*number != kElsewhere32) continue;
        if (field.size() < 8) damaged("a zip64 field is cut off");
        *number = numberAt<uint64_t>(field, 0);
        field = field.subspan(8);
      }
    }
  }

  const Descriptor& file_;
  const std::string& path_;
  uint64_t file_bytes_;
  uint64_t directory_offset_ = 0;
  uint64_t directory_bytes_ = 0;
};

}  // namespace

std::vector<ZipMember> zipMembers(const Descriptor& file, const std::string& path) {
  return DirectoryReader(file, path).read();
}

}  // namespace pipeshard
