#include "runtime/disks/dump_folder.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/execute/dump.h"

namespace pipeshard {
namespace {

std::vector<std::string> namesIn(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) fail(ErrorCode::kDiskFull, "cannot read the folder {}: {}", folder.string(), error.message());
  return names;
}

}  // namespace

FolderLock lockDumps(const std::filesystem::path& folder) {
  makeFolder(folder, FileAccess::kOwner);
  return {folder / "lock", folder, "another job writes its tensors into"};
}

DumpFolder::DumpFolder(std::filesystem::path folder, bool several_hosts) : folder_(std::move(folder)) {
  lock_ = lockDumps(folder_);
  sweep();
  if (several_hosts) probe_.emplace(folder_);
}

// Probes of those that were killed.
void DumpFolder::sweep() const {
  for (const std::string& name : namesIn(folder_)) {
    if (std::error_code ignored; name.starts_with(kDiskProbe))
      std::filesystem::remove(folder_ / name, ignored);
  }
}

std::string DumpFolder::clear(int64_t first, int64_t last) const {
  std::optional<int64_t> least, most;
  for (const std::string& name : namesIn(folder_)) {
    const std::optional<int64_t> step = stepOfDump(name);
    if (!step || *step < first || *step > last) continue;
    std::error_code error;
    std::filesystem::remove(folder_ / name, error);
    if (error) {
      fail(ErrorCode::kDiskFull,
           "cannot remove {}, which an earlier run has left of a step that is to be done: {}",
           (folder_ / name).string(), error.message());
    }
    least = std::min(least.value_or(*step), *step);
    most = std::max(most.value_or(*step), *step);
  }
  if (!least) return "";
  return fmt::format("dumps in {}: what was there of step{} {}{} is taken out; {} done again",
                     folder_.string(), *least == *most ? "" : "s", *least,
                     *least == *most ? "" : fmt::format(" to {}", *most),
                     *least == *most ? "it is" : "they are");
}

void requireSameDumps(const std::string& folder, const std::string& probe) {
  if (probe.empty() || seesProbe(folder, probe)) return;
  fail(ErrorCode::kConfiguration,
       "{} is on this host not the folder that the coordinator has under this name. The tensors that ranks "
       "write (--dump, --outputs, what `validate` compares) go into one folder, which all hosts must share: "
       "name one with --dump; without it they go into the folder that the command was started in",
       folder);
}

}  // namespace pipeshard
