#include "runtime/kernels/elementwise/optimizer.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

using Schedule = LearningRateSchedule;

// Where an update's inputs are. In order: Param, Grad and the states; Step, where the optimizer counts or the
// learning rate follows a schedule; LearningRate and the optimizer's other numbers, scalars of Param's type;
// the schedule's numbers, in float64.
struct UpdateLayout {
  int64_t count = 0;  // elements
  size_t states = 0;
  std::optional<size_t> step;
  size_t rate = 0;      // of LearningRate
  size_t schedule = 0;  // of the schedule's first number
  std::optional<Schedule::Kind> schedule_kind;
  bool nesterov = false;
  std::string node;
};

std::function<void(const DataFault&)> aboutStep(const std::string& node) {
  return [node](const DataFault& fault) {
    fail(ErrorCode::kBadModel, "{}: Step is {}; the first step is 1", node, fault.value);
  };
}

// Of kernels that read the step's number; others find nothing.
std::function<void(const DataFault&)> faultOf(const UpdateLayout& layout) {
  return layout.step ? aboutStep(layout.node) : nullptr;
}

// Throws, or records, that the step's number is none.
void checkStep(const UpdateLayout& layout, const KernelArguments& arguments) {
  if (!layout.step) return;
  checkData(arguments, aboutStep(layout.node), [&](DataFault* fault) {
    findOutside(arguments.queue, 1, input<int64_t>(arguments, *layout.step), 1,
                std::numeric_limits<int64_t>::max(), {}, fault);
  });
}

// All but the tensors.
template <typename T>
UpdateInputs<T> numbersFrom(const UpdateLayout& layout, const KernelArguments& arguments) {
  UpdateInputs<T> inputs;
  inputs.count = layout.count;
  inputs.nesterov = layout.nesterov;
  if (layout.step) inputs.step = input<int64_t>(arguments, *layout.step);
  for (size_t i = layout.rate; i < layout.schedule; ++i)
    inputs.numbers[i - layout.rate] = input<T>(arguments, i);
  if (!layout.schedule_kind) return inputs;
  inputs.has_schedule = true;
  inputs.schedule = *layout.schedule_kind;
  for (size_t k = 0; k < numbersOf(*layout.schedule_kind).size(); ++k)
    inputs.schedule_numbers[k] = input<double>(arguments, layout.schedule + k);
  return inputs;
}

template <typename T>
UpdateInputs<T> inputsFrom(const UpdateLayout& layout, const KernelArguments& arguments) {
  UpdateInputs<T> inputs = numbersFrom<T>(layout, arguments);
  UpdateTensors<T>& at = inputs.tensors;
  at.param = input<T>(arguments, 0);
  at.grad = input<T>(arguments, 1);
  at.new_param = output<T>(arguments, 0);
  for (size_t s = 0; s < layout.states; ++s) {
    at.state[s] = input<T>(arguments, 2 + s);
    at.new_state[s] = output<T>(arguments, 1 + s);
  }
  return inputs;
}

void checkScalar(const KernelSpec& spec, size_t position, DataType type) {
  if (elementCount(spec.inputs[position].shape) != 1)
    refuse(spec, "input {} has shape {}; it must be a scalar", position,
           shapeToString(spec.inputs[position].shape));
  checkInputType(spec, position, type);
}

std::optional<Schedule::Kind> scheduleOf(const KernelSpec& spec) {
  const std::string name = spec.node->stringAttribute("schedule", "");
  if (name.empty()) return std::nullopt;
  const auto found = std::find(kScheduleNames.begin(), kScheduleNames.end(), name);
  if (found == kScheduleNames.end()) refuse(spec, "there is no schedule '{}'", name);
  return static_cast<Schedule::Kind>(found - kScheduleNames.begin());
}

