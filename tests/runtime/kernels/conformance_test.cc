// The node cases of the ONNX conformance suite, for every operator that has a kernel. The data are where
// tests/onnx_suites.h says.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include "ir/base/error.h"
#include "tests/onnx_suites.h"
#include "tests/runtime/kernels/tested_device.h"

namespace pipeshard::testing {
namespace {

namespace fs = std::filesystem;

// Fewer cases than these mean that cases were lost: data missing, or kernels that refuse what they once took.
constexpr int kLeastCases = 600;
constexpr int kLeastFloat64Cases = 480;

// Cases of operators with a kernel that the kernels refuse by design, and a part of the message. Everything
// else with the types below must pass.
const std::map<std::string, std::string>& refusedCases() {
  static const std::map<std::string, std::string> cases = {
      {"test_training_dropout", "training_mode is true"},
      {"test_training_dropout_default", "training_mode is true"},
      {"test_training_dropout_default_mask", "training_mode is true"},
      {"test_training_dropout_mask", "training_mode is true"},
  };
  return cases;
}

std::string readFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename T, typename Field>
Tensor fromField(DataType type, Shape shape, const Field& field) {
  Tensor tensor{type, std::move(shape), {}};
  for (const auto& element : field) {
    const T value = static_cast<T>(element);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    tensor.bytes.insert(tensor.bytes.end(), bytes, bytes + sizeof(T));
  }
  return tensor;
}

// Nothing for types without whole bytes (strings, 4 bits).
std::optional<Tensor> toTensor(const onnx::TensorProto& proto) {
  const auto type = static_cast<DataType>(proto.data_type());
  if (dataTypeSize(type) == 0) return std::nullopt;
  Tensor tensor{type, Shape(proto.dims().begin(), proto.dims().end()), {}};
  if (proto.has_raw_data()) {
    const auto* bytes = reinterpret_cast<const std::byte*>(proto.raw_data().data());
    tensor.bytes.assign(bytes, bytes + proto.raw_data().size());
  } else if (proto.float_data_size() > 0) {
    tensor = fromField<float>(type, tensor.shape, proto.float_data());
  } else if (proto.double_data_size() > 0) {
    tensor = fromField<double>(type, tensor.shape, proto.double_data());
  } else if (proto.int64_data_size() > 0) {
    tensor = fromField<int64_t>(type, tensor.shape, proto.int64_data());
  } else if (proto.int32_data_size() > 0 && type == DataType::kInt32) {
    tensor = fromField<int32_t>(type, tensor.shape, proto.int32_data());
  } else if (proto.int32_data_size() > 0 && dataTypeSize(type) == 1) {
    tensor = fromField<int8_t>(type, tensor.shape, proto.int32_data());
  } else if (proto.int32_data_size() > 0 && dataTypeSize(type) == 2) {
    tensor = fromField<int16_t>(type, tensor.shape, proto.int32_data());
  }
  if (tensor.bytes.size() != static_cast<size_t>(byteCount(type, tensor.shape))) return std::nullopt;
  return tensor;
}

Attribute toAttribute(const onnx::AttributeProto& proto) {
  switch (proto.type()) {
    case onnx::AttributeProto::INT: return proto.i();
    case onnx::AttributeProto::FLOAT: return proto.f();
    case onnx::AttributeProto::STRING: return proto.s();
    case onnx::AttributeProto::INTS: return std::vector<int64_t>(proto.ints().begin(), proto.ints().end());
    case onnx::AttributeProto::FLOATS:
      return std::vector<float>(proto.floats().begin(), proto.floats().end());
    case onnx::AttributeProto::STRINGS:
      return std::vector<std::string>(proto.strings().begin(), proto.strings().end());
    case onnx::AttributeProto::TENSOR:
      if (const std::optional<Tensor> tensor = toTensor(proto.t()))
        return Constant{tensor->type, tensor->shape, tensor->bytes};
      [[fallthrough]];
    default: return OpaqueAttribute{proto.SerializeAsString()};
  }
}

struct Case {
  std::string name;
  KernelCall call;
  std::vector<Tensor> expected;  // undefined type: an absent output
};

std::optional<std::vector<std::optional<Tensor>>> readTensors(const fs::path& folder, const char* kind,
                                                              const auto& names, const auto& values) {
  std::map<std::string, Tensor> by_name;
  for (int i = 0; i < values.size(); ++i) {
    if (!values[i].type().has_tensor_type()) return std::nullopt;
    onnx::TensorProto proto;
    if (!proto.ParseFromString(readFile(folder / fmt::format("{}_{}.pb", kind, i)))) return std::nullopt;
    const std::optional<Tensor> tensor = toTensor(proto);
    if (!tensor) return std::nullopt;
    by_name[values[i].name()] = *tensor;
  }
  std::vector<std::optional<Tensor>> tensors;
  for (const std::string& name : names) {
    if (!name.empty() && !by_name.contains(name)) return std::nullopt;
    tensors.push_back(name.empty() ? std::nullopt : std::optional(by_name[name]));
  }
  return tensors;
}

// Nothing unless the model is one node of whole-byte tensors with a kernel; `why` says what else it is.
std::optional<Case> readCase(const fs::path& folder, std::string& why) {
  onnx::ModelProto model;
  if (!model.ParseFromString(readFile(folder / "model.onnx"))) {
    ADD_FAILURE() << "cannot read " << folder / "model.onnx";
    return std::nullopt;
  }
  why = "several nodes or weights";
  if (model.graph().node_size() != 1 || model.graph().initializer_size() != 0) return std::nullopt;
  const onnx::NodeProto& node = model.graph().node(0);
  why = "no kernel";
  if (!testedKernels().has(node.domain(), node.op_type())) return std::nullopt;
  why = "sequences, optionals, strings or 4-bit elements";
  const fs::path data = folder / "test_data_set_0";
  auto inputs = readTensors(data, "input", node.input(), model.graph().input());
  auto outputs = readTensors(data, "output", node.output(), model.graph().output());
  if (!inputs || !outputs) return std::nullopt;
  Case result{folder.filename(), {}, {}};
  std::map<std::string, Attribute> attributes;
  for (const onnx::AttributeProto& attribute : node.attribute())
    attributes[attribute.name()] = toAttribute(attribute);
  std::vector<OutputSpec> specs;
  for (const auto& output : *outputs) {
    result.expected.push_back(output.value_or(Tensor{}));
    specs.push_back({result.expected.back().type, result.expected.back().shape});
  }
  result.call =
      makeCall(node.domain(), node.op_type(), model.opset_import(0).version(), *inputs, specs, attributes);
  return result;
}

// How far a case's floats may be off, relatively: some hold numbers that were rounded to four digits by hand.
double relativeTolerance(const std::string& name) {
  return name == "test_averagepool_2d_ceil_last_window_starts_on_pad" ? 1e-3 : 1e-4;
}

// "" when equal: integers exactly, floats within `relative` and 1e-6.
std::string difference(const Tensor& got, const Tensor& want, double relative) {
  if (!isFloatingPoint(want.type)) return got.bytes == want.bytes ? "" : "integers differ";
  const std::vector<double> a = numbersOf(got);
  const std::vector<double> b = numbersOf(want);
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i] || std::abs(a[i] - b[i]) <= 1e-6 + relative * std::abs(b[i])) continue;
    return fmt::format("element {} is {}, expected {}", i, a[i], b[i]);
  }
  return "";
}

