#include "onnx_import/exporter/converter_traps.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/exporter/torchscript_parameters.h"
#include "onnx_import/format/initializer_bytes.h"

namespace pipeshard {
namespace {

constexpr size_t kMostTold = 4;  // names in a sentence

bool isOfTensorFlow(const Graph& graph) { return graph.producer_name == "tf2onnx"; }

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Keras' scope of the operators of a batch normalisation. Its own tensors are read as variables.
bool isOfNormalization(std::string_view name) { return contains(name, "/batchnorm/"); }
bool isProduct(std::string_view name) { return !contains(name, "ReadVariableOp"); }

// "model/dense_1" of the node "model/dense_1/MatMul": "" where the name does not tell.
std::string layerOf(std::string_view node) {
  const size_t model = node.find('/');
  const size_t layer = model == node.npos ? node.npos : node.find('/', model + 1);
  return layer == node.npos ? "" : std::string(node.substr(0, layer));
}

// Weights that layers of different names read: "'w' (model/a, model/b)".
std::vector<std::string> sharedWeights(const Graph& graph) {
  std::map<ValueId, std::set<std::string>> layers;
  for (const Node& node : graph.nodes) {
    const std::string layer = layerOf(node.name);
    for (const ValueId input : node.inputs) {
      if (!layer.empty() && input.valid() && graph.initializers.contains(input)) layers[input].insert(layer);
    }
  }
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  std::vector<std::string> shared;
  for (const auto& [id, names] : layers) {
    if (names.size() > 1 && roles[id.index()] == InitializerRole::kParameter)
      shared.push_back(fmt::format("'{}' ({})", graph.value(id).name, fmt::join(names, ", ")));
  }
  return shared;
}

// [directions, 2 * gates]: of each direction the biases of the inputs, and behind them those of the state.
bool hasZeroRecurrentBias(const Graph& graph, const Node& node) {
  constexpr size_t kBias = 3;
  if (!node.is("LSTM") && !node.is("GRU") && !node.is("RNN")) return false;
  if (node.inputs.size() <= kBias || !node.inputs[kBias].valid()) return false;
  const ValueId bias = node.inputs[kBias];
  if (!graph.initializers.contains(bias) || !isFloatingPoint(graph.dataType(bias))) return false;
  const std::optional<std::vector<std::byte>> bytes = initializerBytes(graph, bias);
  const Shape& shape = graph.shape(bias);
  if (!bytes || shape.size() != 2 || shape[0] <= 0) return false;
  const size_t row = bytes->size() / static_cast<size_t>(shape[0]);
  for (size_t start = 0; start + row <= bytes->size() && row > 0; start += row) {
    const std::span<const std::byte> state(bytes->data() + start + row / 2, row / 2);
    if (std::ranges::any_of(state, [](std::byte byte) { return byte != std::byte{0}; })) return false;
  }
  return true;
}

void tellRecurrentBiases(const Graph& graph, std::vector<std::string>& traps) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) {
    if (hasZeroRecurrentBias(graph, node)) names.push_back("'" + graph.value(node.inputs[3]).name + "'");
  }
  if (names.empty()) return;
  traps.push_back(
      fmt::format("biases of recurrent layers whose half for the state is zero: {}: Keras has one bias where "
                  "ONNX adds two; both are trained, so that their sum moves twice as far in a step; --group "
                  "'REGEX:lr_scale=0.5' of these names evens it out",
                  listed(names, kMostTold)));
}

void tellTensorFlow(const Graph& graph, std::vector<std::string>& traps) {
  if (const std::vector<std::string> folded = foldedNormalizations(graph); !folded.empty()) {
    traps.push_back(
        fmt::format("batch normalisations that tf2onnx has folded into {}: what is trained is the product of "
                    "their scale, their statistics and a layer's weight, not what Keras trains; --mode "
                    "training cannot have their statistics follow batches",
                    listed(folded, kMostTold)));
  }
  traps.emplace_back(
      "tf2onnx leaves out zero biases and unit scales and keeps equal tensors once: of a freshly initialised "
      "model they are not in the file; export after a training step, or with small random values. Nor is "
      "trainable=False: all weights of the file are trained; --freeze leaves some as they are");
  if (const std::vector<std::string> shared = sharedWeights(graph); !shared.empty()) {
    traps.push_back(
        fmt::format("one tensor for several layers, trained as one: {}; right for a layer that is called "
                    "again, wrong for equal weights that tf2onnx has merged",
                    listed(shared, kMostTold)));
  }
  tellRecurrentBiases(graph, traps);
}

