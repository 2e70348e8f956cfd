#include "runtime/validation/own_rounding.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/execute/dump.h"

namespace pipeshard {
namespace {

// What a dump has of it; nothing: rounding cannot reach it.
std::optional<Result> resultOf(const TensorComparison& tensor) {
  const auto of = [&](Result::Kind kind) {
    Result result;
    result.kind = kind;
    result.name = tensor.name;
    result.update = tensor.update;
    return result;
  };
  switch (tensor.kind) {
    case ComparedKind::kLoss: return of(Result::Kind::kLoss);
    case ComparedKind::kGradient: return of(Result::Kind::kGradient);
    case ComparedKind::kMeasure: return of(Result::Kind::kMeasure);
    default: return std::nullopt;
  }
}

class OneDevice {
 public:
  OneDevice(const std::string& narrow, const std::string& wide, double floor)
      : narrow_(StepDump::open(narrow, 1, 1)), wide_(StepDump::open(wide, 1, 1)), floor_(floor) {}

  double error(const Result& result) const {
    const std::string name = dumpTensorName(result);
    if (!narrow_.has(name) || !wide_.has(name)) return 0;
    if (result.kind != Result::Kind::kGradient)
      return relativeError(narrow_.read(name).elements(), wide_.read(name).elements(), 0, 0, floor_);
    const auto [norm, size] = allGradients(result);
    return relativeError(gradient(narrow_, name), gradient(wide_, name), norm, size, floor_);
  }

 private:
  // Without the scale of the loss.
  static std::vector<double> gradient(const StepDump& dump, const std::string& name) {
    const std::string scale_name = dumpTensorName({Result::Kind::kMeasure, "loss_scale", "", {}});
    const double scale = dump.has(scale_name) ? dump.read(scale_name).elements().at(0) : 1;
    std::vector<double> elements = dump.read(name).elements();
    for (double& element : elements) element /= scale;
    return elements;
  }

  // Norm and size of all those of its update, in float64.
  std::pair<double, int64_t> allGradients(Result result) const {
    result.name.clear();
    const std::string prefix = dumpTensorName(result);
    double squares = 0;
    int64_t size = 0;
    for (const std::string& name : wide_.names()) {
      if (!name.starts_with(prefix)) continue;
      for (const double element : gradient(wide_, name)) {
        squares += element * element;
        ++size;
      }
    }
    return {std::sqrt(squares), size};
  }

  const StepDump narrow_, wide_;
  const double floor_;
};

}  // namespace

OwnRounding ownRounding(const ValidationReport& report, const std::string& narrow, const std::string& wide,
                        double floor) {
  const OneDevice device(narrow, wide, floor);
  std::optional<OwnRounding> least;
  for (const TensorComparison& tensor : report.tensors) {
    if (tensor.passed()) continue;
    const std::optional<Result> result = resultOf(tensor);
    const OwnRounding own{tensor.name, tensor.error, result ? device.error(*result) : 0};
    if (!least || own.error * least->own > least->error * own.own) least = own;
  }
  return least.value_or(OwnRounding());
}

}  // namespace pipeshard