// Outputs: the new parameter and states.
UpdateLayout layoutOf(const KernelSpec& spec, size_t states, bool counts, size_t numbers) {
  UpdateLayout layout;
  layout.states = states;
  layout.schedule_kind = scheduleOf(spec);
  layout.nesterov = spec.node->intAttribute("nesterov", 0) != 0;
  layout.node = describeNode(*spec.node);
  const size_t tensors = 2 + states;
  const bool reads_step = counts || layout.schedule_kind;
  if (reads_step) layout.step = tensors;
  layout.rate = tensors + (reads_step ? 1 : 0);
  layout.schedule = layout.rate + numbers;
  const size_t inputs =
      layout.schedule + (layout.schedule_kind ? numbersOf(*layout.schedule_kind).size() : 0);
  checkArity(spec, inputs, inputs);
  const DataType type = spec.inputs[0].data_type;
  for (size_t i = 1; i < tensors; ++i) {
    checkInputType(spec, i, type);
    checkInputShape(spec, i, spec.inputs[0].shape);
  }
  if (layout.step) checkScalar(spec, *layout.step, DataType::kInt64);
  for (size_t i = layout.rate; i < layout.schedule; ++i) checkScalar(spec, i, type);
  for (size_t i = layout.schedule; i < inputs; ++i) checkScalar(spec, i, DataType::kFloat64);
  for (size_t i = 0; i <= states; ++i) {
    if (!hasOutput(spec, i)) refuse(spec, "output {} is missing", i);
    checkOutputType(spec, i, type);
    checkOutputShape(spec, i, spec.inputs[0].shape);
  }
  layout.count = elementCount(spec.inputs[0].shape);
  return layout;
}

template <template <typename> class Update>
std::unique_ptr<Kernel> updateKernel(const KernelSpec& spec) {
  using Facts = Update<double>;
  const UpdateLayout layout = layoutOf(spec, Facts::kStates, Facts::kCounts, Facts::kNumbers);
  std::vector<std::pair<int, int>> in_place = {{0, 0}};
  if (layout.states == 0) in_place.emplace_back(1, 0);
  for (int s = 0; s < static_cast<int>(layout.states); ++s) in_place.emplace_back(2 + s, 1 + s);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [layout](const KernelArguments& arguments) {
          checkStep(layout, arguments);
          applyUpdate<Update<T>, T>(arguments.queue, inputsFrom<T>(layout, arguments));
        },
        {.in_place = std::move(in_place), .throw_fault = faultOf(layout)});
  });
}

std::unique_ptr<Kernel> movingAverageKernel(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 1, type);
  checkInputShape(spec, 1, spec.inputs[0].shape);
  checkScalar(spec, 2, type);
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t count = elementCount(spec.inputs[0].shape);
  return withType<float, double>(spec, type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [count](const KernelArguments& arguments) {
          applyMovingAverage<T>(arguments.queue, count, input<T>(arguments, 0), input<T>(arguments, 1),
                                input<T>(arguments, 2), output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0, 1}));
  });
}

// This step's learning rate, a scalar.
std::unique_ptr<Kernel> scheduledRateKernel(const KernelSpec& spec) {
  UpdateLayout layout;
  layout.schedule_kind = scheduleOf(spec);
  if (!layout.schedule_kind) refuse(spec, "it has no schedule");
  layout.node = describeNode(*spec.node);
  layout.step = 0;
  layout.rate = 1;
  layout.schedule = 2;
  checkArity(spec, 2 + numbersOf(*layout.schedule_kind).size(), 2 + numbersOf(*layout.schedule_kind).size());
  checkScalar(spec, 0, DataType::kInt64);
  checkScalar(spec, 1, spec.inputs[1].data_type);
  for (size_t i = 2; i < spec.inputs.size(); ++i) checkScalar(spec, i, DataType::kFloat64);
  checkOutputType(spec, 0, spec.inputs[1].data_type);
  return withType<float, double>(spec, spec.inputs[1].data_type, "input 1", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [layout](const KernelArguments& arguments) {
          checkStep(layout, arguments);
          applyScheduledRate<T>(arguments.queue, numbersFrom<T>(layout, arguments), output<T>(arguments, 0));
        },
        {.in_place = {}, .throw_fault = faultOf(layout)});
  });
}

}  // namespace

void addOptimizerKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add(ours, "SGD", updateKernel<SgdUpdate>);
  registry.add(ours, "SGDMomentum", updateKernel<MomentumUpdate>);
  registry.add(ours, "Adam", updateKernel<CoupledAdam>);
  registry.add(ours, "AdamW", updateKernel<DecoupledAdam>);
  registry.add(ours, "RMSProp", updateKernel<RmsPropUpdate>);
  registry.add(ours, "RMSPropMomentum", updateKernel<RmsPropMomentumUpdate>);
  registry.add(ours, "Adagrad", updateKernel<AdagradUpdate>);
  registry.add(ours, "Lion", updateKernel<LionUpdate>);
  registry.add(ours, "LAMBDirection", updateKernel<LambDirection>);
  registry.add(ours, "ScheduledRate", scheduledRateKernel);
  registry.add(ours, "MovingAverage", movingAverageKernel);
}

}  // namespace pipeshard::kernels
