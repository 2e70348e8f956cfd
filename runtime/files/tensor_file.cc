#include "runtime/files/tensor_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/files/content_hash.h"

namespace pipeshard {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kCachedBytes = size_t{512} << 10;

struct TypeName {
  DataType type;
  const char* name;
};
constexpr std::array kTypeNames{
    TypeName{DataType::kBool, "BOOL"},         TypeName{DataType::kUint8, "U8"},
    TypeName{DataType::kInt8, "I8"},           TypeName{DataType::kUint16, "U16"},
    TypeName{DataType::kInt16, "I16"},         TypeName{DataType::kUint32, "U32"},
    TypeName{DataType::kInt32, "I32"},         TypeName{DataType::kUint64, "U64"},
    TypeName{DataType::kInt64, "I64"},         TypeName{DataType::kFloat16, "F16"},
    TypeName{DataType::kBfloat16, "BF16"},     TypeName{DataType::kFloat32, "F32"},
    TypeName{DataType::kFloat64, "F64"},       TypeName{DataType::kFloat8E4M3FN, "F8_E4M3"},
    TypeName{DataType::kFloat8E5M2, "F8_E5M2"}};

DataType typeFromName(const std::string& name) {
  for (const TypeName& entry : kTypeNames) {
    if (name == entry.name) return entry.type;
  }
  return DataType::kUndefined;
}

const char* nameOfType(DataType type) {
  for (const TypeName& entry : kTypeNames) {
    if (type == entry.type) return entry.name;
  }
  return nullptr;
}

[[noreturn]] void malformed(const std::string& path, const std::string& what) {
  fail(ErrorCode::kBadModel, "{} is not a valid safetensors file: {}", path, what);
}

// What it looks like instead, and what to do; "" if that is not known.
std::string whatElse(std::span<const std::byte> head) {
  const auto begins = [&](std::string_view with) {
    return head.size() >= with.size() && std::memcmp(head.data(), with.data(), with.size()) == 0;
  };
  if (begins("PK\x03\x04") || begins("\x80\x02"))
    return "; torch.save writes such files: write it by safetensors.torch.save_model(module, FILE)";
  if (begins("{"))
    return "; it is text, like the index of a checkpoint in several files: give the files that it names";
  return "";
}

// JSON objects silently keep one of two equal keys, so they are counted while parsing. Depth is limited for
// the same reason as the length: the text is untrusted.
Json parseHeader(const std::string& text, const std::string& path) {
  std::set<std::string> names;
  const auto check = [&](int depth, nlohmann::detail::parse_event_t event, Json& parsed) {
    if (depth > 4) malformed(path, "the header is nested too deeply");
    if (event == nlohmann::detail::parse_event_t::key && depth == 1 &&
        !names.insert(parsed.get<std::string>()).second) {
      malformed(path, fmt::format("the name '{}' occurs twice", parsed.get<std::string>()));
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    malformed(path, fmt::format("the header is not JSON ({})", error.what()));
  }
}

uint64_t unsignedNumber(const Json& json, const std::string& path, const std::string& where) {
  if (!json.is_number_unsigned())
    malformed(path, fmt::format("{} is {}, expected a non-negative integer", where, json.dump()));
  return json.get<uint64_t>();
}

TensorEntry parseEntry(const std::string& name, const Json& json, uint64_t data_begin, uint64_t file_bytes,
                       const std::string& path) {
  const auto field = [&](const char* key) -> const Json& {
    if (!json.is_object() || !json.contains(key))
      malformed(path, fmt::format("tensor '{}' has no '{}'", name, key));
    return json[key];
  };
  TensorEntry entry;
  entry.name = name;
  const Json& type = field("dtype");
  entry.data_type = type.is_string() ? typeFromName(type.get<std::string>()) : DataType::kUndefined;
  if (entry.data_type == DataType::kUndefined)
    malformed(path, fmt::format("tensor '{}' has unknown dtype {}", name, type.dump()));
  const Json& shape = field("shape");
  if (!shape.is_array() || shape.size() > 64)
    malformed(path, fmt::format("tensor '{}': shape is not a list of at most 64 sizes", name));
  for (const Json& size : shape) {
    const uint64_t number = unsignedNumber(size, path, fmt::format("a size of tensor '{}'", name));
    if (number > (uint64_t{1} << 62))
      malformed(path, fmt::format("tensor '{}': size {} is too large", name, number));
    entry.shape.push_back(number);
  }
  const Json& offsets = field("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2)
    malformed(path, fmt::format("tensor '{}': data_offsets is not a pair", name));
  const uint64_t begin =
      unsignedNumber(offsets[0], path, fmt::format("the first offset of tensor '{}'", name));
  const uint64_t end =
      unsignedNumber(offsets[1], path, fmt::format("the second offset of tensor '{}'", name));
  if (begin > end || end > file_bytes - data_begin) {
    malformed(path, fmt::format("tensor '{}' has offsets [{}, {}), but the data has {} bytes", name, begin,
                                end, file_bytes - data_begin));
  }
  entry.offset = data_begin + begin;
  entry.length = end - begin;
  return entry;
}

void checkSize(const TensorEntry& entry, const std::string& path) {
  std::optional<int64_t> expected;
  try {
    expected = byteCount(entry.data_type, entry.shape);
  } catch (const Error& error) {
    malformed(path, fmt::format("tensor '{}': {}", entry.name, error.message()));
  }
  if (static_cast<uint64_t>(*expected) != entry.length) {
    malformed(path, fmt::format("tensor '{}' is {}{} ({} bytes), but its offsets span {} bytes", entry.name,
                                dataTypeName(entry.data_type), shapeToString(entry.shape), *expected,
                                entry.length));
  }
}

}  // namespace

TensorFile TensorFile::open(const std::string& path) {
  TensorFile file;
  file.path_ = path;
  file.file_ = openForReading(path);
  file.parse(fileBytes(file.file_, path),
             [&](uint64_t offset, std::span<std::byte> out) { readExactly(file.file_, offset, out, path); });
  return file;
}

TensorFile TensorFile::parse(std::span<const std::byte> bytes, std::string name) {
  TensorFile file;
  file.path_ = std::move(name);
  file.parse(bytes.size(), [&](uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  });
  return file;
}

void TensorFile::parse(uint64_t file_bytes, const std::function<void(uint64_t, std::span<std::byte>)>& read) {
  if (file_bytes < kLengthBytes)
    malformed(path_, fmt::format("it has {} bytes, the header length alone takes 8", file_bytes));
  std::array<std::byte, kLengthBytes> length_bytes;
  read(0, length_bytes);
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= static_cast<uint64_t>(length_bytes[i]) << (8 * i);
  if (header_bytes > kMostHeaderBytes || header_bytes > file_bytes - kLengthBytes) {
    malformed(path_, fmt::format("it claims a header of {} bytes, but has {} bytes in all (limit {}){}",
                                 header_bytes, file_bytes, kMostHeaderBytes, whatElse(length_bytes)));
  }
  std::string text(header_bytes, '\0');
  read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const Json header = parseHeader(text, path_);
  if (!header.is_object()) malformed(path_, "the header is not a JSON object");

  for (const auto& [name, json] : header.items()) {
    if (name != "__metadata__") {
      tensors_.push_back(parseEntry(name, json, kLengthBytes + header_bytes, file_bytes, path_));
      checkSize(tensors_.back(), path_);
      continue;
    }
    if (!json.is_object()) malformed(path_, "__metadata__ is not an object");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) malformed(path_, fmt::format("metadata '{}' is not a string", key));
      metadata_[key] = value.get<std::string>();
    }
  }
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.offset, a.length) < std::pair(b.offset, b.length);
  });
  uint64_t expected_offset = kLengthBytes + header_bytes;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorEntry& entry = tensors_[i];
    if (entry.offset != expected_offset) {
      malformed(path_, fmt::format("tensor '{}' starts at byte {}, expected {} (no holes, no overlaps)",
                                   entry.name, entry.offset, expected_offset));
    }
    expected_offset += entry.length;
    by_name_[entry.name] = i;
  }
  if (expected_offset != file_bytes)
    malformed(path_,
              fmt::format("its tensors end at byte {}, but it has {} bytes", expected_offset, file_bytes));
}

