#include "runtime/files/npz.h"

#include <zip.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"

namespace pipeshard {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kHeaderLimit = 1 << 20;
// Deflate cannot expand by more than about 1032; a larger claim is a bomb or damage.
constexpr uint64_t kExpansionLimit = 1100;
constexpr size_t kPieceElements = 1 << 17;  // that are read at once

struct Description {
  const char* text;
  DataType type;
};
constexpr std::array kDescriptions{
    Description{"|b1", DataType::kBool},    Description{"|u1", DataType::kUint8},
    Description{"|i1", DataType::kInt8},    Description{"<u2", DataType::kUint16},
    Description{"<i2", DataType::kInt16},   Description{"<u4", DataType::kUint32},
    Description{"<i4", DataType::kInt32},   Description{"<u8", DataType::kUint64},
    Description{"<i8", DataType::kInt64},   Description{"<f2", DataType::kFloat16},
    Description{"<f4", DataType::kFloat32}, Description{"<f8", DataType::kFloat64}};

// The header is a Python dict literal of a fixed shape: {'descr': '<f4', 'fortran_order': False, 'shape': (3,
// 4), }.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  NpyHeader parse() {
    NpyHeader header;
    bool has_description = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !has_description) {
        header.data_type = dataType();
        has_description = true;
      } else if (key == "fortran_order" && !has_order) {
        header.fortran_order = boolean();
        has_order = true;
      } else if (key == "shape" && !has_shape) {
        header.shape = tuple();
        has_shape = true;
      } else {
        malformed(fmt::format("unexpected or repeated key '{}'", key));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!has_description || !has_order || !has_shape)
      malformed("descr, fortran_order and shape are all needed");
    skipSpace();
    if (position_ != text_.size()) malformed("text after the closing brace");
    return header;
  }

 private:
  [[noreturn]] void malformed(const std::string& what) const {
    fail(ErrorCode::kBadModel, "{}: the .npy header is malformed at character {}: {}", where_, position_,
         what);
  }
  void skipSpace() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) ++position_;
  }
  bool accept(char wanted) {
    skipSpace();
    if (position_ >= text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) malformed(fmt::format("expected '{}'", wanted));
  }
  std::string quoted() {
    skipSpace();
    const char quote = position_ < text_.size() ? text_[position_] : '\0';
    if (quote != '\'' && quote != '"') malformed("expected a string");
    const size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) malformed("unfinished string");
    std::string result(text_.substr(position_ + 1, end - position_ - 1));
    position_ = end + 1;
    return result;
  }
  DataType dataType() {
    skipSpace();
    if (position_ < text_.size() && text_[position_] == '[') malformed("structured arrays are not supported");
    const std::string text = quoted();
    for (const Description& description : kDescriptions) {
      if (text == description.text) return description.type;
    }
    fail(ErrorCode::kBadModel,
         "{}: elements of type '{}' are not supported (little-endian bool, integers and floats of 2, 4 or 8 "
         "bytes are){}",
         where_, text, whatToDo(text));
  }
  static std::string whatToDo(const std::string& type) {
    if (type.starts_with("|O"))
      return "; these are Python objects, such as lists of several lengths: pad them to one length and save "
             "numbers, or write JSON Lines (.jsonl)";
    return type.starts_with(">") ? fmt::format("; save array.astype('<{}')", type.substr(1)) : "";
  }
  bool boolean() {
    skipSpace();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_, word.size()) != word) continue;
      position_ += word.size();
      return value;
    }
    malformed("expected True or False");
  }
  Shape tuple() {
    Shape shape;
    expect('(');
    while (!accept(')')) {
      shape.push_back(number());
      if (shape.size() > 64) malformed("more than 64 axes");
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }
  int64_t number() {
    skipSpace();
    int64_t result = 0;
    const size_t begin = position_;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') {
      if (position_ - begin >= 18) malformed("a size is too large");
      result = result * 10 + (text_[position_++] - '0');
    }
    if (position_ == begin) malformed("expected a number");
    return result;
  }

  std::string_view text_;
  const std::string& where_;
  size_t position_ = 0;
};