// First without any constant, then with all: kernels must not need more constants than they say.
std::unique_ptr<Kernel> createWithConstantsIfNeeded(KernelCall& call) {
  try {
    return createKernel(call);
  } catch (const Error& error) {
    if (std::string(error.what()).find("needs a constant") == std::string::npos) throw;
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) call.constants.push_back(i);
  return createKernel(call);
}

std::string compareAll(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double relative) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i].type == DataType::kUndefined) continue;
    const std::string text = difference(got[i], want[i], relative);
    if (!text.empty()) return fmt::format("output {}: {}", i, text);
  }
  return "";
}

// Runs the case as it is and in place wherever the kernel allows that. "" when everything is right.
std::string runCase(Case tested) {
  const std::unique_ptr<Kernel> kernel = createWithConstantsIfNeeded(tested.call);
  const double relative = relativeTolerance(tested.name);
  std::string wrong = compareAll(runKernel(tested.call), tested.expected, relative);
  if (!wrong.empty()) return wrong;
  for (size_t i = 0; i < tested.call.inputs.size(); ++i) {
    for (size_t o = 0; o < tested.expected.size(); ++o) {
      if (!tested.call.inputs[i] || tested.expected[o].type == DataType::kUndefined) continue;
      if (!kernel->mayRunInPlace(i, o)) continue;
      wrong = compareAll(runInPlace(tested.call, *kernel, i, o), tested.expected, relative);
      if (!wrong.empty()) return fmt::format("in place of input {}: {}", i, wrong);
    }
  }
  return "";
}

