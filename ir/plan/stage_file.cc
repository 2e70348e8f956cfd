#include "ir/plan/stage_file.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/json_reader.h"

namespace pipeshard {
namespace {

constexpr int kMostLayers = 1 << 20;
// How a stage may say its operators; every stage of a file says it in the same way.
constexpr const char* kForms[] = {"layers", "layer_count", "until"};
// The file's own words for stages whose operators are not sharded: devices share the rows, or do all the
// same.
constexpr const char* kByRows = "data-parallel";
constexpr const char* kReplicated = "replicated";

std::vector<int> narrow(const std::vector<int64_t>& numbers) {
  std::vector<int> result;
  for (int64_t number : numbers) result.push_back(number);
  return result;
}

// "3..7" or "3" as {3, 7} or {3, 3}; empty when it is neither.
std::vector<int> parseRange(std::string_view text) {
  const auto number = [](std::string_view digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() && value >= 0 && value < kMostLayers
               ? value
               : -1;
  };
  const size_t dots = text.find("..");
  const int first = number(text.substr(0, dots));
  const int last = dots == std::string_view::npos ? first : number(text.substr(dots + 2));
  return first < 0 || last < first ? std::vector<int>{} : std::vector<int>{first, last};
}

// Reads the stages of a file from first to last. Two things grow on the way:
//   next_layer_   the first layer that belongs to no stage yet
//   owner_        by device: the first stage that has it
// All stages say their operators by the key that the first one uses (`form_`). Only a last stage behind
// stages that end at values ("until"), or the only stage, may have no key: it takes the rest.
//
// Devices: the listed ones. Without a list, the block of devices (the submesh, else one device) that begins
// at the first device that no earlier stage has. Two stages may share devices only if they list the same ones
// in the same order: they are stages of one pipeline rank.
//
//   {"layer_count": 2}, {"layer_count": 3} on four devices: layers 0..1 on device 0, layers 2..4 on device 1;
//   the number of layers, said nowhere, is 5; devices 2 and 3 are not used.
class StageFileReader {
 public:
  StageFileReader(const JsonReader& json, std::string_view what, const Cluster& cluster, int layers)
      : json_(json), cluster_(cluster) {
    file_.name = what;
    file_.layers = layers;
  }

  StageFile read() {
    json_.expectObject({"version", "stages"}, {"layers"});
    if (json_.has("layers")) readLayerNumber();
    const std::vector<JsonReader> stages = json_.at("stages").elements();
    if (stages.empty()) json_.at("stages").failExpected("at least one stage");
    form_ = formOf(stages.front());
    for (size_t s = 0; s < stages.size(); ++s) readStage(stages[s], s, s + 1 == stages.size());
    finishLayers();
    const size_t used = owner_.size();
    if (owner_.rbegin()->first.next() != RankId(used)) {
      std::vector<RankId> devices;
      for (const auto& [device, stage] : owner_) devices.push_back(device);
      fail(ErrorCode::kConfiguration,
           "{}.stages: found devices {} in use; expected 0 to {} without gaps, as {} devices are in use",
           file_.name, fmt::join(devices, ", "), used - 1, used);
    }
    return std::move(file_);
  }

 private:
  void readLayerNumber() {
    const int64_t number = json_.at("layers").integer(1, kMostLayers);
    if (file_.layers > 0 && file_.layers != number) {
      json_.at("layers").failExpected(
          fmt::format("{}, which --layers says; write the number in one place", file_.layers));
    }
    file_.layers = number;
  }

  // The key that says the stage's operators; "" if there is none.
  std::string formOf(const JsonReader& stage) const {
    stage.expectObject({}, {"layers", "layer_count", "until", "devices", "submesh", "mesh", "sharding"});
    std::string form;
    for (const char* key : kForms) {
      if (!stage.has(key)) continue;
      if (!form.empty())
        stage.at(key).failExpected(
            fmt::format("no such key beside \"{}\"; a stage says its operators once", form));
      form = key;
    }
    return form;
  }

