#include "runtime/data/token_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <string_view>

#include <fmt/ranges.h>

#include "ir/base/convert.h"
#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "runtime/data/file_array.h"
#include "runtime/data/token_documents.h"

namespace pipeshard {
namespace {

enum class TokenRole : uint8_t { kIds, kLabels, kMask, kPositions, kNone };

TokenRole tokenRoleOf(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("position")) return TokenRole::kPositions;
  if (has("mask")) return TokenRole::kMask;
  if (has("label") || has("target")) return TokenRole::kLabels;
  if (has("type")) return TokenRole::kNone;  // token_type_ids
  if (name.ends_with("ids") || name.ends_with("tokens") || name == "idx" || name == "input" ||
      name == "inputs")
    return TokenRole::kIds;
  return TokenRole::kNone;
}

// Every row is the same.
class RepeatedRow : public StoredArray {
 public:
  RepeatedRow(DataType data_type, Shape shape, std::vector<std::byte> row)
      : StoredArray(data_type, std::move(shape)), row_(std::move(row)) {}
  void read(int64_t first, std::span<std::byte> out) const override {
    const size_t begin = first * dataTypeSize(dataType());
    for (size_t i = 0; i < out.size(); ++i) out[i] = row_[(begin + i) % row_.size()];
  }

 private:
  std::vector<std::byte> row_;
};

class TokenFile : public ArrayStore {
 public:
  TokenFile(const DataDescription& description, const RowLengths& lengths)
      : path_(description.path),
        type_(tokenTypeOf(path_)),
        shift_labels_(description.shift_labels),
        end_of_text_(description.end_of_text),
        lengths_(lengths),
        file_(std::make_shared<Descriptor>(openForReading(path_))) {
    const uint64_t bytes = fileBytes(*file_, path_), each = dataTypeSize(type_);
    if (bytes == 0)
      fail(ErrorCode::kBadModel, "{} is empty; expected tokens ({})", path_, dataTypeName(type_));
    if (bytes % each != 0) {
      fail(ErrorCode::kBadModel,
           "{} has {} bytes, which is no multiple of {}: its last token is cut off, or tokens are not {} "
           "(.u16 and .bin are uint16, .u32 is uint32)",
           path_, bytes, each, dataTypeName(type_));
    }
    tokens_ = static_cast<int64_t>(bytes / each);
  }

  std::unique_ptr<StoredArray> open(const ProgramInput& input) override {
    const TokenRole role = tokenRoleOf(input.name);
    if (role == TokenRole::kNone) {
      fail(ErrorCode::kConfiguration,
           "{}: input '{}' is, by its name, neither ids, labels, a mask nor positions, so tokens do not fill "
           "it; give an array per input (.npz, .safetensors, a folder of .npy)",
           path_, input.name);
    }
    takeWindow(input);
    names_[static_cast<size_t>(role)].push_back(input.name);
    if (end_of_text_ >= 0) return openDocuments(input, role);
    const Shape shape = {usedTokens() / window_, window_};
    if (role == TokenRole::kIds || role == TokenRole::kLabels) {
      const bool shifted = role == TokenRole::kLabels && shift_labels_;
      return std::make_unique<FileArray>(type_, shape, file_, path_, shifted ? dataTypeSize(type_) : 0);
    }
    std::vector<int64_t> numbers(window_, 1);
    if (role == TokenRole::kPositions) std::iota(numbers.begin(), numbers.end(), 0);
    const DataType type = input.data_type == DataType::kUndefined ? DataType::kInt64 : input.data_type;
    std::vector<std::byte> row(window_ * dataTypeSize(type));
    convertElements(DataType::kInt64, numbers.data(), type, row.data(), numbers.size());
    return std::make_unique<RepeatedRow>(type, shape, std::move(row));
  }

  int rowAxis(const ProgramInput&) const override { return 0; }

