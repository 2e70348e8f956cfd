#include "tests/partition/emit/modular_execution.h"

#include <deque>

#include "tests/partition/emit/modular_values.h"
#include "tests/partition/emit/posted_messages.h"
#include "tests/partition/emit/unrolled_programs.h"

namespace pipeshard {
namespace {

using modular::Content;
using modular::Contents;
using modular::hashOf;
using modular::invariant;
using modular::Kind;
using modular::require;

Content inputContent(const std::string& name, int axis, Rows rows, int step) {
  if (axis < 0) return invariant(hashOf("input " + name, {static_cast<uint64_t>(step)}));
  Content content{Kind::kSplit, {}};
  for (int64_t row = rows.first; row < rows.end(); ++row)
    content.rows.push_back(
        hashOf("input " + name, {static_cast<uint64_t>(row), static_cast<uint64_t>(step)}));
  return content;
}

Content fileContent(const std::string& name) { return invariant(hashOf("file " + name)); }
Content stepContent(int step) { return invariant(hashOf("step", {static_cast<uint64_t>(step)})); }

// ---- the definition ----

class DefinitionExecutor {
 public:
  DefinitionExecutor(const TrainingFamily::Maker& maker, const std::vector<Rows>& parts) : parts_(parts) {
    for (const Rows& part : parts) {
      if (!trainings_.contains(part.count)) trainings_.emplace(part.count, maker(part.count));
    }
    const TrainingGraph& any = trainings_.begin()->second;
    for (const auto& [id, initializer] : any.graph.initializers) {
      if (std::holds_alternative<WeightReference>(initializer))
        lasting_[any.graph.value(id).name] = fileContent(any.graph.value(id).name);
    }
    for (const Parameter& parameter : any.parameters) {
      const std::string& name = any.graph.value(parameter.value).name;
      lasting_[name] = fileContent(name);
      for (const OptimizerState& state : parameter.states)
        lasting_[any.graph.value(state.value).name] = invariant(hashOf("zeros"));
    }
  }

  Symbols runStep(int step) {
    Contents totals;
    for (const Rows& part : parts_) {
      const TrainingGraph& training = trainings_.at(part.count);
      Contents contents = inputs(training, part, step);
      run(training, Phase::kPrologue, Phase::kPrologue, contents);
      for (const PrologueTotal& total : training.totals)
        add(totals, training.graph.value(total.total).name,
            contents.at(training.graph.value(total.part).name));
    }
    for (auto& [name, total] : totals) total.kind = Kind::kInvariant;
    Contents sums;  // "loss", and gradients by the parameter's name
    for (const Rows& part : parts_) runPasses(part, step, totals, sums);
    return update(step, sums);
  }

 private:
  static void add(Contents& sums, const std::string& name, const Content& part) {
    const auto [found, is_new] = sums.try_emplace(name, part);
    if (!is_new) modular::addTo(found->second, part);
  }

  Contents inputs(const TrainingGraph& training, Rows rows, int step) const {
    Contents contents = lasting_;
    for (const BatchInput& input : training.inputs) {
      const std::string& name = training.graph.value(input.value).name;
      contents[name] = inputContent(name, input.axis, rows, step);
    }
    return contents;
  }

  static void run(const TrainingGraph& training, Phase first, Phase last, Contents& contents) {
    for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
      const Phase phase = training.node_phase[n];
      if (phase >= first && phase <= last)
        modular::evaluate(training.graph, training.graph.nodes[n], phase == Phase::kUpdate, contents);
    }
  }

  void runPasses(Rows part, int step, const Contents& totals, Contents& sums) {
    const TrainingGraph& training = trainings_.at(part.count);
    const Graph& graph = training.graph;
    Contents contents = inputs(training, part, step);
    contents.insert(totals.begin(), totals.end());
    run(training, Phase::kForward, Phase::kBackwardWeight, contents);
    add(sums, "loss", contents.at(graph.value(training.loss).name));
    for (const ForwardState& state : training.forward_states)
      lasting_[graph.value(state.value).name] = contents.at(graph.value(state.updated).name);
    for (const Parameter& parameter : training.parameters) {
      for (ValueId gradient : parameter.gradient_parts)
        add(sums, graph.value(parameter.gradient).name, contents.at(graph.value(gradient).name));
    }
  }

