// A lower bound of the pairwise problem by sequential tree-reweighted message passing, and labels that follow
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/solver/model.h"

namespace pipeshard::solver {

class Messages {
 public:
  // The model must be finished, and stay as it is. Its living nodes, in their order, have costs at offset().
  explicit Messages(const Model& model);

  const std::vector<int32_t>& nodes() const { return nodes_; }
  size_t offset(size_t i) const { return offsets_[i]; }
  size_t costCount() const { return offsets_.back(); }

  // One pass forth and one back with these costs of nodes. Returns a lower bound (without the model's
  // constant); messages are kept, so that the bound grows from call to call.
  double sweep(const std::vector<double>& costs);
  // Labels found while passing forth, each the best given those before.
  const std::vector<int32_t>& labels() const { return labels_; }
  // After sweep() with the same costs: by how much the bound rises, at least, when a node takes a label.
  std::vector<double> excess() const;
  // Entries that a sweep visits.
  int64_t work() const { return 2 * entries_; }

 private:
  struct Link {
    const double* table;  // this node's labels, by rows
    const double* other_table;
    int32_t edge;
    int32_t other;    // position
    int64_t in, out;  // of the messages to and from this node
  };
  struct Kernel;
  void pass(size_t position, const std::vector<double>& costs, bool forth);

  const Model& model_;
  std::vector<int32_t> nodes_;
  std::vector<size_t> offsets_;
  std::vector<int32_t> sizes_;
  std::vector<double> share_;  // of a node's costs that an edge gets
  std::vector<Link> links_;    // by node; those to earlier nodes first
  std::vector<int32_t> link_begin_, link_middle_;
  std::vector<double> messages_;
  std::vector<double> sums_;  // costs with all messages, less their least, when a node was passed last
  std::vector<double> scratch_;
  std::vector<int32_t> labels_;
  double bound_ = 0;
  int64_t entries_ = 0;
};

}  // namespace pipeshard::solver
