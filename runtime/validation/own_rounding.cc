#include "runtime/validation/own_rounding.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
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

  double error(const Result& result) {
    if (result.kind == Result::Kind::kGradient) return worstGradient(result.update);
    const std::string name = dumpTensorName(result);
    if (!narrow_.has(name) || !wide_.has(name)) return 0;
    return relativeError(narrow_.read(name).elements(), wide_.read(name).elements(), 0, 0, floor_);
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

  // Of all those of an update.
  double worstGradient(int update) {
    const auto [found, is_new] = worst_gradients_.try_emplace(update, 0);
    if (!is_new) return found->second;
    Result any;
    any.kind = Result::Kind::kGradient;
    any.update = update;
    std::vector<std::string> names;
    std::copy_if(wide_.names().begin(), wide_.names().end(), std::back_inserter(names),
                 [this, prefix = dumpTensorName(any)](const std::string& name) {
                   return name.starts_with(prefix) && narrow_.has(name);
                 });
    double squares = 0;
    int64_t size = 0;
    for (const std::string& name : names) {
      for (const double element : gradient(wide_, name)) {
        squares += element * element;
        ++size;
      }
    }
    for (const std::string& name : names) {
      found->second = std::max(found->second, relativeError(gradient(narrow_, name), gradient(wide_, name),
                                                            std::sqrt(squares), size, floor_));
    }
    return found->second;
  }

  const StepDump narrow_, wide_;
  const double floor_;
  std::map<int, double> worst_gradients_;  // by update
};

}  // namespace

OwnRounding ownRounding(const ValidationReport& report, const std::string& narrow, const std::string& wide,
                        double floor) {
  OneDevice device(narrow, wide, floor);
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