  void readStage(const JsonReader& json, size_t index, bool is_last) {
    const std::string form = formOf(json);
    const bool takes_the_rest = form.empty() && is_last && (form_ == "until" || index == 0);
    if (form != form_ && !form.empty()) {
      json.at(form.c_str())
          .failExpected(
              fmt::format("\"{}\", as stages[0] has it; stages say their operators in one way", form_));
    }
    if (form.empty() && !takes_the_rest) {
      json.failExpected(
          form_.empty()
              ? "one of the keys \"layers\", \"layer_count\", \"until\", which say the stage's operators"
              : fmt::format("the key \"{}\", which says the stage's operators", form_));
    }
    StageSpec stage;
    const int left = (file_.layers > 0 ? file_.layers : kMostLayers) - next_layer_.index();
    if (left < 1)
      json.failExpected(fmt::format("no further stage: all {} layers belong to stages already", next_layer_));
    if (form == "layers") readLayers(json.at("layers"), index, stage);
    if (form == "layer_count") {
      stage.first_layer = next_layer_;
      stage.last_layer = LayerId(next_layer_.index() + json.at("layer_count").integer(1, left) - 1);
    }
    if (form == "until") {
      stage.until = json.at("until").string();
      if (stage.until.empty()) json.at("until").failExpected("the name of a value that a forward node makes");
    }
    if (form.starts_with("layer")) next_layer_ = stage.last_layer.next();
    readDevices(json, index, stage);
    readMesh(json, stage);
    file_.stages.push_back(std::move(stage));
  }

  void readLayers(const JsonReader& json, size_t index, StageSpec& stage) const {
    const int most = (file_.layers > 0 ? file_.layers : kMostLayers) - 1;
    std::vector<int> listed;
    if (json.isString()) {
      listed = parseRange(json.string());
      if (listed.empty() || listed[1] > most)
        json.failExpected(fmt::format("a range \"FIRST..LAST\" of layers from 0 to {}", most));
    } else {
      if (!json.isArray() || json.elements().empty())
        json.failExpected("a list of layers such as [0,1,2], or a range such as \"0..2\"");
      listed = narrow(json.integers(0, most));
      for (size_t i = 1; i < listed.size(); ++i) {
        if (listed[i] == listed[i - 1] + 1) continue;
        json.elements()[i].failExpected(fmt::format(
            "{}: a list names all layers of the stage, in order; a range is \"0..2\"", listed[i - 1] + 1));
      }
    }
    stage.first_layer = LayerId(listed.front());
    stage.last_layer = LayerId(listed.back());
    if (stage.first_layer < next_layer_) {
      json.failExpected(
          fmt::format("layers from {} on: layer {} belongs to a stage before stages[{}] already, and stages "
                      "take layers in order",
                      next_layer_, stage.first_layer, index));
    }
    if (stage.first_layer > next_layer_) {
      json.failExpected(
          fmt::format("layers from {} on: layer {} would belong to no stage", next_layer_, next_layer_));
    }
  }

  void finishLayers() {
    if (form_ == "until" || form_.empty()) {
      if (file_.layers > 0) {
        fail(ErrorCode::kConfiguration,
             "{}: found {} layers and stages without them; expected \"layers\" or \"layer_count\" in every "
             "stage, or no number of layers when stages end at values (\"until\")",
             file_.name, file_.layers);
      }
      return;
    }
    if (file_.layers == 0) file_.layers = next_layer_.index();
    if (next_layer_ < LayerId(file_.layers)) {
      fail(ErrorCode::kConfiguration,
           "{}.stages: found stages that hold layers 0..{}; expected all of 0..{}, as there are {} layers",
           file_.name, next_layer_.previous(), file_.layers - 1, file_.layers);
    }
  }

