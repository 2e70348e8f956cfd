#include "partition/emit/prolonged_programs.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/base/parallel.h"
#include "ir/program/numbers.h"
#include "ir/program/prolonged.h"
#include "ir/program/rolled_kind.h"

namespace pipeshard {
namespace {

using Kinds = std::array<const ProgramKind*, 3>;

bool same(const Subgraph& a, const Subgraph& b) {
  return a.name == b.name && a.inputs == b.inputs && a.outputs == b.outputs && a.collectives == b.collectives;
}

bool same(const RankBinding& a, const RankBinding& b) {
  return a.kind == b.kind && a.peers == b.peers && a.groups == b.groups && a.starts == b.starts &&
         a.constants == b.constants;
}

// All that does not grow.
bool same(const ProgramSet& a, const ProgramSet& b) {
  const auto same_kinds = [](const ProgramKind& x, const ProgramKind& y) {
    const auto& mine = x.program.subgraphs;
    const auto& theirs = y.program.subgraphs;
    return x.program.rank == y.program.rank && x.program.groups == y.program.groups &&
           x.own_constants == y.own_constants &&
           std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                      [](const Subgraph& s, const Subgraph& t) { return same(s, t); });
  };
  return a.groups == b.groups &&
         std::equal(a.kinds.begin(), a.kinds.end(), b.kinds.begin(), b.kinds.end(), same_kinds) &&
         std::equal(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end(),
                    [](const RankBinding& x, const RankBinding& y) { return same(x, y); });
}

// The longer list: its loops stay loops.
template <typename T>
LoopedList<T> prolongedList(const std::vector<ProlongedPart>& parts, const LoopedList<T>& first) {
  LoopedList<T> made;
  const typename LoopedList<T>::Reader items(first);
  for (const ProlongedPart& part : parts) {
    std::vector<T> body;
    for (size_t i = 0; i < part.period; ++i) {
      body.push_back(items[part.first + i]);
      setNumbers(body.back(), part.numbers[i]);
    }
    if (part.count > 1) {
      made.addLoop(std::move(body), part.steps, part.count);
    } else {
      for (T& item : body) made.push_back(std::move(item));
    }
  }
  return made;
}

// `add`: adds a kind's items to a list.
template <typename Add>
std::optional<std::vector<ProlongedPart>> partsOf(const Kinds& kinds, int64_t more, const Add& add) {
  std::array<NumberedList, 3> lists;
  lists[1] = lists[0].anotherOfTheseForms();
  lists[2] = lists[0].anotherOfTheseForms();
  for (size_t l = 0; l < lists.size(); ++l) add(*kinds[l], lists[l]);
  return prolonged(lists, more);
}

std::optional<LoopedList<Instruction>> prolongedInstructions(const Kinds& kinds, int64_t more) {
  const auto parts = partsOf(
      kinds, more, [](const ProgramKind& kind, NumberedList& list) { addInstructions(kind.program, list); });
  if (!parts) return std::nullopt;
  return prolongedList(*parts, kinds[0]->program.instructions);
}

std::optional<std::vector<Result>> prolongedResults(const Kinds& kinds, int64_t more) {
  const auto parts = partsOf(kinds, more, [](const ProgramKind& kind, NumberedList& list) {
    for (const Result& item : kind.program.results) list.add(formOf(item), numbersOf(item));
  });
  if (!parts) return std::nullopt;
  std::vector<Result> made;
  for (const ProlongedPart& part : *parts) {
    std::vector<std::vector<int64_t>> numbers = part.numbers;
    for (size_t iteration = 0; iteration < part.count; ++iteration) {
      for (size_t i = 0; i < part.period; ++i) {
        setNumbers(made.emplace_back(kinds[0]->program.results[part.first + i]), numbers[i]);
        for (size_t k = 0; k < numbers[i].size(); ++k) numbers[i][k] += part.steps[i][k];
      }
    }
  }
  return made;
}

// With what the kind says of them.
bool prolongBuffers(const Kinds& kinds, int64_t more, ProgramKind& made) {
  const auto parts = partsOf(kinds, more, addBuffers);
  if (!parts) return false;
  made.program.buffers = prolongedList(*parts, kinds[0]->program.buffers);
  for (const ProlongedPart& part : *parts) {
    for (size_t i = 0; i < part.period * part.count; ++i) {
      const size_t item = part.first + i % part.period;
      made.start_slots.push_back(kinds[0]->start_slots[item]);
      made.boxed.push_back(kinds[0]->boxed[item]);
    }
  }
  return true;
}

std::optional<ProgramKind> prolongedKind(const Kinds& kinds, int64_t more, int64_t microbatches) {
  ProgramKind made;
  const Program& shortest = kinds[0]->program;
  made.own_constants = kinds[0]->own_constants;
  made.program.rank = shortest.rank;
  made.program.world_size = shortest.world_size;
  made.program.microbatches = microbatches;
  made.program.updates_per_step = shortest.updates_per_step;
  made.program.subgraphs = shortest.subgraphs;
  made.program.groups = shortest.groups;
  made.program.inputs = shortest.inputs;
  auto instructions = prolongedInstructions(kinds, more);
  auto results = prolongedResults(kinds, more);
  if (!instructions || !results || !prolongBuffers(kinds, more, made)) return std::nullopt;
  made.program.instructions = *std::move(instructions);
  made.program.results = *std::move(results);
  for (BufferId Program::*named : {&Program::guard, &Program::loss_scale}) {
    if (!(shortest.*named).valid()) continue;
    const size_t at = (shortest.*named).index(), next = (kinds[1]->program.*named).index();
    made.program.*named = BufferId(at + static_cast<size_t>(more) * (next - at));
  }
  return made;
}

}  // namespace

std::optional<EmittedPrograms> prolongedPrograms(std::array<EmittedPrograms, 3> shorter, int64_t more,
                                                 int64_t microbatches) {
  if (!same(shorter[0].set, shorter[1].set) || !same(shorter[0].set, shorter[2].set)) return std::nullopt;
  IdVector<KindId, ProgramKind> kinds(shorter[0].set.kinds.size());
  std::atomic<bool> uneven = false;
  parallelFor(processorCount(), static_cast<int32_t>(kinds.size()), [&](int32_t k) {
    const KindId id(k);
    const Kinds of = {&shorter[0].set.kinds[id], &shorter[1].set.kinds[id], &shorter[2].set.kinds[id]};
    std::optional<ProgramKind> kind = prolongedKind(of, more, microbatches);
    uneven = uneven || !kind;
    if (kind) kinds[id] = *std::move(kind);
  });
  if (uneven) return std::nullopt;
  EmittedPrograms made = std::move(shorter[0]);
  made.set.kinds = std::move(kinds);
  return made;
}

}  // namespace pipeshard
