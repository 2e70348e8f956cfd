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
  std::string domain;
  std::string op_type;
  int opset = 18;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  std::map<std::string, Attribute> attributes;
  std::map<size_t, Constant> constants;
  int64_t operations = 0;
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

std::vector<std::pair<std::string, Setting>> settings() {
  const auto i64 = DataType::kInt64;
  const std::string ours(kPipeshardDomain);
  const Constant cube = makeScalar(DataType::kFloat32, 3);
  const Constant first_axis = makeConstant<int64_t>({1}, {0});
  const Constant table = makeConstant<int64_t>({2}, {50257, 768});
  const auto product = [](int64_t m, int64_t n, int64_t k) { return 2 * m * n * k; };
  return {
      {"Gemm_1024x3072x768",
       {"",
        "Gemm",
        18,
        {{{1024, 768}}, {{768, 3072}}, {{3072}}},
        {{kWide}},
        {},
        {},
        product(1024, 3072, 768)}},
      {"Gemm_1024x768x3072",
       {"", "Gemm", 18, {{kWide}, {{3072, 768}}, {{768}}}, {{kHidden}}, {}, {}, product(1024, 768, 3072)}},
      {"Gemm_weight_gradient_768x3072x1024",
       {"",
        "Gemm",
        18,
        {{kHidden}, {kWide}},
        {{{768, 3072}}},
        {{"transA", int64_t{1}}},
        {},
        product(768, 3072, 1024)}},
      {"Gemm_weight_gradient_3072x768x1024",
       {"",
        "Gemm",
        18,
        {{kWide}, {kHidden}},
        {{{3072, 768}}},
        {{"transA", int64_t{1}}},
        {},
        product(768, 3072, 1024)}},
      {"MatMul_logits_1024x50257x768",
       {"",
        "MatMul",
        18,
        {{{1, 1024, 768}}, {{768, 50257}}},
        {{{1, 1024, 50257}}},
        {},
        {},
        product(1024, 50257, 768)}},
      {"MatMul_scores",
       {"",
        "MatMul",
        18,
        {{{8, 12, 128, 64}}, {{8, 12, 64, 128}}},
        {{kScores}},
        {},
        {},
        product(96 * 128, 128, 64)}},
      {"Add_same_shape", {"", "Add", 18, {{kWide}, {kWide}}, {{kWide}}, {}, {}, 0}},
      {"Add_row", {"", "Add", 18, {{kWide}, {{3072}}}, {{kWide}}, {}, {}, 0}},
      {"Mul_scalar", {"", "Mul", 18, {{kWide}, {{}}}, {{kWide}}, {}, {}, 0}},
      {"Pow_cube", {"", "Pow", 18, {{kWide}, {{}}}, {{kWide}}, {}, {{1, cube}}, 0}},
      {"Tanh", {"", "Tanh", 18, {{kWide}}, {{kWide}}, {}, {}, 0}},
      {"Exp", {"", "Exp", 18, {{kWide}}, {{kWide}}, {}, {}, 0}},
      {"Gelu_tanh", {"", "Gelu", 20, {{kWide}}, {{kWide}}, {{"approximate", std::string("tanh")}}, {}, 0}},
      {"Gelu_erf", {"", "Gelu", 20, {{kWide}}, {{kWide}}, {}, {}, 0}},
      {"GeluGrad_tanh",
       {ours, "GeluGrad", 1, {{kWide}, {kWide}}, {{kWide}}, {{"approximate", std::string("tanh")}}, {}, 0}},
      {"Where_mask",
       {"", "Where", 18, {{{1, 1, 128, 128}, DataType::kBool}, {kScores}, {{}}}, {{kScores}}, {}, {}, 0}},
      {"Softmax", {"", "Softmax", 18, {{kScores}}, {{kScores}}, {}, {}, 0}},
      {"SoftmaxGrad", {ours, "SoftmaxGrad", 1, {{kScores}, {kScores}}, {{kScores}}, {}, {}, 0}},
      {"LayerNormalization",
       {"",
        "LayerNormalization",
        18,
        {{kHidden}, {{768}}, {{768}}},
        {{kHidden}, {{1024, 1}}, {{1024, 1}}},
        {},
        {},
        0}},
      {"LayerNormalizationInputGrad",
       {ours,
        "LayerNormalizationInputGrad",
        1,
        {{kHidden}, {kHidden}, {{768}}, {{1024, 1}}, {{1024, 1}}},
        {{kHidden}},
        {},
        {},
        0}},
      {"LayerNormalizationWeightGrad",
       {ours,
        "LayerNormalizationWeightGrad",
        1,
        {{kHidden}, {kHidden}, {{1024, 1}}, {{1024, 1}}},
        {{{768}}, {{768}}},
        {},
        {},
        0}},
      {"ReduceSum_bias_gradient",
       {"", "ReduceSum", 18, {{kWide}, {{1}, i64}}, {{{1, 3072}}}, {}, {{1, first_axis}}, 0}},
      {"Transpose_heads",
       {"",
        "Transpose",
        18,
        {{kHeads}},
        {{{8, 12, 128, 64}}},
        {{"perm", std::vector<int64_t>{0, 2, 1, 3}}},
        {},
        0}},
      {"Transpose_keys",
       {"",
        "Transpose",
        18,
        {{kHeads}},
        {{{8, 12, 64, 128}}},
        {{"perm", std::vector<int64_t>{0, 2, 3, 1}}},
        {},
        0}},
      {"Transpose_channels_last",
       {"",
        "Transpose",
        18,
        {{kImages}},
        {{{8, 56, 56, 96}}},
        {{"perm", std::vector<int64_t>{0, 2, 3, 1}}},
        {},
        0}},
      {"Transpose_channels_last_small",
       {"",
        "Transpose",
        18,
        {{{8, 768, 7, 7}}},
        {{{8, 7, 7, 768}}},
        {{"perm", std::vector<int64_t>{0, 2, 3, 1}}},
        {},
        0}},
      {"Transpose_channels_first",
       {"",
        "Transpose",
        18,
        {{{8, 56, 56, 96}}},
        {{kImages}},
        {{"perm", std::vector<int64_t>{0, 3, 1, 2}}},
        {},
        0}},
      {"Transpose_channels_first_14",
       {"",
        "Transpose",
        18,
        {{{8, 14, 14, 384}}},
        {{{8, 384, 14, 14}}},
        {{"perm", std::vector<int64_t>{0, 3, 1, 2}}},
        {},
        0}},
      {"Transpose_tokens",
       {"",
        "Transpose",
        18,
        {{{197, 96, 64}}},
        {{{96, 197, 64}}},
        {{"perm", std::vector<int64_t>{1, 0, 2}}},
        {},
        0}},
      {"Transpose_rows",
       {"",
        "Transpose",
        18,
        {{{8, 197, 768}}},
        {{{197, 8, 768}}},
        {{"perm", std::vector<int64_t>{1, 0, 2}}},
        {},
        0}},
      {"Transpose_matrix", {"", "Transpose", 18, {{{768, 3072}}}, {{{3072, 768}}}, {}, {}, 0}},
      {"Split_qkv",
       {"",
        "Split",
        18,
        {{{8, 128, 2304}}},
        {{{8, 128, 768}}, {{8, 128, 768}}, {{8, 128, 768}}},
        {{"axis", int64_t{2}}},
        {},
        0}},
      {"Gather_embedding",
       {"", "Gather", 18, {{{50257, 768}}, {{8, 128}, i64}}, {{{8, 128, 768}}}, {}, {}, 0}},
      {"GatherGrad_embedding",
       {ours,
        "GatherGrad",
        1,
        {{{8, 128, 768}}, {{8, 128}, i64}, {{2}, i64}},
        {{{50257, 768}}},
        {},
        {{2, table}},
        0}},
      {"SoftmaxCrossEntropyLoss",
       {"",
        "SoftmaxCrossEntropyLoss",
        18,
        {{{256, 50257}}, {{256}, i64}},
        {{{}}, {{256, 50257}}},
        {},
        {},
        0}},
      {"CrossEntropyLoss",
       {ours, "CrossEntropyLoss", 1, {{{256, 50257}}, {{256}, i64}}, {{{}}, {{256}}, {{256}}}, {}, {}, 0}},
      {"CrossEntropyLossGrad",
       {ours,
        "CrossEntropyLossGrad",
        1,
        {{{}}, {{256, 50257}}, {{256}}, {{256}}, {{256}, i64}},
        {{{256, 50257}}},
        {},
        {},
        0}},
      {"Attention_windows",
       {ours,
        "Attention",
        1,
        {{kWindows}, {kWindows}, {kWindows}, {{}}, {{1, 3, 49, 49}}},
        {{kWindows}, {{512, 3, 49, 1}}, {{512, 3, 49, 1}}},
        {{"overlays", std::string("bias")}},
        {},
        4 * int64_t{512} * 3 * 49 * 49 * 32}},
      {"Attention_shifted_windows",
       {ours,
        "Attention",
        1,
        {{kShifted}, {kShifted}, {kShifted}, {{}}, {{1, 1, 3, 49, 49}}, {{1, 64, 1, 49, 49}}},
        {{kShifted}, {{8, 64, 3, 49, 1}}, {{8, 64, 3, 49, 1}}},
        {{"overlays", std::string("bias_bias")}},
        {},
        4 * int64_t{512} * 3 * 49 * 49 * 32}},
      {"MaxPool_3x3_stride_2",
       {"",
        "MaxPool",
        18,
        {{{8, 64, 112, 112}}},
        {{{8, 64, 56, 56}}},
        {{"kernel_shape", std::vector<int64_t>{3, 3}},
         {"strides", std::vector<int64_t>{2, 2}},
         {"pads", std::vector<int64_t>{1, 1, 1, 1}}},
        {},
        0}},
      {"SGD", {ours, "SGD", 1, {{{768, 3072}}, {{768, 3072}}, {{}}, {{}}}, {{{768, 3072}}}, {}, {}, 0}},
  };
}

}  // namespace
}  // namespace pipeshard

int main(int argc, char** argv) {
  for (const auto& [name, setting] : pipeshard::settings()) {
    benchmark::RegisterBenchmark(
        name.c_str(), [setting = setting](benchmark::State& state) { pipeshard::runKernel(state, setting); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
