#include "tests/runtime/device/cuda/library_calls.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids.h"
#include "ir/operators/fused_projection.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/tensor_file.h"
#include "tests/runtime/device/cuda/like_the_cpu.h"

namespace pipeshard::testing {
namespace {

// What an axis is; those of equal letters have equal sizes. b: of a batch of matrices, N: images,
// C and F: features, before and behind a convolution; '*': whatever there is more, in its size.
struct Roles {
  std::vector<std::string> inputs, outputs;
};

constexpr int64_t kAsItIs = INT64_MAX;

int64_t mostOf(char role, bool grouped) {
  switch (role) {
    case 'b':
    case 'N': return 2;
    case 'm': return 12;
    case 'n': return 20;
    case 'k': return 28;
    case 'C': return grouped ? kAsItIs : 3;
    case 'F': return grouped ? kAsItIs : 4;
    default: return kAsItIs;
  }
}

std::string matrixRoles(size_t rank, bool transposed, const char* roles) {
  std::string text(rank - 2, 'b');
  text += transposed ? std::string{roles[1], roles[0]} : std::string(roles);
  return text;
}

// A matrix of several and its gradients; `g` of them.
Roles projectionRoles(const Node& node, const std::vector<Shape>& inputs) {
  const bool transposed = hasRowsOfParts(node);
  const std::string weight = transposed ? "gnk" : "kgn";
  if (node.op_type == "FusedProjectionInputGrad") return {{"mgn", weight}, {"mk"}};
  if (node.op_type == "FusedProjectionWeightGrad")
    return {{transposed ? "mgn" : "mk", transposed ? "mk" : "mgn"}, {weight}};
  const std::string rows = std::string(inputs[0].size() - 2, 'b') + "m";
  return {{rows + "k", weight, "gn"}, {rows + "gn"}};
}

// Nothing: no operator that a library does.
Roles rolesOf(const Node& node, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
  const bool transpose_a = node.intAttribute("transA", 0) != 0,
             transpose_b = node.intAttribute("transB", 0) != 0;
  if (node.op_type == "MatMul" || node.op_type == "FusedMatMul" || node.op_type == "Gemm") {
    if (inputs[0].size() < 2 || inputs[1].size() < 2) return {};
    Roles roles{
        {matrixRoles(inputs[0].size(), transpose_a, "mk"), matrixRoles(inputs[1].size(), transpose_b, "kn")},
        {matrixRoles(outputs[0].size(), false, "mn")}};
    if (inputs.size() > 2) roles.inputs.push_back(inputs[2].size() < 2 ? "n" : "mn");
    return roles;
  }
  if (node.op_type.starts_with("FusedProjection")) return projectionRoles(node, inputs);
  if (node.op_type == "Conv") return {{"NC*", "FC*", "F"}, {"NF*"}};
  if (node.op_type == "ConvInputGrad") return {{"NF*", "FC*"}, {"NC*"}};
  if (node.op_type == "ConvTranspose") return {{"NF*", "FC*", "C"}, {"NC*"}};
  if (node.op_type == "ConvWeightGrad") return {{"NF*", "NC*"}, {"FC*"}};
  if (node.op_type == "MaxPool" || node.op_type == "AveragePool") return {{"NC*"}, {"NC*"}};
  if (node.op_type != "BatchNormalization" && node.op_type != "BatchNormalizationInputGrad") return {};
  const auto all = [](const std::vector<Shape>& shapes) {
    std::vector<std::string> roles;
    for (const Shape& shape : shapes) roles.emplace_back(shape.size() > 1 ? "NC*" : "C");
    return roles;
  };
  return {all(inputs), all(outputs)};
}

Shape reduced(Shape shape, const std::string& roles, bool grouped, std::string& shape_class) {
  for (size_t a = 0; a < shape.size(); ++a) {
    const char role = a < roles.size() && roles.find('*') > a ? roles[a] : '*';
    const bool matters = role == '*' || mostOf(role, grouped) == kAsItIs;
    if (!matters) shape[a] = std::min(shape[a], mostOf(role, grouped));
    shape_class += matters || shape[a] < 2 ? fmt::format("{}", shape[a]) : std::string(1, role);
    shape_class += a + 1 < shape.size() ? "," : "";
  }
  return shape;
}

Tensor drawn(DataType type, const Shape& shape, uint64_t seed) {
  return shape.size() > 1 ? randomTensor(type, shape, seed) : randomTensor(type, shape, seed, 0.5, 1.5);
}

nlohmann::json attributesJson(const Node& node) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, attribute] : node.attributes) {
    if (const auto* number = std::get_if<int64_t>(&attribute)) json[name] = *number;
    if (const auto* number = std::get_if<float>(&attribute)) json[name] = *number;
    if (const auto* text = std::get_if<std::string>(&attribute)) json[name] = *text;
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute)) json[name] = *numbers;
  }
  return json;
}

