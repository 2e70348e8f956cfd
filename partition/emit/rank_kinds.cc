#include "partition/emit/rank_kinds.h"

#include <map>
#include <memory>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/program/program_set_verify.h"
#include "partition/emit/emit_free.h"
#include "partition/emit/emit_rank.h"

namespace pipeshard {
namespace {

class KindEmitter {
 public:
  KindEmitter(const EmissionContext& context, const Completion& complete,
              const std::function<void(double)>& progress)
      : context_(context),
        complete_(complete),
        progress_(progress),
        kinds_of_group_(context.layout.groups()) {}

  EmittedPrograms run() {
    for (const RankId rank : context_.layout.rankIds()) {
      tell(kEmission * static_cast<double>(rank.index()) / context_.layout.ranks());
      if (!bind(rank)) emit(rank);
    }
    tell(kEmission);
    insertFreesOfKinds();
    tell(kEmission + kFrees);
    verifyProgramSet(made_.set);
    return std::move(made_);
  }

 private:
  // Shares of the time, about; verification takes the rest.
  static constexpr double kEmission = 0.5, kFrees = 0.1;

  void tell(double share) const {
    if (progress_) progress_(share);
  }

  // Of a kind that has been emitted, if the rank is of one.
  bool bind(RankId rank) {
    for (const KindId kind : kinds_of_group_[context_.layout.place(rank).group]) {
      std::optional<RankBinding> binding =
          questions_[kind].bindingOf(rank, peersOf(made_.set.kinds[kind].program), made_.set);
      if (!binding) continue;
      binding->kind = kind;
      made_.set.ranks.push_back(std::move(*binding));
      return true;
    }
    return false;
  }

  void emit(RankId rank) {
    EmittedRank emitted = emitRank(context_, rank);
    complete_(emitted);
    const std::vector<Buffer>& buffers = emitted.rank.program.buffers;
    emitted.start_slots.resize(buffers.size(), -1);
    emitted.boxed.resize(buffers.size());
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (!buffers[b].part) emitted.start_slots[b] = -1;
    }
    const KindId kind = made_.set.kinds.nextId();
    kinds_of_group_[context_.layout.place(rank).group].push_back(kind);
    std::vector<OwnConstant> own = takeOwnConstants(emitted);
    made_.set.kinds.push_back({std::move(emitted.rank.program), std::move(emitted.start_slots),
                               std::move(emitted.boxed), std::move(own)});
    made_.subgraphs.push_back(std::make_shared<const std::vector<Graph>>(std::move(emitted.rank.subgraphs)));
    questions_.push_back(std::move(emitted.questions));
    PIPESHARD_CHECK(bind(rank), "rank {} is not of the kind that it was emitted for", rank);
    PIPESHARD_CHECK(made_.set.ranks.back().kind == kind, "rank {} is of an earlier kind", rank);
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

  // The graphs of a rank's subgraphs: shared with its kind where nothing in them is the rank's own.
  std::shared_ptr<const std::vector<Graph>> subgraphsOf(RankId rank) const {
    const KindId kind = made_.set.ranks[rank].kind;
    const ProgramKind& of = made_.set.kinds[kind];
    if (of.own_constants.empty() || of.program.rank == rank) return made_.subgraphs[kind];
    return std::make_shared<const std::vector<Graph>>(made_.of(rank).subgraphs);
  }

  // Where buffers end depends on what the rank's peers do: frees are found for a sample, and a kind whose
  // ranks free at different places becomes several.
  void insertFreesOfKinds() {
    ProgramSet& set = made_.set;
    verifyBindings(set);
    const RankSample sample = sampleOf(set);
    std::vector<Program> programs = samplePrograms(set, sample);
    insertFrees(programs);
    // by kind and by place of its frees
    std::map<std::pair<KindId, std::vector<std::pair<size_t, BufferId>>>, KindId> kind_of;
    EmittedPrograms split;
    split.set.groups = set.groups;
    std::vector<KindId> of_place(sample.ranks.size());
    for (const RankId rank : set.ranks.ids()) {
      RankBinding binding = set.ranks[rank];
      const size_t place = sample.place[rank];
      if (!of_place[place].valid()) {
        const auto [found, is_new] =
            kind_of.try_emplace({binding.kind, freesOf(programs[place])}, split.set.kinds.nextId());
        if (is_new) {
          const ProgramKind& of = set.kinds[binding.kind];
          ProgramKind& kind = split.set.kinds.emplace_back(
              ProgramKind{instantiate(set, rank), of.start_slots, of.boxed, of.own_constants});
          addFrees(programs[place], kind.program);
          split.subgraphs.push_back(subgraphsOf(rank));
        }
        of_place[place] = found->second;
      }
      binding.kind = of_place[place];
      split.set.ranks.push_back(std::move(binding));
    }
    made_ = std::move(split);
  }

  static std::vector<std::pair<size_t, BufferId>> freesOf(const Program& program) {
    std::vector<std::pair<size_t, BufferId>> frees;
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      if (instruction.kind == InstructionKind::kFree) frees.emplace_back(i, instruction.inputs[0]);
    }
    return frees;
  }

  // `freed` has the program's instructions, of a rank of its kind, and frees between them.
  static void addFrees(const Program& freed, Program& program) {
    std::vector<Instruction> instructions;
    size_t next = 0;
    for (const Instruction& instruction : freed.instructions) {
      const bool frees = instruction.kind == InstructionKind::kFree;
      instructions.push_back(frees ? instruction : std::move(program.instructions.at(next++)));
    }
    PIPESHARD_CHECK(next == program.instructions.size(), "{} of {} instructions", next,
                    program.instructions.size());
    program.instructions = std::move(instructions);
  }

  const EmissionContext& context_;
  const Completion& complete_;
  const std::function<void(double)>& progress_;
  IdVector<PipelineRankId, std::vector<KindId>> kinds_of_group_;
  IdVector<KindId, RankQuestions> questions_;
  EmittedPrograms made_;
};

}  // namespace

EmittedPrograms emitKinds(const EmissionContext& context, const Completion& complete,
                          const std::function<void(double)>& progress) {
  return KindEmitter(context, complete, progress).run();
}

RankProgram EmittedPrograms::of(RankId rank) const {
  const RankBinding& binding = set.ranks[rank];
  RankProgram own{instantiate(set, rank), *subgraphs[binding.kind]};
  bindConstants(set.kinds[binding.kind], binding, own.subgraphs);
  return own;
}

IdVector<RankId, RankProgram> EmittedPrograms::ofAllRanks() const {
  IdVector<RankId, RankProgram> ranks;
  for (const RankId rank : set.ranks.ids()) ranks.push_back(of(rank));
  return ranks;
}

}  // namespace pipeshard