  Symbols update(int step, const Contents& sums) {
    const TrainingGraph& training = trainings_.begin()->second;
    const auto name = [&](ValueId id) { return training.graph.value(id).name; };
    Symbols results = {{"loss", sums.at("loss").rows[0]}};
    Contents contents = lasting_;
    contents.insert(sums.begin(), sums.end());
    contents[name(training.step)] = stepContent(step);
    for (const Parameter& parameter : training.parameters) {
      if (!parameter.gradient_parts.empty())
        results["gradient " + name(parameter.value)] = sums.at(name(parameter.gradient)).rows[0];
    }
    run(training, Phase::kUpdate, Phase::kUpdate, contents);
    for (const Parameter& parameter : training.parameters) {
      if (!parameter.gradient_parts.empty())
        lasting_[name(parameter.value)] = contents.at(name(parameter.updated));
      results["parameter " + name(parameter.value)] = lasting_[name(parameter.value)].rows[0];
      for (const OptimizerState& state : parameter.states) {
        lasting_[name(state.value)] = contents.at(name(state.updated));
        results["state " + name(parameter.value) + "." + state.name] = lasting_[name(state.value)].rows[0];
      }
    }
    for (const ForwardState& state : training.forward_states)
      results["forward state " + name(state.value)] = lasting_[name(state.value)].rows[0];
    return results;
  }

  const std::vector<Rows> parts_;
  std::map<int64_t, TrainingGraph> trainings_;  // by rows
  Contents lasting_;                            // parameters, weights, states of both kinds
};

// ---- the programs ----

struct RankState {
  std::vector<std::optional<Content>> contents;  // by buffer
  size_t at = 0;
  PostedMessages posted;
};

// All ranks in one thread. A rank goes on until its next instruction needs a message that has not been sent,
// or a collective that others have not come to; who comes last runs it for all. When no rank moves, all must
// be at their ends.
//
// A buffer that does not last holds nothing when a step begins, and reading nothing is an error: so what is
// freed too early, or made too late, is found.
class ProgramExecutor {
 public:
  explicit ProgramExecutor(const std::vector<RankProgram>& ranks)
      : ranks_(testing::unrolledPrograms(ranks)), states_(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      for (const Buffer& buffer : ranks[r].program.buffers) {
        std::optional<Content>& content = states_[r].contents.emplace_back();
        if (buffer.source) content = fileContent(buffer.value);
        if (buffer.kind == BufferKind::kOptimizerState) content = invariant(hashOf("zeros"));
      }
    }
  }

