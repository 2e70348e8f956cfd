#include "runtime/kernels/products/onednn.h"

#include <dnnl.hpp>

#include <string_view>
#include <unordered_map>
#include <utility>

#include "ir/base/error.h"
#include "runtime/kernels/base/one_thread.h"
#include "runtime/kernels/products/onednn_description.h"

namespace pipeshard::kernels {

void onednnGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a,
                                          lda, b, ldb, beta, c, ldc);
  PIPESHARD_CHECK(status == dnnl_success, "oneDNN sgemm of {}x{}x{} returned status {}", m, n, k,
                  static_cast<int>(status));
}

struct OnednnBfloat16Gemm::Primitive {
  dnnl::memory::desc a, b, c, scratch;
  dnnl::matmul compute;
};

namespace {

const dnnl::engine& cpuEngine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// Row-major, or as its transpose lies.
dnnl::memory::desc matrix(int64_t rows, int64_t columns, dnnl::memory::data_type type, bool transposed) {
  using Sizes = dnnl::memory::dims;
  return {Sizes{rows, columns}, type, transposed ? Sizes{1, rows} : Sizes{columns, 1}};
}

}  // namespace

OnednnBfloat16Gemm::OnednnBfloat16Gemm(std::unique_ptr<const Primitive> primitive)
    : primitive_(std::move(primitive)) {}
OnednnBfloat16Gemm::~OnednnBfloat16Gemm() = default;

std::shared_ptr<const OnednnBfloat16Gemm> OnednnBfloat16Gemm::create(bool transpose_a, bool transpose_b,
                                                                     int64_t m, int64_t n, int64_t k) {
  using Type = dnnl::memory::data_type;
  auto made = std::make_unique<Primitive>();
  made->a = matrix(m, k, Type::bf16, transpose_a);
  made->b = matrix(k, n, Type::bf16, transpose_b);
  made->c = matrix(m, n, Type::f32, false);
  const OneThread one_thread;  // oneDNN shares work out when it makes a primitive
  try {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto description = describe<dnnl::matmul>(cpuEngine(), attributes, made->a, made->b, made->c);
    const std::string_view name = description.impl_info_str();
    const bool is_native = name.find("bf16") != name.npos || name.find("amx") != name.npos;
    if (!name.starts_with("brg") || !is_native) return nullptr;
    made->scratch = description.scratchpad_desc();
    made->compute = dnnl::matmul(description);
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented) return nullptr;
    fail(ErrorCode::kInternal, "oneDNN, making a product of {}x{}x{}: {} (status {})", m, n, k, e.what(),
         static_cast<int>(e.status));
  }
  return std::shared_ptr<const OnednnBfloat16Gemm>(new OnednnBfloat16Gemm(std::move(made)));
}

size_t OnednnBfloat16Gemm::scratchBytes() const { return primitive_->scratch.get_size(); }

void OnednnBfloat16Gemm::run(const uint16_t* a, const uint16_t* b, float* c, void* scratch) const {
  using dnnl::memory;
  const Primitive& p = *primitive_;
  try {
    dnnl::stream stream(cpuEngine());
    const std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, memory(p.a, cpuEngine(), const_cast<uint16_t*>(a))},
        {DNNL_ARG_WEIGHTS, memory(p.b, cpuEngine(), const_cast<uint16_t*>(b))},
        {DNNL_ARG_DST, memory(p.c, cpuEngine(), c)},
        {DNNL_ARG_SCRATCHPAD, memory(p.scratch, cpuEngine(), scratch)}};
    p.compute.execute(stream, arguments);
  } catch (const dnnl::error& e) {
    fail(ErrorCode::kInternal, "oneDNN, a product of bfloat16: {} (status {})", e.what(),
         static_cast<int>(e.status));
  }
}

}  // namespace pipeshard::kernels
