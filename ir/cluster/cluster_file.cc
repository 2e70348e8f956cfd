#include "ir/cluster/cluster_file.h"

#include <nlohmann/json.hpp>

#include "ir/base/json_reader.h"
#include "ir/cluster/cluster_json.h"

namespace pipeshard {
namespace {

constexpr int kClusterFileVersion = 1;

}  // namespace

Cluster parseClusterFile(std::string_view text, std::string_view what) {
  const Json document = parseJson(text, what, JsonComments::kAllowed);
  checkJsonVersion(document, what, kClusterFileVersion, "write \"version\": 1");
  return clusterFromJson(JsonReader(document, std::string(what)), what, true);
}

std::string clusterFileText(const Cluster& cluster) {
  Json document;
  document["version"] = kClusterFileVersion;
  const Json described = clusterToJson(cluster);
  for (const auto& [key, value] : described.items()) document[key] = value;
  return dumpJson(document);
}

}  // namespace pipeshard
