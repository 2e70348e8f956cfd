#include "partition/emit/rank_kinds.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "ir/program/program_set_verify.h"
#include "partition/emit/emission_progress.h"
#include "partition/emit/emit_free.h"
#include "partition/emit/emit_rank.h"

namespace pipeshard {
namespace {

// The kinds of the ranks of one group of devices. What they do follows from the context and from answers
// about the group's own ranks, so groups are worked at beside each other.
class GroupEmitter {
 public:
  GroupEmitter(const EmissionContext& context, ShardedPieces& pieces, const Completion& complete,
               std::vector<RankId> ranks)
      : context_(context), complete_(complete), ranks_(std::move(ranks)) {
    context_.pieces = &pieces;
  }

  // `done`: called behind every rank.
  void run(const std::function<void()>& done) {
    for (const RankId rank : ranks_) {
      if (!bind(rank)) emit(rank);
      done();
    }
  }

  // What has been made, by rank of the group: its kind and its groups are those of `made`.
  struct Made {
    std::vector<RankId> ranks;
    std::vector<RankBinding> bindings;
    EmittedPrograms made;  // without ranks
  };
  Made take() && { return {std::move(ranks_), std::move(bindings_), std::move(made_)}; }

 private:
  // Of a kind that has been emitted, if the rank is of one.
  bool bind(RankId rank) {
    for (const KindId kind : questions_.ids()) {
      std::optional<RankBinding> binding = questions_[kind].bindingOf(rank, peers_[kind], made_.set);
      if (!binding) continue;
      binding->kind = kind;
      bindings_.push_back(std::move(*binding));
      return true;
    }
    return false;
  }

  void emit(RankId rank) {
    EmittedRank emitted = emitRank(context_, rank);
    complete_(emitted);
    const std::vector<Buffer>& buffers = emitted.rank.program.buffers.plain();
    emitted.start_slots.resize(buffers.size(), -1);
    emitted.boxed.resize(buffers.size());
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (!buffers[b].part) emitted.start_slots[b] = -1;
    }
    std::vector<OwnConstant> own = takeOwnConstants(emitted);
    peers_.push_back(peersOf(emitted.rank.program));
    made_.set.kinds.push_back({std::move(emitted.rank.program), std::move(emitted.start_slots),
                               std::move(emitted.boxed), std::move(own)});
    made_.subgraphs.push_back(std::make_shared<const std::vector<Graph>>(std::move(emitted.rank.subgraphs)));
    questions_.push_back(std::move(emitted.questions));
    PIPESHARD_CHECK(bind(rank), "rank {} is not of the kind that it was emitted for", rank);
    PIPESHARD_CHECK(bindings_.back().kind.next() == questions_.nextId(), "rank {} is of an earlier kind",
                    rank);
  }

  // Takes the marks off the constants of its graphs.
  static std::vector<OwnConstant> takeOwnConstants(EmittedRank& emitted) {
    std::vector<OwnConstant> own;
    for (size_t s = 0; s < emitted.rank.subgraphs.size(); ++s) {
      Graph& graph = emitted.rank.subgraphs[s];
      for (const auto& [id, initializer] : graph.initializers) {
        Value& value = graph.value(id);
        if (value.metadata.empty() || value.metadata.back().first != kOwnConstantMark) continue;
        own.push_back(
            {SubgraphId(s), value.name, emitted.questions.constantSlot(value.metadata.back().second)});
        value.metadata.pop_back();
      }
    }
    return own;
  }

  EmissionContext context_;
  const Completion& complete_;
  std::vector<RankId> ranks_;
  std::vector<RankBinding> bindings_;
  IdVector<KindId, RankQuestions> questions_;
  IdVector<KindId, std::vector<RankId>> peers_;  // peersOf its program
  EmittedPrograms made_;
};

class KindEmitter {
 public:
  KindEmitter(const EmissionContext& context, IdVector<PipelineRankId, ShardedPieces>& pieces,
              const Completion& complete, const std::function<void(double)>& progress)
      : context_(context), pieces_(pieces), complete_(complete), progress_(progress) {}

