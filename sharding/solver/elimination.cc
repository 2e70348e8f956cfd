#include "sharding/solver/elimination.h"

#include <algorithm>
#include <array>

#include "ir/base/error.h"
#include "sharding/solver/simd.h"

namespace pipeshard::solver {

namespace {

constexpr int32_t kMostScope = 40;

}  // namespace

// One step per node of the order. Its *factors* are the tables that it joins and that no earlier step has
// used up: edges to later nodes, and results of earlier steps whose scope begins with this node. Its *scope*
// are the later nodes that these factors join; its result is a table over the scope, row-major in the order
// of elimination, and becomes a factor of the first node of the scope. A step with an empty scope ends a
// connected part: its result is a number, and the minimum of all is the sum of these numbers.
//
// Factors with the scope's last node come last in a step: the innermost loop runs along that node, where they
// are vectors (stride 1) and all other factors are scalars (Kernel::row). A factor's entry for a setting of
// node and scope is at label * stride + the sum of label * strides over the scope; 0 for nodes that it lacks.
//
//   nodes a, b in this order; costs a {0, 3}, b {1, 0}; edge by (a, b): {0, 2, 4, 0}
//   step a: scope {b}, result {min(0 + 0, 3 + 4), min(0 + 2, 3 + 0)} = {0, 2}
//   step b: scope {}, result min(1 + 0, 0 + 2) = 1, the minimum. assign() goes back: b = 0, then a = 0.

Elimination::Elimination(const Model& model, const std::vector<int32_t>& order)
    : model_(model), order_(order) {
  std::vector<int32_t> position(model.nodes.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  offsets_.assign(1, 0);
  for (const int32_t node : order) offsets_.push_back(offsets_.back() + model.nodes[node].costs.size());
  boundary_costs_.assign(offsets_.back(), 0);
  // Factors by the first position that they join, with the positions, ascending.
  std::vector<std::vector<Factor>> factors(order.size());
  std::vector<std::vector<std::vector<int32_t>>> scopes(order.size());
  for (int32_t i = 0; i < std::ssize(order); ++i) {
    for (const int32_t id : model.nodes[order[i]].edges) {
      const ModelEdge& edge = model.edges[id];
      const int32_t other = edge.other(order[i]), at = position[other];
      if (at < 0) boundary_.push_back({i, id, other});
      if (at < i) continue;
      factors[i].push_back({.fixed = edge.a == order[i] ? edge.table.data() : edge.transposed.data()});
      scopes[i].push_back({at});
    }
    addStep(i, factors[i], scopes[i]);
    const Step& step = steps_.back();
    if (step.scope_begin == step.scope_end) continue;
    const int32_t first = scopes_[step.scope_begin];
    factors[first].push_back({.step = i});
    scopes[first].emplace_back(scopes_.begin() + step.scope_begin + 1, scopes_.begin() + step.scope_end);
  }
  memory_ = steps_.empty() ? 0 : steps_.back().result + steps_.back().result_size;
}

void Elimination::addStep(size_t position, std::vector<Factor>& factors,
                          std::vector<std::vector<int32_t>>& scopes) {
  Step step;
  step.size = model_.nodes[order_[position]].size();
  if (position > 0) step.result = steps_.back().result + steps_.back().result_size;
  std::vector<int32_t> scope;
  for (const std::vector<int32_t>& own : scopes) scope.insert(scope.end(), own.begin(), own.end());
  std::sort(scope.begin(), scope.end());
  scope.erase(std::unique(scope.begin(), scope.end()), scope.end());
  PIPESHARD_CHECK(scope.size() <= kMostScope, "scope of {}", scope.size());
  step.scope_begin = scopes_.size();
  scopes_.insert(scopes_.end(), scope.begin(), scope.end());
  step.scope_end = scopes_.size();
  for (const int32_t at : scope) step.result_size *= model_.nodes[order_[at]].size();
  work_ += step.result_size * step.size;
  step.factor_begin = factors_.size();
  for (const bool last : {false, true}) {
    for (size_t i = 0; i < factors.size(); ++i) {
      Factor& factor = factors[i];
      factor.has_last = !scopes[i].empty() && scopes[i].back() == scope.back();
      if (factor.has_last != last) continue;
      factor.strides = strides_.size();
      strides_.resize(strides_.size() + scope.size(), 0);
      int32_t stride = 1;
      for (size_t j = scopes[i].size(), k = scope.size(); j-- > 0;) {
        while (scope[--k] != scopes[i][j]) continue;
        strides_[factor.strides + k] = stride;
        stride *= model_.nodes[order_[scopes[i][j]]].size();
      }
      factor.stride = stride;
      factors_.push_back(factor);
    }
  }
  step.factor_end = factors_.size();
  steps_.push_back(step);
}

void Elimination::condition(const std::vector<int32_t>& labels) {
  std::fill(boundary_costs_.begin(), boundary_costs_.end(), 0);
  for (const Boundary& at : boundary_) {
    const ModelEdge& edge = model_.edges[at.edge];
    const size_t size = steps_[at.position].size;
    const double* row =
        (edge.a == at.fixed ? edge.table.data() : edge.transposed.data()) + labels[at.fixed] * size;
    double* costs = &boundary_costs_[offsets_[at.position]];
    for (size_t i = 0; i < size; ++i) costs[i] += row[i];
  }
}

struct Elimination::Kernel {
  // Adds a step's tables for one setting of all nodes of its scope but the last, and minimises: out[last].
  inline __attribute__((always_inline)) static void row(const double* costs, int32_t size,
                                                        const double* const* scalar,
                                                        const int32_t* scalar_stride, int32_t scalars,
                                                        const double* const* vector,
                                                        const int32_t* vector_stride, int32_t vectors,
                                                        double* out, int32_t width, double big) {
    for (int32_t j = 0; j < width; ++j) out[j] = big;
    for (int64_t s = 0; s < size; ++s) {
      double base = costs[s];
      for (int32_t f = 0; f < scalars; ++f) base += scalar[f][s * scalar_stride[f]];
      if (base >= big) continue;
      const double* first = vector[0] + s * vector_stride[0];
      if (vectors == 1) {
        for (int32_t j = 0; j < width; ++j) out[j] = std::min(out[j], base + first[j]);
      } else if (vectors == 2) {
        const double* second = vector[1] + s * vector_stride[1];
        for (int32_t j = 0; j < width; ++j) out[j] = std::min(out[j], base + first[j] + second[j]);
      } else if (vectors == 3) {
        const double* second = vector[1] + s * vector_stride[1];
        const double* third = vector[2] + s * vector_stride[2];
        for (int32_t j = 0; j < width; ++j) out[j] = std::min(out[j], base + first[j] + second[j] + third[j]);
      } else {
        for (int32_t j = 0; j < width; ++j) {
          double sum = base;
          for (int32_t f = 0; f < vectors; ++f) sum += vector[f][s * vector_stride[f] + j];
          out[j] = std::min(out[j], sum);
        }
      }
    }
  }

  inline __attribute__((always_inline)) static void run(Elimination* self, const Step* step) {
    const int32_t outer = step->scope_end - step->scope_begin - 1;
    const int32_t width = self->steps_[self->scopes_[step->scope_end - 1]].size;
    const size_t position = step - self->steps_.data();
    std::vector<double> sums;
    const double* costs = &self->costs_[self->offsets_[position]];
    const int32_t factors = step->factor_end - step->factor_begin;
    constexpr int32_t kUsual = 32;
    const double* usual_at[kUsual];
    int32_t usual_stride[kUsual];
    const int32_t* usual_strides[kUsual];
    const double** at = usual_at;
    int32_t* stride = usual_stride;
    const int32_t** strides = usual_strides;
    std::vector<const double*> many_at;
    std::vector<int32_t> many_stride;
    std::vector<const int32_t*> many_strides;
    if (factors > kUsual) {
      many_at.resize(factors);
      many_stride.resize(factors);
      many_strides.resize(factors);
      at = many_at.data();
      stride = many_stride.data();
      strides = many_strides.data();
    }
    int32_t count = 0, scalars = 0;
    for (int32_t f = 0; f < factors; ++f) {
      const Factor& factor = self->factors_[step->factor_begin + f];
      const bool plain =
          outer == 0 || std::all_of(&self->strides_[factor.strides], &self->strides_[factor.strides] + outer,
                                    [](int32_t other) { return other == 0; });
      if (plain && !factor.has_last) {  // over this node alone
        if (sums.empty()) sums.assign(costs, costs + step->size);
        for (int32_t s = 0; s < step->size; ++s) sums[s] += self->data(factor)[s];
        continue;
      }
      at[count] = self->data(factor);
      stride[count] = factor.stride;
      strides[count] = &self->strides_[factor.strides];
      scalars += factor.has_last ? 0 : 1;
      ++count;
    }
    if (!sums.empty()) costs = sums.data();
    std::array<int32_t, kMostScope> digit{};
    double* out = &self->arena_[step->result];
    for (int64_t done = 0; done < step->result_size; done += width, out += width) {
      row(costs, step->size, at, stride, scalars, at + scalars, stride + scalars, count - scalars, out, width,
          self->model_.big);
      for (int32_t d = outer; d-- > 0;) {
        const int64_t size = self->steps_[self->scopes_[step->scope_begin + d]].size;
        if (++digit[d] < size) {
          for (int32_t f = 0; f < count; ++f) at[f] += strides[f][d];
          break;
        }
        digit[d] = 0;
        for (int32_t f = 0; f < count; ++f) at[f] -= strides[f][d] * (size - 1);
      }
    }
  }
};

void Elimination::runStep(size_t position) {
  const Step& step = steps_[position];
  if (step.scope_begin != step.scope_end)
    return runVectorised<Kernel, Elimination*, const Step*>(this, &step);
  double best = model_.big;
  for (int64_t s = 0; s < step.size; ++s) {
    double sum = costs_[offsets_[position] + s];
    for (int32_t f = step.factor_begin; f < step.factor_end; ++f)
      sum += data(factors_[f])[s * factors_[f].stride];
    best = std::min(best, sum);
  }
  arena_[step.result] = best;
}

double Elimination::run(const std::vector<double>& costs, const std::function<bool()>& stop) {
  arena_.resize(memory_);
  costs_.resize(costs.size());
  for (size_t i = 0; i < costs.size(); ++i) costs_[i] = costs[i] + boundary_costs_[i];
  double sum = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    runStep(i);
    if (stop && stop()) break;
    if (steps_[i].scope_begin == steps_[i].scope_end) sum += arena_[steps_[i].result];
  }
  return sum;
}

void Elimination::assign(std::vector<int32_t>& labels) const {
  for (size_t i = steps_.size(); i-- > 0;) {
    const Step& step = steps_[i];
    std::vector<double> sums(&costs_[offsets_[i]], &costs_[offsets_[i]] + step.size);
    for (int32_t f = step.factor_begin; f < step.factor_end; ++f) {
      const Factor& factor = factors_[f];
      const double* at = data(factor);
      for (int32_t d = step.scope_begin; d < step.scope_end; ++d) {
        const int64_t stride = strides_[factor.strides + d - step.scope_begin];
        at += stride * labels[order_[scopes_[d]]];
      }
      for (int64_t s = 0; s < step.size; ++s) sums[s] += at[s * factor.stride];
    }
    labels[order_[i]] = std::min_element(sums.begin(), sums.end()) - sums.begin();
  }
}

std::vector<double> Elimination::marginals() const {
  std::vector<double> result(offsets_.back(), 2 * model_.big);
  // of what a step left: the least sum of everything else
  std::vector<double> outside(arena_.size(), 2 * model_.big);
  double total = 0;
  for (const Step& step : steps_) total += step.scope_begin == step.scope_end ? arena_[step.result] : 0;
  for (size_t i = steps_.size(); i-- > 0;) {
    const Step& step = steps_[i];
    const int32_t scope = step.scope_end - step.scope_begin, factors = step.factor_end - step.factor_begin;
    if (scope == 0) outside[step.result] = total - arena_[step.result];
    std::array<int32_t, kMostScope> digit{};
    std::vector<int64_t> at(factors, 0);
    for (int64_t entry = 0; entry < step.result_size; ++entry) {
      const double rest = outside[step.result + entry];
      for (int64_t s = 0; s < step.size && rest < model_.big; ++s) {
        double sum = rest + costs_[offsets_[i] + s];
        for (int32_t f = 0; f < factors; ++f) {
          const Factor& factor = factors_[step.factor_begin + f];
          sum += data(factor)[at[f] + s * factor.stride];
        }
        if (sum >= model_.big) continue;
        result[offsets_[i] + s] = std::min(result[offsets_[i] + s], sum);
        for (int32_t f = 0; f < factors; ++f) {
          const Factor& factor = factors_[step.factor_begin + f];
          if (factor.step < 0) continue;
          const int64_t index = steps_[factor.step].result + at[f] + s * factor.stride;
          outside[index] = std::min(outside[index], sum - arena_[index]);
        }
      }
      for (int32_t d = scope; d-- > 0;) {
        const int32_t size = steps_[scopes_[step.scope_begin + d]].size;
        const bool carry = ++digit[d] == size;
        if (carry) digit[d] = 0;
        for (int32_t f = 0; f < factors; ++f) {
          const int64_t stride = strides_[factors_[step.factor_begin + f].strides + d];
          at[f] += carry ? -stride * (size - 1) : stride;
        }
        if (!carry) break;
      }
    }
  }
  return result;
}

}  // namespace pipeshard::solver
