#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/families/families.h"

namespace pipeshard {
namespace {

// How many replicas take turns.
IdVector<StageId, int> replicasOf(const FamilyRequest& request) {
  const int64_t rows = request.option("rows", 0);
  if (rows > 1)
    fail(ErrorCode::kUsage, "--schedule {}: found the option rows={}; expected 0 or 1", request.name, rows);
  IdVector<StageId, int> one_each(request.ranks, 1);
  if (rows == 1 || request.replicas.empty()) return one_each;
  PIPESHARD_CHECK(request.replicas.size() == one_each.size(), "{} stages with replicas, {} ranks",
                  request.replicas.size(), request.ranks);
  return request.replicas;
}

// Rounds of forward passes before a replica's first backward pass: as many as keep all devices from this
// stage on busy.
int warmUp(const IdVector<StageId, int>& replicas, StageId stage) {
  const auto first = replicas.begin() + stage.index();
  return (std::accumulate(first, replicas.end(), 0) - 1) / *first;
}

// One replica of a stage: its passes and updates, and how far it is.
struct Replica {
  StageId stage;
  std::vector<Action> order;
  size_t next = 0;
};

// 1f1b over the replica's own microbatches; an update follows the last one that it takes of those of the
// update.
Replica replicaOf(const Schedule& schedule, StageId stage, int index, int microbatches, int warm_up) {
  Replica replica{stage, {}, 0};
  const int stride = schedule.replicasOf(stage), every = schedule.updateEvery(stage);
  const int count = (microbatches - index + stride - 1) / stride;
  warm_up = std::min(warm_up, count);
  const auto numbered = [&](ActionKind kind, int j) { return Action{stage, kind, index + j * stride}; };
  const auto addBackward = [&](int j) {
    replica.order.push_back(numbered(ActionKind::kBackward, j));
    const int k = index + j * stride, last = (k / every + 1) * every - 1;
    if (k + stride > last) replica.order.push_back({stage, ActionKind::kUpdate, last});
  };
  for (int j = 0; j < warm_up; ++j) replica.order.push_back(numbered(ActionKind::kForward, j));
  for (int j = warm_up; j < count; ++j) {
    replica.order.push_back(numbered(ActionKind::kForward, j));
    addBackward(j - warm_up);
  }
  for (int j = count - warm_up; j < count; ++j) addBackward(j);
  return replica;
}

// The orders of all replicas in one order per stage: passes as they run, each in one unit of time, when every
// replica goes on as soon as it can; an update when all replicas of its stage have come to it.
class Merge {
 public:
  Merge(const IdVector<StageId, int>& replicas, std::vector<Replica> parts, int microbatches)
      : replicas_(replicas), parts_(std::move(parts)), orders_(replicas.size()) {
    for (IdVector<StageId, std::vector<bool>>* done : {&forward_, &backward_})
      done->assign(replicas.size(), std::vector<bool>(microbatches));
  }

  ScheduleOrders run() {
    for (bool moved = true; moved;) {
      const bool updated = update();
      std::vector<size_t> runnable;
      for (size_t i = 0; i < parts_.size(); ++i) {
        if (canRun(parts_[i])) runnable.push_back(i);
      }
      for (const size_t i : runnable) pass(parts_[i]);
      moved = updated || !runnable.empty();
    }
    for (const Replica& part : parts_)
      PIPESHARD_CHECK(part.next == part.order.size(), "a replica of stage {} is stuck", part.stage);
    return std::move(orders_);
  }

 private:
  static PipelineRankId rankOf(const Replica& part) { return PipelineRankId(part.stage.index()); }

  bool isAt(const Replica& part, ActionKind kind) const {
    return part.next < part.order.size() && part.order[part.next].kind == kind;
  }

  bool canRun(const Replica& part) const {
    if (part.next == part.order.size() || isAt(part, ActionKind::kUpdate)) return false;
    const bool forward = isAt(part, ActionKind::kForward);
    const StageId needed = forward ? part.stage.previous() : part.stage.next();
    if (!replicas_.has(needed)) return true;
    return (forward ? forward_ : backward_)[needed][part.order[part.next].microbatch];
  }

  void pass(Replica& part) {
    const Action& action = part.order[part.next++];
    auto& done = action.kind == ActionKind::kForward ? forward_ : backward_;
    done[part.stage][action.microbatch] = true;
    orders_[rankOf(part)].push_back(action);
  }

  bool update() {
    bool updated = false;
    for (size_t i = 0; i < parts_.size();) {
      const auto first = parts_.begin() + i;
      const auto end = first + replicas_[first->stage];
      const auto arrived = [&](const Replica& part) { return isAt(part, ActionKind::kUpdate); };
      if (std::all_of(first, end, arrived)) {
        orders_[rankOf(*first)].push_back(first->order[first->next]);
        std::for_each(first, end, [](Replica& part) { ++part.next; });
        updated = true;
      }
      i = end - parts_.begin();
    }
    return updated;
  }