  EmittedPrograms run() {
    joinGroups(emitGroups());
    progress_.tell(kEmission);
    insertFreesOfKinds();
    progress_.tell(1);
    return std::move(made_);
  }

 private:
  static constexpr double kEmission = 0.85;  // share of the time, about; frees take the rest

  // The group of the lowest rank first: so errors come in the order of ranks.
  std::vector<std::vector<RankId>> ranksOfGroups() const {
    std::vector<std::vector<RankId>> groups;
    IdVector<PipelineRankId, std::optional<size_t>> place(context_.layout.groups());
    for (const RankId rank : context_.layout.rankIds()) {
      std::optional<size_t>& of = place[context_.layout.place(rank).group];
      if (!of) {
        of = groups.size();
        groups.emplace_back();
      }
      groups[*of].push_back(rank);
    }
    return groups;
  }

  std::vector<GroupEmitter::Made> emitGroups() {
    context_.family.makeMembers();
    const std::vector<std::vector<RankId>> groups = ranksOfGroups();
    std::vector<GroupEmitter::Made> made(groups.size());
    std::atomic<int> done = 0;
    EmissionContext context = context_;
    context.beat = [&] { progress_.tell(kEmission * done / context_.layout.ranks()); };
    parallelFor(processorCount(), static_cast<int32_t>(groups.size()), [&](int32_t g) {
      const PipelineRankId id = context_.layout.place(groups[g].front()).group;
      GroupEmitter group(context, pieces_[id], complete_, groups[g]);
      group.run([&] {
        ++done;
        context.beat();
      });
      made[g] = std::move(group).take();
    });
    return made;
  }

  // Kinds, and groups of ranks, in the order in which ranks are of them.
  void joinGroups(std::vector<GroupEmitter::Made> groups) {
    made_.set.ranks.resize(context_.layout.ranks());
    struct Origin {
      GroupEmitter::Made* of = nullptr;
      size_t place = 0;
    };
    IdVector<RankId, Origin> origins(context_.layout.ranks());
    for (GroupEmitter::Made& group : groups) {
      for (size_t i = 0; i < group.ranks.size(); ++i) origins[group.ranks[i]] = {&group, i};
    }
    std::map<std::pair<const GroupEmitter::Made*, KindId>, KindId> joined;
    for (const RankId rank : origins.ids()) {
      EmittedPrograms& made = origins[rank].of->made;
      RankBinding& binding = origins[rank].of->bindings[origins[rank].place];
      const auto [kind, is_new] =
          joined.try_emplace({origins[rank].of, binding.kind}, made_.set.kinds.nextId());
      if (is_new) {
        made_.set.kinds.push_back(std::move(made.set.kinds[binding.kind]));
        made_.subgraphs.push_back(std::move(made.subgraphs[binding.kind]));
      }
      binding.kind = kind->second;
      for (size_t& group : binding.groups) group = groupIn(made_.set, made.set.groups[group]);
      made_.set.ranks[rank] = std::move(binding);
    }
  }

  // The graphs of a rank's subgraphs: shared with its kind where nothing in them is the rank's own.
  std::shared_ptr<const std::vector<Graph>> subgraphsOf(RankId rank) const {
    const RankBinding& binding = made_.set.ranks[rank];
    const ProgramKind& of = made_.set.kinds[binding.kind];
    if (of.own_constants.empty() || of.program.rank == rank) return made_.subgraphs[binding.kind];
    std::vector<Graph> own = *made_.subgraphs[binding.kind];
    bindConstants(of, binding, own);
    return std::make_shared<const std::vector<Graph>>(std::move(own));
  }

