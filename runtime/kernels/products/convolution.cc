// Convolutions: checks and plan; what computes them is the device's (convolution.h).
#include "runtime/kernels/products/convolution.h"

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// Channels of image, output and weight [features, channels / group, kernel..] fit together.
Convolution planConvolution(const KernelSpec& spec, const Window& window, const Shape& image,
                            const Shape& output, const Shape& weight) {
  Convolution c;
  c.window = window;
  c.batch = image[0];
  c.groups = spec.node->intAttribute("group", 1);
  if (c.groups < 1 || image[1] % c.groups != 0 || output[1] % c.groups != 0)
    refuse(spec, "{} groups do not divide {} and {} channels", c.groups, image[1], output[1]);
  c.channels = image[1] / c.groups;
  c.features = output[1] / c.groups;
  if (output[0] != image[0] || weight[0] != output[1] || weight[1] != c.channels)
    refuse(spec, "shapes {}, {} and weight {} do not fit with {} groups", shapeToString(image),
           shapeToString(output), shapeToString(weight), c.groups);
  return c;
}

void checkTypes(const KernelSpec& spec, DataType type) {
  for (size_t i = 1; i < spec.inputs.size(); ++i) checkInputType(spec, i, type);
  checkOutputType(spec, 0, type);
}

// Inputs in the order of PreparedConvolution::run.
std::unique_ptr<Kernel> convolutionKernel(const KernelSpec& spec, ConvolutionTask task, const Convolution& c,
                                          std::string_view what) {
  return withType<float, double>(spec, spec.inputs[0].data_type, what, [&](auto zero) {
    using T = decltype(zero);
    PreparedConvolution<T> prepared = prepareConvolution<T>(task, c);
    return makeKernel(
        [run = std::move(prepared.run)](const KernelArguments& a) {
          run(a.queue, input<T>(a, 0), input<T>(a, 1), input<T>(a, 2), output<T>(a, 0), a.workspace);
        },
        {.in_place = {}, .workspace_bytes = prepared.workspace_bytes});
  });
}

std::unique_ptr<Kernel> conv(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  checkTypes(spec, spec.inputs[0].data_type);
  const Shape& image = spec.inputs[0].shape;
  const Shape& weight = spec.inputs[1].shape;
  const Shape& output = spec.outputs[0].shape;
  const Convolution c =
      planConvolution(spec, windowOf(spec, image, output, kernelSizes(spec, &weight)), image, output, weight);
  if (hasInput(spec, 2)) checkInputShape(spec, 2, {output[1]});
  return convolutionKernel(spec, ConvolutionTask::kForward, c, "X");
}

// ConvTranspose (X, W, B) and ConvInputGrad (dY, W): the image is the output.
std::unique_ptr<Kernel> convTranspose(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  checkTypes(spec, spec.inputs[0].data_type);
  const Shape& output = spec.inputs[0].shape;
  const Shape& weight = spec.inputs[1].shape;
  const Shape& image = spec.outputs[0].shape;
  const Window window = transposedWindowOf(spec, image, output, kernelSizes(spec, &weight));
  const Convolution c = planConvolution(spec, window, image, output, weight);
  if (hasInput(spec, 2)) checkInputShape(spec, 2, {image[1]});
  return convolutionKernel(spec, ConvolutionTask::kInputGrad, c, "input 0");
}

// dY, X -> dW
std::unique_ptr<Kernel> convWeightGrad(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkTypes(spec, spec.inputs[0].data_type);
  const Shape& output = spec.inputs[0].shape;
  const Shape& image = spec.inputs[1].shape;
  const Shape& weight = spec.outputs[0].shape;
  const Convolution c =
      planConvolution(spec, windowOf(spec, image, output, kernelSizes(spec, &weight)), image, output, weight);
  return convolutionKernel(spec, ConvolutionTask::kWeightGrad, c, "dY");
}

}  // namespace

void addConvolutionKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "Conv", conv);
  registry.add("", "ConvTranspose", convTranspose);
  registry.add(ours, "ConvInputGrad", convTranspose);
  registry.add(ours, "ConvWeightGrad", convWeightGrad);
}

}  // namespace pipeshard::kernels
