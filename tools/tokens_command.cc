#include <sys/mman.h>

#include <cerrno>
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

struct TokensCommand {
  std::string text;
  std::string tokenizer = kBytes;
  std::string output;

  int run() const {
    const DataType type = tokenTypeOf(output);
    if (type == DataType::kUndefined)
      fail(ErrorCode::kUsage, "-o {}: a file of tokens ends in .u16, .bin (uint16) or .u32 (uint32)", output);
    return type == DataType::kUint16 ? write<uint16_t>(type) : write<uint32_t>(type);
  }

 private:
  static constexpr const char* kBytes = "bytes";

  template <typename T>
  int write(DataType type) const {
    uint32_t largest = 255;
    std::optional<Tokenizer> file;
    if (tokenizer != kBytes) largest = file.emplace(readTokenizer(tokenizer)).largest();
    if (largest > std::numeric_limits<T>::max()) {
      fail(ErrorCode::kUsage, "-o {}: {} has tokens up to {}, a uint16 ends at 65535; name a file .u32",
           output, tokenizer, largest);
    }
    const MappedText mapped(text);
    PendingFile to(output);
    uint64_t count = 0;
    std::vector<T> numbers;
    const auto append = [&](const auto& tokens) {
      numbers.assign(tokens.begin(), tokens.end());
      to.append(numbers.data(), numbers.size() * sizeof(T));
      count += numbers.size();
    };
    if (file) {
      encode(*file, mapped.get(), append);
    } else {
      for (size_t at = 0; at < mapped.get().size(); at += kPieceBytes) {
        const std::string_view piece = mapped.get().substr(at, kPieceBytes);
        append(std::span(reinterpret_cast<const unsigned char*>(piece.data()), piece.size()));
      }
    }
    to.commit(false);
    fmt::print("{}: {} tokens ({}), from 0 to {}\n", output, count, dataTypeName(type), largest);
    return 0;
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
  sub->add_option("-o,--output", command->output, "The file to write: .u16 or .bin (uint16), .u32 (uint32)")
      ->required()
      ->type_name("FILE");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
