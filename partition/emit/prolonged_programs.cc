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

size_t countOf(const std::vector<ProlongedPart>& parts) {
  size_t count = 0;
  for (const ProlongedPart& part : parts) count += part.period * part.count;
  return count;
}

// Calls `take` with every item of the longer list: its place in the first one, and its numbers.
template <typename Take>
void forEachItem(const std::vector<ProlongedPart>& parts, const Take& take) {
  for (const ProlongedPart& part : parts) {
    std::vector<std::vector<int64_t>> numbers = part.numbers;
    for (size_t iteration = 0; iteration < part.count; ++iteration) {
      for (size_t i = 0; i < part.period; ++i) {
        take(part.first + i, numbers[i]);
        for (size_t k = 0; k < numbers[i].size(); ++k) numbers[i][k] += part.steps[i][k];
      }
    }
  }
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

template <typename T>
std::optional<std::vector<T>> prolongedItems(const Kinds& kinds, int64_t more,
                                             std::vector<T> Program::*items) {
  const auto parts = partsOf(kinds, more, [&](const ProgramKind& kind, NumberedList& list) {
    for (const T& item : kind.program.*items) list.add(formOf(item), numbersOf(item));
  });
  if (!parts) return std::nullopt;
  std::vector<T> made;
  made.reserve(countOf(*parts));
  forEachItem(*parts, [&](size_t item, const std::vector<int64_t>& numbers) {
    setNumbers(made.emplace_back((kinds[0]->program.*items)[item]), numbers);
  });
  return made;
}

// With what the kind says of them.
bool prolongBuffers(const Kinds& kinds, int64_t more, ProgramKind& made) {
  const auto parts = partsOf(kinds, more, [](const ProgramKind& kind, NumberedList& list) {
    for (size_t b = 0; b < kind.program.buffers.size(); ++b) {
      const Buffer& buffer = kind.program.buffers[b];
      const std::string form = buffer.source ? "source of " + buffer.name : formOf(buffer);
      list.add(fmt::format("{} {} {}", kind.start_slots[b], kind.boxed[b] ? 1 : 0, form),
               buffer.source ? std::vector<int64_t>() : numbersOf(buffer));
    }
  });
  if (!parts) return false;
  made.program.buffers.reserve(countOf(*parts));
  forEachItem(*parts, [&](size_t item, const std::vector<int64_t>& numbers) {
    setNumbers(made.program.buffers.emplace_back(kinds[0]->program.buffers[item]), numbers);
    made.start_slots.push_back(kinds[0]->start_slots[item]);
    made.boxed.push_back(kinds[0]->boxed[item]);
  });
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
  auto instructions = prolongedItems(kinds, more, &Program::instructions);
  auto results = prolongedItems(kinds, more, &Program::results);
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