Attribute attributeFromJson(const nlohmann::json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) return json.get<std::vector<int64_t>>();
  if (json.is_number_float()) return json.get<float>();
  return json.get<int64_t>();
}

// Of a graph's node, with small sizes and no content; "": not a library's.
std::string describeCall(const Graph& graph, const Node& node, KernelCall& call) {
  std::vector<Shape> inputs, outputs;
  const auto shape_of = [&](ValueId id) { return id.valid() ? *graph.value(id).shape : Shape{}; };
  for (const ValueId id : node.inputs) inputs.push_back(shape_of(id));
  for (const ValueId id : node.outputs) outputs.push_back(shape_of(id));
  const Roles roles = rolesOf(node, inputs, outputs);
  if (roles.outputs.empty()) return "";
  const bool grouped = node.intAttribute("group", 1) != 1;
  call.node = node;
  call.node.name = "recorded";
  std::string text = fmt::format("{} {}", node.op_type, attributesJson(node).dump());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!node.inputs[i].valid()) {
      call.inputs.push_back(std::nullopt);
      text += " -";
      continue;
    }
    const DataType type = graph.value(node.inputs[i]).data_type;
    if (type != DataType::kFloat32 && type != DataType::kFloat64) return "";
    text += fmt::format(" {}[", dataTypeName(type));
    call.inputs.push_back(Tensor{type, reduced(inputs[i], roles.inputs.at(i), grouped, text), {}});
    text += "]";
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!node.outputs[o].valid()) {
      call.outputs.push_back({});
      continue;
    }
    text += " ->[";
    const std::string role = o < roles.outputs.size() ? roles.outputs[o] : roles.outputs[0];
    call.outputs.push_back(
        {graph.value(node.outputs[o]).data_type, reduced(outputs[o], role, grouped, text)});
    text += "]";
  }
  return text;
}

std::string nameOf(size_t call, const char* what, size_t number) {
  return fmt::format("{:03}.{}{}", call, what, number);
}

std::vector<Tensor> runCall(const LibraryCall& of) {
  KernelCall call = of.call;
  std::optional<Tensor> total;
  if (of.adds) {
    total = call.inputs.back();
    call.inputs.pop_back();
  }
  const std::unique_ptr<Kernel> kernel = cuda().kernels().create(CallSpec(call).spec);
  return runOnCuda(call, *kernel, {}, total ? &*total : nullptr);
}

double relativeError(const Tensor& got, const Tensor& want) {
  const std::vector<double> a = numbersOf(got), b = numbersOf(want);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

LibraryCall callFromJson(const nlohmann::json& json, const TensorFile& file, size_t number) {
  LibraryCall of;
  of.adds = json.at("adds");
  of.call.node.domain = json.at("domain");
  of.call.node.op_type = json.at("op");
  of.call.node.opset_version = json.at("opset");
  of.call.node.name = "recorded";
  for (const auto& [name, value] : json.at("attributes").items())
    of.call.node.attributes[name] = attributeFromJson(value);
  const auto tensor = [&](const char* what, size_t i) {
    const TensorEntry* entry = file.find(nameOf(number, what, i));
    return entry == nullptr ? std::nullopt
                            : std::optional(Tensor{entry->data_type, entry->shape, file.read(*entry)});
  };
  for (size_t i = 0; i < json.at("inputs").get<size_t>(); ++i) of.call.inputs.push_back(tensor("in", i));
  for (size_t o = 0; o < json.at("outputs").get<size_t>(); ++o) {
    const std::optional<Tensor> output = tensor("out", o);
    of.call.outputs.push_back(output ? OutputSpec{output->type, output->shape} : OutputSpec{});
  }
  return of;
}

}  // namespace

