#include "runtime/data/npz_arrays.h"

#include <algorithm>
#include <optional>

#include "ir/base/error.h"
#include "runtime/data/file_array.h"
#include "runtime/data/unpacked_file.h"
#include "runtime/files/npz.h"

namespace pipeshard {
namespace {

constexpr uint64_t kCheckedAtOnce = uint64_t{64} << 20;

// What the arrays of an archive share. Unpacking begins when an array is needed.
struct NpzArchive {
  NpzFile file;
  std::string path;
  int unpacked_descriptor;
  std::optional<UnpackedFile> unpacked;

  UnpackedFile& unpackedFile() {
    if (unpacked) return *unpacked;
    std::vector<uint64_t> places;
    for (const ZipMember& member : file.members()) places.push_back(member.bytes);
    return unpacked.emplace(unpacked_descriptor, places);
  }
};

class NpzStoredArray : public StoredArray {
 public:
  NpzStoredArray(std::shared_ptr<NpzArchive> archive, std::string name, NpzMember member)
      : StoredArray(member.header.data_type, member.header.shape),
        archive_(std::move(archive)),
        name_(std::move(name)),
        bytes_(byteCount(dataType(), shape())),
        file_(archive_->file.file()),
        offset_(member.offset),
        in_place_(member.in_place) {}

  void prepare() override {
    if (in_place_) {
      if (isSmall()) archive_->file.verify(name_);
      return;
    }
    const std::vector<std::string>& names = archive_->file.names();
    const size_t place = std::find(names.begin(), names.end(), name_) - names.begin();
    UnpackedFile& unpacked = archive_->unpackedFile();
    unpacked.ensure(place, bytes_, fmt::format("{}, array '{}'", archive_->path, name_),
                    [&](std::span<std::byte> out) { archive_->file.unpack(name_, out); });
    file_ = unpacked.file();
    offset_ = unpacked.offset(place);
  }
  void read(int64_t first, std::span<std::byte> out) const override {
    readExactly(*file_, offset_ + first * dataTypeSize(dataType()), out, archive_->path);
  }
  bool isSmall() const override { return bytes_ <= kCheckedAtOnce; }

 private:
  std::shared_ptr<NpzArchive> archive_;
  std::string name_;
  uint64_t bytes_;
  std::shared_ptr<const Descriptor> file_;
  uint64_t offset_;
  bool in_place_;
};

class NpzArrays : public ArrayStore {
 public:
  NpzArrays(const std::string& path, int unpacked_descriptor)
      : archive_(std::make_shared<NpzArchive>(
            NpzArchive{NpzFile::open(path), path, unpacked_descriptor, std::nullopt})) {}
  std::unique_ptr<StoredArray> open(const ProgramInput& input) override {
    taken_.insert(input.name);
    return std::make_unique<NpzStoredArray>(archive_, input.name, archive_->file.look(input.name));
  }
  std::vector<std::string> unused() const override { return namesBut(archive_->file.names(), taken_); }

 private:
  std::shared_ptr<NpzArchive> archive_;
  std::set<std::string> taken_;
};

}  // namespace

std::unique_ptr<ArrayStore> openNpzArrays(const std::string& path, int unpacked_descriptor) {
  return std::make_unique<NpzArrays>(path, unpacked_descriptor);
}

}  // namespace pipeshard
