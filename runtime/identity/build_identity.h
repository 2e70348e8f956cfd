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

// Equal commits are the same build, whatever compiler made it; where one of the two has none, equal build
// ids. Versions must be equal in any case.
bool isSameBuild(const BuildIdentity& a, const BuildIdentity& b);

// For people: "0.1.0, commit d947b640e2c1" or "0.1.0, build a938088070d9".
std::string describeBuild(const BuildIdentity& build);

// Why a process with the build that `message` names ("build", as buildJson writes it) cannot take part; both
// builds are in it. Nothing when it can. A process that says nothing of its build is an older one.
std::optional<std::string> findBuildDifference(const nlohmann::json& message);
nlohmann::json buildJson(const BuildIdentity& build);

}  // namespace pipeshard