void addCalls(const Graph& graph, LibraryCalls& calls) {
  for (const Node& node : graph.nodes) {
    LibraryCall of;
    const std::string text = describeCall(graph, node, of.call);
    if (text.empty() || calls.contains(text)) continue;
    const uint64_t seed = contentHash(text);
    for (size_t i = 0; i < of.call.inputs.size(); ++i) {
      auto& input = of.call.inputs[i];
      if (input) input = drawn(input->type, input->shape, seed + i);
    }
    calls[text] = of;
    const std::unique_ptr<Kernel> kernel = cuda().kernels().create(CallSpec(of.call).spec);
    if (!kernel->mayAccumulate(0)) continue;
    of.adds = true;
    of.call.inputs.push_back(randomTensor(of.call.outputs[0].type, of.call.outputs[0].shape, seed + 100));
    calls[text + ", added"] = of;
  }
}

void addCalls(ProgramFolder& folder, LibraryCalls& calls) {
  std::set<KindId> seen;
  for (const RankId rank : idsBelow<RankId>(folder.ranks())) {
    if (!seen.insert(folder.kindOf(rank)).second) continue;
    for (const Graph& graph : folder.image(rank).subgraphs) addCalls(graph, calls);
  }
}

void recordCalls(const LibraryCalls& calls, const std::map<std::string, std::string>& about,
                 const std::string& path) {
  std::map<std::string, Tensor> tensors;
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [text, of] : calls) {
    const size_t number = list.size();
    for (size_t i = 0; i < of.call.inputs.size(); ++i) {
      if (of.call.inputs[i]) tensors[nameOf(number, "in", i)] = *of.call.inputs[i];
    }
    const std::vector<Tensor> outputs = runCall(of);
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].type != DataType::kUndefined) tensors[nameOf(number, "out", o)] = outputs[o];
    }
    list.push_back({{"what", text},
                    {"domain", of.call.node.domain},
                    {"op", of.call.node.op_type},
                    {"opset", of.call.node.opset_version},
                    {"attributes", attributesJson(of.call.node)},
                    {"inputs", of.call.inputs.size()},
                    {"outputs", outputs.size()},
                    {"adds", of.adds}});
  }
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors)
    views.push_back({name, tensor.type, tensor.shape, tensor.bytes.data()});
  std::map<std::string, std::string> metadata = about;
  metadata["calls"] = list.dump();
  const WrittenFile written = writeTensorFile(path, views, metadata);
  PIPESHARD_CHECK(written.bytes <= kMostRecordedBytes, "{} has {} bytes; expected at most {}", path,
                  written.bytes, kMostRecordedBytes);
}

Replayed replayCalls(const std::string& path) {
  const TensorFile file = TensorFile::open(path);
  Replayed replayed;
  replayed.about = file.metadata();
  const nlohmann::json list = nlohmann::json::parse(replayed.about.at("calls"));
  replayed.about.erase("calls");
  for (const nlohmann::json& json : list) {
    const size_t number = replayed.calls++;
    const LibraryCall of = callFromJson(json, file, number);
    const std::vector<Tensor> got = runCall(of);
    for (size_t o = 0; o < got.size(); ++o) {
      const TensorEntry* entry = file.find(nameOf(number, "out", o));
      if (entry == nullptr) continue;
      const double error = relativeError(got[o], {entry->data_type, entry->shape, file.read(*entry)});
      const double bound = entry->data_type == DataType::kFloat64 ? 1e-12 : 1e-5;
      if (!(error <= bound)) {
        replayed.wrong.push_back(fmt::format("{}, output {}: {:.2e}, bound {:.0e}",
                                             json.at("what").get<std::string>(), o, error, bound));
      }
    }
  }
  return replayed;
}

}  // namespace pipeshard::testing
