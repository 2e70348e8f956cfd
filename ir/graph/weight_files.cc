#include "ir/graph/weight_files.h"

#include <charconv>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/json_reader.h"

namespace pipeshard {
namespace {

constexpr std::string_view kFile = "weights.json";

// Hashes are hexadecimal text: JSON numbers do not hold 64 bits.
uint64_t hashFromJson(const JsonReader& json) {
  const std::string text = json.string();
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    json.failExpected("16 hexadecimal digits");
  return hash;
}

}  // namespace

Initializer absoluteSource(const Graph& graph, ValueId initializer) {
  Initializer source = graph.initializers.at(initializer);
  if (auto* weight = std::get_if<WeightReference>(&source); weight != nullptr && !weight->drawn) {
    const std::filesystem::path path = std::filesystem::path(graph.directory) / weight->location;
    weight->location = std::filesystem::absolute(path).lexically_normal().string();
  }
  return source;
}

std::string weightFilesToJson(const std::vector<WeightFile>& files) {
  Json document;
  document["version"] = kWeightFilesVersion;
  document["files"] = Json::array();
  for (const WeightFile& file : files) {
    Json entry = {{"path", file.path}, {"needed_bytes", file.needed_bytes}};
    if (file.content)
      entry["content"] = {{"bytes", file.content->bytes},
                          {"sample", fmt::format("{:016x}", file.content->sample)}};
    document["files"].push_back(std::move(entry));
  }
  return dumpJson(document);
}

std::vector<WeightFile> weightFilesFromJson(std::string_view text) {
  const Json document = parseJson(text, kFile);
  checkJsonVersion(document, kFile, kWeightFilesVersion);
  const JsonReader json(document, std::string(kFile));
  json.expectObject({"version", "files"});
  std::vector<WeightFile> files;
  for (const JsonReader& entry : json.at("files").elements()) {
    entry.expectObject({"path", "needed_bytes"}, {"content"});
    WeightFile& file = files.emplace_back();
    file.path = entry.at("path").string();
    file.needed_bytes = entry.at("needed_bytes").integer(0, INT64_MAX);
    if (!entry.has("content")) continue;
    const JsonReader content = entry.at("content");
    content.expectObject({"bytes", "sample"});
    file.content = {static_cast<uint64_t>(content.at("bytes").integer(0, INT64_MAX)),
                    hashFromJson(content.at("sample"))};
  }
  return files;
}

}  // namespace pipeshard
