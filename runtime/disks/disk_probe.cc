#include "runtime/disks/disk_probe.h"

#include <random>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {
namespace {

std::string newProbe() {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}", kDiskProbe, random(), random());
}

}  // namespace

DiskProbe::DiskProbe(std::filesystem::path folder) : folder_(std::move(folder)), name_(newProbe()) {
  makeFolder(folder_, FileAccess::kOwner);
  writeDurably(folder_ / name_, "");
}

DiskProbe::~DiskProbe() {
  std::error_code ignored;
  std::filesystem::remove(folder_ / name_, ignored);
}

bool seesProbe(const std::filesystem::path& folder, const std::string& probe) {
  std::error_code unseen;
  return std::filesystem::exists(folder / probe, unseen);
}

}  // namespace pipeshard
