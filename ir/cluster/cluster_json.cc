#include "ir/cluster/cluster_json.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"
#include "ir/cluster/cluster_presets.h"

namespace pipeshard {
namespace {

// Each part of a cluster has a function each way. What people write may have several forms: bytes as text
// with a unit, a rate instead of a curve, gigabits instead of gigabytes, the name of a known device instead
// of a kind. What is written out has one: numbers, curves as points, every kind with all its numbers.
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kLongest = int64_t{1} << 50;  // ns
constexpr double kSlowest = 1e-6;               // GB/s and GFLOP/s
constexpr double kFastest = 1e9;
constexpr int kMostDevices = 1 << 20;

std::vector<std::string> workClassNames() {
  std::vector<std::string> names;
  for (int c = 0; c < kWorkClassCount; ++c) names.emplace_back(workClassName(static_cast<WorkClass>(c)));
  return names;
}

WorkClass workClassOf(const JsonReader& json) {
  const std::vector<std::string> names = workClassNames();
  return static_cast<WorkClass>(std::find(names.begin(), names.end(), json.string(names)) - names.begin());
}

// 16000000000, or "16GB", "1.5GiB"
int64_t bytesOf(const JsonReader& json) {
  if (!json.isString()) return json.integer(1, kMostBytes);
  static const std::map<std::string, double> kUnits = {{"B", 1},         {"kB", 1e3},     {"MB", 1e6},
                                                       {"GB", 1e9},      {"TB", 1e12},    {"KiB", 1024},
                                                       {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  const std::string text = json.string();
  size_t digits = 0;
  double number = 0, place = 1;
  bool fraction = false;
  for (; digits < text.size() && (text[digits] == '.' || (text[digits] >= '0' && text[digits] <= '9'));
       ++digits) {
    if (text[digits] == '.' && fraction) break;
    if (text[digits] == '.') {
      fraction = true;
    } else if (fraction) {
      number += (text[digits] - '0') * (place /= 10);
    } else {
      number = number * 10 + (text[digits] - '0');
    }
  }
  const auto unit = kUnits.find(text.substr(digits));
  const double bytes = unit == kUnits.end() ? 0 : number * unit->second;
  if (bytes < 1 || bytes > static_cast<double>(kMostBytes))
    json.failExpected("bytes: a whole number, or text such as \"16GB\" or \"1.5GiB\"");
  return std::llround(bytes);
}

// [[amount, ns], ...] or a rate: {"gflops": 15700, "latency_ns": 4000, "half": 1e9}
CostCurve curveOf(const JsonReader& json, const char* rate) {
  if (json.isObject()) {
    json.expectObject({rate}, {"latency_ns", "half"});
    const int64_t latency = json.has("latency_ns") ? json.at("latency_ns").integer(0, kLongest) : 0;
    return CostCurve::ofRate(json.at(rate).number(kSlowest, kFastest),
                             json.has("half") ? json.at("half").number(0, 1e15) : 0, latency);
  }
  const std::string form = fmt::format("{{\"{}\": RATE}}, or a list of points [amount, ns]", rate);
  if (!json.isArray() || json.elements().empty()) json.failExpected(form);
  CostCurve curve;
  for (const JsonReader& point : json.elements()) {
    if (!point.isArray() || point.elements().size() != 2) point.failExpected("a point [amount, ns]");
    const std::vector<JsonReader> pair = point.elements();
    const CostPoint last = curve.points.empty() ? CostPoint{-1, 0} : curve.points.back();
    if (pair[0].integer(0, INT64_MAX) <= last.amount)
      pair[0].failExpected(fmt::format("more than {}: points go up", last.amount));
    if (pair[1].integer(0, kLongest) < last.ns)
      pair[1].failExpected(fmt::format("at least {}: more work takes no less time", last.ns));
    curve.points.push_back({pair[0].integer(0, INT64_MAX), pair[1].integer(0, kLongest)});
  }
  if (curve.points.back().ns == 0) json.failExpected("points that take time");
  return curve;
}

Json curveToJson(const CostCurve& curve) {
  Json points = Json::array();
  for (const CostPoint& point : curve.points) points.push_back({point.amount, point.ns});
  return points;
}

DeviceKind kindOf(const JsonReader& json, const std::string& name) {
  json.expectObject({}, {"memory", "memory_bandwidth", "rates", "efficiency", "source"});
  DeviceKind kind;
  kind.name = name;
  if (json.has("memory")) kind.memory_bytes = bytesOf(json.at("memory"));
  if (json.has("memory_bandwidth")) kind.memory = curveOf(json.at("memory_bandwidth"), "gbytes_per_s");
  if (json.has("rates")) {
    for (const JsonReader& entry : json.at("rates").elements()) {
      entry.expectObject({"class", "type"}, {"flops", "bytes"});
      WorkRate rate;
      rate.work_class = workClassOf(entry.at("class"));
      rate.type = entry.at("type").dataType();
      if (!entry.has("flops") && !entry.has("bytes")) entry.failExpected("\"flops\", \"bytes\" or both");
      if (entry.has("flops")) rate.flops = curveOf(entry.at("flops"), "gflops");
      if (entry.has("bytes")) rate.bytes = curveOf(entry.at("bytes"), "gbytes_per_s");
      const auto same = [&](const WorkRate& other) {
        return other.work_class == rate.work_class && other.type == rate.type;
      };
      if (std::any_of(kind.rates.begin(), kind.rates.end(), same))
        entry.failExpected("a class and type that no earlier entry is about");
      kind.rates.push_back(std::move(rate));
    }
  }
  if (json.has("efficiency")) {
    json.at("efficiency")
        .expectObject({}, {"contraction", "convolution", "reduction", "elementwise", "movement"});
    for (const std::string& name_of_class : json.at("efficiency").keys()) {
      const std::vector<std::string> names = workClassNames();
      const size_t index = std::find(names.begin(), names.end(), name_of_class) - names.begin();
      kind.efficiency[index] = json.at("efficiency").at(name_of_class.c_str()).number(1e-3, 1e3);
    }
  }
  if (json.has("source")) kind.source = json.at("source").string();
  return kind;
}

Json kindToJson(const DeviceKind& kind) {
  Json json = Json::object();
  if (kind.memory_bytes > 0) json["memory"] = kind.memory_bytes;
  if (!kind.memory.points.empty()) json["memory_bandwidth"] = curveToJson(kind.memory);
  for (const WorkRate& rate : kind.rates) {
    Json entry = {{"class", workClassName(rate.work_class)}, {"type", dataTypeName(rate.type)}};
    if (!rate.flops.points.empty()) entry["flops"] = curveToJson(rate.flops);
    if (!rate.bytes.points.empty()) entry["bytes"] = curveToJson(rate.bytes);
    json["rates"].push_back(std::move(entry));
  }
  for (int c = 0; c < kWorkClassCount; ++c) {
    const double efficiency = kind.efficiency[c];
    if (efficiency != 1)
      json["efficiency"][std::string(workClassName(static_cast<WorkClass>(c)))] = efficiency;
  }
  if (!kind.source.empty()) json["source"] = kind.source;
  return json;
}

void readLink(const JsonReader& json, Link& link) {
  json.expectObject({}, {"latency_ns", "gbytes_per_s", "gbits_per_s", "measured"});
  if (json.has("latency_ns")) link.latency_ns = json.at("latency_ns").integer(0, kLongest);
  if (json.has("gbytes_per_s") && json.has("gbits_per_s"))
    json.at("gbits_per_s").failExpected("no such key beside \"gbytes_per_s\"");
  if (json.has("gbytes_per_s")) link.bytes_per_ns = json.at("gbytes_per_s").number(kSlowest, kFastest);
  if (json.has("gbits_per_s")) link.bytes_per_ns = json.at("gbits_per_s").number(kSlowest, kFastest) / 8;
  if (json.has("measured")) link.measured = curveOf(json.at("measured"), "gbytes_per_s");
}

Json linkToJson(const Link& link) {
  Json json = {{"latency_ns", link.latency_ns}, {"gbytes_per_s", link.bytes_per_ns}};
  if (!link.measured.points.empty()) json["measured"] = curveToJson(link.measured);
  return json;
}

class ClusterReader {
 public:
  ClusterReader(const JsonReader& json, std::string_view default_name) : json_(json) {
    cluster_.name = default_name;
  }

  Cluster read(bool versioned) {
    if (versioned) json_.expectObject({"version", "nodes"}, {"name", "kinds"});
    if (!versioned) json_.expectObject({"nodes"}, {"name", "kinds"});
    if (json_.has("name")) cluster_.name = json_.at("name").string();
    cluster_.kinds.clear();
    cluster_.nodes.clear();
    if (json_.has("kinds")) {
      const JsonReader kinds = json_.at("kinds");
      for (const std::string& name : kinds.keys())
        cluster_.kinds.push_back(kindOf(kinds.at(name.c_str()), name));
    }
    const JsonReader nodes = json_.at("nodes");
    for (const JsonReader& node : nodes.elements()) readNodes(node);
    if (cluster_.nodes.empty()) nodes.failExpected("at least one node");
    return std::move(cluster_);
  }

 private:
  // One entry: `count` equal nodes.
  void readNodes(const JsonReader& json) {
    json.expectObject({}, {"count", "preset", "kind", "devices", "inside", "inside_groups", "nic", "nics",
                           "cores", "shared_memory"});
    ClusterNode node;
    if (json.has("preset")) {
      const ClusterPreset& preset = presetOf(json.at("preset"));
      node = preset.one.nodes[0];
      node.kind = indexOf(preset.one.kinds[0]);
    }
    if (json.has("kind")) node.kind = kindNamed(json.at("kind"));
    if (!json.has("kind") && !json.has("preset"))
      json.failExpected("\"kind\" (a name in \"kinds\", or of a known device) or \"preset\"");
    if (json.has("devices")) node.devices = json.at("devices").integer(1, kMostDevices);
    if (json.has("inside")) readLink(json.at("inside"), node.inside);
    if (json.has("inside_groups")) node.inside_groups = readGroups(json.at("inside_groups"));
    if (json.has("nic")) readLink(json.at("nic"), node.nic);
    if (json.has("nics")) node.nics = json.at("nics").integer(1, kMostDevices);
    if (json.has("cores")) node.cores = json.at("cores").integer(1, kMostDevices);
    if (json.has("shared_memory")) node.shared_memory = json.at("shared_memory").boolean();
    const int64_t count = json.has("count") ? json.at("count").integer(1, kMostDevices) : 1;
    devices_ += count * node.devices;
    if (devices_ > kMostDevices) json.failExpected(fmt::format("at most {} devices in all", kMostDevices));
    cluster_.nodes.resize(cluster_.nodes.size() + static_cast<size_t>(count), node);
  }

  static std::vector<GroupRate> readGroups(const JsonReader& json) {
    std::vector<GroupRate> groups;
    for (const JsonReader& entry : json.elements()) {
      entry.expectObject({"devices", "gbytes_per_s"});
      GroupRate group;
      group.devices =
          entry.at("devices").integer(groups.empty() ? 2 : groups.back().devices + 1, kMostDevices);
      group.bytes_per_ns = entry.at("gbytes_per_s").number(kSlowest, kFastest);
      groups.push_back(group);
    }
    return groups;
  }

  static const ClusterPreset& presetOf(const JsonReader& json) {
    std::vector<std::string> names;
    for (const ClusterPreset& preset : clusterPresets()) names.push_back(preset.name);
    const std::string name = json.string(names);
    return *std::find_if(clusterPresets().begin(), clusterPresets().end(),
                         [&](const ClusterPreset& preset) { return preset.name == name; });
  }

  int kindNamed(const JsonReader& json) {
    const std::string name = json.string();
    std::vector<std::string> names;
    for (const DeviceKind& kind : cluster_.kinds) names.push_back(kind.name);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return found - names.begin();
    for (const ClusterPreset& preset : clusterPresets()) {
      if (preset.one.kinds[0].name == name) return indexOf(preset.one.kinds[0]);
      if (std::find(names.begin(), names.end(), preset.one.kinds[0].name) == names.end())
        names.push_back(preset.one.kinds[0].name);
    }
    const std::vector<std::string> near = nearMatches(name, names);
    json.failExpected(
        fmt::format("the name of a device kind: {}{}", fmt::join(names, ", "),
                    near.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(near, " or "))));
  }

  // A kind of the file goes before a known device of that name.
  int indexOf(const DeviceKind& kind) {
    const auto found = std::find_if(cluster_.kinds.begin(), cluster_.kinds.end(),
                                    [&](const DeviceKind& k) { return k.name == kind.name; });
    if (found != cluster_.kinds.end()) return found - cluster_.kinds.begin();
    cluster_.kinds.push_back(kind);
    return std::ssize(cluster_.kinds) - 1;
  }

  const JsonReader& json_;
  Cluster cluster_;
  int64_t devices_ = 0;
};

Json nodesToJson(const Cluster& cluster) {
  Json nodes = Json::array();
  for (size_t n = 0; n < cluster.nodes.size(); ++n) {
    const ClusterNode& node = cluster.nodes[n];
    size_t count = 1;
    while (n + 1 < cluster.nodes.size() && cluster.nodes[n + 1] == node) ++n, ++count;
    Json json = {{"count", count},
                 {"kind", cluster.kinds[node.kind].name},
                 {"devices", node.devices},
                 {"inside", linkToJson(node.inside)},
                 {"nic", linkToJson(node.nic)},
                 {"nics", node.nics}};
    for (const GroupRate& group : node.inside_groups)
      json["inside_groups"].push_back({{"devices", group.devices}, {"gbytes_per_s", group.bytes_per_ns}});
    if (node.cores > 0) json["cores"] = node.cores;
    if (node.shared_memory) json["shared_memory"] = true;
    nodes.push_back(std::move(json));
  }
  return nodes;
}

}  // namespace

Json clusterToJson(const Cluster& cluster) {
  Json json;
  json["name"] = cluster.name;
  json["kinds"] = Json::object();
  for (const DeviceKind& kind : cluster.kinds) json["kinds"][kind.name] = kindToJson(kind);
  json["nodes"] = nodesToJson(cluster);
  return json;
}

Cluster clusterFromJson(const JsonReader& json, std::string_view default_name, bool versioned) {
  return ClusterReader(json, default_name).read(versioned);
}

}  // namespace pipeshard
