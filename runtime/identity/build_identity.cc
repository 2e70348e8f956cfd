#include "runtime/identity/build_identity.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

// Of the executable, which is the first that the linker tells of.
std::string readBuildId() {
  std::string id;
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* result) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_NOTE) continue;
          const auto* begin = reinterpret_cast<const std::byte*>(object->dlpi_addr + segment.p_vaddr);
          const std::string found = buildIdAmong({begin, segment.p_memsz});
          if (!found.empty()) *static_cast<std::string*>(result) = found;
        }
        return 1;
      },
      &id);
  return id;
}

std::string textAt(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

const BuildIdentity& thisBuild() {
  static const BuildIdentity build{kSourceVersion, kSourceCommit, readBuildId()};
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
  const BuildIdentity other{textAt(*said, "version"), textAt(*said, "commit"), textAt(*said, "id")};
  if (isSameBuild(own, other)) return std::nullopt;
  // Equal where one has a commit and the other none: then the build ids tell.
  BuildIdentity ours = own, theirs = other;
  if (own.commit.empty() != other.commit.empty()) ours.commit = theirs.commit = "";
  return fmt::format("it is pipeshard {}, the coordinator is {}; install one build everywhere",
                     describeBuild(theirs), describeBuild(ours));
}

}  // namespace pipeshard
