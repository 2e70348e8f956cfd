#include "runtime/kernels/products/attention.h"

#include <algorithm>

#include "ir/operators/attention_form.h"
#include "runtime/kernels/base/broadcast.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

struct AttentionPlan {
  AttentionForm form;
  AttentionShape shape;
  Shape rows;    // [.., queries, 1]
  Shape output;  // [.., queries, value width]
  Shape scores;  // [.., queries, keys]
};

Shape withLast(Shape shape, int64_t size) {
  shape.back() = size;
  return shape;
}

ScoreOverlay overlayOf(const KernelSpec& spec, int input, const Shape& scores) {
  ScoreOverlay overlay;
  if (input < 0) return overlay;
  Shape shape = spec.inputs[input].shape;
  bool fits = shape.size() <= scores.size();
  if (fits) shape.insert(shape.begin(), scores.size() - shape.size(), 1);
  for (size_t axis = 0; fits && axis < scores.size(); ++axis)
    fits = shape[axis] == scores[axis] || shape[axis] == 1;
  if (!fits) {
    refuse(spec, "input {} has shape {}, which cannot be broadcast to the scores' {}", input,
           shapeToString(spec.inputs[input].shape), shapeToString(scores));
  }
  const size_t rank = scores.size();
  overlay.elements = elementCount(shape);
  overlay.column_stride = shape[rank - 1] == 1 ? 0 : 1;
  overlay.row_stride = shape[rank - 2] == 1 ? 0 : shape[rank - 1];
  const int64_t matrix = shape[rank - 1] * shape[rank - 2];
  const Shape heads(scores.begin(), scores.end() - 2);
  const Broadcast plan = makeBroadcast(heads, {Shape(shape.begin(), shape.end() - 2)});
  const Shape from = rowMajorStrides(shape), to = rowMajorStrides(heads);
  std::vector<CopyAxis> axes;
  for (size_t axis = 0; axis < heads.size(); ++axis)
    axes.push_back({heads[axis], shape[axis] == 1 ? 0 : from[axis], to[axis]});
  overlay.heads = makeStridedCopy(axes);
  for (int64_t row = 0; row < plan.rows; ++row) {
    for (int64_t i = 0; i < plan.length; ++i)
      overlay.offsets.push_back((plan.rowStart(row)[0] + i * plan.inner_strides[0]) * matrix);
  }
  return overlay;
}

void checkInputs(const KernelSpec& spec, const AttentionForm& form) {
  if (std::ssize(spec.inputs) != form.inputs)
    refuse(spec, "has {} inputs; these overlays need {}", spec.inputs.size(), form.inputs);
  const DataType type = spec.inputs[form.query].data_type;
  for (int i = 0; i < form.inputs; ++i) {
    if (!hasInput(spec, i)) refuse(spec, "input {} is missing", i);
    checkInputType(spec, i, i == form.mask || i == form.keep ? DataType::kBool : type);
  }
  for (const int number : {form.scale(), form.fill(), form.factor()}) {
    if (number >= 0 && elementCount(spec.inputs[number].shape) != 1)
      refuse(spec, "input {} has shape {}; it must be one number", number,
             shapeToString(spec.inputs[number].shape));
  }
  for (size_t o = 0; o < spec.outputs.size(); ++o) checkOutputType(spec, o, type);
}

AttentionPlan planAttention(const KernelSpec& spec) {
  AttentionPlan plan;
  plan.form = attentionForm(*spec.node);
  const AttentionForm& form = plan.form;
  checkInputs(spec, form);
  const Shape& query = spec.inputs[form.query].shape;
  const Shape& key = spec.inputs[form.key()].shape;
  const Shape& value = spec.inputs[form.value()].shape;
  if (query.size() < 2 || key.size() != query.size() || value.size() != query.size())
    refuse(spec, "Q, K and V have shapes {}, {} and {}; they must be matrices, as many axes each",
           shapeToString(query), shapeToString(key), shapeToString(value));
  const size_t rank = query.size();
  AttentionShape& shape = plan.shape;
  shape.queries = query[rank - 2];
  shape.keys = key[rank - 2];
  shape.width = query.back();
  shape.value_width = value.back();
  shape.matrices = elementCount(Shape(query.begin(), query.end() - 2));
  plan.rows = withLast(query, 1);
  plan.output = withLast(query, shape.value_width);
  plan.scores = withLast(query, shape.keys);
  Shape keys = query;
  keys[rank - 2] = shape.keys;
  if (isGrouped(query, key)) {
    keys[rank - 3] = 1;
    shape.group = query[rank - 3];
  }
  checkInputShape(spec, form.key(), keys);
  checkInputShape(spec, form.value(), withLast(keys, shape.value_width));
  shape.mask = overlayOf(spec, form.mask, plan.scores);
  shape.bias = overlayOf(spec, form.bias, plan.scores);
  shape.second_bias = overlayOf(spec, form.second_bias, plan.scores);
  shape.keep = overlayOf(spec, form.keep, plan.scores);
  shape.bias_first = form.biasFirst();
  shape.nan_to_zero = form.nan_to_zero;
  return plan;
}

