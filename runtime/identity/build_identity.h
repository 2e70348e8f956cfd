// Which pipeshard a process is. Two that take part in one job must be the same one: what is computed, and how
// it is exchanged, is decided by both.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace pipeshard {

struct BuildIdentity {
  std::string version;  // "0.1.0"
  // Of the sources, in hexadecimal. "": not known (built outside of git, or from changed files).
  std::string commit;
  std::string build_id;  // what the linker has made of all object files, in hexadecimal; "": it made none
};

// Of this process.
const BuildIdentity& thisBuild();

// What the linker has made of the program or library that holds `address`; "": nothing.
std::string buildIdOf(const void* address);

// Equal commits are the same build, whatever compiler made it; where one of the two has none, equal build
// ids. Versions must be equal in any case.
bool isSameBuild(const BuildIdentity& a, const BuildIdentity& b);

// For people: "0.1.0, commit d947b640e2c1" or "0.1.0, build a938088070d9".
std::string describeBuild(const BuildIdentity& build);

// Why a process with the build that `message` names ("build", as buildJson writes it) cannot take part; both
// builds are in it. Nothing when it can. A process that says nothing of its build is an older one.
std::optional<std::string> findBuildDifference(const nlohmann::json& message);
nlohmann::json buildJson(const BuildIdentity& build);

// Libraries that are loaded into some of a job's processes: pipeshard_cuda.so. Error(kVersionMismatch) for
// one of other sources than this process: "build both again".
void requireModuleOfThisBuild(const std::string& path, const BuildIdentity& module);

// What ranks compute with, beside the program that all have: finds the first that has something else than
// others.
class RankComparison {
 public:
  // `message` of `who` ("rank 1 (host b)"): the module's build as "module"; the version of a library that
  // does the work of its kernels as "library", and all that is known of it as "device". Ranks without one say
  // nothing. What differs, with both builds or libraries and both names; nothing when nothing does.
  std::optional<std::string> add(const std::string& who, const nlohmann::json& message);

 private:
  std::optional<std::string> addModule(const std::string& who, const nlohmann::json& message);
  std::optional<std::string> addLibrary(const std::string& who, const nlohmann::json& message);

  std::string first_with_module_, first_with_library_;  // who; "": nobody yet
  BuildIdentity module_;
  std::string library_, device_;
};

}  // namespace pipeshard
