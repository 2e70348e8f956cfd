#include "ir/base/sharding_spec.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

[[noreturn]] void refuseSpec(std::string_view text, std::string_view part) {
  fail(ErrorCode::kConfiguration,
       "\"{}\" is no sharding spec: found \"{}\", expected for each tensor axis R (whole) or S with mesh "
       "axes (S0, S01), separated by commas, then perhaps ;P and the mesh axes of a partial sum; - for a "
       "scalar. Examples: \"S0,R\", \"R,S1;P0\"",
       text, part);
}

// "01" -> {0, 1}
std::vector<int> meshAxes(std::string_view text, std::string_view digits) {
  std::vector<int> axes;
  for (char digit : digits) {
    if (digit < '0' || digit > '9') refuseSpec(text, digits);
    axes.push_back(digit - '0');
  }
  if (axes.empty()) refuseSpec(text, digits);
  return axes;
}

// The share of a mesh coordinate in [start, start + size), in whole units.
void takeShare(int64_t& start, int64_t& size, int64_t index, int64_t parts, int64_t unit) {
  const int64_t units = size / unit;
  const int64_t begin = index * units / parts;
  const int64_t end = (index + 1) * units / parts;
  start += begin * unit;
  size = (end - begin) * unit;
}

}  // namespace

int LogicalMesh::deviceCount() const {
  return std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>());
}

int64_t LogicalMesh::unit(int64_t axis_size) const {
  if (rows <= 0 || axis_size <= 0 || axis_size % rows != 0) return 1;
  return std::find(rowless.begin(), rowless.end(), axis_size) == rowless.end() ? axis_size / rows : 1;
}

int LogicalMesh::coordinate(DeviceId device, int mesh_axis) const {
  int place = device.index();
  for (int axis = rank() - 1; axis > mesh_axis; --axis) place /= axisSize(axis);
  return place % axisSize(mesh_axis);
}

std::vector<DeviceId> LogicalMesh::lineOf(DeviceId device, int mesh_axis) const {
  int stride = 1;
  for (int axis = rank() - 1; axis > mesh_axis; --axis) stride *= axisSize(axis);
  const size_t first = device.index() - coordinate(device, mesh_axis) * stride;
  std::vector<DeviceId> line;
  for (int k = 0; k < axisSize(mesh_axis); ++k) line.push_back(DeviceId(first + k * stride));
  return line;
}

std::string printMesh(const LogicalMesh& mesh) { return fmt::format("{}", fmt::join(mesh.shape, "x")); }

LogicalMesh parseMesh(std::string_view text) {
  constexpr int kMostDevices = 1 << 20;  // as in a cluster
  LogicalMesh mesh;
  int devices = 1;
  for (std::string_view part : split(text, 'x')) {
    int size = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc() || end != part.data() + part.size() || size < 1 ||
        size > kMostDevices / devices || mesh.rank() == 10)
      fail(ErrorCode::kUsage,
           "\"{}\" is no logical mesh; write the devices along each axis: \"4\", \"2x4\", \"2x2x2\"", text);
    mesh.shape.push_back(size);
    devices *= size;
  }
  return mesh;
}

bool ShardingSpec::isReplicated() const {
  return partial.empty() &&
         std::all_of(axes.begin(), axes.end(), [](const std::vector<int>& axis) { return axis.empty(); });
}

bool ShardingSpec::uses(int mesh_axis) const {
  const auto holds = [&](const std::vector<int>& list) {
    return std::find(list.begin(), list.end(), mesh_axis) != list.end();
  };
  return holds(partial) || std::any_of(axes.begin(), axes.end(), holds);
}

ShardingSpec replicated(size_t rank) { return {std::vector<std::vector<int>>(rank), {}}; }

std::string printSpec(const ShardingSpec& spec) {
  std::vector<std::string> parts;
  for (const std::vector<int>& axis : spec.axes)
    parts.push_back(axis.empty() ? "R" : fmt::format("S{}", fmt::join(axis, "")));
  std::string text = spec.axes.empty() ? "-" : fmt::format("{}", fmt::join(parts, ","));
  if (!spec.partial.empty()) text += fmt::format(";P{}", fmt::join(spec.partial, ""));
  return text;
}

ShardingSpec parseSpec(std::string_view text) {
  const std::vector<std::string_view> halves = split(text, ';');
  ShardingSpec spec;
  if (halves[0] != "-") {
    for (std::string_view part : split(halves[0], ',')) {
      if (part != "R" && (part.empty() || part[0] != 'S')) refuseSpec(text, part);
      spec.axes.push_back(part == "R" ? std::vector<int>() : meshAxes(text, part.substr(1)));
    }
  }
  if (halves.size() > 2) refuseSpec(text, halves[2]);
  if (halves.size() == 2) {
    if (halves[1].empty() || halves[1][0] != 'P') refuseSpec(text, halves[1]);
    spec.partial = meshAxes(text, halves[1].substr(1));
    std::sort(spec.partial.begin(), spec.partial.end());
  }
  return spec;
}

std::string specFault(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh) {
  if (spec.axes.size() != shape.size())
    return fmt::format("it has {} axes, the tensor has {}", spec.axes.size(), shape.size());
  std::vector<int> used = spec.partial;
  for (const std::vector<int>& axis : spec.axes) used.insert(used.end(), axis.begin(), axis.end());
  std::sort(used.begin(), used.end());
  if (!used.empty() && used.back() >= mesh.rank())
    return fmt::format("mesh axis {} of a mesh of {} axes", used.back(), mesh.rank());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  if (twice != used.end()) return fmt::format("mesh axis {} is used twice", *twice);
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    int64_t parts = 1;
    for (int mesh_axis : spec.axes[axis]) parts *= mesh.axisSize(mesh_axis);
    if (parts == 1 || shape[axis] / mesh.unit(shape[axis]) >= parts) continue;
    return fmt::format("axis {} has {} {} for {} devices", axis, shape[axis] / mesh.unit(shape[axis]),
                       mesh.unit(shape[axis]) > 1 ? "rows" : "elements", parts);
  }
  return "";
}

Shard shardOf(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh, DeviceId device) {
  Shard shard{Shape(shape.size(), 0), shape};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    for (int mesh_axis : spec.axes[axis]) {
      takeShare(shard.start[axis], shard.size[axis], mesh.coordinate(device, mesh_axis),
                mesh.axisSize(mesh_axis), mesh.unit(shape[axis]));
    }
  }
  return shard;
}

std::vector<int64_t> partStarts(const ShardingSpec& spec, size_t axis, int64_t size,
                                const LogicalMesh& mesh) {
  std::vector<std::pair<int64_t, int64_t>> parts{{0, size}};  // start and size
  for (int mesh_axis : spec.axes[axis]) {
    std::vector<std::pair<int64_t, int64_t>> finer;
    for (const auto& part : parts) {
      for (int index = 0; index < mesh.axisSize(mesh_axis); ++index) {
        auto& [start, length] = finer.emplace_back(part);
        takeShare(start, length, index, mesh.axisSize(mesh_axis), mesh.unit(size));
      }
    }
    parts = std::move(finer);
  }
  std::vector<int64_t> starts;
  for (const auto& [start, length] : parts) starts.push_back(start);
  return starts;
}

int64_t largestShard(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh) {
  int64_t elements = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int64_t unit = mesh.unit(shape[axis]);
    int64_t units = shape[axis] / unit;
    for (int mesh_axis : spec.axes[axis])
      units = (units + mesh.axisSize(mesh_axis) - 1) / mesh.axisSize(mesh_axis);
    elements *= units * unit;
  }
  return elements;
}

}  // namespace pipeshard