  void readDevices(const JsonReader& json, size_t index, StageSpec& stage) {
    if (json.has("devices") && json.has("submesh"))
      json.at("submesh").failExpected("no such key beside \"devices\"; write one of them");
    if (json.has("devices")) {
      const JsonReader devices = json.at("devices");
      stage.devices = idsAt<RankId>(devices.integers(0, cluster_.deviceCount() - 1));
      if (stage.devices.empty()) devices.failExpected("at least one device");
      const auto owner = owner_.find(stage.devices[0]);
      // another stage of a pipeline rank
      if (owner != owner_.end() && file_.stages[owner->second].devices == stage.devices) return;
      for (size_t i = 0; i < stage.devices.size(); ++i) {
        const auto [found, is_new] = owner_.try_emplace(stage.devices[i], index);
        if (is_new) continue;
        devices.elements()[i].failExpected(
            found->second == index
                ? std::string("a device that the stage does not have already")
                : fmt::format("a device that is not in use, or all devices of stages[{}], which has it",
                              found->second));
      }
      return;
    }
    const std::vector<int> shape =
        json.has("submesh") ? submeshShape(json.at("submesh")) : std::vector<int>{1, 1};
    const int size = shape[0] * shape[1];
    int first = 0;
    while (owner_.contains(RankId(first))) ++first;
    const bool fits = first + size <= cluster_.deviceCount() && submeshFits(first, shape);
    const JsonReader where = json.has("submesh") ? json.at("submesh") : json;
    if (!fits) {
      where.failExpected(
          fmt::format("a submesh that fits behind the devices of earlier stages: the first device that is "
                      "free is {} of 0 to {}, with {} to a node; write \"devices\" to choose others",
                      first, cluster_.deviceCount() - 1, devicesOfNodes()));
    }
    for (RankId device : IdRange(RankId(first), RankId(first + size))) {
      const auto [found, is_new] = owner_.try_emplace(device, index);
      if (!is_new)
        where.failExpected(fmt::format("devices {} to {} to be free; stages[{}] has {}", first,
                                       first + size - 1, found->second, device));
      stage.devices.push_back(device);
    }
  }

  // Inside one node, or as many whole nodes as are said, of so many devices each.
  bool submeshFits(int first, const std::vector<int>& shape) const {
    const int node = cluster_.nodeOf(first);
    if (shape[0] == 1) return first + shape[1] <= cluster_.firstDeviceOf(node + 1);
    if (first != cluster_.firstDeviceOf(node) || node + shape[0] > cluster_.nodeCount()) return false;
    const auto begin = cluster_.nodes.begin() + node;
    return std::all_of(begin, begin + shape[0],
                       [&](const ClusterNode& of) { return of.devices == shape[1]; });
  }

  // "4", or "8, 8, 3" of unequal nodes.
  std::string devicesOfNodes() const {
    std::vector<int> counts;
    for (const ClusterNode& node : cluster_.nodes) counts.push_back(node.devices);
    const bool equal = std::count(counts.begin(), counts.end(), counts[0]) == std::ssize(counts);
    return equal ? fmt::format("{}", counts[0]) : fmt::format("{}", fmt::join(counts, ", "));
  }

  std::vector<int> submeshShape(const JsonReader& json) const {
    std::vector<int> shape = narrow(json.integers(1, cluster_.deviceCount()));
    const auto nodesWith = [&](int devices) {
      return std::count_if(cluster_.nodes.begin(), cluster_.nodes.end(),
                           [&](const ClusterNode& node) { return node.devices == devices; });
    };
    const bool is_valid = shape.size() == 2 && shape[1] <= cluster_.devicesPerNode() &&
                          (shape[0] == 1 || shape[0] <= nodesWith(shape[1]));
    if (!is_valid) {
      const int most = cluster_.devicesPerNode();
      const int nodes = cluster_.nodeCount();
      std::string whole;
      if (nodes > 1) whole = fmt::format(", or [2 to {}, {}] of whole nodes", nodes, most);
      if (nodesWith(most) < nodes) {
        whole = fmt::format(
            ", or [2 to {}, D] of whole nodes with D devices each, next to each other; they have {}", nodes,
            devicesOfNodes());
      }
      json.failExpected(fmt::format("[nodes, devices per node]: [1, 1 to {}] inside a node{}", most, whole));
    }
    return shape;
  }

