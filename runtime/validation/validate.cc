#include "runtime/validation/validate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "runtime/execute/dump.h"
#include "runtime/identity/plan_mark.h"
#include "runtime/job/coordinator.h"
#include "runtime/validation/update_check.h"

namespace pipeshard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> toDoubles(DataType type, const std::vector<std::byte>& bytes) {
  return numericElements(Constant{type, {}, bytes});
}

double norm(std::span<const double> elements) {
  double sum = 0;
  for (double x : elements) sum += x * x;
  return std::sqrt(sum);
}

// What is not finite on either side, and in the same way, becomes 0 on both. Whether there is any that may
// not be: an output may have infinities (a mask).
bool takeOutNotANumber(std::vector<double>& got, std::vector<double>& want, bool of_output = false) {
  bool found = false;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const bool same_infinity = std::isinf(want[i]) && got[i] == want[i];
    if (!same_infinity && !(std::isnan(got[i]) && std::isnan(want[i]))) continue;
    got[i] = want[i] = 0;
    found = found || !same_infinity || !of_output;
  }
  return found;
}

void clearNotANumber(std::vector<double>& elements) {
  std::replace_if(
      elements.begin(), elements.end(), [](double x) { return !std::isfinite(x); }, 0.0);
}

double largestDifference(std::span<const double> got, std::span<const double> want) {
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(got[i] - want[i]);
    if (!(difference <= largest)) largest = std::isnan(difference) ? kInfinity : difference;
  }
  return largest;
}

// What rounding alone may do to a sum of what was there `before` and something else.
double roundingOf(double want, double before, double unit) {
  return 2 * unit * std::max(std::abs(want), std::abs(before));
}

// The largest |got - want| beyond `rounding` of the element, relative to `measure` of it; elements where that
// is far below the tensor's largest are judged against a thousandth of the largest.
template <typename Rounding, typename Measure>
double largestBeyondRounding(std::span<const double> got, std::span<const double> want,
                             const Rounding& rounding, const Measure& measure) {
  double scale = 0;
  for (size_t i = 0; i < want.size(); ++i) scale = std::max(scale, measure(i));
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    const double beyond = std::abs(got[i] - want[i]) - rounding(i);
    if (beyond <= 0) continue;
    const double error = beyond / std::max(measure(i), scale * 1e-3);
    if (!(error <= largest)) largest = std::isnan(error) ? kInfinity : error;
  }
  return largest;
}

ComparedKind comparedKind(Result::Kind kind) {
  switch (kind) {
    case Result::Kind::kLoss: return ComparedKind::kLoss;
    case Result::Kind::kGradient: return ComparedKind::kGradient;
    case Result::Kind::kParameter: return ComparedKind::kParameter;
    case Result::Kind::kOptimizerState: return ComparedKind::kOptimizerState;
    case Result::Kind::kForwardState: return ComparedKind::kForwardState;
    case Result::Kind::kOutput: return ComparedKind::kOutput;
    case Result::Kind::kMeasure: return ComparedKind::kMeasure;
  }
  return ComparedKind::kLoss;
}

// Norm and size of all tensors of one kind in one step: the floor of the measure.
struct KindTotal {
  double squares = 0;
  int64_t size = 0;
};

class Comparison {
 public:
  Comparison(const ValidateSpec& spec, std::vector<Result> results, ValidationReport& report)
      : spec_(spec), results_(std::move(results)), report_(report) {}

