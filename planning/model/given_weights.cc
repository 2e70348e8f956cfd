#include "planning/model/given_weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/convert.h"
#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/name_pattern.h"
#include "ir/base/tensor_box.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/exporter/module_parameters.h"
#include "runtime/files/tensor_file.h"

namespace pipeshard {
namespace {

constexpr std::string_view kRandom = "random";
constexpr size_t kMostNames = 8;  // in a note

std::string someOf(const std::vector<std::string>& names) {
  const size_t count = std::min(names.size(), kMostNames);
  const std::vector<std::string> shown(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(count));
  return fmt::format("{}{}", fmt::join(shown, ", "), count < names.size() ? ", ..." : "");
}

Shape shapeInFiles(const Value& value, const Shape& otherwise) {
  Shape shape = value.shape.value_or(otherwise);
  if (isStoredTransposed(value)) std::reverse(shape.begin(), shape.end());
  return shape;
}

// As the file has it, the tensor may become the value: floating-point types are taken for each other.
bool fits(const Value& value, const TensorEntry& entry) {
  const bool converts = value.data_type == entry.data_type ||
                        (isFloatingPoint(value.data_type) && isFloatingPoint(entry.data_type));
  return converts && shapeInFiles(value, entry.shape) == entry.shape;
}

bool holdTheSame(const TensorFile& one_file, const TensorEntry& one, const TensorFile& other_file,
                 const TensorEntry& other) {
  if (one.data_type != other.data_type || one.shape != other.shape) return false;
  constexpr uint64_t kPiece = uint64_t{1} << 20;
  for (uint64_t offset = 0; offset < one.length; offset += kPiece) {
    const size_t size = std::min(kPiece, one.length - offset);
    std::vector<std::byte> left(size), right(size);
    one_file.read(one, offset, left);
    other_file.read(other, offset, right);
    if (left != right) return false;
  }
  return true;
}

// What save_pretrained writes is a folder.
void refuseFolder(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return;
  fail(ErrorCode::kMissingInput,
       "--weights {}: a folder; give the .safetensors file in it, or each of several shards: --weights FILE "
       "--weights FILE ...",
       path);
}

// The values that a tensor may be, by their names and the ends of these behind a dot. Those of a tied
// parameter are all of its names.
class Names {
 public:
  explicit Names(const Graph& graph) {
    for (const auto& [id, initializer] : graph.initializers) add(graph.value(id).name, id);
    for (const ValueId id : graph.inputs) add(graph.value(id).name, id);
    for (const auto& [id, initializer] : graph.initializers) {
      for (const std::string& name : otherNames(graph.value(id))) add(name, id);
    }
  }

  // Several: it cannot be told which.
  std::set<ValueId> of(const std::string& tensor) const {
    if (const auto found = whole_.find(tensor); found != whole_.end()) return {found->second};
    if (const auto found = ends_.find(tensor); found != ends_.end()) return found->second;
    for (size_t dot = tensor.find('.'); dot != std::string::npos; dot = tensor.find('.', dot + 1)) {
      const auto found = whole_.find(tensor.substr(dot + 1));
      if (found != whole_.end()) return {found->second};
    }
    return {};
  }

 private:
  void add(const std::string& name, ValueId id) {
    whole_.emplace(name, id);
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      ends_[name.substr(dot + 1)].insert(id);
  }

  std::map<std::string, ValueId> whole_;
  std::map<std::string, std::set<ValueId>> ends_;
};

class FileWeights {
 public:
  FileWeights(Graph& graph, const std::vector<std::string>& uncalled, GivenWeights& given)
      : graph_(graph), uncalled_(uncalled.begin(), uncalled.end()), result_(given), names_(graph) {}

