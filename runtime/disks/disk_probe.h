// Whether two hosts have the same folder: one puts a file with a random name there, the other looks for it.
#pragma once

#include <filesystem>
#include <string>

namespace pipeshard {

// Such a file, as long as this lives.
class DiskProbe {
 public:
  // Makes the folder. Errors as makeFolder; kDiskFull where the file cannot be written.
  explicit DiskProbe(std::filesystem::path folder);
  DiskProbe(const DiskProbe&) = delete;
  DiskProbe& operator=(const DiskProbe&) = delete;
  ~DiskProbe();

  const std::string& name() const { return name_; }  // kDiskProbe and 16 digits

 private:
  std::filesystem::path folder_;
  std::string name_;
};

// On the other host: whether its folder of that name is the one that has the probe.
bool seesProbe(const std::filesystem::path& folder, const std::string& probe);

}  // namespace pipeshard