  std::string decisions() const override {
    const auto named = [&](TokenRole role) -> const std::vector<std::string>& {
      return names_[static_cast<size_t>(role)];
    };
    if (shift_labels_ && named(TokenRole::kLabels).empty())
      fail(ErrorCode::kUsage,
           "--shift-labels: the model has no input of labels (its name has 'label' or "
           "'target')");
    std::string text = fmt::format("{} tokens ({}) {}", tokens_, dataTypeName(type_), describeRows());
    const auto add = [&](TokenRole role, std::string_view what) {
      if (!named(role).empty()) text += fmt::format("; {}: {}", fmt::join(named(role), ", "), what);
    };
    add(TokenRole::kIds, documents_ ? "the row" : "the window");
    add(TokenRole::kLabels, shift_labels_ ? "shifted by one token (--shift-labels)"
                                          : "the same, as the model shifts them itself (--shift-labels where "
                                            "it does not)");
    add(TokenRole::kMask, "ones");
    add(TokenRole::kPositions, "from 0 on");
    return text;
  }

 private:
  // The last one has no label where labels are shifted.
  int64_t usedTokens() const { return tokens_ - (shift_labels_ ? 1 : 0); }

  std::string describeRows() const {
    const std::string rest = "; left out: ";
    if (!documents_) {
      const int64_t left = usedTokens() % window_;
      return fmt::format("in windows of {}{}", window_, left == 0 ? "" : rest + counted(left, "token"));
    }
    const int64_t left = documents_->left_out;
    return fmt::format("in {}, which {} {} of at most {}{}", counted(documents_->documents, "document"),
                       documents_->documents == 1 ? "is" : "are", counted(documents_->rows(), "row"), window_,
                       left == 0 ? "" : rest + counted(left, "row") + " of one token");
  }

  std::unique_ptr<StoredArray> openDocuments(const ProgramInput& input, TokenRole role) {
    const TokenSequence sequence{file_, path_, type_, tokens_};
    if (!documents_) {
      documents_ = std::make_shared<const TokenDocuments>(
          findDocuments(sequence, end_of_text_, window_, shift_labels_));
    }
    const bool is_text = role == TokenRole::kIds || role == TokenRole::kLabels;
    const int64_t shift = role == TokenRole::kLabels && shift_labels_ ? 1 : 0;
    const auto numbers = [sequence, documents = documents_, role, is_text, shift](int64_t row, int64_t begin,
                                                                                  std::span<int64_t> out) {
      if (role == TokenRole::kMask) std::fill(out.begin(), out.end(), 1);
      if (role == TokenRole::kPositions) std::iota(out.begin(), out.end(), begin);
      if (is_text)
        std::ranges::copy(sequence.read(documents->starts[row] + begin + shift, std::ssize(out)),
                          out.begin());
    };
    const bool any_type = is_text || input.data_type == DataType::kUndefined;
    return documentArray(documents_, any_type ? DataType::kInt64 : input.data_type, window_,
                         lengths_.padding(input.name), numbers);
  }

  // All inputs have the length of the first.
  void takeWindow(const ProgramInput& input) {
    if (input.shape.size() != 2 || input.axis > 0 || input.shape[1] < 1) {
      fail(ErrorCode::kConfiguration,
           "{}: input '{}' is {}; tokens fill inputs of [batch,length], with the batch on axis 0", path_,
           input.name, shapeToString(input.shape));
    }
    if (window_ == 0) {
      window_ = input.shape[1];
      window_of_ = input.name;
    }
    if (input.shape[1] == window_) return;
    fail(ErrorCode::kConfiguration, "{}: input '{}' is {} tokens long but '{}' {}; windows have one length",
         path_, input.name, input.shape[1], window_of_, window_);
  }

  std::string path_;
  DataType type_;
  bool shift_labels_;
  int64_t end_of_text_;
  const RowLengths& lengths_;
  std::shared_ptr<const Descriptor> file_;
  std::shared_ptr<const TokenDocuments> documents_;  // where a token ends them, when an input has been opened
  int64_t tokens_ = 0;
  int64_t window_ = 0;
  std::string window_of_;
  std::array<std::vector<std::string>, 4> names_;  // by role
};

}  // namespace

DataType tokenTypeOf(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".u16" || extension == ".bin") return DataType::kUint16;
  return extension == ".u32" ? DataType::kUint32 : DataType::kUndefined;
}

std::unique_ptr<ArrayStore> openTokenFile(const DataDescription& description, const RowLengths& lengths) {
  return std::make_unique<TokenFile>(description, lengths);
}

}  // namespace pipeshard