  void take(const std::string& path) {
    refuseFolder(path);
    const TensorFile file = TensorFile::open(path);
    std::vector<std::string> strange;
    std::map<std::pair<DataType, DataType>, int64_t> converted;
    size_t taken = 0, known = 0;  // known: to be looked at later, or there by another name
    for (const TensorEntry& entry : file.tensors()) {
      const std::set<ValueId> values = names_.of(entry.name);
      if (values.size() > 1) {
        std::vector<std::string> names;
        for (const ValueId value : values) names.push_back(allNames(graph_.value(value)));
        fail(ErrorCode::kUsage, "--weights {}: '{}' may be each of {}; name it as the model does", path,
             entry.name, fmt::join(names, ", "));
      }
      if (values.empty() && uncalled_.contains(entry.name)) {
        open_.push_back({path, entry});
        ++known;
        continue;
      }
      if (values.empty()) {
        strange.push_back(entry.name);
        continue;
      }
      const DataType wanted = graph_.dataType(*values.begin());
      if (!give(*values.begin(), file, entry)) {
        ++known;
        continue;
      }
      ++taken;
      if (wanted != entry.data_type) ++converted[{entry.data_type, wanted}];
    }
    if (taken + known == 0) {
      fail(ErrorCode::kUsage, "--weights {}: none of its {} is in the model; it has {}", path,
           counted(std::ssize(file.tensors()), "tensor"), someOf(strange));
    }
    if (taken > 0) note(fmt::format("{} from {}", counted(static_cast<int64_t>(taken), "weight"), path));
    for (const auto& [types, count] : converted) {
      note(fmt::format("{} of {} converted from {} to {}, as the model has {}", counted(count, "weight"),
                       path, dataTypeName(types.first), dataTypeName(types.second),
                       count == 1 ? "it" : "them"));
    }
    if (!strange.empty())
      note(fmt::format("not in the model, and left out: {} of {}", someOf(strange), path));
  }

  // To be called when all files were read. What is saved with its tied parameters as one has a name that no
  // call may go by (T5's "shared.weight"): where the files lack one embedding alone that it fits, it is that.
  void takeUncalled() {
    for (const Place& place : open_) {
      const std::optional<ValueId> id = onlyOneMissing(place.entry);
      const auto fitting = std::count_if(open_.begin(), open_.end(), [&](const Place& other) {
        return id && fits(graph_.value(*id), other.entry);
      });
      if (fitting != 1) {
        note(fmt::format("not in the model, and left out: {} of {}", place.entry.name, place.path));
        continue;
      }
      note(
          fmt::format("{} of {} taken for {}, which the files have by no other name (no call of the module "
                      "goes by this one)",
                      place.entry.name, place.path, graph_.value(*id).name));
      give(*id, TensorFile::open(place.path), place.entry);
    }
  }

  void noteWhatIsMissing() {
    std::vector<std::string> missing;
    for (const auto& [id, initializer] : graph_.initializers) {
      const Value& value = graph_.value(id);
      const bool weight = std::holds_alternative<WeightReference>(initializer) || isMarkedParameter(value);
      if (weight && !given_.contains(id) && isFloatingPoint(value.data_type)) missing.push_back(value.name);
    }
    if (missing.empty() || given_.empty()) return;
    note(fmt::format("not in the files of --weights, and left as the model has them: {}", someOf(missing)));
  }

 private:
  void note(std::string text) { result_.notes.push_back(std::move(text)); }

  // Where a tensor is.
  struct Place {
    std::string path;
    TensorEntry entry;
  };

  std::optional<ValueId> onlyOneMissing(const TensorEntry& entry) const {
    std::optional<ValueId> missing;
    for (const auto& [id, initializer] : graph_.initializers) {
      const Value& value = graph_.value(id);
      const bool looked_up = std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
        return node.is("Gather") && node.inputs[0] == id;
      });
      if (!looked_up || given_.contains(id) || !isMarkedParameter(value) || !fits(value, entry)) continue;
      if (missing) return std::nullopt;
      missing = id;
    }
    return missing;
  }

