#include "tests/onnx_import/suite/suite_case.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/tensor_proto.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/interpreter.h"
#include "tests/onnx_import/drawn_content.h"

namespace pipeshard::testing {
namespace {

namespace fs = std::filesystem;

std::string readWhole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kMissingInput, "cannot read {}", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

Constant readTensor(const fs::path& path) {
  onnx::TensorProto proto;
  if (!proto.ParseFromString(readWhole(path)) || !isPlainTensor(proto))
    fail(ErrorCode::kBadModel, "{} holds no tensor of whole bytes", path.string());
  return constantFromTensor(proto, shapeOfTensor(proto, 64, uint64_t{1} << 30, path.string()), path.string());
}

std::vector<Constant> readAll(const fs::path& folder, const std::string& kind) {
  std::vector<Constant> tensors;
  for (int i = 0; fs::exists(folder / fmt::format("{}_{}.pb", kind, i)); ++i)
    tensors.push_back(readTensor(folder / fmt::format("{}_{}.pb", kind, i)));
  return tensors;
}

bool anyOf(const onnx::GraphProto& graph, const std::set<std::string>& operators) {
  for (const onnx::NodeProto& node : graph.node()) {
    if (operators.contains(node.op_type())) return true;
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g() && anyOf(attribute.g(), operators)) return true;
    }
  }
  return false;
}

bool anyType(const onnx::GraphProto& graph, auto&& is) {
  const auto of = [&](const auto& values) {
    return std::any_of(values.begin(), values.end(), [&](const auto& value) { return is(value.type()); });
  };
  return of(graph.input()) || of(graph.output());
}

// Inputs that data are for: old files list weights among the inputs.
std::vector<ValueId> dataInputs(const Graph& graph) {
  std::vector<ValueId> inputs;
  for (ValueId id : graph.inputs) {
    if (!graph.initializers.contains(id)) inputs.push_back(id);
  }
  return inputs;
}

// The model with the data's shapes, and with those inputs of which `known` is true, given which one and its
// place, as constants.
Graph prepared(const SuiteCase& tested, auto&& known) {
  Graph graph = readModel(tested.model.string());
  const std::vector<ValueId> all = dataInputs(graph);
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < all.size(); ++i) {
    Value& value = graph.value(all[i]);
    if (i < tested.inputs.size()) {
      value.shape = tested.inputs[i].shape;
      value.symbols.clear();
    }
    if (i < tested.inputs.size() && known(graph, all[i], i)) {
      graph.initializers.insert_or_assign(all[i], tested.inputs[i]);
    } else {
      inputs.push_back(all[i]);
    }
  }
  graph.inputs = inputs;
  for (ValueId id : graph.outputs) graph.value(id).symbols.clear();
  PrepareOptions options;
  options.supported = [](const Node& node) {
    return hasKernel(node) && hasGradientRule(node.domain, node.op_type);
  };
  return prepareModel(std::move(graph), options);
}

// Sizes, axes and the like, where they are inputs: a program knows them.
bool isSetting(const Graph& graph, ValueId id, size_t /*position*/) {
  for (const Node& node : graph.nodes) {
    const OperatorFacts& facts = operatorFacts(node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == id && facts.shape_inputs.contains(i)) return true;
    }
  }
  return false;
}

std::vector<double> asDoubles(const Constant& constant) {
  std::vector<double> elements(elementCount(constant.shape));
  convertElements(constant.data_type, constant.bytes.data(), DataType::kFloat64, elements.data(),
                  elements.size());
  return elements;
}

std::string differs(const Constant& got, const Constant& want, const SuiteCase& tested) {
  if (got.data_type != want.data_type || got.shape != want.shape)
    return fmt::format("is {}{}, expected {}{}", dataTypeName(got.data_type), shapeToString(got.shape),
                       dataTypeName(want.data_type), shapeToString(want.shape));
  if (!isFloatingPoint(want.data_type)) return got.bytes == want.bytes ? "" : "integers differ";
  const std::vector<double> a = asDoubles(got);
  const std::vector<double> b = asDoubles(want);
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (std::abs(a[i] - b[i]) <= tested.absolute + tested.relative * std::abs(b[i])) continue;
    return fmt::format("element {} is {}, expected {}", i, a[i], b[i]);
  }
  return "";
}

// What a lowering draws in every step: as the first step of a job with seed 0 draws it.
void giveDrawn(const Graph& graph, Tensors& inputs) {
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    if (value.drawn) inputs.emplace(value.name, drawnContent(value, *value.shape, wholeBox(*value.shape)));
  }
}