  const IdVector<StageId, int>& replicas_;
  std::vector<Replica> parts_;  // stage by stage
  ScheduleOrders orders_;
  IdVector<StageId, std::vector<bool>> forward_, backward_;  // by stage and microbatch: has run
};

// 1f1b in which stage s updates its weights after every every[s] backward passes.
Schedule updatingPipeline(const FamilyRequest& request, int per_update, const IdVector<StageId, int>& every) {
  const IdVector<StageId, int> replicas = replicasOf(request);
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  schedule.microbatches_per_update = per_update;
  schedule.replicas = replicas;
  schedule.update_every = every;
  std::vector<Replica> parts;
  for (const StageId stage : replicas.ids()) {
    for (int index = 0; index < replicas[stage]; ++index) {
      parts.push_back(replicaOf(schedule, stage, index, request.microbatches, warmUp(replicas, stage)));
    }
  }
  schedule.orders = Merge(replicas, std::move(parts), request.microbatches).run();
  const auto areAll = [](const IdVector<StageId, int>& numbers, int number) {
    return std::all_of(numbers.begin(), numbers.end(), [&](int n) { return n == number; });
  };
  if (areAll(replicas, 1)) schedule.replicas.clear();
  if (areAll(every, per_update)) schedule.update_every.clear();
  return schedule;
}

// pipedream: every replica brings one minibatch to an update of its stage.
Schedule stashingPipeline(const FamilyRequest& request, const IdVector<StageId, int>& replicas) {
  int64_t together = 1;
  for (const int number : replicas) together = std::lcm(together, number);
  if (request.microbatches % together != 0) {
    fail(ErrorCode::kConfiguration,
         "schedule {}: found a window of {} minibatches; expected a multiple of {}, so that the {} replicas "
         "of the stages take equally many of them (--window {})",
         request.name, request.microbatches, together, fmt::join(replicas, ","),
         (request.microbatches / together + 1) * together);
  }
  return updatingPipeline(request, 1, replicas);
}

}  // namespace

Schedule pipeDreamSchedule(const FamilyRequest& request) {
  const IdVector<StageId, int> replicas = replicasOf(request);
  Schedule schedule = stashingPipeline(request, replicas);
  for (const StageId stage : replicas.ids()) {
    std::vector<int>& versions = schedule.versions.emplace_back();
    const int share = replicas[stage];
    for (int i = 0; i < request.microbatches; ++i)
      versions.push_back(std::max(0, i / share - warmUp(replicas, stage)));
  }
  return schedule;
}

Schedule pipeDreamVerticalSchedule(const FamilyRequest& request) {
  const IdVector<StageId, int> replicas = replicasOf(request);
  Schedule schedule = stashingPipeline(request, replicas);
  const int first = replicas.front();
  for (const int share : replicas) {
    std::vector<int>& versions = schedule.versions.emplace_back();
    for (int i = 0; i < request.microbatches; ++i) {
      // minibatches, by the version that stage 0 reads
      const int seen = first * std::max(0, i / first - warmUp(replicas, StageId(0)));
      versions.push_back(seen / share);
    }
  }
  return schedule;
}

Schedule pipeDreamTwoBufferSchedule(const FamilyRequest& request) {
  const IdVector<StageId, int> replicas = replicasOf(request);
  const int per_update = std::min<int64_t>(request.option("m", request.ranks), request.microbatches);
  const int in_flight = (warmUp(replicas, StageId(0)) + 1) * replicas.front();
  if (per_update < in_flight) {
    const bool turns = std::any_of(replicas.begin(), replicas.end(), [](int number) { return number > 1; });
    fail(ErrorCode::kConfiguration,
         "schedule pipedream-2bw: found {} microbatches per update; expected at least {}, {}: with fewer, "
         "two versions of the weights are not enough",
         per_update, in_flight,
         turns ? "as many as are under way (pipedream-2bw:rows=1 lets the devices of a stage share the rows "
                 "of each)"
               : "one per stage");
  }
  if (request.microbatches % per_update != 0) {
    fail(
        ErrorCode::kConfiguration,
        "schedule pipedream-2bw: found {} microbatches; expected a multiple of the {} that each update takes",
        request.microbatches, per_update);
  }
  Schedule schedule =
      updatingPipeline(request, per_update, IdVector<StageId, int>(request.ranks, per_update));
  schedule.versions.resize(request.ranks);
  for (std::vector<int>& versions : schedule.versions) {
    for (int k = 0; k < request.microbatches; ++k) versions.push_back(std::max(0, k / per_update - 1));
  }
  return schedule;
}

}  // namespace pipeshard
