#include "partition/families/automatic_trial.h"

#include <algorithm>

#include "ir/base/error.h"
#include "partition/simulation/simulator.h"

namespace pipeshard {
namespace {

constexpr int64_t kNever = kNeverStarts;
// Times and memory of one microbatch, so that sums over any schedule stay in 64 bits.
constexpr int64_t kMostTime = int64_t{1} << 40;
constexpr int64_t kMostMemory = int64_t{1} << 46;

class Trial {
 public:
  Trial(const FamilyRequest& request, int64_t limit, const std::vector<AutomaticRules>& rules)
      : costs_(request.costs),
        limit_(limit),
        rules_(rules),
        microbatches_(request.microbatches),
        ranks_(request.ranks) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].forward_end.assign(count(), kNever);
      ranks_[rank].input_end.assign(count(), kNever);
      ranks_[rank].order.reserve(3 * count());
    }
  }

  AutomaticTrial run() {
    return runGreedily(
        ranks_, 3 * count() * ranks_.size(), [this](size_t rank) { decide(rank); },
        [this](size_t rank) { take(rank, ranks_[rank].next); });
  }

 private:
  struct Step {
    ActionKind kind = ActionKind::kForward;
    int64_t start = kNever;
  };
  struct Rank {
    int forwards = 0, inputs = 0, weights = 0;    // done
    std::vector<int64_t> forward_end, input_end;  // by microbatch; kNever: not yet
    int64_t now = 0, first_start = -1, idle = 0;  // idle: since the first start
    int64_t memory = 0;
    bool input_was_last = false;  // of F and I
    Step next;                    // as far as is known
    std::vector<Action> order;
  };

  size_t count() const { return microbatches_; }

  bool fits(const Rank& rank, int64_t memory) const { return rank.memory + memory <= limit_; }

  bool hasRoom(const Rank& rank) const {
    return fits(rank, costs_.forward_memory + std::max<int64_t>(costs_.input_memory, 0));
  }

  // When the rank's next F and I could start, as far as is known; kNever where memory has no room.
  int64_t forwardStart(size_t index) const {
    const Rank& rank = ranks_[index];
    if (rank.forwards == microbatches_ || !hasRoom(rank) ||
        rank.forwards - rank.inputs >= rules_[index].in_flight)
      return kNever;
    if (index == 0) return rank.now;
    const int64_t end = ranks_[index - 1].forward_end[rank.forwards];
    return end == kNever ? kNever : std::max(rank.now, end + costs_.transfer);
  }

  int64_t inputStart(size_t index) const {
    const Rank& rank = ranks_[index];
    if (rank.inputs == rank.forwards || !fits(rank, costs_.input_memory)) return kNever;
    if (index + 1 == ranks_.size()) return rank.now;
    const int64_t end = ranks_[index + 1].input_end[rank.inputs];
    return end == kNever ? kNever : std::max(rank.now, end + costs_.transfer);
  }

  // The next of F and I, before W is thought of.
  Step chooseForwardOrInput(size_t index) const {
    const Rank& rank = ranks_[index];
    const AutomaticRules& rules = rules_[index];
    const int64_t forward = forwardStart(index);
    const int64_t input = inputStart(index);
    const Step take_forward{ActionKind::kForward, forward}, take_input{ActionKind::kBackwardInput, input};
    if (forward == kNever) return take_input;
    if (input == kNever) return take_forward;
    const bool delays = forward + costs_.forward > input;
    if (rank.inputs == 0)
      return !delays || (rules.delay_backward && forward < input) ? take_forward : take_input;
    if (forward < input)
      return delays && !rules.forward_first && !rank.input_was_last ? take_input : take_forward;
    return forward == input && rules.forward_first && rank.input_was_last ? take_forward : take_input;
  }

  // What others do next to it may change it.
  void decide(size_t index) { ranks_[index].next = choose(index); }

  Step choose(size_t index) const {
    const Rank& rank = ranks_[index];
    const AutomaticRules& rules = rules_[index];
    const Step step = chooseForwardOrInput(index);
    if (rank.weights == rank.inputs) return step;
    const Step weight{ActionKind::kBackwardWeight, rank.now};
    if (step.start == kNever) return weight;
    const bool forward_is_due = rank.forwards < microbatches_ && rank.input_was_last;
    if (forward_is_due && !hasRoom(rank)) return weight;
    if (rank.inputs - rank.weights <= rules.weight_lag && rank.inputs < microbatches_) return step;
    const int64_t gap = step.start - rank.now;
    if (fillsGap(gap, costs_.backward_weight, rules.fill_permille)) return weight;
    if (gap > 0 && rules.level_idle) {
      int64_t most = 0;
      for (const Rank& other : ranks_) most = std::max(most, other.idle);
      if (rank.idle + gap > most) return weight;
    }
    return step;
  }

  void take(size_t index, const Step step) {
    Rank& rank = ranks_[index];
    if (rank.first_start < 0) {
      rank.first_start = step.start;
    } else {
      rank.idle += step.start - rank.now;
    }
    const auto finish = [&](int& done, int64_t time, int64_t memory) {
      rank.order.push_back({StageId(index), step.kind, done});
      rank.now = step.start + time;
      rank.memory += memory;
      return done++;
    };
    if (step.kind == ActionKind::kForward) {
      const int k = finish(rank.forwards, costs_.forward, costs_.forward_memory);
      rank.forward_end[k] = rank.now;
      rank.input_was_last = false;
    } else if (step.kind == ActionKind::kBackwardInput) {
      const int k = finish(rank.inputs, costs_.backward_input, costs_.input_memory);
      rank.input_end[k] = rank.now;
      rank.input_was_last = true;
    } else {
      finish(rank.weights, costs_.backward_weight, costs_.weight_memory);
    }
  }

  const ScheduleCosts& costs_;
  int64_t limit_;
  const std::vector<AutomaticRules>& rules_;
  int microbatches_;
  std::vector<Rank> ranks_;
};

}  // namespace

