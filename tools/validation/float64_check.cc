#include "tools/validation/float64_check.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "planning/directory/plan_directory.h"
#include "planning/directory/replay.h"
#include "planning/programs/imported_gradients.h"
#include "runtime/validation/own_rounding.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// Of a plan directory, all that says what ranks compute: paths in it.
std::set<std::string> programFiles(const fs::path& directory) {
  std::set<std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    const fs::path path = entry.path().lexically_relative(directory);
    const std::string folder = path.parent_path().filename().string();
    const bool is_program = path.filename() == "ranks.json" || folder == "kinds" || folder == "subgraphs";
    if (entry.is_regular_file() && is_program) files.insert(path.string());
  }
  return files;
}

bool samePrograms(const fs::path& one, const fs::path& other) {
  const std::set<std::string> files = programFiles(one);
  if (files != programFiles(other)) return false;
  for (const std::string& file : files) {
    if (readTextFile((one / file).string()) != readTextFile((other / file).string())) return false;
  }
  return true;
}

void makePrograms(const Plan& plan, bool in_float64, const std::string& directory,
                  const std::function<void(const std::string&)>& progress) {
  writePlanDirectory(replayPlan(plan, progress, in_float64), directory);
}

// A float32 file's own gradients may be left out in float64.
std::ptrdiff_t comparedOurs(const ValidationReport& report) {
  return std::count_if(report.tensors.begin(), report.tensors.end(), [](const TensorComparison& tensor) {
    return tensor.kind != ComparedKind::kImportedGradient;
  });
}

Float64Check summaryOf(const ValidationReport& report) {
  Float64Check check;
  check.passed = report.withinBounds();
  check.compared = std::ssize(report.tensors);
  if (!report.tensors.empty()) check.worst = report.tensors.front();
  return check;
}

}  // namespace

std::string checkInFloat64(const Float64Request& request, ValidationReport& report,
                           const std::function<void(const std::string&)>& progress) {
  const bool is_narrow = isHalf(request.plan.given.precision);
  if (!mayBeRounding(report, is_narrow)) return "";
  progress(fmt::format("beyond {}'s bounds: the same plan in float64",
                       dataTypeName(request.plan.given.precision)));
  const fs::path scratch = request.scratch;
  const std::string again = (scratch / "again.plan").string(), wide = (scratch / "float64.plan").string();
  try {
    makePrograms(request.plan, false, again, progress);
    if (!samePrograms(again, request.plan_directory))
      return fmt::format("the programs in {} are not those that its plan.json makes", request.plan_directory);
    makePrograms(request.plan, true, wide, progress);
    ValidateSpec spec = request.spec;
    setPromisedBounds(DataType::kFloat64, spec);
    spec.planned.plan_directory = wide;
    spec.reference.plan_directory = wide + "/reference";
    const fs::path imported = fs::path(wide) / kImportedFolder;
    spec.imported = fs::exists(imported) ? imported.string() : "";
    spec.work_directory = (scratch / "float64.dump").string();
    const ValidationReport in_float64 = validate(spec, progress);
    if (comparedOurs(in_float64) != comparedOurs(report)) return "there other tensors are compared";
    Float64Check check = summaryOf(in_float64);
    if (is_narrow) {
      check.own = ownRounding(report, request.spec.work_directory + "/reference",
                              spec.work_directory + "/reference", request.spec.floor);
    }
    report.in_float64 = std::move(check);
  } catch (const JobInterrupted&) {
    throw;
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace pipeshard
