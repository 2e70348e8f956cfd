// The segments of a node's job: what its processes share, as file descriptors without a name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/base/ids.h"

namespace pipeshard {

// File descriptors of a job's segments: one for mailboxes and flags, one arena per rank (size 0 until the
// rank sizes it). Owned: closed on destruction. Not close-on-exec in the children that `inheritable` text is
// handed to.
class SharedSegments {
 public:
  static SharedSegments create(int size);
  // From the text of describe(), in a child that inherited the descriptors.
  static SharedSegments inherit(const std::string& description);
  SharedSegments(SharedSegments&&) noexcept;
  SharedSegments& operator=(SharedSegments&&) noexcept;
  ~SharedSegments();

  std::string describe() const;  // "control=5,arenas=6:7:8"
  // Such a text from its descriptors, that of the mailboxes first, and back; for who passes them on.
  static std::string describe(const std::vector<int>& descriptors);
  static std::vector<int> descriptorsIn(const std::string& description);
  int size() const;
  // What mailboxes and flags of so many ranks take: one segment, mapped by all of them. Beside it there are
  // only the arenas.
  static int64_t communicatorBytes(int size);
  // The same, as this segment has it.
  int64_t communicatorBytes() const;
  int controlDescriptor() const;
  int arenaDescriptor(RankId rank) const;

  // Marks a rank as dead (called by the launcher): every wait for it, in any process, ends with
  // Error(kPeerUnavailable).
  void markDead(RankId rank);

 private:
  SharedSegments() = default;
  int control_ = -1;
  std::vector<int> arenas_;
};

}  // namespace pipeshard