// Fortran's order: the first axis moves fastest. The elements of a [2,3] come as (0,0) (1,0) (0,1) (1,1)
// (0,2) (1,2) and go to the row-major positions 0 3 1 4 2 5.
class RowMajorOrder {
 public:
  explicit RowMajorOrder(const NpyHeader& header)
      : shape_(header.shape),
        strides_(rowMajorStrides(header.shape)),
        element_bytes_(dataTypeSize(header.data_type)),
        index_(shape_.size(), 0) {}

  // Puts the next elements where they belong.
  void take(std::span<const std::byte> elements, std::span<std::byte> out) {
    for (size_t from = 0; from < elements.size(); from += element_bytes_) {
      int64_t to = 0;
      for (size_t axis = 0; axis < index_.size(); ++axis) to += index_[axis] * strides_[axis];
      std::memcpy(out.data() + to * element_bytes_, elements.data() + from, element_bytes_);
      for (size_t axis = 0; axis < index_.size() && ++index_[axis] == shape_[axis]; ++axis) index_[axis] = 0;
    }
  }

 private:
  const Shape& shape_;
  Shape strides_;
  size_t element_bytes_;
  std::vector<int64_t> index_;
};

}  // namespace

NpyHeader parseNpyHeader(std::span<const std::byte> bytes, const std::string& where) {
  const auto at = [&](size_t i) { return std::to_integer<size_t>(bytes[i]); };
  if (bytes.size() < 10 || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    fail(ErrorCode::kBadModel, "{} is not a .npy array (it does not start with \\x93NUMPY)", where);
  }
  const size_t version = at(6);
  if (version < 1 || version > 3)
    fail(ErrorCode::kBadModel, "{}: .npy format version {} is not supported (1 to 3 are)", where, version);
  size_t header_bytes = at(8) | at(9) << 8;
  size_t begin = 10;
  if (version > 1) {
    if (bytes.size() < 12) fail(ErrorCode::kBadModel, "{} ends inside the .npy header", where);
    header_bytes |= at(10) << 16 | at(11) << 24;
    begin = 12;
  }
  if (header_bytes > kHeaderLimit || header_bytes > bytes.size() - begin) {
    fail(ErrorCode::kBadModel, "{}: the .npy header claims {} bytes, but {} follow (limit {})", where,
         header_bytes, bytes.size() - begin, kHeaderLimit);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + begin, header_bytes);
  NpyHeader header = HeaderParser(text, where).parse();
  header.data_offset = begin + header_bytes;
  return header;
}

namespace {

// Format version 1.0: the header ends at a multiple of 64 bytes.
std::vector<std::byte> npyBytes(const std::string& name, const NpzArray& array) {
  const auto known = std::find_if(kDescriptions.begin(), kDescriptions.end(),
                                  [&](const Description& one) { return one.type == array.data_type; });
  if (known == kDescriptions.end()) {
    fail(ErrorCode::kConfiguration, "'{}' is {}, which .npz files do not have", name,
         dataTypeName(array.data_type));
  }
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", known->text,
                                 fmt::join(array.shape, ", "), array.shape.size() == 1 ? "," : "");
  const size_t prefix = kMagic.size() + 4;
  text.append(63 - (prefix + text.size()) % 64, ' ');
  text += '\n';
  std::vector<std::byte> bytes;
  const auto append = [&](const auto* from, size_t count) {
    const auto* begin = reinterpret_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), begin, begin + count);
  };
  const unsigned char version_and_size[] = {1, 0, static_cast<unsigned char>(text.size() & 0xff),
                                            static_cast<unsigned char>(text.size() >> 8)};
  append(kMagic.data(), kMagic.size());
  append(version_and_size, sizeof version_and_size);
  append(text.data(), text.size());
  append(array.bytes.data(), array.bytes.size());
  return bytes;
}

}  // namespace

