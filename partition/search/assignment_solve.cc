#include "partition/search/assignment_solve.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/base/parallel.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {

// The recursion, with + the sum for kLeastSum and the maximum for kLeastSlowest (join: what a transfer adds):
//
//   value(k, i, m, b)       least over last layers j and choices c with boundary b on m:
//                           c.cost + next(k - 1, j + 1, m, b, c.most_transfer)
//   next(k, n, m, b, most)  least over submeshes m' that may follow m and boundaries b':
//                           transfer(n - 1, m, b, m', b'), at most `most`, + value(k, n, m', b')
//
// A level (all values of k stages) is made in two halves. connect finds `next` of every (n, m, b) once, so
// that relax takes one addition for each choice and submesh; only a choice that bounds its transfers closer
// searches again (bestNext). prefix_ has a lower bound of what lies before: whatever with it reaches the
// limit is not looked at. Levels only read the level below: their rows are made by several threads.
//
//   the example of stage_assignment.h, kLeastSum: value(1, 0, one device) = 20, value(1, 0, both) = 12,
//   value(2, 0, first device) = 10 + value(1, 1, second device) = 20

AssignmentSolver::Choice AssignmentSolver::choiceOf(const StageOption& option) const {
  Choice choice{
      .cost = slowestPart(request_, option, 0), .most_transfer = kNever, .boundary = option.boundary};
  if (goal_ == AssignmentGoal::kLeastSlowest) return choice;
  if (choice.cost > bound_) choice.most_transfer = -1;
  choice.cost = option.pass_ns;
  if (choice.most_transfer < 0 || bound_ >= kNever) return choice;
  if (request_.objective == AssignmentObjective::kThroughput) {
    choice.most_transfer = bound_;
  } else if (request_.exposed_transfers && request_.microbatches > 1) {
    choice.most_transfer = (bound_ - option.step_ns) / (request_.microbatches - 1) - option.pass_ns;
  }
  return choice;
}

void AssignmentSolver::makeChoices() {
  const int64_t most_asked = *std::max_element(tables_.in_flight.begin(), tables_.in_flight.end());
  choices_.resize(tables_.options.size());
  parallelFor(threads_, tables_.classes * tables_.layers, [&](int32_t index) {
    for (size_t i = index * tables_.layers; i < static_cast<size_t>((index + 1) * tables_.layers); ++i) {
      std::vector<Choice>& choices = choices_[i];
      choices.clear();
      for (size_t option = 0; option < tables_.options[i].size(); ++option) {
        Choice choice = choiceOf(tables_.options[i][option].option);
        if (choice.most_transfer < 0) continue;
        choice.most_in_flight = std::min(most_asked, tables_.options[i][option].most_in_flight);
        choice.option = option;
        const auto beats = [](const Choice& a, const Choice& b) {
          return a.boundary == b.boundary && a.cost <= b.cost && a.most_transfer >= b.most_transfer &&
                 a.most_in_flight >= b.most_in_flight;
        };
        if (std::any_of(choices.begin(), choices.end(),
                        [&](const Choice& other) { return beats(other, choice); }))
          continue;
        std::erase_if(choices, [&](const Choice& other) { return beats(choice, other); });
        choices.push_back(choice);
      }
    }
  });
}

void AssignmentSolver::makePrefixes() {
  const size_t devices = tables_.starting_at.size();
  prefix_.assign(static_cast<size_t>(tables_.layers) * devices, kNever);
  least_prefix_.assign(tables_.layers, kNever);
  prefix_[0] = 0;
  for (int first = 0; first < tables_.layers; ++first) {
    for (size_t device = 0; device < devices; ++device) {
      const int64_t before = prefix_[static_cast<size_t>(first) * devices + device];
      least_prefix_[first] = std::min(least_prefix_[first], before);
      if (before >= limit_) continue;
      for (const int mesh : tables_.starting_at[device]) {
        for (int last = first; last + 1 < tables_.layers; ++last) {
          int64_t cost = kNever;
          for (const Choice& choice : choicesOf(tables_.class_of[mesh], first, last))
            cost = std::min(cost, choice.cost);
          for (const Follow& follow : tables_.follow[mesh]) {
            if (follow.device < 0) continue;
            int64_t& prefix =
                prefix_[static_cast<size_t>(last + 1) * devices + static_cast<size_t>(follow.device)];
            prefix = std::min(prefix, combined(before, cost));
          }
        }
      }
    }
  }
}

