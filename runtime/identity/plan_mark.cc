#include "runtime/identity/plan_mark.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/content_hash.h"
#include "runtime/identity/plan_programs.h"

namespace pipeshard {

std::string planMark(const std::string& plan_directory) {
  namespace fs = std::filesystem;
  std::vector<std::string> names = {"plan.json", kRanksFileName, kProgramsRecordName};
  std::error_code ignored;  // without kinds/ there are none
  for (fs::directory_iterator entry(fs::path(plan_directory) / kKindsFolder, ignored), end;
       !ignored && entry != end; entry.increment(ignored))
    names.push_back(fmt::format("{}/{}", kKindsFolder, entry->path().filename().string()));
  std::ranges::sort(names);
  std::string text;
  for (const std::string& name : names) {
    const std::optional<std::string> file = readTextFile((fs::path(plan_directory) / name).string());
    text += fmt::format("{} {}\n", name, file ? hashText(contentHash(*file)) : "");
  }
  return hashText(contentHash(text));
}

void requireSamePlan(const std::string& plan_directory, const std::string& mark,
                     const std::string& checkpoint) {
  if (mark.empty() || planMark(plan_directory) == mark) return;
  fail(ErrorCode::kVersionMismatch,
       "the plan {} was replaced while this run used it{}; plan into another folder", plan_directory,
       checkpoint.empty() ? "" : fmt::format(": its last checkpoint is {}", checkpoint));
}

}  // namespace pipeshard