AutomaticTrial automaticTrial(const FamilyRequest& request, int64_t limit,
                              const std::vector<AutomaticRules>& rules) {
  return Trial(request, limit, rules).run();
}

std::optional<AutomaticTrial> fixedTrial(const FamilyRequest& request, int64_t limit, Schedule schedule) {
  const ScheduleCosts& c = request.costs;
  schedule.microbatches = request.microbatches;
  schedule.stages = schedule.rank_of_stage.size();
  const int chunks = schedule.stages / request.ranks;
  PassTimes stage;
  stage.forward = c.forward;
  stage.backward_input = c.backward_input;
  stage.backward_weight = c.backward_weight;
  stage.activation = c.forward_memory;
  stage.input_memory = c.input_memory;
  SimulationRequest simulation{schedule, IdVector<StageId, PassTimes>(schedule.rank_of_stage.size(), stage)};
  simulation.latency = chunks * c.transfer;
  const Simulation result = simulate(simulation);
  const int64_t peak = *std::max_element(result.peak_memory.begin(), result.peak_memory.end());
  if (peak > chunks * limit) return std::nullopt;
  return AutomaticTrial{schedule.orders, result.longestSpan(), result.makespan};
}

int64_t automaticSpanBound(const FamilyRequest& request) {
  const ScheduleCosts& c = request.costs;
  const int64_t work = request.microbatches * (c.forward + c.backward_input + c.backward_weight);
  const int64_t hops = request.ranks - 1;
  const int64_t path = hops * (c.forward + c.backward_input + 2 * c.transfer);
  return std::max(work, path + request.microbatches * (c.forward + c.backward_input) + c.backward_weight);
}

bool fillsGap(int64_t gap, int64_t weight_time, int64_t permille) {
  return gap > 0 && std::min(gap, 2 * weight_time) * 1000 >= weight_time * permille;
}

int64_t checkAutomaticCosts(const FamilyRequest& request, int64_t otherwise, int chunks) {
  const ScheduleCosts& c = request.costs;
  for (const int64_t time : {c.forward, c.backward_input, c.backward_weight, c.transfer}) {
    if (time >= 0 && time <= kMostTime) continue;
    fail(ErrorCode::kConfiguration, "schedule {}: found a time of {}; expected 0 to {}", request.name, time,
         kMostTime);
  }
  if (c.forward_memory < 1 || c.forward_memory > kMostMemory || c.weight_memory > 0 ||
      c.forward_memory + c.input_memory + c.weight_memory != 0) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found memory of F, I and W of {}, {} and {}; expected F from 1 to {}, W at most 0, "
         "and a sum of 0: what a microbatch takes it gives back",
         request.name, c.forward_memory, c.input_memory, c.weight_memory, kMostMemory);
  }
  // In F of one stage: F of each of a rank's stages, and what I takes on top of one.
  const int64_t input = std::max<int64_t>(c.input_memory, 0);
  const int64_t smallest =
      (chunks * c.forward_memory + input + chunks * c.forward_memory - 1) / (chunks * c.forward_memory);
  const int64_t limit = request.option("limit", otherwise);
  if (limit < smallest) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found a memory limit of {} microbatches' activations; expected at least {}, what one "
         "microbatch needs on its way through a rank",
         request.name, limit, smallest);
  }
  const int64_t all = request.microbatches * (1 + (input + c.forward_memory - 1) / c.forward_memory);
  return std::min(limit, std::max(all, smallest)) * c.forward_memory;
}

}  // namespace pipeshard
