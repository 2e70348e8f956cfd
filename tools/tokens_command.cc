#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "runtime/data/token_file.h"
#include "runtime/files/posix_file.h"
#include "tools/commands.h"

namespace pipeshard {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

struct TokensCommand {
  std::string text;
  std::string tokenizer = "bytes";
  std::string output;

  int run() const {
    if (tokenizer != "bytes") {
      fail(ErrorCode::kUsage,
           "--tokenizer {}: 'bytes' is the only one that there is (a token is a byte, 0 to 255); make the "
           "file "
           "with another tokenizer by writing its numbers as little-endian uint16 or uint32",
           tokenizer);
    }
    const DataType type = tokenTypeOf(output);
    if (type == DataType::kUndefined)
      fail(ErrorCode::kUsage, "-o {}: a file of tokens ends in .u16, .bin (uint16) or .u32 (uint32)", output);
    const uint64_t bytes = type == DataType::kUint16 ? write<uint16_t>() : write<uint32_t>();
    fmt::print("{}: {} tokens ({}), from 0 to 255\n", output, bytes, dataTypeName(type));
    return 0;
  }

 private:
  template <typename T>
  uint64_t write() const {
    const Descriptor from = openForReading(text);
    const uint64_t bytes = fileBytes(from, text);
    if (bytes == 0) fail(ErrorCode::kMissingInput, "{} is empty; expected a text", text);
    PendingFile to(output);
    std::vector<unsigned char> piece;
    std::vector<T> tokens;
    for (uint64_t done = 0; done < bytes; done += piece.size()) {
      piece.resize(std::min<uint64_t>(kPieceBytes, bytes - done));
      readExactly(from, done, std::as_writable_bytes(std::span(piece)), text);
      tokens.assign(piece.begin(), piece.end());
      to.append(tokens.data(), tokens.size() * sizeof(T));
    }
    to.commit(false);
    return bytes;
  }
};

}  // namespace

CommandFunction addTokensCommand(CLI::App& app) {
  auto command = std::make_shared<TokensCommand>();
  CLI::App* sub = app.add_subcommand("tokens", "Make a file of tokens, for `run --data`, of a text");
  sub->add_option("FILE", command->text, "A text file")->required();
  sub->add_option("--tokenizer", command->tokenizer, "bytes: every byte is a token")->capture_default_str();
  sub->add_option("-o,--output", command->output, "The file to write: .u16 or .bin (uint16), .u32 (uint32)")
      ->required()
      ->type_name("FILE");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
