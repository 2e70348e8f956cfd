// The memory rows of a model, flattened: prices of rows moved into costs of nodes, and bytes in rows.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/solver/model.h"

namespace pipeshard::solver {

class Memory {
 public:
  explicit Memory(const Model& model);

  size_t rows() const { return capacity_.size(); }
  int64_t capacity(size_t row) const { return capacity_[row]; }

  // The price of a byte live in rows [0, row), for every row: what priceOf wants.
  std::vector<double> prefix(const std::vector<double>& prices) const;
  // Adds what the bytes of each label of the node cost.
  void addPrices(int32_t node, const std::vector<double>& prefix, double* costs) const;
  // Adds (sign 1) or takes away (-1) the bytes of the node's label, as changes between rows: `changes` has
  // rows() + 1 entries.
  void addUsage(int32_t node, int32_t label, int64_t sign, std::vector<int64_t>& changes) const;
  // Bytes in every row.
  std::vector<int64_t> usage(const std::vector<int32_t>& labels) const;

  // Adds the bytes of each label of the node in one row.
  void bytesIn(int32_t row, int32_t node, double* bytes) const;

  // Whether no row is over its capacity.
  bool fits(const std::vector<int32_t>& labels) const;

  bool hasItems(int32_t node) const { return begin_[node] < begin_[node + 1]; }

 private:
  struct Item {
    int32_t from, to;
    int64_t at;  // of its usages
  };
  std::vector<int64_t> capacity_;
  std::vector<int32_t> begin_;  // first item of each node
  std::vector<int32_t> size_;   // labels
  std::vector<Item> items_;
  std::vector<int64_t> usages_;
};

}  // namespace pipeshard::solver
