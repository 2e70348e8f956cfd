// Where profiles (ir/cluster/profile.h) are kept, and which one a command uses.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ir/cluster/profile.h"

namespace pipeshard {

// This machine's processor, with workers of so many threads each (0: one).
ProfiledDevice thisDevice(int threads = 0);

// A GPU, as its Device says: "cuda:0 (NVIDIA H100 PCIe)".
ProfiledDevice profiledGpu(const std::string& name);

// The file that `pipeshard profile` writes and others read unless told otherwise:
// $XDG_CONFIG_HOME/pipeshard/profile.json, else ~/.config/pipeshard/profile.json; "" where there is no home.
// Of GPUs
// (`backend`: "cuda") it is profile-cuda.json, which is used where --profile names it.
std::string defaultProfilePath(std::string_view backend = "");

struct StoredProfile {
  std::string path;
  Profile profile;
  std::string digest;
  std::shared_ptr<const OperatorTimes> times;
};

// Reads a profile. Error(kMissingInput) when there is no such file, and what profileFromJson throws.
StoredProfile readProfile(const std::string& path);
// Creates the folder. Error(kDiskFull) when it cannot be written.
void writeProfile(const Profile& profile, const std::string& path);

// What `--profile` says: "off"; a FILE, of whatever machine; "" is what the environment's PIPESHARD_PROFILE
// says, else the default file if it is there and of this machine. One that is not (another processor, another
// number of them) is passed over, and `note` says so.
std::optional<StoredProfile> chooseProfile(const std::string& asked, std::string* note = nullptr);

// The cluster's devices are those that were measured, where nothing is known of them: kinds with rates
// (presets, files) stay as they are, but for those of an earlier profile, in a plan that was read back.
// Returns whether something changed.
bool applyProfile(Cluster& cluster, const StoredProfile& profile);

}  // namespace pipeshard
