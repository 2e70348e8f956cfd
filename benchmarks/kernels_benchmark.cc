// CPU kernels on the shapes of one GPT-2 (124M) microbatch of 1024 tokens, beside the speed of memcpy on this
// machine. bytes_per_second counts what a kernel must read and write once; items_per_second counts
// floating-point operations of matrix products.
#include <cstring>

#include <benchmark/benchmark.h>

#include "runtime/kernels/base/cpu_kernels.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard {
namespace {

struct Operand {
  Shape shape;
  DataType type = DataType::kFloat32;
};

struct Setting {
  std::string name;  // of the benchmark
  std::string op_type;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  std::map<std::string, Attribute> attributes = {};
  std::map<size_t, Constant> constants = {};  // by input
  int64_t operations = 0;                     // of matrix products, floating-point; 0: not told
  int opset = 18;
  std::string domain = {};
};

// Floats in (0, 1), integers 0, 1, 2, ...: valid for every operator here.
std::vector<std::byte> content(const Operand& operand) {
  std::vector<std::byte> bytes(static_cast<size_t>(byteCount(operand.type, operand.shape)) + 64);
  const int64_t count = elementCount(operand.shape);
  for (int64_t i = 0; i < count; ++i) {
    const float number = static_cast<float>((i * 7919) % 1000 + 1) / 1002.0f;
    const int64_t whole = i % 1000;
    if (operand.type == DataType::kFloat32)
      std::memcpy(bytes.data() + i * 4, &number, 4);
    else if (operand.type == DataType::kInt64)
      std::memcpy(bytes.data() + i * 8, &whole, 8);
    else
      bytes[i] = std::byte{static_cast<unsigned char>(i % 2)};
  }
  return bytes;
}

void runKernel(benchmark::State& state, const Setting& setting) {
  Node node;
  node.domain = setting.domain;
  node.op_type = setting.op_type;
  node.opset_version = setting.opset;
  node.attributes = setting.attributes;
  KernelSpec spec;
  spec.node = &node;
  std::vector<std::vector<std::byte>> buffers;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  int64_t bytes = 0;
  for (size_t i = 0; i < setting.inputs.size(); ++i) {
    const auto known = setting.constants.find(i);
    spec.inputs.push_back({setting.inputs[i].type, setting.inputs[i].shape,
                           known == setting.constants.end() ? nullptr : &known->second});
    buffers.push_back(known == setting.constants.end() ? content(setting.inputs[i]) : known->second.bytes);
    inputs.push_back(buffers.back().data());
    bytes += byteCount(setting.inputs[i].type, setting.inputs[i].shape);
  }
  for (const Operand& operand : setting.outputs) {
    spec.outputs.push_back({operand.type, operand.shape, nullptr});
    buffers.push_back(content(operand));
    outputs.push_back(buffers.back().data());
    bytes += byteCount(operand.type, operand.shape);
  }
  const std::unique_ptr<Kernel> kernel = cpuKernels().create(spec);
  std::vector<std::byte> workspace(kernel->workspaceBytes() + 64);
  for (auto _ : state) {
    kernel->run({inputs, outputs, workspace.data()});
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  if (setting.operations > 0) state.SetItemsProcessed(state.iterations() * setting.operations);
}

void copyMemory(benchmark::State& state) {
  std::vector<std::byte> from(state.range(0)), to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 2);
}
BENCHMARK(copyMemory)->Arg(3 << 20)->Arg(12 << 20)->Arg(200 << 20)->UseRealTime();

const Shape kHidden = {1024, 768};
const Shape kWide = {1024, 3072};
const Shape kScores = {8, 12, 128, 128};
const Shape kHeads = {8, 128, 12, 64};
const Shape kImages = {8, 96, 56, 56};
const Shape kShifted = {8, 64, 3, 49, 32};
const Shape kWindows = {512, 3, 49, 32};  // of Swin

const std::map<std::string, Attribute> kTanh = {{"approximate", std::string("tanh")}};

// Operators of pipeshard's own domain.
std::vector<Setting> ours(std::vector<Setting> settings) {
  for (Setting& setting : settings) {
    setting.domain = kPipeshardDomain;
    setting.opset = 1;
  }
  return settings;
}

int64_t product(int64_t m, int64_t n, int64_t k) { return 2 * m * n * k; }

std::vector<Setting> products() {
  const std::map<std::string, Attribute> turned = {{"transA", int64_t{1}}};
  const Operand up = {{768, 3072}}, down = {{3072, 768}}, logits = {{1, 1024, 50257}};
  const int64_t layer = product(1024, 3072, 768);
  return {
      {"Gemm_1024x3072x768", "Gemm", {{kHidden}, up, {{3072}}}, {{kWide}}, {}, {}, layer},
      {"Gemm_1024x768x3072", "Gemm", {{kWide}, down, {{768}}}, {{kHidden}}, {}, {}, layer},
      {"Gemm_weight_gradient_768x3072x1024", "Gemm", {{kHidden}, {kWide}}, {up}, turned, {}, layer},
      {"Gemm_weight_gradient_3072x768x1024", "Gemm", {{kWide}, {kHidden}}, {down}, turned, {}, layer},
      {"MatMul_logits_1024x50257x768",
       "MatMul",
       {{{1, 1024, 768}}, {{768, 50257}}},
       {logits},
       {},
       {},
       product(1024, 50257, 768)},
      {"MatMul_scores",
       "MatMul",
       {{{8, 12, 128, 64}}, {{8, 12, 64, 128}}},
       {{kScores}},
       {},
       {},
       product(96 * 128, 128, 64)},
  };
}

std::vector<Setting> elementwise() {
  const Constant cube = makeScalar(DataType::kFloat32, 3);
  const Operand mask = {{1, 1, 128, 128}, DataType::kBool};
  return {
      {"Add_same_shape", "Add", {{kWide}, {kWide}}, {{kWide}}},
      {"Add_row", "Add", {{kWide}, {{3072}}}, {{kWide}}},
      {"Mul_scalar", "Mul", {{kWide}, {{}}}, {{kWide}}},
      {"Pow_cube", "Pow", {{kWide}, {{}}}, {{kWide}}, {}, {{1, cube}}},
      {"Tanh", "Tanh", {{kWide}}, {{kWide}}},
      {"Exp", "Exp", {{kWide}}, {{kWide}}},
      {.name = "Gelu_tanh",
       .op_type = "Gelu",
       .inputs = {{kWide}},
       .outputs = {{kWide}},
       .attributes = kTanh,
       .opset = 20},
      {.name = "Gelu_erf", .op_type = "Gelu", .inputs = {{kWide}}, .outputs = {{kWide}}, .opset = 20},
      {"Where_mask", "Where", {mask, {kScores}, {{}}}, {{kScores}}},
  };
}

std::vector<Setting> normalizations() {
  const Constant first_axis = makeConstant<int64_t>({1}, {0});
  const Operand row = {{768}}, column = {{1024, 1}}, axes = {{1}, DataType::kInt64};
  return {
      {"Softmax", "Softmax", {{kScores}}, {{kScores}}},
      {"LayerNormalization", "LayerNormalization", {{kHidden}, row, row}, {{kHidden}, column, column}},
      {"ReduceSum_bias_gradient", "ReduceSum", {{kWide}, axes}, {{{1, 3072}}}, {}, {{1, first_axis}}},
  };
}

std::vector<Setting> gradients() {
  const Operand row = {{768}}, column = {{1024, 1}};
  return ours({
      {"GeluGrad_tanh", "GeluGrad", {{kWide}, {kWide}}, {{kWide}}, kTanh},
      {"SoftmaxGrad", "SoftmaxGrad", {{kScores}, {kScores}}, {{kScores}}},
      {"LayerNormalizationInputGrad",
       "LayerNormalizationInputGrad",
       {{kHidden}, {kHidden}, row, column, column},
       {{kHidden}}},
      {"LayerNormalizationWeightGrad",
       "LayerNormalizationWeightGrad",
       {{kHidden}, {kHidden}, column, column},
       {row, row}},
  });
}

std::vector<Setting> transposes() {
  struct Turn {
    const char* name;
    Shape from;
    std::vector<int64_t> order;
  };
  const std::vector<Turn> turns = {
      {"heads", kHeads, {0, 2, 1, 3}},
      {"keys", kHeads, {0, 2, 3, 1}},
      {"channels_last", kImages, {0, 2, 3, 1}},
      {"channels_last_small", {8, 768, 7, 7}, {0, 2, 3, 1}},
      {"channels_first", {8, 56, 56, 96}, {0, 3, 1, 2}},
      {"channels_first_14", {8, 14, 14, 384}, {0, 3, 1, 2}},
      {"tokens", {197, 96, 64}, {1, 0, 2}},
      {"rows", {8, 197, 768}, {1, 0, 2}},
      {"matrix", {768, 3072}, {1, 0}},
  };
  std::vector<Setting> settings;
  for (const Turn& turn : turns) {
    Shape to;
    for (const int64_t axis : turn.order) to.push_back(turn.from[static_cast<size_t>(axis)]);
    settings.push_back(
        {std::string("Transpose_") + turn.name, "Transpose", {{turn.from}}, {{to}}, {{"perm", turn.order}}});
  }
  return settings;
}

// Parts, rows by their numbers, windows.
std::vector<Setting> selections() {
  const Operand part = {{8, 128, 768}}, numbers = {{8, 128}, DataType::kInt64};
  return {
      {"Split_qkv", "Split", {{{8, 128, 2304}}}, {part, part, part}, {{"axis", int64_t{2}}}},
      {"Gather_embedding", "Gather", {{{50257, 768}}, numbers}, {part}},
      {"MaxPool_3x3_stride_2",
       "MaxPool",
       {{{8, 64, 112, 112}}},
       {{{8, 64, 56, 56}}},
       {{"kernel_shape", std::vector<int64_t>{3, 3}},
        {"strides", std::vector<int64_t>{2, 2}},
        {"pads", std::vector<int64_t>{1, 1, 1, 1}}}},
  };
}

std::vector<Setting> scattered() {
  const Constant table = makeConstant<int64_t>({2}, {50257, 768});
  const Operand numbers = {{8, 128}, DataType::kInt64}, shape = {{2}, DataType::kInt64};
  return ours({{"GatherGrad_embedding",
                "GatherGrad",
                {{{8, 128, 768}}, numbers, shape},
                {{{50257, 768}}},
                {},
                {{2, table}}}});
}

const Operand kLogits = {{256, 50257}}, kLabels = {{256}, DataType::kInt64}, kRow = {{256}}, kLoss = {{}};

std::vector<Setting> ownLosses() {
  return ours({
      {"CrossEntropyLoss", "CrossEntropyLoss", {kLogits, kLabels}, {kLoss, kRow, kRow}},
      {"CrossEntropyLossGrad", "CrossEntropyLossGrad", {kLoss, kLogits, kRow, kRow, kLabels}, {kLogits}},
  });
}

std::vector<Setting> attentions() {
  const Operand positions = {{1, 3, 49, 49}}, scale = {{}};
  const Operand row = {{512, 3, 49, 1}}, shifted_row = {{8, 64, 3, 49, 1}};
  const int64_t operations = 2 * product(int64_t{512} * 3 * 49, 49, 32);
  return ours({
      {"Attention_windows",
       "Attention",
       {{kWindows}, {kWindows}, {kWindows}, scale, positions},
       {{kWindows}, row, row},
       {{"overlays", std::string("bias")}},
       {},
       operations},
      {"Attention_shifted_windows",
       "Attention",
       {{kShifted}, {kShifted}, {kShifted}, scale, {{1, 1, 3, 49, 49}}, {{1, 64, 1, 49, 49}}},
       {{kShifted}, shifted_row, shifted_row},
       {{"overlays", std::string("bias_bias")}},
       {},
       operations},
  });
}

std::vector<Setting> settings() {
  const std::vector<Setting> loss = {
      {"SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLoss", {kLogits, kLabels}, {kLoss, kLogits}}};
  const Operand weight = {{768, 3072}}, number = {{}};
  const std::vector<Setting> sgd = ours({{"SGD", "SGD", {weight, weight, number, number}, {weight}}});
  std::vector<Setting> all;
  for (const std::vector<Setting>& group :
       {products(), elementwise(), normalizations(), gradients(), transposes(), selections(), scattered(),
        loss, ownLosses(), attentions(), sgd})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace
}  // namespace pipeshard

int main(int argc, char** argv) {
  for (const auto& setting : pipeshard::settings()) {
    benchmark::RegisterBenchmark(setting.name.c_str(),
                                 [setting](benchmark::State& state) { pipeshard::runKernel(state, setting); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
