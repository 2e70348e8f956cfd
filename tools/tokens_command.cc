#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "runtime/data/token_file.h"
#include "runtime/files/posix_file.h"
#include "runtime/tokenizer/tokenizer_file.h"
#include "tools/commands.h"

namespace pipeshard {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

// A text that is read where it lies: whoever encodes it goes through it once.
class MappedText {
 public:
  explicit MappedText(const std::string& path) {
    const Descriptor file = openForReading(path);
    const uint64_t bytes = fileBytes(file, path);
    if (bytes == 0) fail(ErrorCode::kMissingInput, "{} is empty; expected a text", path);
    void* const start = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (start == MAP_FAILED) fail(ErrorCode::kMissingInput, "cannot read {}: {}", path, std::strerror(errno));
    ::madvise(start, bytes, MADV_SEQUENTIAL);
    text_ = {static_cast<const char*>(start), bytes};
  }
  MappedText(const MappedText&) = delete;
  MappedText& operator=(const MappedText&) = delete;
  ~MappedText() { ::munmap(const_cast<char*>(text_.data()), text_.size()); }
  std::string_view get() const { return text_; }

 private:
  std::string_view text_;
};

// Counts documents as tokens come: one ends with each token that ends a text, the last one with the file.
struct DocumentCount {
  std::optional<uint32_t> end;
  int64_t ended = 0;
  bool is_open = false;

  template <typename Tokens>
  void take(const Tokens& tokens) {
    if (!end || tokens.empty()) return;
    for (const auto token : tokens) ended += token == *end ? 1 : 0;
    is_open = tokens.back() != *end;
  }
  int64_t documents() const { return ended + (is_open ? 1 : 0); }
};

struct TokensCommand {
  std::string text;
  std::string tokenizer = kBytes;
  std::string output;
  std::string end_of_text;  // a token's text, or its number; "": none is looked for

  int run() const {
    const DataType type = tokenTypeOf(output);
    if (type == DataType::kUndefined)
      fail(ErrorCode::kUsage, "-o {}: a file of tokens ends in .u16, .bin (uint16) or .u32 (uint32)", output);
    return type == DataType::kUint16 ? write<uint16_t>(type) : write<uint32_t>(type);
  }

 private:
  static constexpr const char* kBytes = "bytes";
  static constexpr uint32_t kMarkOfBytes = 256;  // behind those of the bytes

  template <typename T>
  int write(DataType type) const {
    std::optional<Tokenizer> file;
    if (tokenizer != kBytes) file.emplace(readTokenizer(tokenizer));
    DocumentCount count{endToken(file)};
    const uint32_t largest = file ? file->largest() : std::max<uint32_t>(255, count.end.value_or(0));
    if (largest > std::numeric_limits<T>::max()) {
      fail(ErrorCode::kUsage, "-o {}: {} has tokens up to {}, a uint16 ends at 65535; name a file .u32",
           output, tokenizer, largest);
    }
    const MappedText mapped(text);
    PendingFile to(output);
    uint64_t tokens = 0;
    std::vector<T> numbers;
    const auto append = [&](const auto& some) {
      numbers.assign(some.begin(), some.end());
      to.append(numbers.data(), numbers.size() * sizeof(T));
      tokens += numbers.size();
      count.take(numbers);
    };
    if (file) {
      encode(*file, mapped.get(), append);
    } else {
      encodeBytes(mapped.get(), count.end, append);
    }
    if (count.end && count.ended == 0) {
      fail(ErrorCode::kConfiguration, "{}: --end-of-text {}: no document of it ends with that token ({})",
           text, end_of_text, *count.end);
    }
    to.commit(false);
    fmt::print("{}: {} tokens ({}), from 0 to {}{}\n", output, tokens, dataTypeName(type), largest,
               describe(count));
    return 0;
  }

  static std::string describe(const DocumentCount& count) {
    if (!count.end) return "";
    return fmt::format("; {}; `--data ... --end-of-text {}` keeps sequences inside them",
                       counted(count.documents(), "document"), *count.end);
  }

  // What --end-of-text says, as a number.
  std::optional<uint32_t> endToken(const std::optional<Tokenizer>& file) const {
    if (end_of_text.empty()) return std::nullopt;
    uint32_t number = 0;
    const char* const end = end_of_text.data() + end_of_text.size();
    const auto [at, error] = std::from_chars(end_of_text.data(), end, number);
    if (at == end) {
      const uint32_t largest = file ? file->largest() : 255;
      if (error == std::errc() && number <= largest) return number;
      fail(ErrorCode::kUsage, "--end-of-text {}: {} has tokens from 0 to {}", end_of_text, tokenizer,
           largest);
    }
    if (!file) return kMarkOfBytes;
    std::vector<std::string> known;
    for (const AddedTokens::Token& token : file->addedTokens()) {
      if (token.text == end_of_text) return token.number;
      known.push_back(token.text);
    }
    fail(ErrorCode::kUsage,
         "--end-of-text {}: {} has no token of its own for that; it has: {}; or give a token's number",
         end_of_text, tokenizer, fmt::join(known, ", "));
  }

  // Where a text stands for the end of one, it is a token.
  template <typename Append>
  void encodeBytes(std::string_view from, const std::optional<uint32_t>& end, const Append& append) const {
    const bool has_mark = end == kMarkOfBytes;
    while (!from.empty()) {
      const size_t mark = has_mark ? from.find(end_of_text) : std::string_view::npos;
      const std::string_view bytes = from.substr(0, mark);
      for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
        const std::string_view piece = bytes.substr(at, kPieceBytes);
        append(std::span(reinterpret_cast<const unsigned char*>(piece.data()), piece.size()));
      }
      from.remove_prefix(bytes.size());
      if (from.empty()) return;
      append(std::span(&kMarkOfBytes, 1));
      from.remove_prefix(end_of_text.size());
    }
  }

  void encode(Tokenizer& file, std::string_view from,
              const std::function<void(std::span<const uint32_t>)>& take) const {
    try {
      file.encode(from, take);
    } catch (Error& error) {
      if (error.code() == ErrorCode::kBadModel) error.addContext(text);
      throw;
    }
  }
};

}  // namespace

CommandFunction addTokensCommand(CLI::App& app) {
  auto command = std::make_shared<TokensCommand>();
  CLI::App* sub = app.add_subcommand("tokens", "Make a file of tokens, for `run --data`, of a text");
  sub->add_option("FILE", command->text, "A text file")->required();
  sub->add_option("--tokenizer", command->tokenizer,
                  "bytes: every byte is a token; or a tokenizer.json of Hugging Face with byte-level BPE, as "
                  "GPT-2, Llama 3 "
                  "and Qwen have")
      ->capture_default_str()
      ->type_name("bytes|FILE.json");
  sub->add_option("--end-of-text", command->end_of_text,
                  "What ends a document in FILE: a token's number, or the text of one that the tokenizer has "
                  "for this;\nof bytes, any text, which becomes token 256")
      ->type_name("TOKEN|ID");
  sub->add_option("-o,--output", command->output, "The file to write: .u16 or .bin (uint16), .u32 (uint32)")
      ->required()
      ->type_name("FILE");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
