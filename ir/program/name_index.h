// Whether names are taken, of lists of a million: a table of positions, 8 bytes each, where a set of strings
// would have a block of memory for every name. The names stay where they are.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace pipeshard {

class NameIndex {
 public:
  explicit NameIndex(size_t expected = 0) {
    size_t slots = 16;
    while (slots < 2 * expected) slots *= 2;
    slots_.resize(slots);
  }

  // Adds the name at this position; false: `name_of` another position is the same, and nothing is added.
  // name_of(position) is a name that was added, as a std::string_view.
  template <typename NameOf>
  bool add(std::string_view name, uint32_t position, const NameOf& name_of) {
    if (2 * (size_ + 1) > slots_.size()) grow(name_of);
    const uint64_t hash = std::hash<std::string_view>()(name);
    Slot* slot = &slots_[hash & (slots_.size() - 1)];
    for (; slot->used; slot = next(slot)) {
      if (slot->tag == tagOf(hash) && std::string_view(name_of(slot->position)) == name) return false;
    }
    *slot = {position, tagOf(hash), 1};
    ++size_;
    return true;
  }

 private:
  struct Slot {
    uint32_t position = 0;
    uint32_t tag : 31 = 0;  // of the hash, so that most names need not be looked at
    uint32_t used : 1 = 0;
  };

  static uint32_t tagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 33); }
  Slot* next(Slot* slot) { return slot + 1 == slots_.data() + slots_.size() ? slots_.data() : slot + 1; }

  template <typename NameOf>
  void grow(const NameOf& name_of) {
    std::vector<Slot> before(2 * slots_.size());
    before.swap(slots_);
    for (const Slot& old : before) {
      if (!old.used) continue;
      const uint64_t hash = std::hash<std::string_view>()(std::string_view(name_of(old.position)));
      Slot* slot = &slots_[hash & (slots_.size() - 1)];
      while (slot->used) slot = next(slot);
      *slot = old;
    }
  }

  std::vector<Slot> slots_;  // a power of two; at most half are used
  size_t size_ = 0;
};

}  // namespace pipeshard
