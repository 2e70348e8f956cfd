#include "runtime/kernels/products/matmul.h"

#include "ir/operators/fused_projection.h"
#include "runtime/kernels/base/broadcast.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/binary_functors.h"

namespace pipeshard::kernels {
namespace {

// MatMul as numpy's matmul, reduced to one batched product. ONNX Runtime's FusedMatMul has flags beside, for
// operands whose last two axes are swapped.
struct MatMulPlan {
  GemmShape shape;
  int64_t batch = 1;
  std::vector<int64_t> a_offsets;
  std::vector<int64_t> b_offsets;
  Shape output;
};

std::vector<int64_t> matrixOffsets(const Shape& output_batch, const Shape& input_batch,
                                   int64_t matrix_elements) {
  const Broadcast plan = makeBroadcast(output_batch, {input_batch});
  std::vector<int64_t> offsets;
  for (int64_t row = 0; row < plan.rows; ++row) {
    const int64_t start = plan.rowStart(row)[0];
    for (int64_t i = 0; i < plan.length; ++i)
      offsets.push_back((start + i * plan.inner_strides[0]) * matrix_elements);
  }
  return offsets;
}

MatMulPlan planMatMul(const KernelSpec& spec) {
  Shape a = spec.inputs[0].shape;
  Shape b = spec.inputs[1].shape;
  if (a.empty() || b.empty())
    refuse(spec, "inputs of shapes {} and {}; scalars are not allowed", shapeToString(a), shapeToString(b));
  const bool a_vector = a.size() == 1;
  const bool b_vector = b.size() == 1;
  if (a_vector) a.insert(a.begin(), 1);
  if (b_vector) b.push_back(1);
  MatMulPlan plan;
  const bool transpose_a = !a_vector && spec.node->intAttribute("transA", 0) != 0;
  const bool transpose_b = !b_vector && spec.node->intAttribute("transB", 0) != 0;
  if (transpose_a) std::swap(a[a.size() - 2], a.back());
  if (transpose_b) std::swap(b[b.size() - 2], b.back());
  plan.shape = {.transpose_a = transpose_a,
                .transpose_b = transpose_b,
                .m = a[a.size() - 2],
                .n = b.back(),
                .k = a.back()};
  if (b[b.size() - 2] != plan.shape.k) {
    refuse(spec, "shapes {} and {} do not multiply: inner sizes {} and {} differ",
           shapeToString(spec.inputs[0].shape), shapeToString(spec.inputs[1].shape), plan.shape.k,
           b[b.size() - 2]);
  }
  const Shape a_batch(a.begin(), a.end() - 2);
  const Shape b_batch(b.begin(), b.end() - 2);
  const Shape batch = broadcastShapes(a_batch, b_batch);
  plan.output = batch;
  if (!a_vector) plan.output.push_back(plan.shape.m);
  if (!b_vector) plan.output.push_back(plan.shape.n);
  plan.batch = elementCount(batch);
  if (plan.batch == 0) return plan;
  const bool one_product = plan.batch == 1 || !transpose_a;
  // [.., m, k] x [k, n]: one tall product
  if (elementCount(b_batch) == 1 && elementCount(a_batch) == plan.batch && one_product) {
    plan.shape.m *= plan.batch;
    plan.batch = 1;
    plan.a_offsets = plan.b_offsets = {0};
    return plan;
  }
  plan.a_offsets = matrixOffsets(batch, a_batch, plan.shape.m * plan.shape.k);
  plan.b_offsets = matrixOffsets(batch, b_batch, plan.shape.k * plan.shape.n);
  return plan;
}

bool multipliesBfloat16(const KernelSpec& spec) {
  const DataType result = spec.outputs[0].data_type;
  return spec.inputs[0].data_type == DataType::kBfloat16 && spec.inputs[1].data_type == DataType::kBfloat16 &&
         (result == DataType::kBfloat16 || result == DataType::kFloat32);
}

// Of bfloat16 operands, by the device itself; the result is rounded to bfloat16, or is float32.
// `adds_row`: input 2 is added to every row. nullptr where
// the device does not multiply them: they are converted then (base/widening.h).
std::unique_ptr<Kernel> bfloat16Kernel(const KernelSpec& spec, const MatMulPlan& plan, double alpha,
                                       bool adds_row = false) {
  const bool rounds = spec.outputs[0].data_type == DataType::kBfloat16;
  const auto product = ownBfloat16Product(plan.shape, plan.batch, alpha);
  if (product == nullptr) return nullptr;
  return makeKernel(
      [plan, product, rounds, adds_row](const KernelArguments& arguments) {
        Bfloat16Product::Result result;
        if (rounds)
          result.rounded = output<uint16_t>(arguments, 0);
        else
          result.sums = output<float>(arguments, 0);
        result.add = accumulates(arguments);
        if (adds_row) result.bias = input<uint16_t>(arguments, 2);
        product->run(input<uint16_t>(arguments, 0), plan.a_offsets.data(), input<uint16_t>(arguments, 1),
                     plan.b_offsets.data(), result);
      },
      {.in_place = {}, .workspace_bytes = 0, .accumulates = !rounds && plan.batch == 1});
}

std::unique_ptr<Kernel> matMul(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  if (multipliesBfloat16(spec)) {
    const MatMulPlan plan = planMatMul(spec);
    checkOutputShape(spec, 0, plan.output);
    if (auto kernel = bfloat16Kernel(spec, plan, spec.node->floatAttribute("alpha", 1.0f))) return kernel;
  }
  checkInputType(spec, 1, spec.inputs[0].data_type);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const double alpha = spec.node->floatAttribute("alpha", 1.0f);
  const MatMulPlan plan = planMatMul(spec);
  checkOutputShape(spec, 0, plan.output);
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [plan, alpha](const KernelArguments& arguments) {
          const T* a = input<T>(arguments, 0);
          const T* b = input<T>(arguments, 1);
          T* y = output<T>(arguments, 0);
          if (accumulates(arguments)) return multiplyAndAdd<T>(arguments.queue, plan.shape, alpha, a, b, y);
          multiply<T>(arguments.queue, plan.shape, plan.batch, alpha, a, plan.a_offsets.data(), b,
                      plan.b_offsets.data(), 0, y);
        },
        {.in_place = {}, .workspace_bytes = 0, .accumulates = plan.batch == 1});
  });
}