  // A tied parameter may be there under several of its names, all with the same numbers.
  void requireTheSame(const Value& value, const Place& first, const TensorFile& file,
                      const TensorEntry& entry) const {
    if (otherNames(value).empty() || first.entry.name == entry.name)
      fail(ErrorCode::kUsage, "--weights: '{}' is there twice, the second time in {}", value.name,
           file.path());
    if (holdTheSame(TensorFile::open(first.path), first.entry, file, entry)) return;
    fail(ErrorCode::kConfiguration,
         "--weights {}: '{}' is not the same as '{}'{}, but the model has both as one tied parameter, {}; "
         "give a file with one of them, or export a module that does not tie them",
         file.path(), entry.name, first.entry.name, first.path == file.path() ? "" : " of " + first.path,
         allNames(value));
  }

  // Whether the value had nothing yet.
  bool give(ValueId id, const TensorFile& file, const TensorEntry& entry) {
    Value& value = graph_.value(id);
    const auto [first, is_new] = given_.try_emplace(id, Place{file.path(), entry});
    if (!is_new) {
      requireTheSame(value, first->second, file, entry);
      return false;
    }
    const bool transposed = isStoredTransposed(value);
    if (!fits(value, entry)) {
      fail(ErrorCode::kConfiguration, "--weights {}: '{}' is {}{}, but the model has {}{}", file.path(),
           entry.name, dataTypeName(entry.data_type), shapeToString(entry.shape),
           dataTypeName(value.data_type), shapeToString(shapeInFiles(value, entry.shape)));
    }
    const bool was_input = !graph_.initializers.contains(id);
    if (was_input) {
      value.shape = entry.shape;
      std::erase(graph_.inputs, id);
    }
    if (!was_input && graph_.constant(id) != nullptr) {  // small: kept in memory, where it may be folded
      std::vector<std::byte> bytes = file.read(entry);
      if (transposed) {
        const std::vector<std::byte> stored = bytes;
        transposeMatrix(stored, entry.shape[0], entry.shape[1], dataTypeSize(entry.data_type), bytes);
      }
      std::vector<std::byte> elements(byteCount(value.data_type, entry.shape));
      convertElements(entry.data_type, bytes.data(), value.data_type, elements.data(),
                      elementCount(entry.shape));
      graph_.initializers[id] = Constant{value.data_type, *value.shape, std::move(elements)};
      return true;
    }
    const std::string path = std::filesystem::absolute(file.path()).lexically_normal().string();
    graph_.initializers[id] = WeightReference{path, entry.offset, entry.length, {}, transposed};
    result_.stored_types[value.name] = entry.data_type;
    return true;
  }

  Graph& graph_;
  const std::set<std::string> uncalled_;
  GivenWeights& result_;
  const Names names_;
  std::map<ValueId, Place> given_;
  std::vector<Place> open_;  // under names that no call goes by
};

RandomNumbers initialNumbers(const Value& value) {
  const Shape& shape = *value.shape;
  RandomNumbers numbers{RandomNumbers::Kind::kNormal};
  if (shape.size() > 1) {
    const auto elements = static_cast<double>(elementCount(shape));
    const double into = elements / static_cast<double>(std::max<int64_t>(1, shape[0]));
    const double out = elements / static_cast<double>(std::max<int64_t>(1, shape[1]));
    numbers.scale = std::sqrt(2 / std::max(1.0, into + out));
    return numbers;
  }
  const auto contains = [&](std::string_view part) { return value.name.find(part) != std::string::npos; };
  if (contains("bias") || contains("beta") || contains("mean")) {
    numbers.scale = 0.02;
    return numbers;
  }
  return {RandomNumbers::Kind::kUniform, 0, 1, 0.5};
}

void draw(Graph& graph, ValueId id, GivenWeights& given) {
  const Value& value = graph.value(id);
  if (!isFloatingPoint(value.data_type) || !value.shape || !isStatic(*value.shape)) {
    fail(ErrorCode::kUsage,
         "--weights random: '{}' is {}{}; only floating-point tensors of known shape are drawn", value.name,
         dataTypeName(value.data_type), value.shape ? shapeToString(*value.shape) : "");
  }
  std::erase(graph.inputs, id);
  graph.initializers[id] =
      WeightReference{"", 0, static_cast<uint64_t>(graph.bytes(id)), initialNumbers(value)};
  given.stored_types.erase(value.name);
}

