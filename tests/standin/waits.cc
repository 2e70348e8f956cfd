#include "tests/standin/waits.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>

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

}  // namespace standin