int64_t AssignmentSolver::join(int64_t transfer, int64_t value) const {
  if (goal_ == AssignmentGoal::kLeastSum) return transfer + value;
  return request_.objective == AssignmentObjective::kThroughput ? std::max(transfer, value) : value;
}

void AssignmentSolver::listEntries(int stages, int next) {
  const std::vector<int64_t>& values = levels_[stages];
  for (size_t device = 0; device < tables_.starting_at.size(); ++device) {
    std::vector<Entry>& entries = entries_[static_cast<size_t>(next) * tables_.starting_at.size() + device];
    entries.clear();
    const int64_t before = prefix_[static_cast<size_t>(next) * tables_.starting_at.size() + device];
    if (before >= limit_) continue;
    for (const int mesh : tables_.starting_at[device]) {
      for (int boundary = 0; boundary < tables_.boundaries; ++boundary) {
        const int64_t value = values[row(next, boundary) + static_cast<size_t>(mesh)];
        if (combined(before, value) < limit_) entries.push_back({value, tables_.class_of[mesh], boundary});
      }
    }
    std::sort(entries.begin(), entries.end());
  }
}

int64_t AssignmentSolver::bestNext(int next, int mesh, int boundary, int64_t most, int64_t* transfer) const {
  int64_t best = kNever;
  for (const Follow& follow : tables_.follow[mesh]) {
    if (follow.device < 0) continue;
    const int mesh_class = tables_.class_of[mesh];
    const int64_t least = tables_.leastTransfer(next - 1, mesh_class, boundary, follow.same_node);
    const size_t list =
        static_cast<size_t>(next) * tables_.starting_at.size() + static_cast<size_t>(follow.device);
    for (const Entry& entry : entries_[list]) {
      if (join(least, entry.value) >= best) break;
      const int64_t crossing = tables_.transfer(next - 1, mesh_class, boundary, entry.mesh_class,
                                                entry.boundary, follow.same_node);
      if (crossing > most) continue;
      const int64_t value = join(crossing, entry.value);
      if (value >= best) continue;
      best = value;
      *transfer = crossing;
    }
  }
  return best;
}

void AssignmentSolver::connectAt(int stages, int next) {
  listEntries(stages, next);
  const bool bounded =
      goal_ == AssignmentGoal::kLeastSum && request_.objective == AssignmentObjective::kThroughput;
  for (int boundary = 0; boundary < tables_.boundaries; ++boundary) {
    const size_t at = row(next, boundary);
    const size_t least_at = (next * tables_.boundaries + boundary) * tables_.classes;
    std::fill_n(least_next_.begin() + static_cast<int64_t>(least_at), tables_.classes, kNever);
    for (size_t mesh = 0; mesh < tables_.meshes.size(); ++mesh) {
      int64_t transfer = 0;
      next_value_[at + mesh] = bestNext(next, mesh, boundary, bounded ? bound_ : kNever - 1, &transfer);
      next_transfer_[at + mesh] = transfer;
      int64_t& least = least_next_[least_at + static_cast<size_t>(tables_.class_of[mesh])];
      least = std::min(least, next_value_[at + mesh]);
    }
  }
}

void AssignmentSolver::connect(int stages) {
  parallelFor(threads_, tables_.layers - stages, [&](int32_t i) { connectAt(stages, i + 1); });
  for (int next = 1; next <= tables_.layers - stages; ++next) {
    for (size_t device = 0; device < tables_.starting_at.size(); ++device) {
      states_ += static_cast<int64_t>(
          entries_[static_cast<size_t>(next) * tables_.starting_at.size() + device].size());
    }
  }
}

