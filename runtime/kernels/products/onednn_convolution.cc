#include "runtime/kernels/products/onednn_convolution.h"

#include <dnnl.hpp>

#include <string_view>
#include <unordered_map>
#include <utility>

#include "ir/base/error.h"
#include "runtime/kernels/base/one_thread.h"
#include "runtime/kernels/products/onednn_description.h"

namespace pipeshard::kernels {
namespace {

using dnnl::memory;

template <typename Body>
auto translated(const Body& body) {
  try {
    return body();
  } catch (const dnnl::error& e) {
    fail(ErrorCode::kInternal, "oneDNN: {} (status {})", e.what(), static_cast<int>(e.status));
  }
}

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// [sizes.., space..], where the sizes' steps are in elements of one channel.
memory::desc plainLayout(memory::dims sizes, memory::dims steps, const Triple& space, size_t axes) {
  const int64_t plane = space[0] * space[1] * space[2];
  for (int64_t& step : steps) step *= plane;
  int64_t rest = plane;
  for (size_t a = space.size() - axes; a < space.size(); ++a) {
    sizes.push_back(space[a]);
    steps.push_back(rest /= space[a]);
  }
  return {sizes, memory::data_type::f32, steps};
}

// Axes that have nothing to slide over are no part of what oneDNN is asked for: it has more code for two.
size_t spatialAxes(const Window& w) {
  const bool is_flat = w.in[0] == 1 && w.out[0] == 1 && w.kernel[0] == 1 && w.pad[0] == 0;
  return is_flat ? 2 : 3;
}

// Of the last `count` axes.
memory::dims last(const Triple& sizes, size_t count) { return {sizes.end() - count, sizes.end()}; }

memory::desc anyLayout(const memory::desc& plain) {
  return {sizesOf(plain), memory::data_type::f32, memory::format_tag::any};
}

bool madeForThisProcessor(const dnnl::primitive_desc_base& description) {
  const std::string_view name = description.impl_info_str();
  return name.starts_with("jit") || name.starts_with("brg");
}

size_t indexOf(ConvolutionTensor tensor) { return static_cast<size_t>(tensor); }

}  // namespace

struct OnednnConvolution::Primitives {
  std::array<memory::desc, 3> plain;
  std::array<memory::desc, 3> packed;
  memory::desc scratch;
  dnnl::primitive compute;
  std::array<int, 3> arguments{};
  std::array<dnnl::reorder, 3> pack;    // where layouts differ and the tensor is read
  std::array<dnnl::reorder, 3> unpack;  // where layouts differ and the tensor is the result

  // Takes over what a description of one of the three tasks says.
  template <typename Primitive, typename Description>
  bool take(const Description& description, std::array<memory::desc, 3> layouts, std::array<int, 3> names) {
    if (!madeForThisProcessor(description)) return false;
    packed = std::move(layouts);
    arguments = names;
    scratch = description.scratchpad_desc();
    compute = Primitive(description);
    return true;
  }

  bool make(ConvolutionTask task, const memory::dims& strides, const memory::dims& dilations,
            const memory::dims& begin, const memory::dims& end) {
    const memory::desc image = anyLayout(plain[0]);
    const memory::desc weight = anyLayout(plain[1]);
    const memory::desc output = anyLayout(plain[2]);
    const auto direct = dnnl::algorithm::convolution_direct;
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    using Forward = dnnl::convolution_forward;
    const auto forward = describe<Forward>(cpu(), attributes, dnnl::prop_kind::forward_training, direct,
                                           image, weight, output, strides, dilations, begin, end);
    if (task == ConvolutionTask::kForward) {
      return take<Forward>(forward, {forward.src_desc(), forward.weights_desc(), forward.dst_desc()},
                           {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST});
    }
    if (task == ConvolutionTask::kInputGrad) {
      using Backward = dnnl::convolution_backward_data;
      const auto data = describeBackward<Backward>(cpu(), attributes, forward, direct, image, weight, output,
                                                   strides, dilations, begin, end);
      return take<Backward>(data, {data.diff_src_desc(), data.weights_desc(), data.diff_dst_desc()},
                            {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST});
    }
    using Backward = dnnl::convolution_backward_weights;
    const auto weights = describeBackward<Backward>(cpu(), attributes, forward, direct, image, weight, output,
                                                    strides, dilations, begin, end);
    return take<Backward>(weights, {weights.src_desc(), weights.diff_weights_desc(), weights.diff_dst_desc()},
                          {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST});
  }

