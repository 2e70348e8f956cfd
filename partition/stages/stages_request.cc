#include "partition/stages/stages_request.h"

#include <charconv>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::string_view kPerDevice = "per-device";
constexpr std::string_view kSearched = "auto";
constexpr std::string_view kUniform = "uniform:";
constexpr std::string_view kGrid = "megatron:";

// K of "uniform:K", or 0.
int uniformCount(std::string_view text) {
  if (!text.starts_with(kUniform)) return 0;
  int stages = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data() + kUniform.size(), end, stages);
  return error == std::errc() && parsed == end && stages > 0 ? stages : 0;
}

}  // namespace

StagesRequest parseStages(std::string_view text) {
  using Kind = StagesRequest::Kind;
  if (text == kPerDevice) return {};
  if (text == kSearched) return {.kind = Kind::kSearched};
  if (const int count = uniformCount(text); count > 0) return uniformStages(count);
  if (!text.starts_with(kGrid)) return {.kind = Kind::kFile, .file = std::string(text)};
  if (const auto grid = parseMegatronGrid(text)) return {.kind = Kind::kGrid, .grid = *grid};
  fail(ErrorCode::kUsage,
       "--stages {}: expected three or four numbers, megatron:DP,TP,PP[,V]; two are for --method", text);
}

std::string stagesToString(const StagesRequest& stages) {
  switch (stages.kind) {
    case StagesRequest::Kind::kPerDevice: return std::string(kPerDevice);
    case StagesRequest::Kind::kUniform: return fmt::format("{}{}", kUniform, stages.count);
    case StagesRequest::Kind::kGrid: return megatronGridToString(stages.grid);
    case StagesRequest::Kind::kFile: return stages.file;
    case StagesRequest::Kind::kSearched: return std::string(kSearched);
  }
  PIPESHARD_CHECK(false, "stages of no kind");
}

StagesRequest uniformStages(int count) { return {.kind = StagesRequest::Kind::kUniform, .count = count}; }

}  // namespace pipeshard