void writeNpz(const std::string& path, const std::map<std::string, NpzArray>& arrays) {
  int reason = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &reason);
  if (archive == nullptr) fail(ErrorCode::kDiskFull, "{} cannot be written (libzip error {})", path, reason);
  std::vector<std::vector<std::byte>> contents;  // until the archive is closed
  const auto failed = [&](const std::string& message) {
    zip_discard(archive);
    fail(ErrorCode::kDiskFull, "{} cannot be written: {}", path, message);
  };
  for (const auto& [name, array] : arrays) {
    contents.push_back(npyBytes(name, array));
    zip_source_t* source = zip_source_buffer(archive, contents.back().data(), contents.back().size(), 0);
    if (source == nullptr) failed(zip_strerror(archive));
    const zip_int64_t index = zip_file_add(archive, (name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      failed(zip_strerror(archive));
    }
    zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0);
  }
  if (zip_close(archive) != 0) failed(zip_strerror(archive));
}

struct NpzFile::Archive {
  zip_t* handle = nullptr;
  ~Archive() {
    if (handle != nullptr) zip_discard(handle);
  }
};

NpzFile::NpzFile() = default;
NpzFile::NpzFile(NpzFile&&) noexcept = default;
NpzFile& NpzFile::operator=(NpzFile&&) noexcept = default;
NpzFile::~NpzFile() = default;

NpzFile NpzFile::open(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored))
      fail(ErrorCode::kMissingInput, "{} is no plain file; arrays are read from any place of it", path);
    fail(ErrorCode::kMissingInput, "there is no data file {}", path);
  }
  NpzFile file;
  file.path_ = path;
  file.archive_ = std::make_unique<Archive>();
  int reason = 0;
  file.archive_->handle = zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &reason);
  if (file.archive_->handle == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, reason);
    const std::string text = zip_error_strerror(&error);
    zip_error_fini(&error);
    fail(reason == ZIP_ER_OPEN || reason == ZIP_ER_READ ? ErrorCode::kMissingInput : ErrorCode::kBadModel,
         "{} cannot be read as .npz: {}", path, text);
  }
  const zip_int64_t count = zip_get_num_entries(file.archive_->handle, 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    const char* name = zip_get_name(file.archive_->handle, static_cast<zip_uint64_t>(i), 0);
    const std::string_view text = name == nullptr ? "" : name;
    if (text.size() <= 4 || !text.ends_with(".npy")) {
      fail(ErrorCode::kBadModel, "{}: member '{}' is not a .npy array; an .npz file holds nothing else", path,
           text);
    }
    file.names_.emplace_back(text.substr(0, text.size() - 4));
  }
  file.file_ = std::make_shared<Descriptor>(openForReading(path));
  file.members_ = zipMembers(*file.file_, path);
  const auto same = [](const std::string& name, const ZipMember& member) {
    return name + ".npy" == member.name;
  };
  if (!std::equal(file.names_.begin(), file.names_.end(), file.members_.begin(), file.members_.end(), same))
    fail(ErrorCode::kBadModel, "{} cannot be read as .npz: its directory can be read in two ways", path);
  return file;
}