void AssignmentSolver::fillLastStages() {
  std::vector<int64_t>& values = levels_[1];
  const int last = tables_.layers - 1;
  for (int first = 0; first <= last; ++first) {
    for (int mesh_class = 0; mesh_class < tables_.classes; ++mesh_class) {
      for (const Choice& choice : choicesOf(mesh_class, first, last)) {
        if (tables_.in_flight[0] > choice.most_in_flight) continue;
        for (int mesh = tables_.class_begin[mesh_class];
             mesh < tables_.class_begin[static_cast<size_t>(mesh_class) + 1]; ++mesh) {
          int64_t& value = values[row(first, choice.boundary) + static_cast<size_t>(mesh)];
          if (tables_.may_end[mesh]) value = std::min(value, choice.cost);
        }
      }
    }
  }
}

void AssignmentSolver::relax(const Choice& choice, int next, int first_mesh, int end_mesh,
                             int64_t* values) const {
  const int64_t* next_values = next_value_.data() + row(next, choice.boundary);
  const int64_t* transfers = next_transfer_.data() + row(next, choice.boundary);
  const int64_t cost = choice.cost;
  if (goal_ == AssignmentGoal::kLeastSlowest) {
    for (int mesh = first_mesh; mesh < end_mesh; ++mesh)
      values[mesh] = std::min(values[mesh], std::max(cost, next_values[mesh]));
    // connectAt has seen to it
  } else if (choice.most_transfer >= kNever || request_.objective == AssignmentObjective::kThroughput) {
    for (int mesh = first_mesh; mesh < end_mesh; ++mesh)
      values[mesh] = std::min(values[mesh], cost + next_values[mesh]);
  } else {
    for (int mesh = first_mesh; mesh < end_mesh; ++mesh) {
      if (cost + next_values[mesh] >= values[mesh]) continue;
      int64_t unused = 0;
      const int64_t next_value = transfers[mesh] <= choice.most_transfer
                                     ? next_values[mesh]
                                     : bestNext(next, mesh, choice.boundary, choice.most_transfer, &unused);
      values[mesh] = std::min(values[mesh], cost + next_value);
    }
  }
}

void AssignmentSolver::fillFrom(int stages, int first) {
  std::vector<int64_t>& values = levels_[stages];
  for (int mesh_class = 0; mesh_class < tables_.classes; ++mesh_class) {
    const int begin = tables_.class_begin[mesh_class];
    int end = tables_.class_begin[static_cast<size_t>(mesh_class) + 1];
    if (first == 0) {  // only what begins at the first device is of use
      while (end > begin && tables_.meshes[static_cast<size_t>(end) - 1].first_device > 0) --end;
    }
    for (int last = first; last <= tables_.layers - stages; ++last) {
      for (const Choice& choice : choicesOf(mesh_class, first, last)) {
        if (tables_.in_flight[static_cast<size_t>(stages) - 1] > choice.most_in_flight) continue;
        const size_t least_at =
            ((last + 1) * tables_.boundaries + choice.boundary) * tables_.classes + mesh_class;
        const int64_t least = combined(choice.cost, least_next_[least_at]);
        if (combined(least_prefix_[first], least) >= limit_) continue;
        relax(choice, last + 1, begin, end, values.data() + row(first, choice.boundary));
      }
    }
  }
}

void AssignmentSolver::fillLevel(int stages) {
  parallelFor(threads_, tables_.layers - stages + 1, [&](int32_t first) { fillFrom(stages, first); });
}

bool AssignmentSolver::solve(AssignmentGoal goal, int64_t bound, int64_t limit) {
  goal_ = goal;
  bound_ = bound;
  limit_ = std::min(limit, kNever);
  makeChoices();
  makePrefixes();
  const size_t size = row(tables_.layers, 0);
  levels_.resize(static_cast<size_t>(tables_.most_stages) + 1);
  for (std::vector<int64_t>& level : levels_) level.assign(size, kNever);
  next_value_.assign(size, kNever);
  next_transfer_.assign(size, 0);
  least_next_.assign(tables_.layers * tables_.boundaries * tables_.classes, kNever);
  entries_.resize(static_cast<size_t>(tables_.layers) * tables_.starting_at.size());
  fillLastStages();
  for (int stages = 2; stages <= tables_.most_stages; ++stages) {
    if (request_.interrupted && request_.interrupted()) return false;
    connect(stages - 1);
    fillLevel(stages);
  }
  return true;
}

