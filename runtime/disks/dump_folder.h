// The folder of a job's dumps (runtime/execute/dump.h): ranks of all hosts write into one, and whoever reads
// it reads the files of all ranks. So hosts share it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "runtime/disks/disk_probe.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {

// Makes the folder, for its owner alone, and takes its lock: for whoever holds it over several jobs, each of
// which writes into a folder in it. Errors as FolderLock.
FolderLock lockDumps(const std::filesystem::path& folder);

// The coordinator's: held for one job.
class DumpFolder {
 public:
  // By lockDumps. `several_hosts`: with a probe for the others. Errors as FolderLock and DiskProbe.
  DumpFolder(std::filesystem::path folder, bool several_hosts);

  // For requireSameDumps; "": there is one host.
  std::string probe() const { return probe_ ? probe_->name() : ""; }

  // Takes out what is there of the steps from `first` to `last`, of any rank: they are done now, or again,
  // maybe on fewer ranks. What was taken out, for people; "": nothing. Error(kDiskFull).
  std::string clear(int64_t first, int64_t last) const;

 private:
  void sweep() const;

  std::filesystem::path folder_;
  FolderLock lock_;
  std::optional<DiskProbe> probe_;
};

// On the host of a rank, before it loads anything: Error(kConfiguration), with what to do, where `folder` is
// not the one that the coordinator has put the probe into. `probe` "": not asked.
void requireSameDumps(const std::string& folder, const std::string& probe);

}  // namespace pipeshard