std::string compareOutputs(const Graph& graph, const SuiteCase& tested) {
  Tensors inputs;
  giveDrawn(graph, inputs);
  const Graph original = readModel(tested.model.string());
  const std::vector<ValueId> all = dataInputs(original);
  for (size_t i = 0; i < std::min(all.size(), tested.inputs.size()); ++i)
    inputs.emplace(original.value(all[i]).name, tested.inputs[i]);
  const Interpreter interpreter(graph);
  const Tensors computed = interpreter.run(inputs);
  for (size_t i = 0; i < tested.outputs.size(); ++i) {
    const std::string& name = graph.value(graph.outputs.at(i)).name;
    const Constant* got = graph.constant(graph.outputs[i]);
    if (const auto found = computed.find(name); found != computed.end()) got = &found->second;
    if (const auto found = inputs.find(name); got == nullptr && found != inputs.end()) got = &found->second;
    if (got == nullptr) return fmt::format("output '{}' was not computed", name);
    const std::string wrong = differs(*got, tested.outputs[i], tested);
    if (!wrong.empty()) return fmt::format("output {} {}", i, wrong);
  }
  return "";
}

}  // namespace

std::string_view describe(Unsupported reason) {
  switch (reason) {
    case Unsupported::kNone: return "";
    case Unsupported::kStrings: return "strings";
    case Unsupported::kSequences: return "sequences and optionals";
    case Unsupported::kDataDependentShapes: return "shapes that depend on data";
    case Unsupported::kRandom: return "random values";
  }
  return "";
}

Unsupported outOfReach(const fs::path& path) {
  onnx::ModelProto model;
  if (!model.ParseFromString(readWhole(path))) fail(ErrorCode::kBadModel, "cannot read {}", path.string());
  const onnx::GraphProto& graph = model.graph();
  if (anyType(graph, [](const onnx::TypeProto& type) { return !type.has_tensor_type(); }) ||
      anyOf(graph, {"SequenceConstruct", "SequenceEmpty", "SequenceMap", "SplitToSequence", "Optional",
                    "OptionalHasElement", "OptionalGetElement", "ConcatFromSequence"}))
    return Unsupported::kSequences;
  const auto isString = [](const onnx::TypeProto& type) {
    return type.tensor_type().elem_type() == onnx::TensorProto::STRING;
  };
  if (anyType(graph, isString)) return Unsupported::kStrings;
  if (anyOf(graph, {"NonZero", "Unique", "Compress", "NonMaxSuppression", "ImageDecoder", "StringSplit"}))
    return Unsupported::kDataDependentShapes;
  const bool drops = path.string().find("test_training_dropout") != std::string::npos &&
                     path.string().find("zero_ratio") == std::string::npos;
  if (drops || anyOf(graph, {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
                             "Bernoulli", "Multinomial"}))
    return Unsupported::kRandom;
  return Unsupported::kNone;
}

std::vector<fs::path> casesOf(const fs::path& suite) {
  std::vector<fs::path> cases;
  for (const fs::directory_entry& entry : fs::directory_iterator(suite)) {
    if (entry.is_directory() ? fs::exists(entry.path() / "model.onnx") : entry.path().extension() == ".onnx")
      cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

namespace {

// The only input of a model of `light`: as many equal steps from 0 up to 1 as it has elements.
Constant lightInput(const fs::path& model) {
  const Graph graph = readModel(model.string());
  for (ValueId input : graph.inputs) {
    if (graph.initializers.contains(input)) continue;
    const Shape shape = graph.shape(input);
    std::vector<float> elements(elementCount(shape));
    for (size_t i = 0; i < elements.size(); ++i)
      elements[i] = static_cast<float>(static_cast<double>(i) / static_cast<double>(elements.size()));
    return makeConstant<float>(shape, elements);
  }
  fail(ErrorCode::kBadModel, "{} has no input", model.string());
}

}  // namespace

std::vector<SuiteCase> readCases(const fs::path& folder) {
  SuiteCase tested{folder.parent_path().filename(), folder.stem(), folder, {}, {}};
  std::vector<SuiteCase> cases;
  if (!fs::is_directory(folder)) {
    tested.inputs.push_back(lightInput(folder));
    tested.outputs.push_back(readTensor(folder.parent_path() / (folder.stem().string() + "_output_0.pb")));
    return {tested};
  }
  tested.model = folder / "model.onnx";
  for (int set = 0; fs::exists(folder / fmt::format("test_data_set_{}", set)); ++set) {
    const fs::path data = folder / fmt::format("test_data_set_{}", set);
    cases.push_back(tested);
    cases.back().inputs = readAll(data, "input");
    cases.back().outputs = readAll(data, "output");
  }
  return cases;
}

// First as a program would run it; then with all but the first input, which is the data, known beforehand;
// then with all settings known, though they are the only inputs.
std::string runSuiteCase(const SuiteCase& tested) {
  const auto behind_first = [](const Graph&, ValueId, size_t i) { return i > 0; };
  const auto settings = [](const Graph& graph, ValueId id, size_t i) {
    return i > 0 || (graph.shape(id).size() <= 1 && isInteger(graph.dataType(id)));
  };
  std::string first;
  try {
    return compareOutputs(prepared(tested, isSetting), tested);
  } catch (const Error& error) {
    first = error.what();
  }
  try {
    return compareOutputs(prepared(tested, behind_first), tested);
  } catch (const Error&) {
  }
  try {
    return compareOutputs(prepared(tested, settings), tested);
  } catch (const Error&) {
    return first;
  }
}

}  // namespace pipeshard::testing