int64_t AssignmentSolver::value(int stages) const {
  int64_t best = kNever;
  for (const int mesh : tables_.starting_at[0]) {
    for (int boundary = 0; boundary < tables_.boundaries; ++boundary) {
      best = std::min(best, levels_[stages][row(0, boundary) + static_cast<size_t>(mesh)]);
    }
  }
  return best;
}

// Whether the value `target` of a stage up to `last` is that of this choice and some next stage, which mesh
// and boundary then become.
bool AssignmentSolver::isFollowed(int stages, int last, const Choice& choice, int64_t target, int& mesh,
                                  int& boundary, int64_t& transfer) const {
  for (const Follow& follow : tables_.follow[mesh]) {
    if (follow.device < 0) continue;
    for (const int to : tables_.starting_at[follow.device]) {
      for (int to_boundary = 0; to_boundary < tables_.boundaries; ++to_boundary) {
        const int64_t value =
            levels_[static_cast<size_t>(stages) - 1][row(last + 1, to_boundary) + static_cast<size_t>(to)];
        if (value >= kNever) continue;
        transfer = tables_.transfer(last, tables_.class_of[mesh], boundary, tables_.class_of[to], to_boundary,
                                    follow.same_node);
        if (transfer >= kNever || transfer > choice.most_transfer) continue;
        const int64_t joined = join(transfer, value);
        if (combined(choice.cost, joined) != target) continue;
        mesh = to;
        boundary = to_boundary;
        return true;
      }
    }
  }
  return false;
}

// The stage that a value is of; mesh and boundary become those of the next one.
AssignedStage AssignmentSolver::nextOf(int stages, int first, int& mesh, int& boundary) const {
  const int64_t target = levels_[stages][row(first, boundary) + static_cast<size_t>(mesh)];
  const int mesh_class = tables_.class_of[mesh];
  const Submesh& submesh = tables_.meshes[mesh];
  for (int last = stages == 1 ? tables_.layers - 1 : first; last <= tables_.layers - stages; ++last) {
    const std::vector<TableOption>& options = tables_.optionsOf(mesh_class, first, last);
    for (const Choice& choice : choicesOf(mesh_class, first, last)) {
      if (choice.boundary != boundary ||
          tables_.in_flight[static_cast<size_t>(stages) - 1] > choice.most_in_flight)
        continue;
      AssignedStage stage{first, last, submesh, options[choice.option].option, 0};
      if (stages == 1 ? choice.cost == target
                      : isFollowed(stages, last, choice, target, mesh, boundary, stage.transfer_ns))
        return stage;
    }
  }
  PIPESHARD_CHECK(false, "no stage from layer {} has the value {}", first, target);
  return {};
}

Assignment AssignmentSolver::plan(int stages) const {
  const int64_t best = value(stages);
  PIPESHARD_CHECK(best < kNever, "no plan of {} stages", stages);
  int mesh = -1;
  int boundary = 0;
  for (const int candidate : tables_.starting_at[0]) {
    for (int b = 0; b < tables_.boundaries && mesh < 0; ++b) {
      if (levels_[stages][row(0, b) + static_cast<size_t>(candidate)] == best) mesh = candidate, boundary = b;
    }
  }
  Assignment assignment;
  for (int left = stages, first = 0; left > 0; --left, first = assignment.stages.back().last_layer + 1) {
    assignment.stages.push_back(nextOf(left, first, mesh, boundary));
  }
  assignment.objective_ns = objectiveOf(request_, assignment.stages);
  return assignment;
}

}  // namespace pipeshard
