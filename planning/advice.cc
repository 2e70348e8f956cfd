#include "planning/advice.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "planning/programs/memory_shortage.h"

namespace pipeshard {
namespace {

constexpr int64_t kUnlimited = int64_t{1} << 50;
constexpr int kMemoryTrials = 6;                              // bisections
constexpr int kMemoryPercents[] = {100, 105, 110, 125, 150};  // of what is needed without a limit
constexpr size_t kMemoryMost = std::size(kMemoryPercents) + kMemoryTrials + 1;
constexpr size_t kMostCounts = 6;

// Of a device, by its program; where none was asked for, as the search or the sharding of stages foresaw it.
int64_t largestMemory(PlannedTraining& planned) {
  if (!planned.whole.ranks.empty()) return MemoryOfSteps(planned).largest();
  if (const std::optional<SearchRecord>& search = planned.plan.search)
    return search->alternatives.at(search->chosen).memory_bytes;
  int64_t largest = 0;
  for (const StagePlan& stage : planned.plan.stages) {
    if (stage.sharding) largest = std::max(largest, stage.sharding->memory_bytes);
  }
  return largest;
}

// How far a number of trials has come, for progress: "(40 %, about 30 s left)". A kind of trials that ends
// early counts as if all of it had been tried.
class TrialCount {
 public:
  void setMost(size_t trials) { most_ = trials; }
  void done() { ++done_; }
  std::string text() const {
    if (most_ == 0) return "";
    return share_.text(static_cast<double>(done_) / static_cast<double>(most_));
  }

  // One kind: while it lives.
  class Kind {
   public:
    Kind(TrialCount& count, size_t trials) : count_(count), end_(count.done_ + trials) {}
    Kind(const Kind&) = delete;
    Kind& operator=(const Kind&) = delete;
    ~Kind() { count_.done_ = end_; }

   private:
    TrialCount& count_;
    size_t end_;
  };

 private:
  size_t most_ = 0;
  size_t done_ = 0;
  WorkShare share_;
};

// A change of what was asked for, as the options that say it.
struct Change {
  std::string text;
  std::function<void(PlanRequest&)> apply;
};

// Tries changes by planning everything once more with each of them: what a line says has been seen to work.
// First, without a limit, how much the plan needs (needed_), and from there the least --memory; then changes
// of one kind after the other, of each kind the first that is enough, in ascending size; all of them together
// only where none was enough alone. With `--stages auto` the search has tried most of this itself.
//
//   8 GB on each device, 10 GB needed: 10 is tried and is enough, then 9; if that is not, 9.5; and so on, at
//   most kMemoryTrials times, or until the two ends are within a 128th
class Adviser {
 public:
  Adviser(const PlanRequest& request, const ProgressCallback& progress)
      : request_(request), progress_(progress) {}

  // The end of the message; nothing where the plan cannot be made with any memory.
  std::optional<std::string> advice() {
    if (request_.partition.stages.kind == StagesRequest::Kind::kSearched) return searchedAdvice();
    std::optional<PlannedTraining> free = plan({"without a limit of memory", [](PlanRequest& request) {
                                                  request.partition.sharding.memory_bytes = kUnlimited;
                                                }});
    if (!free) return std::nullopt;
    needed_ = largestMemory(*free);
    const std::vector<Change> microbatches = moreMicrobatches(free->plan);
    const std::vector<Change> methods = otherMethods(free->plan);
    const std::vector<Change> recomputations = otherRecomputations(request_.partition.recomputation);
    trials_.setMost(kMemoryMost + microbatches.size() + recomputations.size() + methods.size() +
                    moreDevices().size() + recomputations.size() + 1);
    adviseMemory();
    const size_t before = lines_.size();
    firstThatFits("more microbatches", microbatches);
    adviseRecomputation(recomputations);
    for (const Change& method : methods) firstThatFits(method.text, {method});
    firstThatFits("more devices", moreDevices());
    if (lines_.size() == before) {
      std::vector<Change> others;
      if (!methods.empty()) others.push_back(methods.front());
      if (!microbatches.empty()) others.push_back(microbatches.back());
      firstThatFits("several together", together(recomputations, others));
    }
    return text();
  }