void drawNamed(Graph& graph, const std::string& pattern, GivenWeights& given) {
  const NamePattern expression(fmt::format("--weights random:{}", pattern), pattern);
  std::vector<ValueId> found;
  std::vector<std::string> names;
  const auto look = [&](ValueId id) {
    if (!isNamedBy(expression, graph.value(id))) return;
    found.push_back(id);
    names.push_back(graph.value(id).name);
  };
  for (const ValueId id : graph.inputs) look(id);
  for (const auto& [id, initializer] : graph.initializers) look(id);
  if (found.empty())
    fail(ErrorCode::kUsage, "--weights random:{}: no input or weight has such a name", pattern);
  for (const ValueId id : found) draw(graph, id, given);
  given.notes.push_back(
      fmt::format("{} drawn from --seed: {}", counted(std::ssize(names), "weight"), someOf(names)));
}

void drawMissing(Graph& graph, const std::vector<std::string>& weight_inputs, GivenWeights& given) {
  std::vector<std::string> names;
  for (const ValueId input : graph.inputs) {
    const std::string& name = graph.value(input).name;
    if (std::find(weight_inputs.begin(), weight_inputs.end(), name) != weight_inputs.end())
      names.push_back(name);
  }
  std::map<std::string, bool> exists;
  for (const auto& [id, initializer] : graph.initializers) {
    const auto* weight = std::get_if<WeightReference>(&initializer);
    if (weight == nullptr || weight->drawn) continue;
    const auto [known, is_new] = exists.try_emplace(weight->location, false);
    std::error_code ignored;
    if (is_new)
      known->second =
          std::filesystem::exists(std::filesystem::path(graph.directory) / weight->location, ignored);
    if (!known->second) names.push_back(graph.value(id).name);
  }
  if (names.empty()) {
    fail(ErrorCode::kUsage,
         "--weights random: the files of all weights are there; --weights random:REGEX says which are drawn "
         "all "
         "the same, or which inputs are weights");
  }
  for (const std::string& name : names) draw(graph, findValue(graph, name), given);
  given.notes.push_back(fmt::format("{} that no file has, drawn from --seed: {}",
                                    counted(std::ssize(names), "weight"), someOf(names)));
}

}  // namespace

WeightSource parseWeightSource(const std::string& text) {
  if (text == kRandom) return {WeightSource::Kind::kRandomMissing, ""};
  const std::string named = std::string(kRandom) + ":";
  if (text.starts_with(named)) return {WeightSource::Kind::kRandomNamed, text.substr(named.size())};
  return {WeightSource::Kind::kFile, text};
}

std::string weightSourceToString(const WeightSource& source) {
  switch (source.kind) {
    case WeightSource::Kind::kFile: break;
    case WeightSource::Kind::kRandomMissing: return std::string(kRandom);
    case WeightSource::Kind::kRandomNamed: return std::string(kRandom) + ":" + source.text;
  }
  return source.text;
}

GivenWeights takeGivenWeights(Graph& graph, const std::vector<std::string>& sources,
                              const std::vector<std::string>& weight_inputs,
                              const std::vector<std::string>& uncalled) {
  GivenWeights given;
  FileWeights files(graph, uncalled, given);
  for (const std::string& text : sources) {
    const WeightSource source = parseWeightSource(text);
    if (source.kind == WeightSource::Kind::kFile) files.take(source.text);
  }
  files.takeUncalled();
  for (const std::string& text : sources) {
    const WeightSource source = parseWeightSource(text);
    if (source.kind == WeightSource::Kind::kRandomNamed) drawNamed(graph, source.text, given);
    if (source.kind == WeightSource::Kind::kRandomMissing) drawMissing(graph, weight_inputs, given);
  }
  files.noteWhatIsMissing();
  return given;
}

}  // namespace pipeshard