  Symbols runStep(int step) {
    step_ = step;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      states_[r].at = 0;
      for (size_t b = 0; b < states_[r].contents.size(); ++b) {
        const BufferKind kind = ranks_[r].program.buffers.plain()[b].kind;
        if (kind == BufferKind::kStep) states_[r].contents[b] = stepContent(step);
        if (!isPersistent(kind)) states_[r].contents[b].reset();
      }
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = ranks_.size(); r-- > 0;) {
        while (next(r) != nullptr && execute(r)) moved = true;
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      require(next(r) == nullptr, "rank " + std::to_string(r) + " stopped");
      require(states_[r].posted.empty(), "rank " + std::to_string(r) + " needs not all that it has posted");
    }
    return results();
  }

 private:
  const Instruction* next(size_t r) const {
    const std::vector<Instruction>& instructions = ranks_[r].program.instructions.plain();
    return states_[r].at < instructions.size() ? &instructions[states_[r].at] : nullptr;
  }

  const Content& read(size_t r, BufferId id) const {
    const std::optional<Content>& content = states_[r].contents[id.index()];
    require(content.has_value(),
            "nothing is in '" + ranks_[r].program.buffer(id).name + "' of rank " + std::to_string(r));
    return *content;
  }

  void write(size_t r, BufferId id, Content content) {
    const Buffer& buffer = ranks_[r].program.buffer(id);
    modular::requireFits(content, buffer.shape, buffer.name + "' of rank '" + std::to_string(r));
    states_[r].contents[id.index()] = std::move(content);
  }

  // False: a message that the instruction needs has not been sent.
  bool takeWhatIsNeeded(size_t r, const Instruction& instruction) {
    while (const auto message = states_[r].posted.neededBy(instruction)) {
      auto& channel = channels_[{message->peer.index(), r}];
      if (channel.empty()) return false;
      write(r, message->buffer, std::move(channel.front()));
      channel.pop_front();
      states_[r].posted.takeFirstOf(message->peer);
    }
    return true;
  }

  bool execute(size_t r) {
    const Program& program = ranks_[r].program;
    const Instruction& instruction = *next(r);
    const size_t peer = instruction.peer.index();
    if (!takeWhatIsNeeded(r, instruction)) return false;
    switch (instruction.kind) {
      case InstructionKind::kLoadInput: load(r, instruction); break;
      case InstructionKind::kRun:
      case InstructionKind::kUpdate: run(r, instruction); break;
      case InstructionKind::kAccumulate: {
        Content sum = read(r, instruction.inputs[0]);
        if (!instruction.overwrite) modular::addTo(sum, read(r, instruction.outputs[0]));
        write(r, instruction.outputs[0], std::move(sum));
        break;
      }
      case InstructionKind::kSend: channels_[{r, peer}].push_back(read(r, instruction.inputs[0])); break;
      case InstructionKind::kReceive: {
        if (instruction.background) {
          states_[r].posted.post(instruction);
          break;
        }
        auto& channel = channels_[{peer, r}];
        if (channel.empty()) return false;
        write(r, instruction.outputs[0], std::move(channel.front()));
        channel.pop_front();
        break;
      }
      case InstructionKind::kFree: states_[r].contents[instruction.inputs[0].index()].reset(); break;
      case InstructionKind::kAllReduce: return allReduce(program.groups[instruction.group]);
      case InstructionKind::kSlice: slice(r, instruction); break;
      case InstructionKind::kConcatenate: concatenate(r, instruction); break;
      case InstructionKind::kZero: write(r, instruction.outputs[0], {Kind::kSum, {0}}); break;
    }
    ++states_[r].at;
    return true;
  }

  void load(size_t r, const Instruction& instruction) {
    const Buffer& buffer = ranks_[r].program.buffer(instruction.outputs[0]);
    for (const ProgramInput& input : ranks_[r].program.inputs) {
      if (input.name != buffer.value) continue;
      const auto batch = modular::batchAxis(buffer.shape);
      require(input.axis == (batch ? batch->axis : -1), "'" + input.name + "' is cut along another axis");
      Rows rows;
      if (batch) {
        const int64_t first =
            instruction.offset + (buffer.part ? buffer.part->start[batch->axis] : 0);  // of the microbatch
        require(first % batch->per_row == 0, "'" + input.name + "' is cut inside a row");
        rows = {first / batch->per_row, batch->rows};
      }
      return write(r, instruction.outputs[0], inputContent(input.name, input.axis, rows, step_));
    }
    require(false, "there is no input '" + buffer.value + "'");
  }

  void slice(size_t r, const Instruction& instruction) {
    const Content& whole = read(r, instruction.inputs[0]);
    const auto batch = modular::batchAxis(ranks_[r].program.buffer(instruction.outputs[0]).shape);
    require(batch && batch->axis == instruction.axis && instruction.offset % batch->per_row == 0 &&
                whole.kind == Kind::kSplit,
            "a slice of something else than rows");
    const auto first = whole.rows.begin() + instruction.offset / batch->per_row;
    require(whole.rows.end() - first >= batch->rows, "a slice beyond the last row");
    write(r, instruction.outputs[0], {Kind::kSplit, {first, first + batch->rows}});
  }

  void concatenate(size_t r, const Instruction& instruction) {
    Content whole{Kind::kSplit, {}};
    const auto batch = modular::batchAxis(ranks_[r].program.buffer(instruction.outputs[0]).shape);
    require(batch && batch->axis == instruction.axis, "a concatenation along another axis than the batch");
    for (BufferId id : instruction.inputs) {
      const Content& part = read(r, id);
      require(part.kind == Kind::kSplit, "a concatenation of something else than rows");
      whole.rows.insert(whole.rows.end(), part.rows.begin(), part.rows.end());
    }
    write(r, instruction.outputs[0], std::move(whole));
  }

  bool allReduce(const std::vector<RankId>& group) {
    const auto arrived = [&](RankId rank) {
      const Instruction* at = next(rank.index());
      return at != nullptr && at->kind == InstructionKind::kAllReduce &&
             ranks_[rank.index()].program.groups[at->group] == group;
    };
    for (RankId rank : group) {
      if (!arrived(rank)) return false;
    }
    Content sum{Kind::kSum, {0}};
    for (RankId rank : group) modular::addTo(sum, read(rank.index(), next(rank.index())->inputs[0]));
    for (RankId rank : group) {
      const size_t r = rank.index();
      write(r, next(r)->outputs[0], sum);
      ++states_[r].at;
    }
    return true;
  }

  void run(size_t r, const Instruction& instruction) {
    const Program& program = ranks_[r].program;
    const Graph& graph = ranks_[r].subgraphs[instruction.subgraph.index()];
    const bool update = instruction.kind == InstructionKind::kUpdate;
    Contents contents;
    for (size_t i = 0; i < instruction.inputs.size(); ++i) {
      const Buffer& buffer = program.buffer(instruction.inputs[i]);
      require(buffer.shape == graph.shape(graph.inputs[i]),
              "'" + buffer.name + "' has another shape in the subgraph");
      Content content = read(r, instruction.inputs[i]);
      // a total, which is complete
      if (buffer.kind == BufferKind::kAccumulator) content.kind = Kind::kInvariant;
      contents[graph.value(graph.inputs[i]).name] = std::move(content);
    }
    for (const Node& node : graph.nodes) modular::evaluate(graph, node, update, contents);
    for (size_t i = 0; i < instruction.outputs.size(); ++i) {
      require(program.buffer(instruction.outputs[i]).shape == graph.shape(graph.outputs[i]),
              "'" + program.buffer(instruction.outputs[i]).name + "' has another shape in the subgraph");
      write(r, instruction.outputs[i], contents.at(graph.value(graph.outputs[i]).name));
    }
  }

  Symbols results() const {
    Symbols results;
    // of parameters and states, which all devices of a stage end with
    std::map<std::string, uint64_t> copies;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const Result& result : ranks_[r].program.results) addResult(r, result, results);
      for (size_t b = 0; b < states_[r].contents.size(); ++b) {
        const Buffer& buffer = ranks_[r].program.buffers.plain()[b];
        if (!isPersistent(buffer.kind)) continue;
        const uint64_t own = read(r, BufferId(b)).rows.at(0);
        require(copies.emplace(buffer.name, own).first->second == own,
                "rank " + std::to_string(r) + " has another " + buffer.name);
      }
    }
    return results;
  }

  void addResult(size_t r, const Result& result, Symbols& results) const {
    std::string name = "loss";
    if (result.kind == Result::Kind::kGradient) name = "gradient " + result.name;
    if (result.kind == Result::Kind::kParameter) name = "parameter " + result.name;
    if (result.kind == Result::Kind::kOptimizerState) name = "state " + result.name + "." + result.state;
    if (result.kind == Result::Kind::kForwardState) name = "forward state " + result.name;
    require(results.emplace(name, read(r, result.buffer).rows.at(0)).second, name + " twice");
  }

  const std::vector<RankProgram> ranks_;
  std::vector<RankState> states_;
  std::map<std::pair<size_t, size_t>, std::deque<Content>> channels_;
  int step_ = 0;
};

template <typename Executor>
std::vector<Symbols> runSteps(Executor executor, int steps) {
  std::vector<Symbols> results;
  for (int step = 1; step <= steps; ++step) results.push_back(executor.runStep(step));
  return results;
}

}  // namespace

std::vector<Symbols> executeDefinition(const TrainingFamily::Maker& maker, const std::vector<Rows>& parts,
                                       int steps) {
  return runSteps(DefinitionExecutor(maker, parts), steps);
}

std::vector<Symbols> executeFamilyPrograms(const std::vector<RankProgram>& ranks, int steps) {
  return runSteps(ProgramExecutor(ranks), steps);
}

}  // namespace pipeshard