  // Against the single device, by the measure. Of a step that both have left out, what it leaves behind.
  void compareStep(int step, const StepDump& planned, const StepDump& reference) {
    std::vector<Result> results = resultsOf(planned, reference);
    requireSameTensors(results, planned, reference);
    if (isLeftOut(planned) && isLeftOut(reference)) {
      std::erase_if(results, [](const Result& result) { return !isKept(result); });
      report_.left_out.push_back(step);
    }
    std::map<Result::Kind, KindTotal> totals;
    for (const Result& result : results) {
      std::vector<double> want = read(reference, result);
      clearNotANumber(want);
      KindTotal& total = totals[result.kind];
      total.squares += std::pow(norm(want), 2);
      total.size += std::ssize(want);
    }
    for (const Result& result : results) {
      std::vector<double> got = read(planned, result);
      std::vector<double> want = read(reference, result);
      PIPESHARD_CHECK(got.size() == want.size(), "{} has {} elements, on one device {}",
                      dumpTensorName(result), got.size(), want.size());
      if (result.kind == Result::Kind::kLoss)
        report_.steps.push_back({got.at(0), want.at(0), step, result.update});
      const bool not_a_number = takeOutNotANumber(got, want, result.kind == Result::Kind::kOutput);
      const KindTotal& total = totals[result.kind];
      TensorComparison entry = describe(comparedKind(result.kind), result, step);
      entry.error = relativeError(got, want, std::sqrt(total.squares), total.size, spec_.floor);
      entry.largest_difference = largestDifference(got, want);
      const bool of_update =
          result.kind == Result::Kind::kParameter || result.kind == Result::Kind::kOptimizerState;
      entry.bound = of_update && spec_.adaptive ? kInfinity : spec_.bound;
      add(std::move(entry), not_a_number);
    }
  }

  // The gradients that the model was exported with, of the first step; it may have them of parameters that
  // are not trained here.
  void compareImported(const StepDump& imported, const StepDump& reference) {
    std::map<std::string, std::vector<double>> wants;
    KindTotal total;
    const std::vector<std::string> names = imported.names();
    for (const Result& result : results_) {
      const std::string name = dumpTensorName(result);
      if (result.kind != Result::Kind::kGradient ||
          std::find(names.begin(), names.end(), name) == names.end())
        continue;
      const std::vector<double>& want = wants[name] = read(imported, result);
      total.squares += std::pow(norm(want), 2);
      total.size += std::ssize(want);
    }
    const double scale = lossScaleOf(reference);
    for (const Result& result : results_) {
      const auto want = wants.find(dumpTensorName(result));
      if (want == wants.end()) continue;
      std::vector<double> got = read(reference, result);
      for (double& element : got) element /= scale;
      std::vector<double> of_file = want->second;
      const bool not_a_number = takeOutNotANumber(got, of_file);
      TensorComparison entry = describe(ComparedKind::kImportedGradient, result, 1);
      entry.error = relativeError(got, of_file, std::sqrt(total.squares), total.size, spec_.floor);
      entry.largest_difference = got.size() == of_file.size() ? largestDifference(got, of_file) : kInfinity;
      entry.bound = spec_.imported_bound;
      add(std::move(entry), not_a_number);
    }
  }

  // The planned job's update against the single-device update program on the planned job's own gradients.
  // `update` holds the parameters and states before the step, and afterwards those after it.
  void compareUpdate(int step, const StepDump& planned, UpdateOnly& update) {
    if (isLeftOut(planned)) return requireNoChange(step, planned, update);
    std::map<std::string, std::vector<std::byte>> before;
    for (const Result& result : update.results()) {
      if (isUpdated(result)) before[dumpTensorName(result)] = bytesOf(update, result);
    }
    update.run(step, [&](int number) { giveGradients(number, planned, update); });
    for (const Result& result : update.results()) {
      if (!isUpdated(result)) continue;
      const bool parameter = result.kind == Result::Kind::kParameter;
      std::vector<double> got = read(planned, result);
      std::vector<double> want = contentOf(update, result);
      std::vector<double> old = doublesBefore(before, update, result);
      const bool not_a_number = takeOutNotANumber(got, want);
      if (not_a_number) clearNotANumber(old);
      TensorComparison entry =
          describe(parameter ? ComparedKind::kUpdatedParameter : ComparedKind::kUpdatedState, result, step);
      const double unit = unitOf(update, result);
      entry.error = parameter
                        ? largestUpdateDifference(got, want, old, unit,
                                                  uncertaintyOfChange(result, want.size(), before, update))
                        : largestStateDifference(got, want, old, unit);
      entry.largest_difference = largestDifference(got, want);
      entry.bound = spec_.update_bound;
      add(std::move(entry), not_a_number);
    }
    for (const Result& result : update.results()) {
      if (isUpdated(result)) adopt(planned, result, update);
    }
  }

  static void adopt(const StepDump& planned, const Result& result, UpdateOnly& update) {
    readResult(planned, result, update.buffer(result), update.content(result));
  }