// The same case with float64 for float32; nothing where an attribute fixes the type.
std::optional<Case> inFloat64(const Case& tested) {
  for (const char* attribute : {"to", "dtype", "value"}) {
    if (tested.call.node.hasAttribute(attribute)) return std::nullopt;
  }
  Case twin = tested;
  bool any = false;
  for (auto& tensor : twin.call.inputs) {
    if (!tensor || tensor->type != DataType::kFloat32) continue;
    tensor = convertTensor(*tensor, DataType::kFloat64);
    any = true;
  }
  for (size_t i = 0; i < twin.expected.size(); ++i) {
    if (twin.expected[i].type != DataType::kFloat32) continue;
    twin.expected[i] = convertTensor(twin.expected[i], DataType::kFloat64);
    twin.call.outputs[i].type = DataType::kFloat64;
  }
  return any ? std::optional(twin) : std::nullopt;
}

TEST(KernelConformance, EveryOnnxCaseOfAnOperatorWithAKernelPasses) {
  const fs::path folder = onnxSuites() / "node";
  ASSERT_TRUE(fs::is_directory(folder))
      << folder << " is missing; run tools/setup.sh or set PIPESHARD_ONNX_SUITES";
  int passed = 0, passed_float64 = 0, refused_types = 0, refused_by_design = 0;
  std::map<std::string, int> others;
  std::set<std::string> covered;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::string why;
    const std::optional<Case> tested = readCase(entry.path(), why);
    if (!tested) {
      ++others[why];
      continue;
    }
    SCOPED_TRACE(tested->name);
    const auto refused = refusedCases().find(tested->name);
    try {
      EXPECT_EQ(runCase(*tested), "") << tested->name;
      EXPECT_TRUE(refused == refusedCases().end()) << tested->name << " is listed as refused, but runs";
      covered.insert(tested->call.node.op_type);
      ++passed;
      if (const std::optional<Case> twin = inFloat64(*tested)) {
        EXPECT_EQ(runCase(*twin), "") << tested->name << " in float64";
        ++passed_float64;
      }
    } catch (const Error& error) {
      if (refused != refusedCases().end()) {
        EXPECT_NE(std::string(error.what()).find(refused->second), std::string::npos) << error.what();
        ++refused_by_design;
      } else {
        EXPECT_FALSE(mustRun(tested->call)) << tested->name << ": " << error.what();
        EXPECT_EQ(error.code(), ErrorCode::kBadModel) << error.what();
        ++refused_types;
      }
    }
  }
  fmt::print("{} cases of {} operators ran, {} also in float64; refused: {} for their types, {} by design\n",
             passed, covered.size(), passed_float64, refused_types, refused_by_design);
  for (const auto& [reason, count] : others) fmt::print("{} other cases: {}\n", count, reason);
  EXPECT_GE(passed, kLeastCases);
  EXPECT_GE(passed_float64, kLeastFloat64Cases);
  for (const std::string& name : testedKernels().operators()) {
    if (name.rfind("::", 0) == 0) {
      EXPECT_TRUE(covered.contains(name.substr(2))) << name << " has a kernel, but no conformance case ran";
    }
  }
}

}  // namespace
}  // namespace pipeshard::testing
