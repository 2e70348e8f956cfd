#include "sharding/stage/cost_network.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "sharding/solver/solver.h"

namespace pipeshard {
namespace {

// Random tables over one to three variables, a third of which have one option.
CostNetwork randomNetwork(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t count) { return static_cast<int>(random() % count); };
  CostNetwork network;
  for (int variable = 0; variable < 9; ++variable)
    network.sizes.push_back(variable % 3 == 1 ? 1 : 2 + below(2));
  for (int entry = 0; entry < 14; ++entry) {
    NetworkTable table;
    for (int axis = 0; axis < 1 + below(3); ++axis) table.variables.push_back(below(9));
    std::sort(table.variables.begin(), table.variables.end());
    table.variables.erase(std::unique(table.variables.begin(), table.variables.end()), table.variables.end());
    CostTable costs;
    size_t count = 1;
    for (int variable : table.variables) {
      costs.sizes.push_back(network.sizes[variable]);
      count *= static_cast<size_t>(costs.sizes.back());
    }
    for (size_t i = 0; i < count; ++i) costs.costs.push_back(below(50));
    table.table = network.pool->add(std::move(costs));
    network.tables.push_back(std::move(table));
  }
  return network;
}

int64_t leastCost(const CostNetwork& network) {
  std::vector<int> choice(network.sizes.size(), 0);
  int64_t least = INT64_MAX;
  for (size_t place = 0; place < choice.size();) {
    least = std::min(least, network.cost(choice));
    for (place = 0; place < choice.size() && ++choice[place] == network.sizes[place]; ++place)
      choice[place] = 0;
  }
  return least;
}

TEST(CostNetwork, EliminationFindsTheLeastCost) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const CostNetwork network = randomNetwork(seed);
    const Elimination elimination(network, 1 << 16);
    ASSERT_TRUE(elimination.left().empty());
    EXPECT_EQ(network.cost(elimination.complete({})), leastCost(network)) << seed;
  }
}

// The sum of ten forbidden costs is beyond an int64, and no reason to choose what is forbidden.
TEST(CostNetwork, WhatTenTablesForbidDominatesNothing) {
  CostNetwork network;
  network.sizes = {2};
  for (int64_t cost = 0; cost < 10; ++cost)
    network.tables.push_back({{0}, network.pool->add({{2}, {cost, kForbiddenCost}})});
  const Elimination elimination(network, 1 << 16);
  EXPECT_EQ(elimination.complete({}), std::vector<int>{0});
}

// Else one of them that everything reads joins all that is around it into one table.
TEST(CostNetwork, VariablesOfOneOptionAreInNoTableThatIsLeft) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const CostNetwork network = randomNetwork(seed);
    const Elimination elimination(network, 0);
    for (int variable : elimination.left()) EXPECT_GT(network.sizes[variable], 1);
    const CostNetwork rest = elimination.remainder();
    EXPECT_EQ(std::count(rest.sizes.begin(), rest.sizes.end(), 1), 0);
    for (const NetworkTable& table : rest.tables)
      EXPECT_EQ(rest.pool->at(table.table).sizes.size(), table.variables.size());
  }
}

}  // namespace
}  // namespace pipeshard