bool NpzFile::has(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

namespace {

// A member that is read from its beginning to its end. libzip compares the checksum where the end is.
class MemberStream {
 public:
  MemberStream(zip_t* archive, size_t index, std::string where) : where_(std::move(where)) {
    zip_stat_t status;
    zip_stat_init(&status);
    const zip_uint64_t needed = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE;
    if (zip_stat_index(archive, index, 0, &status) != 0 || (status.valid & needed) != needed)
      fail(ErrorCode::kBadModel, "{}: its size is not known: {}", where_, zip_strerror(archive));
    // a claim beyond what deflate can expand to
    if (status.size / kExpansionLimit > status.comp_size + 1) {
      fail(ErrorCode::kBadModel, "{} claims {} bytes out of {} compressed ones, which is not possible",
           where_, status.size, status.comp_size);
    }
    bytes_ = status.size;
    file_.reset(zip_fopen_index(archive, index, 0));
    if (!file_) fail(ErrorCode::kBadModel, "{} cannot be opened: {}", where_, zip_strerror(archive));
  }

  uint64_t bytes() const { return bytes_; }

  void read(std::span<std::byte> out) {
    while (!out.empty()) {
      const zip_int64_t got = zip_fread(file_.get(), out.data(), out.size());
      if (got <= 0) damaged();
      done_ += static_cast<uint64_t>(got);
      out = out.subspan(static_cast<size_t>(got));
    }
  }

  // All of it has been read.
  void finish() {
    std::byte extra;
    if (zip_fread(file_.get(), &extra, 1) != 0) damaged();
  }

 private:
  [[noreturn]] void damaged() const {
    fail(ErrorCode::kBadModel, "{} is damaged: {} of {} bytes could be read ({})", where_, done_, bytes_,
         zip_file_strerror(file_.get()));
  }

  std::string where_;
  uint64_t bytes_ = 0;
  uint64_t done_ = 0;
  std::unique_ptr<zip_file_t, decltype([](zip_file_t* file) { zip_fclose(file); })> file_;
};

// The header of a member, compared with the bytes behind it.
NpyHeader readHeader(MemberStream& member, const std::string& where) {
  std::vector<std::byte> beginning(std::min<uint64_t>(member.bytes(), kHeaderLimit + 12));
  member.read(beginning);
  NpyHeader header = parseNpyHeader(beginning, where);
  std::optional<int64_t> expected;
  try {
    expected = byteCount(header.data_type, header.shape);
  } catch (Error& error) {
    error.addContext(where);
    throw;
  }
  if (static_cast<uint64_t>(*expected) != member.bytes() - header.data_offset) {
    fail(ErrorCode::kBadModel, "{} is {}{} ({} bytes), but {} bytes follow its header", where,
         dataTypeName(header.data_type), shapeToString(header.shape), *expected,
         member.bytes() - header.data_offset);
  }
  return header;
}

bool isReordered(const NpyHeader& header) { return header.fortran_order && header.shape.size() > 1; }

}  // namespace

size_t NpzFile::indexOf(const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end())
    fail(ErrorCode::kMissingInput, "{} holds no array '{}'; it holds: {}{}", path_, name,
         fmt::join(names_, ", "), hintOfCase(name, names_));
  return static_cast<size_t>(found - names_.begin());
}

std::string NpzFile::whereOf(const std::string& name) const {
  return fmt::format("{}, array '{}'", path_, name);
}

NpzMember NpzFile::look(const std::string& name) const {
  const size_t index = indexOf(name);
  MemberStream member(archive_->handle, index, whereOf(name));
  NpzMember found;
  found.header = readHeader(member, whereOf(name));
  found.in_place = members_[index].stored && !isReordered(found.header);
  found.offset = members_[index].offset + found.header.data_offset;
  return found;
}

void NpzFile::unpack(const std::string& name, std::span<std::byte> out) const {
  const NpyHeader header = look(name).header;
  MemberStream member(archive_->handle, indexOf(name), whereOf(name));
  std::vector<std::byte> piece(header.data_offset);
  member.read(piece);
  if (!isReordered(header)) {
    member.read(out);
    return member.finish();
  }
  RowMajorOrder order(header);
  const size_t element_bytes = dataTypeSize(header.data_type);
  for (size_t done = 0; done < out.size(); done += piece.size()) {
    piece.resize(std::min(kPieceElements * element_bytes, out.size() - done));
    member.read(piece);
    order.take(piece, out);
  }
  member.finish();
}

void NpzFile::verify(const std::string& name) const {
  MemberStream member(archive_->handle, indexOf(name), whereOf(name));
  std::vector<std::byte> piece;
  for (uint64_t done = 0; done < member.bytes(); done += piece.size()) {
    piece.resize(std::min<uint64_t>(kPieceElements, member.bytes() - done));
    member.read(piece);
  }
  member.finish();
}

// The file is not trusted: sizes are compared before memory is taken for them, the checksum before the
// content is used, and the header's type and shape with the bytes behind it.
NpzArray NpzFile::read(const std::string& name) const {
  const NpyHeader header = look(name).header;
  NpzArray array{header.data_type, header.shape, {}};
  array.bytes.resize(byteCount(header.data_type, header.shape));
  unpack(name, array.bytes);
  return array;
}

}  // namespace pipeshard