std::unique_ptr<Kernel> fusedMatMul(const KernelSpec& spec) {
  for (const char* flag : {"transBatchA", "transBatchB"}) {
    if (spec.node->intAttribute(flag, 0) != 0)
      refuse(spec, "attribute {} is set; the kernel knows transA and transB", flag);
  }
  return matMul(spec);
}

// C is a row of bfloat16 that is added to all rows, once.
bool addsRowToBfloat16(const KernelSpec& spec, int64_t columns, double beta) {
  const TensorSpec& bias = spec.inputs[2];
  const bool is_row = bias.shape == Shape{columns} || bias.shape == Shape{1, columns};
  return beta == 1 && is_row && bias.data_type == DataType::kBfloat16 &&
         spec.outputs[0].data_type == DataType::kBfloat16;
}

std::unique_ptr<Kernel> gemm(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  const Shape& a = spec.inputs[0].shape;
  const Shape& b = spec.inputs[1].shape;
  if (a.size() != 2 || b.size() != 2)
    refuse(spec, "inputs of shapes {} and {}; both must be matrices", shapeToString(a), shapeToString(b));
  GemmShape shape;
  shape.transpose_a = spec.node->intAttribute("transA", 0) != 0;
  shape.transpose_b = spec.node->intAttribute("transB", 0) != 0;
  shape.m = a[shape.transpose_a ? 1 : 0];
  shape.k = a[shape.transpose_a ? 0 : 1];
  shape.n = b[shape.transpose_b ? 0 : 1];
  if (b[shape.transpose_b ? 1 : 0] != shape.k) {
    refuse(spec, "shapes {} and {} do not multiply with transA={}, transB={}", shapeToString(a),
           shapeToString(b), shape.transpose_a, shape.transpose_b);
  }
  const double alpha = spec.node->floatAttribute("alpha", 1.0f);
  const double beta = hasInput(spec, 2) ? spec.node->floatAttribute("beta", 1.0f) : 0.0;
  if (multipliesBfloat16(spec) && (beta == 0 || addsRowToBfloat16(spec, shape.n, beta))) {
    checkOutputShape(spec, 0, {shape.m, shape.n});
    if (auto kernel = bfloat16Kernel(spec, {shape, 1, {0}, {0}, {}}, alpha, beta != 0)) return kernel;
  }
  for (size_t i : {1, 2}) checkInputType(spec, i, spec.inputs[0].data_type);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, {shape.m, shape.n});
  Broadcast bias;
  if (beta != 0) bias = makeBroadcast({shape.m, shape.n}, {{shape.m, shape.n}, spec.inputs[2].shape});
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [shape, alpha, beta, bias](const KernelArguments& arguments) {
          constexpr int64_t kNoOffset = 0;
          T* y = output<T>(arguments, 0);
          if (accumulates(arguments))
            return multiplyAndAdd<T>(arguments.queue, shape, alpha, input<T>(arguments, 0),
                                     input<T>(arguments, 1), y);
          if (beta != 0) applyBinary<TakeSecondOp, T, T>(arguments.queue, bias, y, input<T>(arguments, 2), y);
          multiply<T>(arguments.queue, shape, 1, alpha, input<T>(arguments, 0), &kNoOffset,
                      input<T>(arguments, 1), &kNoOffset, beta, y);
        },
        {.in_place = {}, .workspace_bytes = 0, .accumulates = beta == 0});
  });
}

