#include "runtime/validation/validation_report.h"

#include <limits>
#include <tuple>

namespace pipeshard {

std::string_view comparedKindName(ComparedKind kind) {
  switch (kind) {
    case ComparedKind::kLoss: return "loss";
    case ComparedKind::kGradient: return "gradient";
    case ComparedKind::kParameter: return "parameter";
    case ComparedKind::kOptimizerState: return "optimizer state";
    case ComparedKind::kForwardState: return "forward state";
    case ComparedKind::kOutput: return "output";
    case ComparedKind::kMeasure: return "measure";
    case ComparedKind::kUpdatedParameter: return "updated parameter";
    case ComparedKind::kUpdatedState: return "updated state";
    case ComparedKind::kImportedGradient: return "gradient in the file";
  }
  return "unknown";
}

bool ValidationReport::withinBounds() const {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorComparison& tensor) { return tensor.passed(); });
}

const TensorComparison* ValidationReport::firstNotANumber() const {
  const TensorComparison* first = nullptr;
  for (const TensorComparison& tensor : tensors) {
    if (tensor.passed()) continue;
    if (!tensor.not_a_number) return nullptr;
    const auto key = [](const TensorComparison& x) { return std::tie(x.step, x.update, x.kind, x.name); };
    if (first == nullptr || key(tensor) < key(*first)) first = &tensor;
  }
  return first;
}

bool ValidationReport::passed() const {
  if (withinBounds()) return true;
  if (!in_float64 || !in_float64->passed) return false;
  const std::optional<OwnRounding>& own = in_float64->own;
  return mayBeRounding(*this, own.has_value()) && (!own || own->explains());
}

bool mayBeRounding(const ValidationReport& report, bool is_narrow) {
  const double most = is_narrow ? std::numeric_limits<double>::max() : 0.05;
  return !report.withinBounds() &&
         std::all_of(report.tensors.begin(), report.tensors.end(), [most](const TensorComparison& tensor) {
           const bool is_exact = tensor.kind == ComparedKind::kUpdatedParameter ||
                                 tensor.kind == ComparedKind::kUpdatedState ||
                                 tensor.kind == ComparedKind::kImportedGradient;
           return tensor.passed() || (!is_exact && tensor.error <= most);
         });
}

}  // namespace pipeshard
