#include "ir/program/name_index.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace pipeshard {
namespace {

// As a set of strings does, from an index that expects nothing, and must grow, to one that is large enough.
TEST(NameIndex, RefusesExactlyTheNamesThatAreThere) {
  std::mt19937 random(1);
  for (const size_t expected : {0, 100, 20'000}) {
    NameIndex index(expected);
    std::set<std::string> known;
    std::vector<std::string> names;
    const auto name_of = [&](uint32_t position) { return std::string_view(names[position]); };
    for (int i = 0; i < 20'000; ++i) {
      const std::string name = "h" + std::to_string(random() % 3) + "@" + std::to_string(random() % 5'000);
      const bool is_new = known.insert(name).second;
      ASSERT_EQ(index.add(name, static_cast<uint32_t>(names.size()), name_of), is_new) << name;
      if (is_new) names.push_back(name);
    }
    EXPECT_GT(names.size(), 10'000);
  }
}

}  // namespace
}  // namespace pipeshard
