#include "runtime/identity/build_identity.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/files/hex.h"
#include "runtime/identity/source_version.h"

namespace pipeshard {
namespace {

constexpr size_t kShownDigits = 12;
constexpr size_t kNoteAlignment = 4;

// The description of the GNU build id among the notes of one segment.
std::string buildIdAmong(std::span<const std::byte> notes) {
  const auto padded = [](size_t bytes) {
    return (bytes + kNoteAlignment - 1) / kNoteAlignment * kNoteAlignment;
  };
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data(), sizeof note);
    const size_t name_at = sizeof note;
    const size_t description_at = name_at + padded(note.n_namesz);
    const size_t end = description_at + padded(note.n_descsz);
    if (end > notes.size()) return "";
    const bool is_gnu = note.n_namesz == sizeof ELF_NOTE_GNU &&
                        std::memcmp(&notes[name_at], ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0;
    if (is_gnu && note.n_type == NT_GNU_BUILD_ID) return toHex(notes.subspan(description_at, note.n_descsz));
    notes = notes.subspan(end);
  }
  return "";
}

bool holds(const dl_phdr_info& object, const void* address) {
  const auto at = reinterpret_cast<ElfW(Addr)>(address);
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[i];
    const ElfW(Addr) begin = object.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && at >= begin && at - begin < segment.p_memsz) return true;
  }
  return false;
}

struct WantedId {
  const void* address;
  std::string id;
};

std::string textAt(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

BuildIdentity buildFromJson(const nlohmann::json& object) {
  return {textAt(object, "version"), textAt(object, "commit"), textAt(object, "id")};
}

// Of two that are not the same: by what tells them apart.
std::pair<std::string, std::string> describeBoth(BuildIdentity a, BuildIdentity b) {
  // Equal where one has a commit and the other none: then the build ids tell.
  if (a.commit.empty() != b.commit.empty()) a.commit = b.commit = "";
  return {describeBuild(a), describeBuild(b)};
}

}  // namespace

std::string buildIdOf(const void* address) {
  WantedId wanted{address, ""};
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* data) {
        auto* const of = static_cast<WantedId*>(data);
        if (!holds(*object, of->address)) return 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_NOTE) continue;
          const auto* begin = reinterpret_cast<const std::byte*>(object->dlpi_addr + segment.p_vaddr);
          const std::string found = buildIdAmong({begin, segment.p_memsz});
          if (!found.empty()) of->id = found;
        }
        return 1;
      },
      &wanted);
  return wanted.id;
}

const BuildIdentity& thisBuild() {
  static const BuildIdentity build{kSourceVersion, kSourceCommit, buildIdOf(kSourceVersion)};
  return build;
}

bool isSameBuild(const BuildIdentity& a, const BuildIdentity& b) {
  if (a.version != b.version) return false;
  const bool by_commit = !a.commit.empty() && !b.commit.empty();
  return by_commit ? a.commit == b.commit : a.build_id == b.build_id;
}

std::string describeBuild(const BuildIdentity& build) {
  const bool by_commit = !build.commit.empty();
  const std::string& id = by_commit ? build.commit : build.build_id;
  if (id.empty()) return fmt::format("{}, of an unknown build", build.version);
  return fmt::format("{}, {} {}", build.version, by_commit ? "commit" : "build", id.substr(0, kShownDigits));
}

nlohmann::json buildJson(const BuildIdentity& build) {
  return {{"version", build.version}, {"commit", build.commit}, {"id", build.build_id}};
}

std::optional<std::string> findBuildDifference(const nlohmann::json& message) {
  const BuildIdentity& own = thisBuild();
  const auto said = message.find("build");
  if (said == message.end() || !said->is_object()) {
    return fmt::format(
        "it is an older pipeshard, which does not say what it is; this is {}; install one build everywhere",
        describeBuild(own));
  }
  const BuildIdentity other = buildFromJson(*said);
  if (isSameBuild(own, other)) return std::nullopt;
  const auto [theirs, ours] = describeBoth(other, own);
  return fmt::format("it is pipeshard {}, the coordinator is {}; install one build everywhere", theirs, ours);
}

void requireModuleOfThisBuild(const std::string& path, const BuildIdentity& module) {
  const BuildIdentity& own = thisBuild();
  const bool known = !module.commit.empty() && !own.commit.empty();
  if (module.version == own.version && (!known || module.commit == own.commit)) return;
  fail(ErrorCode::kVersionMismatch, "{} is of pipeshard {}, which is {}; build both again", path,
       describeBuild(module), describeBuild(own));
}

std::optional<std::string> RankComparison::add(const std::string& who, const nlohmann::json& message) {
  std::optional<std::string> other = addModule(who, message);
  return other ? other : addLibrary(who, message);
}

std::optional<std::string> RankComparison::addModule(const std::string& who, const nlohmann::json& message) {
  const auto said = message.find("module");
  if (said == message.end() || !said->is_object()) return std::nullopt;
  const BuildIdentity module = buildFromJson(*said);
  if (first_with_module_.empty()) {
    first_with_module_ = who;
    module_ = module;
  }
  if (isSameBuild(module_, module)) return std::nullopt;
  const auto [theirs, others] = describeBoth(module, module_);
  return fmt::format("{} computes with pipeshard_cuda.so {}, {} with {}; install one build everywhere", who,
                     theirs, first_with_module_, others);
}

std::optional<std::string> RankComparison::addLibrary(const std::string& who, const nlohmann::json& message) {
  const std::string library = textAt(message, "library"), device = textAt(message, "device");
  if (library.empty()) return std::nullopt;
  if (first_with_library_.empty()) {
    first_with_library_ = who;
    library_ = library;
    device_ = device;
  }
  if (library == library_) return std::nullopt;
  return fmt::format(
      "{} computes on {}, {} on {}: copies of what several ranks compute could differ in their last bits; "
      "give all hosts the same cuDNN, or set PIPESHARD_CUDNN=off on all",
      who, device, first_with_library_, device_);
}

}  // namespace pipeshard