  void makeReorders(ConvolutionTask task) {
    for (size_t i = 0; i < 3; ++i) {
      if (packed[i] == plain[i]) continue;
      const bool result = i == (task == ConvolutionTask::kForward     ? 2u
                                : task == ConvolutionTask::kInputGrad ? 0u
                                                                      : 1u);
      const memory::desc& from = result ? packed[i] : plain[i];
      const memory::desc& to = result ? plain[i] : packed[i];
      (result ? unpack : pack)[i] = dnnl::reorder(dnnl::reorder::primitive_desc(cpu(), from, cpu(), to));
    }
  }
};

OnednnConvolution::OnednnConvolution(std::unique_ptr<const Primitives> primitives)
    : primitives_(std::move(primitives)) {}
OnednnConvolution::~OnednnConvolution() = default;

std::shared_ptr<const OnednnConvolution> OnednnConvolution::create(ConvolutionTask task, const Window& window,
                                                                   const ConvolutionSizes& sizes) {
  const Window& w = window;
  const ConvolutionSizes& s = sizes;
  const size_t axes = spatialAxes(w);
  auto made = std::make_unique<Primitives>();
  memory::dims weight_sizes = {s.features, s.channels};
  memory::dims weight_steps = {s.weight_channels, 1};
  if (s.groups > 1) {
    weight_sizes.insert(weight_sizes.begin(), s.groups);
    weight_steps.insert(weight_steps.begin(), s.features * s.weight_channels);
  }
  made->plain = {plainLayout({s.batch, s.groups * s.channels}, {s.all_channels, 1}, w.in, axes),
                 plainLayout(weight_sizes, weight_steps, w.kernel, axes),
                 plainLayout({s.batch, s.groups * s.features}, {s.all_features, 1}, w.out, axes)};
  Triple end{}, dilation{};
  for (size_t a = 0; a < end.size(); ++a) {
    const int64_t reach = (w.out[a] - 1) * w.stride[a] + (w.kernel[a] - 1) * w.dilation[a] + 1;
    end[a] = std::max<int64_t>(0, reach - w.in[a] - w.pad[a]);
    dilation[a] = w.dilation[a] - 1;
  }
  // oneDNN shares work out when it makes a primitive: a convolution is one thread's. Reorders are all
  // threads', outside of parallel regions.
  try {
    const OneThread one_thread;
    if (!made->make(task, last(w.stride, axes), last(dilation, axes), last(w.pad, axes), last(end, axes)))
      return nullptr;
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented || e.status == dnnl_invalid_arguments) return nullptr;
    fail(ErrorCode::kInternal, "oneDNN, making a convolution: {} (status {})", e.what(),
         static_cast<int>(e.status));
  }
  translated([&] { made->makeReorders(task); });
  return std::shared_ptr<const OnednnConvolution>(new OnednnConvolution(std::move(made)));
}

size_t OnednnConvolution::packedBytes(ConvolutionTensor tensor) const {
  const size_t i = indexOf(tensor);
  return primitives_->packed[i] == primitives_->plain[i] ? 0 : primitives_->packed[i].get_size();
}

size_t OnednnConvolution::scratchBytes() const { return primitives_->scratch.get_size(); }

const float* OnednnConvolution::pack(ConvolutionTensor tensor, const float* plain, float* space) const {
  const size_t i = indexOf(tensor);
  if (!primitives_->pack[i]) return plain;
  translated([&] {
    dnnl::stream stream(cpu());
    memory from(primitives_->plain[i], cpu(), const_cast<float*>(plain));
    memory to(primitives_->packed[i], cpu(), space);
    primitives_->pack[i].execute(stream, from, to);
  });
  return space;
}

void OnednnConvolution::unpack(ConvolutionTensor tensor, const float* packed, float* plain) const {
  const size_t i = indexOf(tensor);
  if (!primitives_->unpack[i]) return;
  translated([&] {
    dnnl::stream stream(cpu());
    memory from(primitives_->packed[i], cpu(), const_cast<float*>(packed));
    memory to(primitives_->plain[i], cpu(), plain);
    primitives_->unpack[i].execute(stream, from, to);
  });
}

void OnednnConvolution::run(const float* image, const float* weight, const float* output,
                            void* scratch) const {
  translated([&] {
    dnnl::stream stream(cpu());
    const std::array<const float*, 3> tensors = {image, weight, output};
    std::unordered_map<int, memory> arguments;
    for (size_t i = 0; i < 3; ++i) {
      arguments.emplace(primitives_->arguments[i],
                        memory(primitives_->packed[i], cpu(), const_cast<float*>(tensors[i])));
    }
    arguments.emplace(DNNL_ARG_SCRATCHPAD, memory(primitives_->scratch, cpu(), scratch));
    primitives_->compute.execute(stream, arguments);
  });
}

}  // namespace pipeshard::kernels