// Its nodes are called "node_linear_3", those of the older exporter "/fc/Gemm".
bool isOfTorchExport(const Graph& graph) {
  if (hasMarkedNodes(graph)) return true;
  const auto begins = [&](std::string_view with) {
    return std::ranges::any_of(graph.nodes, [&](const Node& node) { return node.name.starts_with(with); });
  };
  return graph.producer_name == "pytorch" && begins("node_") && !begins("/");
}

bool isArithmetic(const Node& node) {
  return node.is("Add") || node.is("Sub") || node.is("Mul") || node.is("Div");
}

// By value: an input of the graph, viewed, shifted and scaled by what is in the file at most.
std::vector<bool> straightFromInputs(const Graph& graph) {
  std::vector<bool> straight(graph.values.size());
  for (const ValueId input : graph.inputs) straight[input.index()] = !graph.initializers.contains(input);
  for (const Node& node : graph.nodes) {
    if (node.inputs.empty() || node.outputs.empty() || !node.outputs[0].valid()) continue;
    const auto isStraight = [&](ValueId input) { return input.valid() && straight[input.index()]; };
    const auto isStored = [&](ValueId input) { return input.valid() && graph.initializers.contains(input); };
    const bool views = operatorFacts(node).view != View::kNone || node.is("Cast");
    straight[node.outputs[0].index()] =
        (views && isStraight(node.inputs[0])) ||
        (isArithmetic(node) && std::ranges::any_of(node.inputs, isStraight) &&
         std::ranges::all_of(node.inputs, [&](ValueId id) { return isStraight(id) || isStored(id); }));
  }
  return straight;
}

std::string_view lastPart(std::string_view name) { return name.substr(name.find_last_of("./") + 1); }