template <typename T>
AttentionInputs<T> inputsOf(const AttentionForm& form, const KernelArguments& arguments) {
  AttentionInputs<T> inputs;
  inputs.query = input<T>(arguments, form.query);
  inputs.key = input<T>(arguments, form.key());
  inputs.value = input<T>(arguments, form.value());
  inputs.scale = input<T>(arguments, form.scale());
  if (form.mask >= 0) {
    inputs.mask = input<bool>(arguments, form.mask);
    inputs.fill = input<T>(arguments, form.fill());
  }
  if (form.bias >= 0) inputs.bias = input<T>(arguments, form.bias);
  if (form.second_bias >= 0) inputs.second_bias = input<T>(arguments, form.second_bias);
  if (form.keep >= 0) {
    inputs.keep = input<bool>(arguments, form.keep);
    inputs.factor = input<T>(arguments, form.factor());
  }
  return inputs;
}

template <typename T>
RowStatistics<T> statisticsOf(const KernelArguments& arguments) {
  return {input<T>(arguments, 1), input<T>(arguments, 2)};
}

std::unique_ptr<Kernel> attention(const KernelSpec& spec) {
  const AttentionPlan plan = planAttention(spec);
  if (!hasOutput(spec, 0)) refuse(spec, "output 0 is missing");
  checkOutputShape(spec, 0, plan.output);
  for (const size_t statistic : {1, 2}) checkOutputShape(spec, statistic, plan.rows);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([plan](const KernelArguments& arguments) {
      attend<T>(arguments.queue, plan.shape, inputsOf<T>(plan.form, arguments), output<T>(arguments, 0),
                output<T>(arguments, 1), output<T>(arguments, 2));
    });
  });
}

AttentionPlan planGradient(const KernelSpec& spec) {
  AttentionPlan plan = planAttention(spec);
  checkInputShape(spec, 0, plan.output);
  for (const size_t statistic : {1, 2}) checkInputShape(spec, statistic, plan.rows);
  return plan;
}

std::unique_ptr<Kernel> attentionGradient(const KernelSpec& spec) {
  const AttentionPlan plan = planGradient(spec);
  for (size_t o = 0; o < 3; ++o) checkOutputShape(spec, o, spec.inputs[plan.form.query + o].shape);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    const int64_t dots = kAttentionKeepsDots ? elementCount(plan.rows) : 0;
    return makeKernel(
        [plan](const KernelArguments& arguments) {
          attentionGrad<T>(arguments.queue, plan.shape, inputsOf<T>(plan.form, arguments),
                           input<T>(arguments, 0), statisticsOf<T>(arguments),
                           static_cast<T*>(arguments.workspace),
                           {output<T>(arguments, 0), output<T>(arguments, 1), output<T>(arguments, 2)});
        },
        {.in_place = {}, .workspace_bytes = dots * sizeof(T)});
  });
}

std::unique_ptr<Kernel> attentionScoresGradient(const KernelSpec& spec) {
  const AttentionPlan plan = planGradient(spec);
  if (!hasOutput(spec, 0)) refuse(spec, "output 0 is missing");
  checkOutputShape(spec, 0, plan.scores);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([plan](const KernelArguments& arguments) {
      attentionScoresGrad<T>(arguments.queue, plan.shape, inputsOf<T>(plan.form, arguments),
                             input<T>(arguments, 0), statisticsOf<T>(arguments), output<T>(arguments, 0));
    });
  });
}

}  // namespace

void addAttentionKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add(ours, "Attention", attention);
  registry.add(ours, "AttentionGrad", attentionGradient);
  registry.add(ours, "AttentionScoresGrad", attentionScoresGradient);
}

}  // namespace pipeshard::kernels
