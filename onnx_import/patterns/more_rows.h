// An axis of one element may be the batch of one row, or one that is there at every size: the numbers of a
// graph of one row do not tell. The same graph with more rows does.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "ir/graph/graph.h"

namespace pipeshard {

// The graph as it is prepared for more rows of the batch, before patterns: with values of the same names.
// Nothing where the model takes no more.
using MakeMoreRows = std::function<std::optional<Graph>()>;

// Asks for that graph where a decision needs it, once. Where there is none, it knows nothing.
class MoreRows {
 public:
  MoreRows() = default;
  explicit MoreRows(MakeMoreRows make) : make_(std::move(make)) {}

  // Of the value of this name. nullptr: not known. The pointer stays valid.
  const Shape* shape(const std::string& name);
  // Whether a node still makes the value when patterns are recognised there. nullopt: not known.
  std::optional<bool> keeps(const std::string& name);

 private:
  void ask();

  MakeMoreRows make_;
  std::optional<Graph> graph_;
  std::map<std::string, Shape> shapes_;
  std::optional<std::set<std::string>> kept_;
};

}  // namespace pipeshard