bool isOneOf(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

// Does the last part of a weight's name say that it is a table of the arithmetic, and no parameter? Words
// that layers have, too, are none of these ("filter_net.0.weight", "window_attn.bias").
bool isCalledLikeBuffer(std::string_view name) {
  std::string last(lastPart(name.substr(0, name.find(':'))));  // TensorFlow's ":0" is a number of an output
  std::ranges::transform(last, last.begin(), [](unsigned char c) { return std::tolower(c); });
  if (isOneOf(last, {"pe", "anchors", "anchor_grid"}) || last.starts_with("running_")) return true;
  std::set<std::string_view> words;
  for (std::string_view rest = last; !rest.empty();) {
    const size_t end = std::min(rest.find('_'), rest.size());
    words.insert(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const auto has = [&](std::string_view word) { return words.contains(word); };
  if (has("buffer") || has("stft")) return true;
  if (has("weight") || has("bias")) return false;
  constexpr std::string_view kFilterBanks[] = {"fbank", "filterbank", "filter_bank", "mel_bank",
                                               "mel_filter"};
  return has("window") || (has("basis") && (has("mel") || has("dct") || has("forward") || has("inverse"))) ||
         std::ranges::any_of(kFilterBanks, [&](std::string_view bank) { return contains(last, bank); });
}

// Rows of a table are looked up, cut out, or added as they are. (Matrices of products are many, and large.)
bool mayReadTable(const Node& node) { return isArithmetic(node) || node.is("Gather") || node.is("Slice"); }

// A table of sines and cosines, which modules keep in a buffer: as many of both in every row, so that the
// squares of a row add up to half its length.
bool isTableOfSines(const Graph& graph, ValueId id) {
  constexpr int64_t kMostElements = 1 << 24;
  constexpr int64_t kLeastRows = 4, kLeastWidth = 8;
  constexpr double kTolerance = 1e-4;
  const Shape& shape = graph.shape(id);
  if (graph.dataType(id) != DataType::kFloat32 || shape.size() < 2) return false;
  const int64_t width = shape.back(), count = elementCount(shape);
  if (width < kLeastWidth || count < kLeastRows * width || count > kMostElements) return false;
  const std::optional<std::vector<std::byte>> bytes = initializerBytes(graph, id);
  if (!bytes || std::ssize(*bytes) != count * static_cast<int64_t>(sizeof(float))) return false;
  std::vector<float> numbers(count);
  std::memcpy(numbers.data(), bytes->data(), bytes->size());
  for (auto row = numbers.begin(); row != numbers.end(); row += width) {
    double squares = 0;
    for (auto number = row; number != row + width; ++number) squares += *number * *number;
    const double half = 0.5 * static_cast<double>(width);
    if (!(std::abs(squares - half) < kTolerance * half)) return false;
  }
  return true;
}

// A blur: the same operator for every channel, with a kernel that is no layer's.
bool isChannelKernel(const Graph& graph, const Node& node, size_t input) {
  if (!node.is("Conv") || input != 1 || node.inputs.size() > 2) return false;
  const Shape& shape = graph.shape(node.inputs[1]);
  return !shape.empty() && node.intAttribute("group", 1) == shape[0] && shape[0] > 1 &&
         lastPart(graph.value(node.inputs[1]).name) == "kernel";
}

// The trained tensors of a file without marks that likelyBuffers names.
std::vector<std::string> likelyBufferNames(const Graph& graph) {
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  const std::vector<bool> straight = straightFromInputs(graph);
  std::map<ValueId, bool> normalizes;  // all of its readers
  std::set<ValueId> kernels, tables;
  for (const Node& node : graph.nodes) {
    const bool from_input = isArithmetic(node) && std::ranges::any_of(node.inputs, [&](ValueId input) {
                              return input.valid() && straight[input.index()];
                            });
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (!input.valid() || roles[input.index()] != InitializerRole::kParameter) continue;
      if (trainedByUser(graph.value(input))) continue;
      const auto [found, is_new] = normalizes.try_emplace(input, from_input);
      found->second = found->second && from_input;
      if (isChannelKernel(graph, node, i)) kernels.insert(input);
      if (mayReadTable(node)) tables.insert(input);
    }
  }
  std::vector<std::string> names;
  for (const auto& [id, all] : normalizes) {
    const std::string& name = graph.value(id).name;
    const bool is_table = tables.contains(id) && isTableOfSines(graph, id);
    if (all || isCalledLikeBuffer(name) || kernels.contains(id) || is_table) names.push_back(name);
  }
  return names;
}

// Masks, and the weights of losses.
class StoredConstants {
 public:
  explicit StoredConstants(const Graph& graph)
      : graph_(graph),
        uses_(computeUseDef(graph)),
        roles_(initializerRoles(graph)),
        is_torchscript_(isTorchScript(graph)) {}

  std::vector<ValueId> found() const {
    std::vector<ValueId> constants;
    for (const auto& [id, initializer] : graph_.initializers) {
      if (roles_[id.index()] != InitializerRole::kParameter || elementCount(graph_.shape(id)) < 2) continue;
      if (isMask(id) || weighsLoss(id)) constants.push_back(id);
    }
    return constants;
  }

 private:
  struct Reader {
    const Node* node;
    size_t input;
  };
  enum class Read : uint8_t { kAsMask, kAsMatrix, kCounted, kOtherwise };

  static bool showsElements(const Node& node) {
    return operatorFacts(node).view != View::kNone || isOneOf(node.op_type, {"Cast", "Expand", "Slice"});
  }

  template <typename T>
  static void addNew(std::vector<T>& to, T what) {
    if (std::ranges::find(to, what) == to.end()) to.push_back(what);
  }

  // Of the value, whatever its shape.
  std::vector<Reader> readersOf(ValueId value) const {
    std::vector<Reader> readers;
    std::vector<ValueId> forms = {value};
    for (size_t n = 0; n < forms.size(); ++n) {
      for (const NodeId id : uses_.consumers[forms[n].index()]) {
        const Node& node = graph_.node(id);
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          if (node.inputs[i] != forms[n]) continue;
          const bool shows = i == 0 && showsElements(node) && node.outputs[0].valid();
          if (shows) addNew(forms, node.outputs[0]);
          if (!shows) readers.push_back({&node, i});
        }
      }
    }
    return readers;
  }

  const Node* producerOf(ValueId value) const {
    while (value.valid() && uses_.producer[value.index()].valid()) {
      const Node& node = graph_.node(uses_.producer[value.index()]);
      if (!showsElements(node)) return &node;
      value = node.inputs[0];
    }
    return nullptr;
  }

  Read readAs(const Reader& reader) const {
    const Node& node = *reader.node;
    const auto is = [&](std::initializer_list<std::string_view> ops) {
      return node.domain.empty() && isOneOf(node.op_type, ops);
    };
    const bool compares =
        is({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or"});
    if (is({"Mul"}) || compares || (is({"Where"}) && reader.input == 0)) return Read::kAsMask;
    const bool from_number = reader.input == 1 && graph_.initializers.contains(node.inputs[0]) &&
                             elementCount(graph_.shape(node.inputs[0])) == 1;
    if (is({"Sub"}) && from_number) return Read::kAsMask;  // 1 - mask
    if (is({"ReduceSum", "ReduceMean"})) return Read::kCounted;
    const bool multiplies = is({"MatMul", "Einsum"}) || (is({"Gemm"}) && reader.input < 2);
    return multiplies && (reader.input == 0 || is_torchscript_) ? Read::kAsMatrix : Read::kOtherwise;
  }

  bool isMask(ValueId id) const {
    if (isOfTorchLayer(graph_.value(id)) || contains(graph_.value(id).name, "::")) return false;
    bool as_mask = false, as_matrix = false;
    for (const Reader& reader : readersOf(id)) {
      const Read read = readAs(reader);
      if (read == Read::kOtherwise) return false;
      as_mask = as_mask || read == Read::kAsMask;
      as_matrix = as_matrix || read == Read::kAsMatrix;
    }
    const std::vector<bool> ones = as_mask || as_matrix ? onesAmongZeros(id) : std::vector<bool>();
    return !ones.empty() && (!as_matrix || hasTwoInLine(graph_.shape(id), ones));
  }

  // By element: it is 1. Empty: not both 0 and 1, or something else.
  std::vector<bool> onesAmongZeros(ValueId id) const {
    if (dataTypeSize(graph_.dataType(id)) < 2) return {};  // codes of 8 bits
    const std::optional<std::vector<std::byte>> bytes = initializerBytes(graph_, id);
    const std::vector<std::byte> one = makeScalar(graph_.dataType(id), 1).bytes, zero(one.size());
    const auto count = static_cast<size_t>(elementCount(graph_.shape(id)));
    if (!bytes || bytes->size() != count * one.size()) return {};
    std::vector<bool> ones;
    for (auto element = bytes->begin(); element != bytes->end(); element += std::ssize(one)) {
      ones.push_back(std::equal(one.begin(), one.end(), element));
      if (!ones.back() && !std::equal(zero.begin(), zero.end(), element)) return {};
    }
    const auto set = std::ranges::count(ones, true);
    return set > 0 && set < std::ssize(ones) ? ones : std::vector<bool>();
  }

  // In some row or column of a matrix.
  static bool hasTwoInLine(const Shape& shape, const std::vector<bool>& ones) {
    if (shape.size() < 2) return false;
    const size_t columns = shape.back(), size = columns * shape[shape.size() - 2];
    std::set<size_t> rows_met, columns_met;  // numbered through all matrices
    for (size_t i = 0; i < ones.size(); ++i) {
      if (ones[i] && !rows_met.insert(i / columns).second) return true;
      if (ones[i] && !columns_met.insert(i / size * columns + i % columns).second) return true;
    }
    return false;
  }

  // The arguments of the logarithms among the factors of a product.
  std::vector<ValueId> logarithmsIn(ValueId product) const {
    std::vector<ValueId> open = {product}, arguments;
    for (size_t n = 0; n < open.size(); ++n) {
      const Node* node = producerOf(open[n]);
      if (node == nullptr || (!node->is("Mul") && !node->is("Log"))) continue;
      for (const ValueId input : node->inputs) addNew(node->is("Mul") ? open : arguments, input);
    }
    return arguments;
  }

  // y log(p) + (1 - y) log(1 - p), with factors.
  bool isBinaryCrossEntropy(const Node& node) const {
    if (!node.is("Add") || node.inputs.size() != 2) return false;
    for (const size_t first : {0, 1}) {
      const std::vector<ValueId> hits = logarithmsIn(node.inputs[first]);
      for (const ValueId rest : logarithmsIn(node.inputs[1 - first])) {
        const Node* difference = producerOf(rest);
        if (difference != nullptr && difference->is("Sub") && difference->inputs.size() == 2 &&
            std::ranges::count(hits, difference->inputs[1]) > 0)
          return true;
      }
    }
    return false;
  }

  // What a product becomes by signs and further factors is added up to a binary cross-entropy, or the other
  // factor is one.
  bool weighsCrossEntropy(const Node& product) const {
    std::vector<const Node*> open = {&product};
    for (size_t n = 0; n < open.size(); ++n) {
      for (const Reader& reader : readersOf(open[n]->outputs[0])) {
        if (isBinaryCrossEntropy(*reader.node)) return true;
        if (reader.node->is("Mul") || reader.node->is("Neg")) addNew(open, reader.node);
      }
    }
    return std::ranges::any_of(product.inputs, [&](ValueId factor) {
      const Node* node = producerOf(factor);
      while (node != nullptr && node->is("Neg")) node = producerOf(node->inputs[0]);
      return node != nullptr && isBinaryCrossEntropy(*node);
    });
  }

  bool weighsLoss(ValueId id) const {
    const std::vector<Reader> readers = readersOf(id);
    return !readers.empty() && std::ranges::all_of(readers, [&](const Reader& reader) {
      return reader.node->is("Mul") && weighsCrossEntropy(*reader.node);
    });
  }

  const Graph& graph_;
  UseDef uses_;
  std::vector<InitializerRole> roles_;
  bool is_torchscript_;
};

}  // namespace

bool isOfKeras(const Graph& graph) {
  const auto isLayer = [](std::string_view part) {
    const size_t number = part.find_last_not_of("0123456789") + 1;
    const bool numbered = number > 0 && number < part.size() && part[number - 1] == '_';
    const std::string_view kind = numbered ? part.substr(0, number - 1) : part;
    return kind == "sequential" || (numbered && (kind == "dense" || kind == "conv2d"));
  };
  const auto tells = [&](std::string_view name) {
    if (name.find("keras") != std::string_view::npos) return true;
    for (size_t slash; (slash = name.find('/')) != std::string_view::npos; name.remove_prefix(slash + 1))
      if (isLayer(name.substr(0, slash))) return true;
    return false;
  };
  return std::ranges::any_of(graph.values, [&](const Value& value) { return tells(value.name); });
}

std::vector<std::string> foldedNormalizations(const Graph& graph) {
  if (!isOfTensorFlow(graph)) return {};
  std::set<ValueId> folded, merged;
  bool normalizes = false;
  for (const Node& node : graph.nodes) {
    for (const ValueId input : node.inputs) {
      if (!input.valid() || !graph.initializers.contains(input) || !isFloatingPoint(graph.dataType(input)))
        continue;
      const std::string& name = graph.value(input).name;
      const bool has_scope = isOfNormalization(name);
      normalizes = normalizes || has_scope || isOfNormalization(node.name);
      const bool is_constant = isOfNormalization(node.name) && name.starts_with("const_fold_opt");
      if ((has_scope && isProduct(name)) || is_constant) folded.insert(input);
      if (contains(name, "/merged_input")) merged.insert(input);
    }
  }
  if (normalizes) folded.insert(merged.begin(), merged.end());
  std::vector<std::string> names;
  for (const ValueId id : folded) {
    if (elementCount(graph.shape(id)) > 1) names.push_back("'" + graph.value(id).name + "'");
  }
  return names;
}

std::vector<std::string> converterTraps(const Graph& graph) {
  std::vector<std::string> traps;
  if (isOfTensorFlow(graph)) tellTensorFlow(graph, traps);
  if (isOfTorchExport(graph) && !tellsParameters(graph)) {
    traps.emplace_back(
        "a tool has taken the exporter's marks out of the file (as onnxsim, onnxslim and "
        "onnx.utils.extract_model do): buffers, such as a fixed table of positions, look like weights and "
        "are trained; --freeze 'NAME|NAME' leaves them as they are, or plan the exporter's file");
  }
  return traps;
}

void takeConstants(Graph& graph) {
  if (tellsParameters(graph)) return;
  for (const ValueId id : StoredConstants(graph).found()) markTakenForConstant(graph.value(id));
}

std::string likelyBuffers(const Graph& graph) {
  if (tellsParameters(graph)) return "";
  const std::vector<std::string> names = likelyBufferNames(graph);
  if (names.empty()) return "";
  return fmt::format("trained, as the file does not tell buffers: {}; if these are: --freeze '^({})$'",
                     listed(names, kMostTold), fmt::join(names, "|"));
}

std::string untoldParameters(const Graph& graph) {
  if (tellsParameters(graph) || !isTorchScript(graph) || isOfKeras(graph)) return "";
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  const std::vector<std::string> told = likelyBufferNames(graph);
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (roles[id.index()] != InitializerRole::kParameter || trainedByUser(value)) continue;
    if (elementCount(*value.shape) == 1 || isOfTorchLayer(value)) continue;
    if (contains(value.name, "::")) continue;  // the exporter's name: a note of its own
    if (std::ranges::find(told, value.name) == told.end()) names.push_back(value.name);
  }
  if (names.empty()) return "";
  return fmt::format(
      "nothing in the file tells whether these are parameters or buffers; they are trained: {} (--freeze "
      "NAME_REGEX leaves them as they are; torch.onnx.export's default tells)",
      listed(names, 3 * kMostTold));
}

}  // namespace pipeshard
