#include "ir/cluster/profile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/hash.h"
#include "ir/base/json_reader.h"

namespace pipeshard {
namespace {

constexpr int64_t kMost = int64_t{1} << 62;
constexpr std::array<const char*, kSizeCount> kSizeNames{"shared", "rows", "columns", "summed", "whole"};

// Not of the C library, whose last bit differs between processors: plans are the same everywhere. Right to
// 1e-13.
double log2Of(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // [0.5, 1)
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  const double z = (mantissa - 1) / (mantissa + 1);
  const double square = z * z;
  double sum = 0;
  for (int n = 21; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  return exponent + 2 * z * sum * 1.4426950408889634;
}

double exp2Of(double x) {
  const double whole = std::floor(x + 0.5);
  const double y = (x - whole) * 0.6931471805599453;
  double sum = 1;
  for (int n = 16; n >= 1; --n) sum = 1 + y / n * sum;
  return std::ldexp(sum, static_cast<int>(whole));
}

Json curveJson(const CostCurve& curve) {
  Json json = Json::array();
  for (const CostPoint& point : curve.points) json.push_back({point.amount, point.ns});
  return json;
}

CostCurve readCurve(const JsonReader& json) {
  CostCurve curve;
  for (const JsonReader& element : json.elements()) {
    const std::vector<int64_t> pair = element.integers(0, kMost);
    if (pair.size() != 2) element.failExpected("two numbers: an amount (FLOPs or bytes), and nanoseconds");
    if (!curve.points.empty() && pair[0] <= curve.points.back().amount)
      element.failExpected("amounts that ascend");
    if (!curve.points.empty() && pair[1] < curve.points.back().ns)
      element.failExpected("nanoseconds that do not fall");
    curve.points.push_back({pair[0], pair[1]});
  }
  return curve;
}

Json pointJson(const ProfilePoint& point) {
  Json json;
  json["op"] = point.work.op;
  if (!point.work.attributes.empty()) json["attributes"] = point.work.attributes;
  json["type"] = dataTypeName(point.work.type);
  for (size_t s = 0; s < kSizeCount; ++s) {
    if (point.work.sizes[s] != 1) json[kSizeNames[s]] = point.work.sizes[s];
  }
  json["flops"] = point.work.flops;
  json["bytes"] = point.work.bytes;
  json["ns"] = point.ns;
  if (point.busy_ns > 0) json["busy_ns"] = point.busy_ns;
  return json;
}

ProfilePoint readPoint(const JsonReader& json) {
  json.expectObject({"op", "type", "flops", "bytes", "ns"},
                    {"attributes", "shared", "rows", "columns", "summed", "whole", "busy_ns"});
  ProfilePoint point;
  point.work.op = json.at("op").string();
  if (point.work.op.empty()) json.at("op").failExpected("the name of an operator");
  if (json.has("attributes")) point.work.attributes = json.at("attributes").string();
  point.work.type = json.at("type").dataType();
  for (size_t s = 0; s < kSizeCount; ++s) {
    if (json.has(kSizeNames[s])) point.work.sizes[s] = json.at(kSizeNames[s]).integer(0, kMost);
  }
  point.work.flops = json.at("flops").integer(0, kMost);
  point.work.bytes = json.at("bytes").integer(0, kMost);
  point.ns = json.at("ns").integer(1, kMost);
  if (json.has("busy_ns")) point.busy_ns = json.at("busy_ns").integer(1, kMost);
  return point;
}

WorkClass readClass(const JsonReader& json) {
  std::vector<std::string> names;
  for (int c = 0; c < kWorkClassCount; ++c) names.emplace_back(workClassName(static_cast<WorkClass>(c)));
  const std::string name = json.string(names);
  return static_cast<WorkClass>(std::find(names.begin(), names.end(), name) - names.begin());
}

WorkRate readRate(const JsonReader& json) {
  json.expectObject({"class", "type", "flops", "bytes"});
  WorkRate rate;
  rate.work_class = readClass(json.at("class"));
  rate.type = json.at("type").dataType();
  rate.flops = readCurve(json.at("flops"));
  rate.bytes = readCurve(json.at("bytes"));
  return rate;
}

ProfiledDevice readDevice(const JsonReader& json) {
  json.expectObject({"processor", "instructions", "processors", "threads"});
  ProfiledDevice device;
  device.processor = json.at("processor").string();
  device.instructions = json.at("instructions").string();
  device.processors = json.at("processors").integer(1, 1 << 20);
  device.threads = json.at("threads").integer(1, 1 << 20);
  return device;
}

auto keyOf(const OperatorWork& work) { return std::tie(work.op, work.type); }

}  // namespace

std::string profileToJson(const Profile& profile) {
  Json json;
  json["version"] = kProfileVersion;
  json["device"] = {{"processor", profile.device.processor},
                    {"instructions", profile.device.instructions},
                    {"processors", profile.device.processors},
                    {"threads", profile.device.threads}};
  json["memory"] = curveJson(profile.memory);
  json["rates"] = Json::array();
  for (const WorkRate& rate : profile.rates) {
    json["rates"].push_back({{"class", workClassName(rate.work_class)},
                             {"type", dataTypeName(rate.type)},
                             {"flops", curveJson(rate.flops)},
                             {"bytes", curveJson(rate.bytes)}});
  }
  json["inside"] = curveJson(profile.inside);
  json["between"] = curveJson(profile.between);
  json["collectives"] = Json::array();
  for (const CollectiveCurve& curve : profile.collectives) {
    json["collectives"].push_back(
        {{"kind", curve.kind}, {"devices", curve.devices}, {"ns", curveJson(curve.ns)}});
  }
  json["points"] = Json::array();
  for (const ProfilePoint& point : profile.points) json["points"].push_back(pointJson(point));
  return dumpJson(json);
}

Profile profileFromJson(std::string_view text, std::string_view what) {
  const Json document = parseJson(text, what, JsonComments::kAllowed);
  checkJsonVersion(document, what, kProfileVersion,
                   "measure again (`pipeshard profile`), or use the pipeshard that wrote it");
  const JsonReader json(document, std::string(what));
  json.expectObject({"version", "device", "memory", "rates", "inside", "between", "collectives", "points"});
  Profile profile;
  profile.device = readDevice(json.at("device"));
  profile.memory = readCurve(json.at("memory"));
  for (const JsonReader& rate : json.at("rates").elements()) profile.rates.push_back(readRate(rate));
  profile.inside = readCurve(json.at("inside"));
  profile.between = readCurve(json.at("between"));
  for (const JsonReader& element : json.at("collectives").elements()) {
    element.expectObject({"kind", "devices", "ns"});
    profile.collectives.push_back(
        {element.at("kind").string({"AllReduce", "AllGather", "ReduceScatter", "AllToAll"}),
         static_cast<int>(element.at("devices").integer(2, 1 << 20)), readCurve(element.at("ns"))});
  }
  for (const JsonReader& element : json.at("points").elements()) {
    profile.points.push_back(readPoint(element));
    if (profile.points.size() > 1 &&
        !(profile.points[profile.points.size() - 2].work < profile.points.back().work)) {
      element.failExpected(
          "points in ascending order (op, attributes, type, sizes, flops, bytes), each once");
    }
  }
  return profile;
}

std::string profileDigest(const Profile& profile) {
  return fmt::format("{:016x}", hashBytes(profileToJson(profile)));
}

std::string printDevice(const ProfiledDevice& device) {
  return fmt::format("{}, {}, {} processor{}, {} thread{} per worker", device.processor, device.instructions,
                     device.processors, device.processors == 1 ? "" : "s", device.threads,
                     device.threads == 1 ? "" : "s");
}

void mergePoints(Profile& profile, std::vector<ProfilePoint> points) {
  points.insert(points.end(), profile.points.begin(), profile.points.end());
  const auto before = [](const ProfilePoint& a, const ProfilePoint& b) { return a.work < b.work; };
  std::stable_sort(points.begin(), points.end(), before);  // of equal work the new ones first
  points.erase(std::unique(points.begin(), points.end(),
                           [](const auto& a, const auto& b) { return a.work == b.work; }),
               points.end());
  profile.points = std::move(points);
}

// Points are kept in groups of one operator and type, sorted, so that a group is found by bisection. A
// point's features (log2 of sizes, FLOPs and bytes) are computed once. In a group all points are compared.
OperatorTimes::Features OperatorTimes::featuresOf(const OperatorWork& work) {
  Features features;
  const auto log = [](int64_t size) { return log2Of(static_cast<double>(std::max<int64_t>(1, size))); };
  for (size_t s = 0; s < kSizeCount; ++s) features[s] = log(work.sizes[s]);
  features[kSizeCount] = log(work.flops);
  features[kSizeCount + 1] = log(work.bytes);
  return features;
}

OperatorTimes::OperatorTimes(const Profile& profile)
    : collectives_(profile.collectives), memory_(profile.memory) {
  std::vector<ProfilePoint> points = profile.points;
  std::stable_sort(points.begin(), points.end(),
                   [](const auto& a, const auto& b) { return keyOf(a.work) < keyOf(b.work); });
  for (ProfilePoint& point : points) {
    if (groups_.empty() || std::tie(groups_.back().op, groups_.back().type) != keyOf(point.work)) {
      groups_.push_back({point.work.op, point.work.type, {}});
    }
    const Features features = featuresOf(point.work);
    groups_.back().entries.push_back({std::move(point), features});
  }
}

const OperatorTimes::Group* OperatorTimes::find(const OperatorWork& work) const {
  const auto at = std::lower_bound(
      groups_.begin(), groups_.end(), work,
      [](const Group& group, const OperatorWork& w) { return std::tie(group.op, group.type) < keyOf(w); });
  return at != groups_.end() && std::tie(at->op, at->type) == keyOf(work) ? &*at : nullptr;
}

// From the measured number of devices m that is next to n: (n-1)/n of B bytes travel, and the curve of m
// devices is asked for the B' of which as much travels. Of 400 bytes on 4 devices 300 travel, as of 600 on 2.
std::optional<int64_t> OperatorTimes::collectiveTime(std::string_view kind, int64_t devices,
                                                     int64_t bytes) const {
  const CollectiveCurve* best = nullptr;
  for (const CollectiveCurve& curve : collectives_) {
    if (curve.kind != kind || curve.ns.points.empty()) continue;
    if (best == nullptr || std::abs(curve.devices - devices) < std::abs(best->devices - devices))
      best = &curve;
  }
  if (best == nullptr) return std::nullopt;
  const auto part = [](int64_t n) { return 1 - 1 / static_cast<double>(n); };
  return best->ns.at(static_cast<double>(bytes) * part(devices) / part(best->devices));
}

std::optional<int64_t> OperatorTimes::copyTime(int64_t bytes) const {
  if (memory_.points.empty()) return std::nullopt;
  return memory_.at(static_cast<double>(bytes));
}

std::optional<int64_t> OperatorTimes::operatorTime(const OperatorWork& work, bool busy) const {
  constexpr size_t kNearest = 4;
  constexpr double kOtherAttributes = 4;
  constexpr int64_t kFlopsPerByte = 4;
  const Group* group = find(work);
  if (group == nullptr) return std::nullopt;
  const auto timeOf = [&](const ProfilePoint& point) {
    return busy && point.busy_ns > 0 ? point.busy_ns : point.ns;
  };
  const Features features = featuresOf(work);
  std::vector<std::pair<double, const Entry*>> nearest;
  for (const Entry& entry : group->entries) {
    if (entry.point.work == work) return timeOf(entry.point);
    double distance = entry.point.work.attributes == work.attributes ? 0 : kOtherAttributes;
    for (size_t f = 0; f < kFeatures; ++f)
      distance += (features[f] - entry.features[f]) * (features[f] - entry.features[f]);
    nearest.emplace_back(distance, &entry);
  }
  const size_t count = std::min(kNearest, nearest.size());
  // ties: as in the profile
  std::partial_sort(nearest.begin(), nearest.begin() + count, nearest.end());
  double weights = 0, sum = 0;
  for (size_t n = 0; n < count; ++n) {
    const auto& [distance, entry] = nearest[n];
    const size_t amount =
        entry->point.work.flops > kFlopsPerByte * entry->point.work.bytes ? kSizeCount : kSizeCount + 1;
    const double weight = 1 / std::max(distance, 1e-9);
    weights += weight;
    sum += weight *
           (log2Of(static_cast<double>(timeOf(entry->point))) + features[amount] - entry->features[amount]);
  }
  return std::max<int64_t>(1, std::llround(exp2Of(sum / weights)));
}

}  // namespace pipeshard
