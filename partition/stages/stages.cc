#include "partition/stages/stages.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <numeric>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

__extension__ using Wide = __int128;

constexpr Wide kImpossible = std::numeric_limits<Wide>::max();

// What a partition of some layers into some stages costs beside its largest stage, compared in this order.
struct Rest {
  Wide squares = kImpossible;
  int64_t bytes = 0;
  bool possible() const { return squares != kImpossible; }
  friend auto operator<=>(const Rest&, const Rest&) = default;
};

// By stages left and first layer left.
template <typename T>
using Table = std::vector<std::vector<T>>;

class StageSearch {
 public:
  explicit StageSearch(const StageProblem& problem)
      : problem_(problem),
        layers_(problem.weight.size()),
        stages_(problem.widths.size()),
        before_(layers_ + 1) {
    PIPESHARD_CHECK(stages_ >= 1 && stages_ <= layers_ && problem.cut_bytes.size() == layers_,
                    "{} stages of {} layers", stages_, layers_);
    std::partial_sum(problem.weight.begin(), problem.weight.end(), before_.begin() + 1);
  }

  std::vector<LayerId> run() const {
    const Wide limit = leastMaximum();
    PIPESHARD_CHECK(limit != kImpossible, "no partition gives each of {} stages a weight of {}", stages_,
                    problem_.least_weight);
    Table<Rest> best(stages_ + 1, std::vector<Rest>(layers_ + 1));
    Table<size_t> next_start(stages_ + 1, std::vector<size_t>(layers_ + 1));
    best[0][layers_] = {0, 0};
    for (size_t left = 1; left <= stages_; ++left) {
      for (size_t first = 0; first < layers_; ++first) {
        for (size_t next = first + 1; next <= layers_ && perDevice(left, first, next) <= limit; ++next) {
          if (!best[left - 1][next].possible() || !isStage(first, next)) continue;
          const Rest candidate = withStage(best[left - 1][next], left, first, next);
          if (candidate >= best[left][first]) continue;
          best[left][first] = candidate;
          next_start[left][first] = next;
        }
      }
    }
    std::vector<LayerId> last;
    size_t start = 0;
    for (size_t left = stages_; left > 0; --left) {
      start = next_start[left][start];
      last.push_back(LayerId(start - 1));
    }
    return last;
  }

 private:
  int64_t weight(size_t first, size_t next) const { return before_[next] - before_[first]; }
  // Layers that may be one, in front of layer `next`.
  bool isStage(size_t first, size_t next) const {
    const bool may_end = next == layers_ || problem_.may_end.empty() || problem_.may_end[LayerId(next - 1)];
    return may_end && weight(first, next) >= problem_.least_weight;
  }
  int width(size_t left) const { return problem_.widths[stages_ - left]; }

  // Of the stage that has `left` - 1 stages behind it, in units of 1/720720 (a multiple of 1 to 16).
  Wide perDevice(size_t left, size_t first, size_t next) const {
    return Wide{weight(first, next)} * 720720 / width(left);
  }

  Rest withStage(const Rest& rest, size_t left, size_t first, size_t next) const {
    const Wide square = problem_.even ? Wide{weight(first, next)} * perDevice(left, first, next) : 0;
    return {rest.squares + square, rest.bytes + (next < layers_ ? problem_.cut_bytes[LayerId(next - 1)] : 0)};
  }

  // The least possible largest weight per device.
  Wide leastMaximum() const {
    Table<Wide> least(stages_ + 1, std::vector<Wide>(layers_ + 1, kImpossible));
    least[0][layers_] = 0;
    for (size_t left = 1; left <= stages_; ++left) {
      for (size_t first = 0; first < layers_; ++first) {
        for (size_t next = first + 1; next <= layers_; ++next) {
          if (least[left - 1][next] == kImpossible || !isStage(first, next)) continue;
          least[left][first] =
              std::min(least[left][first], std::max(perDevice(left, first, next), least[left - 1][next]));
        }
      }
    }
    return least[stages_][0];
  }

  const StageProblem& problem_;
  size_t layers_;
  size_t stages_;
  std::vector<int64_t> before_;  // the weight of all layers before a layer
};

}  // namespace

std::vector<LayerId> assignStages(const StageProblem& problem) { return StageSearch(problem).run(); }

std::vector<LayerId> assignStages(const IdVector<LayerId, int64_t>& cost,
                                  const IdVector<LayerId, int64_t>& cut_bytes, int stages) {
  return assignStages({.weight = cost, .cut_bytes = cut_bytes, .widths = std::vector<int>(stages, 1)});
}

}  // namespace pipeshard