 private:
  // `not_a_number`: the entry compares the rest alone.
  void add(TensorComparison entry, bool not_a_number) {
    if (not_a_number && entry.passed()) {
      entry.not_a_number = true;
      entry.error = entry.largest_difference = kInfinity;
    }
    report_.tensors.push_back(std::move(entry));
  }
  static std::optional<double> measureOf(const StepDump& dump, const char* name) {
    const std::string tensor = dumpTensorName({Result::Kind::kMeasure, name, "", {}});
    if (!dump.has(tensor)) return std::nullopt;
    return dump.read(tensor).elements().at(0);
  }
  // Of float16: the norm of its gradients is not finite, so that no rank has applied it.
  static bool isLeftOut(const StepDump& dump) {
    return measureOf(dump, "loss_scale") && !std::isfinite(measureOf(dump, "gradient_norm").value_or(0));
  }
  static double lossScaleOf(const StepDump& dump) { return measureOf(dump, "loss_scale").value_or(1); }
  static bool isKept(const Result& result) {
    return isUpdated(result) || result.kind == Result::Kind::kForwardState ||
           (result.kind == Result::Kind::kMeasure && result.name == "loss_scale");
  }

  static bool isUpdated(const Result& result) {
    return result.kind == Result::Kind::kParameter || result.kind == Result::Kind::kOptimizerState;
  }
  static double unitOf(UpdateOnly& update, const Result& result) {
    return update.buffer(result).data_type == DataType::kFloat64 ? 0x1p-52 : 0x1p-23;
  }

  // Of a parameter's change, relative to it: what is made of a state, where old state and gradient have
  // cancelled, is known no better than the state. `update` has the states after the step.
  static std::vector<double> uncertaintyOfChange(const Result& parameter, size_t size,
                                                 const std::map<std::string, std::vector<std::byte>>& before,
                                                 UpdateOnly& update) {
    std::vector<double> uncertainty;
    for (const Result& result : update.results()) {
      if (result.kind != Result::Kind::kOptimizerState || result.name != parameter.name) continue;
      const std::vector<double> want = contentOf(update, result);
      if (want.size() != size) continue;
      const std::vector<double> old = doublesBefore(before, update, result);
      uncertainty.resize(size);
      for (size_t i = 0; i < size; ++i) {
        if (want[i] == 0) continue;
        const double of_state = roundingOf(want[i], old[i], unitOf(update, result)) / std::abs(want[i]);
        if (of_state > uncertainty[i]) uncertainty[i] = of_state;
      }
    }
    return uncertainty;
  }

  // A step that was left out leaves parameters and states as they were, to the bit.
  void requireNoChange(int step, const StepDump& planned, UpdateOnly& update) {
    for (const Result& result : update.results()) {
      if (!isUpdated(result)) continue;
      const bool parameter = result.kind == Result::Kind::kParameter;
      const std::vector<double> got = read(planned, result), before = contentOf(update, result);
      TensorComparison entry =
          describe(parameter ? ComparedKind::kUpdatedParameter : ComparedKind::kUpdatedState, result, step);
      entry.error = got == before ? 0 : kInfinity;
      entry.largest_difference = largestDifference(got, before);
      entry.bound = spec_.update_bound;
      report_.tensors.push_back(std::move(entry));
    }
  }

  // Those of the step's update of that number, and what they are scaled with.
  static void giveGradients(int number, const StepDump& planned, UpdateOnly& update) {
    for (const Result& result : update.results()) {
      const bool given = result.kind == Result::Kind::kGradient || result.kind == Result::Kind::kMeasure;
      if (!given || std::max(0, result.update) != number) continue;
      readResult(planned, result, update.buffer(result), update.content(result));
    }
  }

  // A shorter last batch may have fewer microbatches, and fewer outputs on both sides.
  std::vector<Result> resultsOf(const StepDump& planned, const StepDump& reference) const {
    std::vector<Result> results = results_;
    std::erase_if(results, [&](const Result& result) {
      const std::string name = dumpTensorName(result);
      return result.kind == Result::Kind::kOutput && result.microbatch > 0 && !planned.has(name) &&
             !reference.has(name);
    });
    return results;
  }

