#include "tests/standin/waits.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "tests/standin/lines.h"

namespace standin {
namespace {

// Of a worker, from its command line; -1: of another process.
int readRank() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, '\0');) {
    if (word == "--rank" && std::getline(words, word, '\0')) return std::atoi(word.c_str());
  }
  return -1;
}

struct Dropped {
  int rank = -2;
  long number = 0;
};

Dropped readDropped() {
  Dropped dropped;
  const char* text = std::getenv("STANDIN_DROP");
  if (text != nullptr && std::sscanf(text, "%d:%ld", &dropped.rank, &dropped.number) != 2) std::abort();
  return dropped;
}

}  // namespace

bool waitsAreWatched() {
  static const bool watched = std::getenv("STANDIN_WAITS") != nullptr;
  return watched;
}

bool isDropped(const std::string& what, bool implied) {
  if (!waitsAreWatched()) return false;
  static const int rank = readRank();
  static const Dropped asked = readDropped();
  static long number = 0;
  const std::lock_guard held(lock());
  ++number;
  const bool drops = asked.rank == rank && asked.number == number;
  std::FILE* file = std::fopen(std::getenv("STANDIN_WAITS"), "a");
  if (file == nullptr) std::abort();
  std::fprintf(file, "rank %d wait %ld %s%s: %s\n", rank, number, implied ? "implied" : "needed",
               drops ? " dropped" : "", what.c_str());
  std::fclose(file);
  return drops;
}

bool isBarrierDropped(const char* file, unsigned line) {
  static const char* const listed = std::getenv("STANDIN_BARRIERS");
  static const char* const asked = std::getenv("STANDIN_DROP_BARRIER");
  if (listed == nullptr && asked == nullptr) return false;
  const std::lock_guard held(lock());
  static std::map<std::pair<const char*, unsigned>, bool> known;
  const auto [found, is_new] = known.try_emplace({file, line});
  if (!is_new) return found->second;
  const std::string name = std::string(file) + ":" + std::to_string(line);
  if (listed != nullptr) {
    std::FILE* list = std::fopen(listed, "a");
    if (list == nullptr) std::abort();
    std::fprintf(list, "%s\n", name.c_str());
    std::fclose(list);
  }
  return found->second = asked != nullptr && name == asked;
}

}  // namespace standin