// The first axes as rows, the others as columns.
void flatten(TensorSpec& tensor, size_t row_axes) {
  const auto split = tensor.shape.begin() + static_cast<std::ptrdiff_t>(row_axes);
  tensor.shape = {elementCount(Shape(tensor.shape.begin(), split)),
                  elementCount(Shape(split, tensor.shape.end()))};
}

// A Gemm of matrices one axis of which is two, as matrices. `axes`: those of the rows, of each tensor.
std::unique_ptr<Kernel> flattenedGemm(const KernelSpec& spec, std::initializer_list<size_t> input_axes,
                                      size_t output_axes, const char* transposes) {
  KernelSpec flat = spec;
  size_t i = 0;
  for (const size_t axes : input_axes) {
    if (flat.inputs[i].shape.size() < axes)
      refuse(spec, "input {} of shape {}", i, shapeToString(flat.inputs[i].shape));
    flatten(flat.inputs[i++], axes);
  }
  flatten(flat.outputs[0], output_axes);
  Node node = *spec.node;
  node.attributes = {};
  if (*transposes != 0) node.attributes[transposes] = int64_t{1};
  flat.node = &node;
  return gemm(flat);
}

std::unique_ptr<Kernel> fusedProjection(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  const bool by_rows = hasRowsOfParts(*spec.node);
  const size_t rows = spec.inputs[0].shape.size() - 1;
  KernelSpec with_row = spec;
  if (hasInput(spec, 2)) with_row.inputs[2].shape = {elementCount(spec.inputs[2].shape)};
  return flattenedGemm(with_row, {rows, by_rows ? 2U : 1U}, rows, by_rows ? "transB" : "");
}

std::unique_ptr<Kernel> fusedProjectionInputGrad(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const bool by_rows = hasRowsOfParts(*spec.node);
  return flattenedGemm(spec, {1, by_rows ? 2U : 1U}, 1, by_rows ? "" : "transB");
}

std::unique_ptr<Kernel> fusedProjectionWeightGrad(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  return flattenedGemm(spec, {1, 1}, hasRowsOfParts(*spec.node) ? 2 : 1, "transA");
}

}  // namespace

void addMatMulKernels(KernelRegistry& registry) {
  registry.add("", "MatMul", matMul);
  registry.add("com.microsoft", "FusedMatMul", fusedMatMul);
  registry.add("", "Gemm", gemm);
  const std::string ours(kPipeshardDomain);
  registry.add(ours, "FusedProjection", fusedProjection);
  registry.add(ours, "FusedProjectionInputGrad", fusedProjectionInputGrad);
  registry.add(ours, "FusedProjectionWeightGrad", fusedProjectionWeightGrad);
}

}  // namespace pipeshard::kernels