  // A tensor that one side lacks would be compared with nothing.
  static void requireSameTensors(const std::vector<Result>& results, const StepDump& planned,
                                 const StepDump& reference) {
    std::set<std::string> expected;
    for (const Result& result : results) expected.insert(dumpTensorName(result));
    for (const auto& [dump, what] :
         {std::pair(&planned, "planned job"), std::pair(&reference, "single-device job")}) {
      const std::set<std::string> names(dump->names().begin(), dump->names().end());
      for (const std::string& name : expected) {
        if (!names.contains(name))
          fail(ErrorCode::kInternal, "the {} left no tensor '{}'; the plan directory is damaged: plan again",
               what, name);
      }
      for (const std::string& name : names) {
        if (!expected.contains(name)) {
          fail(ErrorCode::kInternal,
               "the {} left a tensor '{}' that the single-device program does not list; the plan directory "
               "is damaged: plan again",
               what, name);
        }
      }
    }
  }

  static TensorComparison describe(ComparedKind kind, const Result& result, int step) {
    TensorComparison entry;
    entry.kind = kind;
    entry.name = result.name;
    entry.state = result.state;
    entry.step = step;
    entry.update = result.update;
    entry.microbatch = result.microbatch;
    return entry;
  }

  static std::vector<std::byte> bytesOf(UpdateOnly& update, const Result& result) {
    return dumpedContent(result, update.buffer(result), update.content(result));
  }
  static std::vector<double> contentOf(UpdateOnly& update, const Result& result) {
    return toDoubles(update.buffer(result).data_type, bytesOf(update, result));
  }
  static std::vector<double> doublesBefore(const std::map<std::string, std::vector<std::byte>>& before,
                                           UpdateOnly& update, const Result& result) {
    return toDoubles(update.buffer(result).data_type, before.at(dumpTensorName(result)));
  }

  static std::vector<double> read(const StepDump& dump, const Result& result) {
    return dump.read(dumpTensorName(result)).elements();
  }

  const ValidateSpec& spec_;
  std::vector<Result> results_;
  ValidationReport& report_;
};

}  // namespace

double largestUpdateDifference(std::span<const double> got, std::span<const double> want,
                               std::span<const double> before, double unit,
                               std::span<const double> uncertainty) {
  const auto change = [&](size_t i) { return std::abs(want[i] - before[i]); };
  const auto rounding = [&](size_t i) {
    return roundingOf(want[i], before[i], unit) + (uncertainty.empty() ? 0 : uncertainty[i] * change(i));
  };
  return largestBeyondRounding(got, want, rounding, change);
}

double largestStateDifference(std::span<const double> got, std::span<const double> want,
                              std::span<const double> before, double unit) {
  return largestBeyondRounding(
      got, want, [&](size_t i) { return roundingOf(want[i], before[i], unit); },
      [&](size_t i) { return std::abs(want[i]); });
}

void setPromisedBounds(DataType precision, ValidateSpec& spec) {
  spec.bound = precision == DataType::kFloat64 ? 1e-11 : isHalf(precision) ? 1e-1 : 1e-5;
  spec.update_bound = precision == DataType::kFloat64 ? 1e-12 : 1e-6;
  spec.imported_bound = isHalf(precision) ? spec.bound : 10 * spec.bound;
}

double relativeError(std::span<const double> got, std::span<const double> want, double all_wants_norm,
                     int64_t all_wants_size, double floor) {
  if (got.size() != want.size()) return kInfinity;
  double squares = 0;
  for (size_t i = 0; i < got.size(); ++i) squares += (got[i] - want[i]) * (got[i] - want[i]);
  if (squares == 0) return 0;
  const double share =
      std::sqrt(static_cast<double>(want.size()) / static_cast<double>(std::max<int64_t>(1, all_wants_size)));
  const double error = std::sqrt(squares) / std::max(norm(want), floor * all_wants_norm * share);
  return std::isnan(error) ? kInfinity : error;
}

namespace {

void sortWorstFirst(std::vector<TensorComparison>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorComparison& a, const TensorComparison& b) {
    const auto badness = [](const TensorComparison& tensor) {
      return std::isinf(tensor.bound) ? 0 : tensor.error / tensor.bound;
    };
    if (badness(a) != badness(b)) return badness(a) > badness(b);
    return std::tie(a.kind, a.name, a.state, a.step, a.update, a.microbatch) <
           std::tie(b.kind, b.name, b.state, b.step, b.update, b.microbatch);
  });
}