  // The operators of the stage are sharded, on a logical mesh of any rank.
  static void readSharding(const JsonReader& json, const ShardingMethod& method, StageSpec& stage) {
    const int devices = stage.devices.size();
    stage.method = method;
    stage.mesh_shape = {1, devices};
    if (!json.has("mesh")) return;
    stage.logical_mesh = narrow(json.at("mesh").integers(1, INT32_MAX));
    int64_t product = 1;
    for (int size : stage.logical_mesh) product = product > INT32_MAX ? product : product * size;
    if (product != devices)
      json.at("mesh").failExpected(
          fmt::format("axes with the product {}, the number of the stage's devices", devices));
  }

  // The word that "sharding" says; "" without one.
  static std::string methodWord(const JsonReader& json) {
    if (!json.has("sharding")) return "";
    json.at("sharding").expectObject({"method"});
    const JsonReader method = json.at("sharding").at("method");
    const std::string word = method.string();
    if (word.starts_with("megatron:") || word.starts_with("megatron-zero2:")) return word;
    return method.string({kByRows, kReplicated, "auto", "zero2", "zero3", "tensor-parallel", "manual",
                          "megatron:DP,TP", "megatron-zero2:DP,TP"});
  }

  static void readMesh(const JsonReader& json, StageSpec& stage) {
    const int devices = stage.devices.size();
    const std::string method = methodWord(json);
    stage.undecided = !json.has("sharding") && !json.has("mesh");
    if (!method.empty() && method != kReplicated && method != kByRows) {
      const JsonReader given = json.at("sharding").at("method");
      return readSharding(json, given.parsed(parseShardingMethod), stage);
    }
    stage.mesh_shape = method == kReplicated ? std::vector<int>{1, devices} : std::vector<int>{devices, 1};
    if (!json.has("mesh")) return;
    stage.mesh_shape = narrow(json.at("mesh").integers(1, INT32_MAX));
    // one axis alone is the one that the method has a use for
    if (stage.mesh_shape.size() == 1)
      stage.mesh_shape.insert(method == kReplicated ? stage.mesh_shape.begin() : stage.mesh_shape.end(), 1);
    const bool is_valid =
        stage.mesh_shape.size() == 2 && int64_t{stage.mesh_shape[0]} * stage.mesh_shape[1] == devices;
    if (!is_valid)
      json.at("mesh").failExpected(
          fmt::format("[data, model] with the product {}, the number of the stage's devices", devices));
    if (method == kReplicated && stage.mesh_shape[0] != 1) {
      json.at("mesh").failExpected(fmt::format("[1,{}], as \"replicated\" cuts the batch nowhere", devices));
    }
    if (method == kByRows && stage.mesh_shape[0] == 1 && devices > 1) {
      json.at("mesh").failExpected(
          "a data axis of 2 or more, over which \"data-parallel\" cuts the batch; or the method "
          "\"replicated\"");
    }
  }

  const JsonReader& json_;
  const Cluster& cluster_;
  StageFile file_;
  std::string form_;                 // of every stage
  LayerId next_layer_ = LayerId(0);  // the first that belongs to no stage yet
  std::map<RankId, size_t> owner_;   // device -> index of its stage
};

}  // namespace

StageFile parseStageFile(std::string_view text, std::string_view what, const Cluster& cluster, int layers) {
  const Json document = parseJson(text, what, JsonComments::kAllowed);
  checkJsonVersion(document, what, kStageFileVersion, "docs/stages.md describes this version");
  const JsonReader json(document, std::string(what));
  return StageFileReader(json, what, cluster, layers).read();
}

}  // namespace pipeshard