const TensorEntry* TensorFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::byte> TensorFile::read(const TensorEntry& entry) const {
  std::vector<std::byte> bytes(entry.length);
  readExactly(file_, entry.offset, bytes, path_);
  return bytes;
}

void TensorFile::read(const TensorEntry& entry, uint64_t offset, std::span<std::byte> out) const {
  PIPESHARD_CHECK(offset + out.size() <= entry.length, "'{}' has {} bytes", entry.name, entry.length);
  readExactly(file_, entry.offset + offset, out, path_);
}

WrittenFile writeTensorFile(const std::string& path, std::span<const TensorView> tensors,
                            const std::map<std::string, std::string>& metadata, bool durable,
                            FileAccess access) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const char* type = nameOfType(tensor.data_type);
    if (type == nullptr)
      fail(ErrorCode::kBadModel,
           "cannot write {}: safetensors has no type {}, which tensor '{}' has; cast it in the model to one "
           "that it has",
           path, dataTypeName(tensor.data_type), tensor.name);
    PIPESHARD_CHECK(!header.contains(tensor.name), "two tensors named '{}' for {}", tensor.name, path);
    const uint64_t bytes = byteCount(tensor.data_type, tensor.shape);
    header[tensor.name] = {
        {"dtype", type}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {
    fail(ErrorCode::kBadModel, "cannot write {}: a tensor's name is not UTF-8 ({})", path, error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::array<uint8_t, kLengthBytes> length_bytes;
  for (size_t i = 0; i < kLengthBytes; ++i) length_bytes[i] = static_cast<uint8_t>(text.size() >> (8 * i));

  PendingFile file(path, access);
  WrittenFile written;
  RunningHash hash;
  // In pieces that the processor's cache keeps from the one to the other.
  const auto append = [&](const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    for (size_t done = 0; done < bytes; done += kCachedBytes) {
      const size_t piece = std::min(kCachedBytes, bytes - done);
      hash.add(from + done, piece);
      file.append(from + done, piece);
    }
    written.bytes += static_cast<int64_t>(bytes);
  };
  append(length_bytes.data(), length_bytes.size());
  append(text.data(), text.size());
  for (const TensorView& tensor : tensors) append(tensor.data, byteCount(tensor.data_type, tensor.shape));
  file.commit(durable);
  written.hash = hash.value();
  return written;
}

}  // namespace pipeshard