// Both jobs write every result of every step before anything is compared.
void checkDiskSpace(const ValidateSpec& spec, const Program& reference) {
  int64_t bytes_per_step = 0;
  for (const Result& result : reference.results) {
    const Buffer& buffer = reference.buffer(result.buffer);
    bytes_per_step += byteCount(buffer.data_type, buffer.shape);
  }
  std::error_code error;
  std::filesystem::create_directories(spec.work_directory, error);
  if (error || !std::filesystem::is_directory(spec.work_directory)) {
    fail(ErrorCode::kDiskFull, "no folder can be made at {}: {}", spec.work_directory,
         error ? error.message() : "something else is there");
  }
  const double needed = 2.0 * static_cast<double>(bytes_per_step) * static_cast<double>(spec.planned.steps);
  const auto available = static_cast<double>(std::filesystem::space(spec.work_directory).available);
  if (needed > available) {
    fail(ErrorCode::kDiskFull,
         "comparing {} steps needs {} in {}, which has {} free; take fewer --steps, or name a folder on a "
         "larger disk with --dump",
         spec.planned.steps, formatBytes(static_cast<int64_t>(std::min(needed, 0x1p62))), spec.work_directory,
         formatBytes(static_cast<int64_t>(std::min(available, 0x1p62))));
  }
}

// planMark of each plan directory.
std::map<std::string, std::string> marksOf(const ValidateSpec& spec) {
  std::map<std::string, std::string> marks;
  for (const std::string& directory :
       {spec.planned.plan_directory, spec.reference.plan_directory, spec.imported}) {
    if (!directory.empty()) marks[directory] = planMark(directory);
  }
  return marks;
}

}  // namespace

ValidationReport validate(const ValidateSpec& spec, const std::function<void(const std::string&)>& progress) {
  ValidationReport report;
  const std::map<std::string, std::string> marks = marksOf(spec);
  const auto run = [&](JobSpec job, const std::string& what) {
    job.plan_mark = marks.at(job.plan_directory);
    job.dump_directory = spec.work_directory + "/" + what;
    job.dump = {.gradients = true, .parameters = true, .states = true, .outputs = true};
    return runJob(job, [&](const JobProgress& event) {
      if (event.kind == JobProgress::Kind::kNodeJoined)
        progress(fmt::format("node {} joined: host {}", event.node, event.host));
      if (event.kind == JobProgress::Kind::kNotice) progress(event.text);
      if (event.kind != JobProgress::Kind::kStep) return;
      progress(fmt::format("{}: step {} of {}{}", what, event.step, job.steps,
                           event.loss ? fmt::format(", loss {:.6g}", *event.loss) : ""));
    });
  };
  RankImage image = loadRank(spec.reference.plan_directory, RankId(0));
  checkDiskSpace(spec, image.program);
  progress("all ranks: starting");
  report.planned = run(spec.planned, "planned");
  report.ranks = report.planned.ranks.size();
  progress("one device: starting");
  JobSpec reference = spec.reference;
  if (spec.adaptive || spec.same_start) {
    reference.adopt_directory = spec.work_directory + "/planned";
    reference.adopt_ranks = report.ranks;
  }
  report.reference = run(reference, "reference");

  if (!spec.imported.empty()) {
    progress("gradients of the file: starting");
    JobSpec imported = spec.reference;
    imported.plan_directory = spec.imported;
    imported.steps = 1;
    run(imported, "imported");
  }

  Comparison comparison(spec, image.program.results, report);
  UpdateOnly update(
      std::move(image),
      spec.planned.data.seed);  // holds the initial weights, as both jobs did before their first step
  for (int step = 1; step <= spec.planned.steps; ++step) {
    progress(fmt::format("comparing step {}", step));
    const StepDump planned = StepDump::open(spec.work_directory + "/planned", step, report.ranks);
    const StepDump reference = StepDump::open(spec.work_directory + "/reference", step, 1);
    comparison.compareStep(step, planned, reference);
    comparison.compareUpdate(step, planned, update);
    if (step == 1 && !spec.imported.empty())
      comparison.compareImported(StepDump::open(spec.work_directory + "/imported", 1, 1), reference);
  }
  sortWorstFirst(report.tensors);
  return report;
}

}  // namespace pipeshard
