#include "sharding/solver/messages.h"

#include <algorithm>

#include "sharding/solver/simd.h"

namespace pipeshard::solver {

Messages::Messages(const Model& model) : model_(model), labels_(model.nodes.size(), 0) {
  std::vector<int32_t> position(model.nodes.size(), -1);
  offsets_.assign(1, 0);
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    if (model.nodes[i].size() == 0) continue;
    position[i] = nodes_.size();
    nodes_.push_back(i);
    sizes_.push_back(model.nodes[i].size());
    offsets_.push_back(offsets_.back() + sizes_.back());
  }
  std::vector<int64_t> to_a(model.edges.size()), to_b(model.edges.size());
  int64_t messages = 0;
  for (size_t i = 0; i < model.edges.size(); ++i) {
    if (model.edges[i].a < 0) continue;
    to_a[i] = messages;
    to_b[i] = messages + model.nodes[model.edges[i].a].size();
    messages = to_b[i] + model.nodes[model.edges[i].b].size();
    entries_ += std::ssize(model.edges[i].table);
  }
  messages_.assign(messages, 0);
  sums_.assign(offsets_.back(), 0);
  int32_t widest = 0;
  for (int32_t i = 0; i < std::ssize(nodes_); ++i) {
    link_begin_.push_back(links_.size());
    std::vector<Link> later;
    for (const int32_t id : model.nodes[nodes_[i]].edges) {
      const ModelEdge& edge = model.edges[id];
      const bool first = edge.a == nodes_[i];
      const Link link{first ? edge.table.data() : edge.transposed.data(),
                      first ? edge.transposed.data() : edge.table.data(),
                      id,
                      position[edge.other(nodes_[i])],
                      first ? to_a[id] : to_b[id],
                      first ? to_b[id] : to_a[id]};
      (link.other < i ? links_ : later).push_back(link);
    }
    link_middle_.push_back(links_.size());
    links_.insert(links_.end(), later.begin(), later.end());
    const int32_t before = link_middle_[i] - link_begin_[i], after = later.size();
    share_.push_back(1.0 / std::max({before, after, 1}));
    widest = std::max(widest, sizes_[i]);
  }
  link_begin_.push_back(links_.size());
  scratch_.resize(2 * widest);
}

struct Messages::Kernel {
  // out[y] = min over x of costs[x] + table[x][y]
  inline __attribute__((always_inline)) static void run(const double* costs, int32_t size,
                                                        const double* table, double* out, int32_t width) {
    for (int32_t y = 0; y < width; ++y) out[y] = costs[0] + table[y];
    for (int64_t x = 1; x < size; ++x) {
      const double base = costs[x];
      const double* row = table + x * width;
      for (int32_t y = 0; y < width; ++y) out[y] = std::min(out[y], base + row[y]);
    }
  }
};

void Messages::pass(size_t position, const std::vector<double>& costs, bool forth) {
  const int64_t size = sizes_[position];
  double* sums = &sums_[offsets_[position]];
  std::copy_n(&costs[offsets_[position]], size, sums);
  double* decode = &scratch_[0];
  if (forth) std::copy_n(sums, size, decode);
  for (int32_t l = link_begin_[position]; l < link_begin_[position + 1]; ++l) {
    const double* message = &messages_[links_[l].in];
    for (int32_t x = 0; x < size; ++x) sums[x] += message[x];
    if (!forth) continue;
    const double* follow = l < link_middle_[position]
                               ? links_[l].other_table + labels_[nodes_[links_[l].other]] * size
                               : message;
    for (int32_t x = 0; x < size; ++x) decode[x] += follow[x];
  }
  if (forth) labels_[nodes_[position]] = std::min_element(decode, decode + size) - decode;
  const double least = *std::min_element(sums, sums + size);
  for (int32_t x = 0; x < size; ++x) sums[x] -= least;
  bound_ += least;
  double* reduced = &scratch_[0];
  const int32_t begin = forth ? link_middle_[position] : link_begin_[position];
  const int32_t end = forth ? link_begin_[position + 1] : link_middle_[position];
  for (int32_t l = begin; l < end; ++l) {
    const Link& link = links_[l];
    const double* in = &messages_[link.in];
    for (int32_t x = 0; x < size; ++x) reduced[x] = share_[position] * sums[x] - in[x];
    double* out = &messages_[link.out];
    const int32_t width = sizes_[link.other];
    runVectorised<Kernel, const double*, int32_t, const double*, double*, int32_t>(reduced, size, link.table,
                                                                                   out, width);
    const double shift = *std::min_element(out, out + width);
    for (int32_t y = 0; y < width; ++y) out[y] -= shift;
    bound_ += shift;
  }
}

double Messages::sweep(const std::vector<double>& costs) {
  for (size_t i = 0; i < nodes_.size(); ++i) pass(i, costs, true);
  bound_ = 0;
  for (size_t i = nodes_.size(); i-- > 0;) pass(i, costs, false);
  return bound_;
}

std::vector<double> Messages::excess() const {
  std::vector<double> result(offsets_.back());
  std::vector<double> table;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const int32_t before = link_middle_[i] - link_begin_[i], size = sizes_[i];
    const double* sums = &sums_[offsets_[i]];
    for (int32_t x = 0; x < size; ++x) result[offsets_[i] + x] += (1 - share_[i] * before) * sums[x];
    // What the edges to earlier nodes hold after they got their share.
    for (int32_t l = link_begin_[i]; l < link_middle_[i]; ++l) {
      const Link& link = links_[l];
      const int32_t width = sizes_[link.other];
      const double* in = &messages_[link.in];
      const double* out = &messages_[link.out];
      std::vector<double> row(size, 1e300), column(width, 1e300);
      double least = 1e300;
      for (int64_t x = 0; x < size; ++x) {
        for (int32_t y = 0; y < width; ++y) {
          const double left = link.table[x * width + y] + share_[i] * sums[x] - in[x] - out[y];
          row[x] = std::min(row[x], left);
          column[y] = std::min(column[y], left);
        }
        least = std::min(least, row[x]);
      }
      for (int32_t x = 0; x < size; ++x) result[offsets_[i] + x] += row[x] - least;
      for (int32_t y = 0; y < width; ++y) result[offsets_[link.other] + y] += column[y] - least;
    }
  }
  return result;
}

}  // namespace pipeshard::solver