 private:
  // The search has tried what it may choose itself, and has said how much memory would do.
  std::optional<std::string> searchedAdvice() {
    const Change microbatches = {"without --microbatches",
                                 [](PlanRequest& request) { request.microbatches = 0; }};
    const std::vector<Change> recomputations = otherRecomputations(
        request_.recomputation_given ? request_.partition.recomputation
                                     : RecomputationChoice{.all = Recomputation::kLayers});
    trials_.setMost((request_.microbatches > 0 ? 1 : 0) + recomputations.size() + moreDevices().size());
    if (request_.microbatches > 0) firstThatFits("", {microbatches});
    adviseRecomputation(recomputations);
    firstThatFits("more devices", moreDevices());
    return text();
  }

  std::string text() const {
    std::string text = lines_.empty() ? ""
                                      : fmt::format("\n  what would fit (each was tried):\n    {}",
                                                    fmt::join(lines_, "\n    "));
    if (!failed_.empty()) text += fmt::format("\n  what would not: {}", fmt::join(failed_, ", "));
    return text;
  }

  // With the change; nothing where that cannot be.
  std::optional<PlannedTraining> plan(const Change& change) const {
    try {
      PlanRequest request = request_;
      change.apply(request);
      const std::string trying = fmt::format("nothing fits; trying {}{}", change.text, trials_.text());
      progress_(trying);
      return planTraining(request, [&](const std::string& phase) { progress_(trying + ": " + phase); });
    } catch (const Error& error) {
      switch (error.code()) {
        case ErrorCode::kOutOfMemory:
        case ErrorCode::kConfiguration:
        case ErrorCode::kUsage:
        case ErrorCode::kBadModel: return std::nullopt;
        default: throw;
      }
    }
  }

  // What a device needs at most, if the change is enough.
  std::optional<int64_t> tried(const Change& change) {
    std::optional<PlannedTraining> planned = plan(change);
    trials_.done();
    return planned ? std::optional(largestMemory(*planned)) : std::nullopt;
  }

  void firstThatFits(const std::string& kind, const std::vector<Change>& changes) {
    const TrialCount::Kind kind_of_trials(trials_, changes.size());
    for (const Change& change : changes) {
      const std::optional<int64_t> needed = tried(change);
      if (!needed) continue;
      addLine(change, *needed);
      return;
    }
    if (!changes.empty())
      failed_.push_back(changes.size() == 1
                            ? changes[0].text
                            : fmt::format("{} ({} to {})", kind, changes.front().text, changes.back().text));
  }

  // Of "layers" and "always", which take the same time: the first that fits, and a later one that needs less.
  void adviseRecomputation(const std::vector<Change>& changes) {
    std::optional<int64_t> least;
    std::vector<std::string> not_enough;
    for (const Change& change : changes) {
      const std::optional<int64_t> needed = tried(change);
      if (!needed) not_enough.push_back(change.text);
      if (!needed || (least && *needed >= *least)) continue;
      addLine(change, *needed);
      least = needed;
    }
    if (!least) failed_.insert(failed_.end(), not_enough.begin(), not_enough.end());
  }

  void addLine(const Change& change, int64_t needed) {
    lines_.push_back(
        fmt::format("{}: a device needs {} ({} bytes)", change.text, formatBytes(needed), needed));
  }

  // The least that was found to be enough, between what is known to be too little and what the plan needs
  // without a limit.
  void adviseMemory() {
    const TrialCount::Kind kind_of_trials(trials_, kMemoryMost);
    const auto fits = [&](int64_t bytes) {
      return tried({fmt::format("--memory {}", bytes),
                    [bytes](PlanRequest& request) { request.partition.sharding.memory_bytes = bytes; }});
    };
    std::optional<int64_t> enough;
    // what a solver foresees may be more than what is needed in the end
    for (int64_t percent : kMemoryPercents) {
      if (!enough && fits(needed_ / 100 * percent + needed_ % 100))
        enough = needed_ / 100 * percent + needed_ % 100;
    }
    if (!enough) return;
    int64_t too_little = request_.partition.sharding.memory_bytes, least = *enough;
    const auto isCoarse = [&] { return *enough - too_little > *enough / 128; };
    for (int trial = 0; trial < kMemoryTrials && isCoarse(); ++trial) {
      const int64_t middle = too_little + (*enough - too_little) / 2;
      if (const std::optional<int64_t> needed = fits(middle)) {
        enough = middle;
        least = *needed;
      } else {
        too_little = middle;
      }
    }
    if (least < *enough && fits(least)) enough = least;
    lines_.push_back(fmt::format("--memory {}: {} on each device, everything else as asked", *enough,
                                 formatBytes(*enough)));
  }

