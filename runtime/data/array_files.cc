#include "runtime/data/array_files.h"

#include <algorithm>
#include <filesystem>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"
#include "runtime/data/file_array.h"
#include "runtime/files/npz.h"
#include "runtime/files/tensor_file.h"

namespace pipeshard {
namespace {

// A .npy header is no longer (runtime/files/npz.h refuses longer ones).
constexpr uint64_t kMostNpyHeaderBytes = (uint64_t{1} << 20) + 12;

class NpyFolder : public ArrayStore {
 public:
  explicit NpyFolder(const std::string& path) : path_(path) {}

  std::unique_ptr<StoredArray> open(const ProgramInput& input) override {
    taken_.insert(input.name);
    const std::string path = fmt::format("{}/{}.npy", path_, input.name);
    if (!std::filesystem::exists(path)) {
      fail(ErrorCode::kMissingInput, "{} holds no array '{}' ({}.npy); it holds: {}{}", path_, input.name,
           input.name, fmt::join(names(), ", "), hintOfCase(input.name, names()));
    }
    Descriptor file = openForReading(path);
    const uint64_t bytes = fileBytes(file, path);
    std::vector<std::byte> beginning(std::min(bytes, kMostNpyHeaderBytes));
    readExactly(file, 0, beginning, path);
    NpyHeader header = parseNpyHeader(beginning, path);
    if (header.fortran_order && header.shape.size() > 1) {
      fail(ErrorCode::kConfiguration,
           "{} is in Fortran order, in which a row does not lie in one piece; save "
           "numpy.ascontiguousarray(...) of it",
           path);
    }
    const auto expected = static_cast<uint64_t>(bytesOfArray(header, path));
    if (expected != bytes - header.data_offset) {
      fail(ErrorCode::kBadModel, "{} is {}{} ({} bytes), but {} bytes follow its header", path,
           dataTypeName(header.data_type), shapeToString(header.shape), expected, bytes - header.data_offset);
    }
    return std::make_unique<FileArray>(header.data_type, std::move(header.shape),
                                       std::make_shared<Descriptor>(std::move(file)), path,
                                       header.data_offset);
  }
  std::vector<std::string> unused() const override { return namesBut(names(), taken_); }

 private:
  static int64_t bytesOfArray(const NpyHeader& header, const std::string& path) {
    try {
      return byteCount(header.data_type, header.shape);
    } catch (Error& error) {
      error.addContext(path);
      throw;
    }
  }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
      if (entry.path().extension() == ".npy") found.push_back(entry.path().stem().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  std::string path_;
  std::set<std::string> taken_;
};

class TensorArray : public StoredArray {
 public:
  TensorArray(std::shared_ptr<const TensorFile> file, const TensorEntry& entry)
      : StoredArray(entry.data_type, entry.shape), file_(std::move(file)), entry_(entry) {}
  void read(int64_t first, std::span<std::byte> out) const override {
    file_->read(entry_, first * dataTypeSize(dataType()), out);
  }

 private:
  std::shared_ptr<const TensorFile> file_;
  TensorEntry entry_;
};

class SafetensorsArrays : public ArrayStore {
 public:
  explicit SafetensorsArrays(const std::string& path)
      : file_(std::make_shared<TensorFile>(TensorFile::open(path))) {}

  std::unique_ptr<StoredArray> open(const ProgramInput& input) override {
    taken_.insert(input.name);
    if (const TensorEntry* entry = file_->find(input.name))
      return std::make_unique<TensorArray>(file_, *entry);
    fail(ErrorCode::kMissingInput, "{} holds no tensor '{}'; it holds: {}{}", file_->path(), input.name,
         fmt::join(names(), ", "), hintOfCase(input.name, names()));
  }
  std::vector<std::string> unused() const override { return namesBut(names(), taken_); }

 private:
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const TensorEntry& entry : file_->tensors()) names.push_back(entry.name);
    return names;
  }

  std::shared_ptr<const TensorFile> file_;
  std::set<std::string> taken_;
};

}  // namespace

std::unique_ptr<ArrayStore> openNpyFolder(const std::string& path) {
  return std::make_unique<NpyFolder>(path);
}

std::unique_ptr<ArrayStore> openSafetensorsArrays(const std::string& path) {
  return std::make_unique<SafetensorsArrays>(path);
}

}  // namespace pipeshard