  // The ranks of a sample, with the programs of their kinds.
  IdVector<RankId, FreedRank> freedRanks(const RankSample& sample) const {
    IdVector<RankId, FreedRank> ranks;
    for (const RankId rank : sample.ranks) {
      const RankBinding& binding = made_.set.ranks[rank];
      FreedRank& freed = ranks.emplace_back(FreedRank{&made_.set.kinds[binding.kind].program, {}});
      const std::vector<RankId> of_kind = peersOf(*freed.program);
      for (size_t i = 0; i < of_kind.size(); ++i)
        freed.peers.emplace_back(of_kind[i], RankId(sample.place[binding.peers[i]]));
      std::sort(freed.peers.begin(), freed.peers.end());
    }
    return ranks;
  }

  // A kind with its frees, and what it is made of.
  struct FreedKind {
    RankId first;  // of its ranks
    KindId of;
    const Frees* frees = nullptr;
  };

  // Where buffers end depends on what the rank's peers do: frees are found for a sample, and a kind whose
  // ranks free at different places becomes several.
  void insertFreesOfKinds() {
    ProgramSet& set = made_.set;
    verifyBindings(set);
    const RankSample sample = sampleOf(set);
    const IdVector<RankId, Frees> frees = findFrees(freedRanks(sample));
    std::map<std::pair<KindId, Frees>, KindId> kind_of;
    std::vector<KindId> of_place(sample.ranks.size());
    IdVector<KindId, FreedKind> kinds;
    IdVector<RankId, KindId> of_rank;
    for (const RankId rank : set.ranks.ids()) {
      const size_t place = sample.place[rank];
      if (!of_place[place].valid()) {
        const KindId of = set.ranks[rank].kind;
        const auto [found, is_new] = kind_of.try_emplace({of, frees[RankId(place)]}, kinds.nextId());
        if (is_new) kinds.push_back({rank, of, &frees[RankId(place)]});
        of_place[place] = found->second;
      }
      of_rank.push_back(of_place[place]);
    }
    splitKinds(kinds);
    for (const RankId rank : set.ranks.ids()) set.ranks[rank].kind = of_rank[rank];
  }

  // The last of those that one becomes takes it over: the first, whose first rank is that of both.
  void splitKinds(const IdVector<KindId, FreedKind>& kinds) {
    IdVector<KindId, ProgramKind> split(kinds.size());
    IdVector<KindId, std::shared_ptr<const std::vector<Graph>>> subgraphs(kinds.size());
    for (size_t k = kinds.size(); k-- > 0;) {
      const auto& [first, of_id, frees] = kinds[KindId(k)];
      ProgramKind& of = made_.set.kinds[of_id];
      subgraphs[KindId(k)] = subgraphsOf(first);
      ProgramKind& kind = split[KindId(k)];
      if (of.program.rank == first) {
        kind = std::move(of);
      } else {
        kind = {instantiate(made_.set, first), of.start_slots, of.boxed, of.own_constants};
      }
      insertFrees(*frees, kind.program);
    }
    made_.set.kinds = std::move(split);
    made_.subgraphs = std::move(subgraphs);
  }

  const EmissionContext& context_;
  IdVector<PipelineRankId, ShardedPieces>& pieces_;
  const Completion& complete_;
  EmissionProgress progress_;
  EmittedPrograms made_;
};

}  // namespace

EmittedPrograms emitKinds(const EmissionContext& context, IdVector<PipelineRankId, ShardedPieces>& pieces,
                          const Completion& complete, const std::function<void(double)>& progress) {
  return KindEmitter(context, pieces, complete, progress).run();
}

RankProgram EmittedPrograms::of(RankId rank) const {
  const RankBinding& binding = set.ranks[rank];
  RankProgram own{instantiate(set, rank), *subgraphs[binding.kind]};
  bindConstants(set.kinds[binding.kind], binding, own.subgraphs);
  own.program.buffers.unrolled();
  own.program.instructions.unrolled();
  return own;
}

IdVector<RankId, RankProgram> EmittedPrograms::ofAllRanks() const {
  IdVector<RankId, RankProgram> ranks;
  for (const RankId rank : set.ranks.ids()) ranks.push_back(of(rank));
  return ranks;
}

}  // namespace pipeshard