  // Numbers that divide the batch, beyond what the plan has.
  std::vector<Change> moreMicrobatches(const Plan& plan) const {
    std::vector<Change> changes;
    const auto batch = plan.dimensions.find(plan.batch_dimension);
    if (batch == plan.dimensions.end()) return changes;
    for (int64_t count = plan.microbatches + 1; count <= batch->second && changes.size() < kMostCounts;
         ++count) {
      if (batch->second % count != 0) continue;
      changes.push_back({fmt::format("--microbatches {}", count),
                         [count](PlanRequest& request) { request.microbatches = count; }});
    }
    return changes;
  }

  static std::vector<Change> otherRecomputations(const RecomputationChoice& asked) {
    std::vector<Change> changes;
    for (const Recomputation when :
         {Recomputation::kSelective, Recomputation::kLayers, Recomputation::kAlways}) {
      if (asked.isOnly(when)) continue;
      changes.push_back(
          {fmt::format("--recompute {}", recomputationName(when)), [when](PlanRequest& request) {
             request.partition.recomputation = {.all = when};
             request.recomputation_given = true;
           }});
    }
    return changes;
  }

  // Of stages of several devices; else, and beside them, all devices as one stage.
  std::vector<Change> otherMethods(const Plan& plan) const {
    const auto use = [](ShardingMethod method) {
      return [method](PlanRequest& request) {
        request.partition.sharding.method = method;
        request.partition.method_grid.reset();
      };
    };
    std::vector<Change> changes;
    const bool has_wide_stage = std::any_of(plan.stages.begin(), plan.stages.end(),
                                            [](const StagePlan& stage) { return stage.devices.size() > 1; });
    for (const ShardingMethod method : {ShardingMethod{ShardingKind::kZero3}, ShardingMethod{}}) {
      if (!has_wide_stage || request_.partition.sharding.method == method) continue;
      changes.push_back({fmt::format("--method {}", shardingMethodToString(method)), use(method)});
    }
    if (plan.stages.size() > 1) {
      changes.push_back(
          {"--stages uniform:1 --method auto", [shard = use(ShardingMethod{})](PlanRequest& request) {
             request.partition.stages = uniformStages(1);
             shard(request);
           }});
    }
    return changes;
  }

  std::vector<Change> moreDevices() const {
    std::vector<Change> changes;
    for (const Cluster& larger : largerClusters(request_.partition.cluster)) {
      changes.push_back({"--cluster " + larger.name,
                         [larger](PlanRequest& request) { request.partition.cluster = larger; }});
    }
    return changes;
  }

  // All others, where it recomputes anyway, and each way to recompute with all others.
  std::vector<Change> together(const std::vector<Change>& recomputations,
                               const std::vector<Change>& others) const {
    std::vector<Change> changes;
    if (!request_.partition.recomputation.isOnly(Recomputation::kNever) && others.size() > 1)
      changes.push_back(joined(others));
    for (const Change& change : recomputations) {
      std::vector<Change> all = {change};
      all.insert(all.end(), others.begin(), others.end());
      if (all.size() > 1) changes.push_back(joined(all));
    }
    return changes;
  }

  static Change joined(const std::vector<Change>& changes) {
    Change all;
    for (const Change& change : changes) all.text += (all.text.empty() ? "" : " ") + change.text;
    all.apply = [changes](PlanRequest& request) {
      for (const Change& change : changes) change.apply(request);
    };
    return all;
  }

  const PlanRequest& request_;
  const ProgressCallback& progress_;
  TrialCount trials_;
  int64_t needed_ = 0;  // of a device, without a limit
  std::vector<std::string> lines_;
  std::vector<std::string> failed_;
};

}  // namespace

PlannedTraining planOrAdvise(const PlanRequest& request, const ProgressCallback& progress,
                             Interruption* interruption) {
  try {
    return planTraining(request, progress, interruption);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    const std::optional<std::string> advice = Adviser(request, progress).advice();
    if (!advice) throw;
    throw Error(ErrorCode::kOutOfMemory, error.message() + *advice);
  }
}

}  // namespace pipeshard
