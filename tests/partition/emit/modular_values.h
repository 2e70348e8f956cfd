// What values hold in modular_execution.h, and what nodes give.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard::modular {

enum class Kind : uint8_t { kInvariant, kSplit, kSum };

struct Content {
  Kind kind = Kind::kInvariant;
  std::vector<uint64_t> rows;  // one entry unless split
  friend bool operator==(const Content&, const Content&) = default;
};
using Contents = std::map<std::string, Content>;  // by value name

void require(bool condition, const std::string& message);  // throws std::runtime_error

uint64_t hashOf(const std::string& name, const std::vector<uint64_t>& operands = {});
Content invariant(uint64_t number);

// The batch axis of a shape, and how many entries of it belong to one row; nothing in shapes without it.
struct BatchAxis {
  int axis = 0;
  int64_t per_row = 1;
  int64_t rows = 0;
};
std::optional<BatchAxis> batchAxis(const Shape& shape);
// The content is one that a tensor of the shape can hold.
void requireFits(const Content& content, const Shape& shape, const std::string& name);

// Of an in-memory constant: by its first element and, where it does not grow with the batch, its size.
Content constantContent(const Constant& constant);

// Adds, element by element.
void addTo(Content& sum, const Content& part);

// The node's outputs into `contents`, which holds its operands (other than constants of the graph, which it
// finds there). `update`: hashes whatever it reads.
void evaluate(const Graph& graph, const Node& node, bool update, Contents& contents);

}  // namespace pipeshard::modular
