#include "tests/partition/emit/symbolic_execution.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "tests/partition/emit/posted_messages.h"
#include "tests/partition/emit/unrolled_programs.h"

namespace pipeshard {
namespace {

uint64_t symbol(const std::string& name, const std::vector<uint64_t>& operands = {}) {
  uint64_t hash = std::hash<std::string>()(name);
  for (uint64_t operand : operands)
    hash = (hash ^ (operand + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2))) * 0xff51afd7ed558ccdu;
  return hash ^ hash >> 31;
}

uint64_t added(std::optional<uint64_t> sum, uint64_t part) {
  return sum ? symbol("add", {*sum, part}) : part;
}

// What a node gives: depends on its operator, its operands and the output's name (which tells equal operators
// apart).
void execute(const Graph& graph, const Node& node, std::map<std::string, uint64_t>& symbols) {
  std::vector<uint64_t> operands;
  for (ValueId input : node.inputs)
    operands.push_back(input.valid() ? symbols.at(graph.value(input).name) : 0);
  for (ValueId output : node.outputs) {
    if (output.valid())
      symbols[graph.value(output).name] = symbol(node.op_type + ":" + graph.value(output).name, operands);
  }
}

uint64_t inputSymbol(const std::string& name, int axis, int microbatch, int step) {
  return symbol("input " + name,
                {static_cast<uint64_t>(axis >= 0 ? microbatch : 0), static_cast<uint64_t>(step)});
}

// One rank: its buffers' contents and where it stands.
struct RankState {
  std::vector<std::optional<uint64_t>> contents;
  size_t at = 0;
  PostedMessages posted;
};

class ProgramExecutor {
 public:
  explicit ProgramExecutor(const std::vector<RankProgram>& ranks)
      : ranks_(testing::unrolledPrograms(ranks)), states_(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      for (const Buffer& buffer : ranks[r].program.buffers) {
        std::optional<uint64_t> content;
        if (buffer.source) content = symbol("file " + buffer.value);
        if (buffer.kind == BufferKind::kOptimizerState) content = symbol("zeros");
        states_[r].contents.push_back(content);
      }
    }
  }

  Symbols runStep(int step) {
    step_ = step;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      states_[r].at = 0;
      for (size_t b = 0; b < states_[r].contents.size(); ++b) {
        const Buffer& buffer = ranks_[r].program.buffers.plain()[b];
        const int64_t update = (step - 1) * ranks_[r].program.updates_per_step + buffer.update + 1;
        if (buffer.kind == BufferKind::kStep)
          states_[r].contents[b] = symbol("step", {static_cast<uint64_t>(update)});
        if (!isPersistent(buffer.kind)) states_[r].contents[b].reset();
      }
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = ranks_.size(); r-- > 0;) {
        while (states_[r].at < ranks_[r].program.instructions.size() && execute(r)) moved = true;
      }
    }
    Symbols results = std::exchange(passed_, {});
    for (size_t r = 0; r < ranks_.size(); ++r) {
      EXPECT_EQ(states_[r].at, ranks_[r].program.instructions.size()) << "rank " << r << " stopped";
      EXPECT_TRUE(states_[r].posted.empty()) << "rank " << r << " needs not all that it has posted";
      for (const Result& result : ranks_[r].program.results) {
        if (!passes(result)) addResult(r, result, results);
      }
    }
    return results;
  }

 private:
  // Valid when its update runs, not at the end of the step.
  static bool passes(const Result& result) {
    return result.update >= 0 && result.kind == Result::Kind::kGradient;
  }

  void addResult(size_t r, const Result& result, Symbols& results) const {
    std::string name = "loss";
    if (result.kind == Result::Kind::kGradient) name = "gradient " + result.name;
    if (result.kind == Result::Kind::kParameter) name = "parameter " + result.name;
    if (result.kind == Result::Kind::kOptimizerState) name = "state " + result.name + "." + result.state;
    if (result.kind == Result::Kind::kForwardState) name = "forward state " + result.name;
    if (result.update >= 0) name += " of update " + std::to_string(result.update);
    EXPECT_TRUE(results.emplace(name, states_[r].contents[result.buffer.index()].value()).second)
        << name << " twice";
  }

  // False: a message that the instruction needs has not been sent.
  bool takeWhatIsNeeded(size_t r, const Instruction& instruction) {
    while (const auto message = states_[r].posted.neededBy(instruction)) {
      auto& channel = channels_[{message->peer.index(), r}];
      if (channel.empty()) return false;
      states_[r].contents[message->buffer.index()] = channel.front();
      channel.pop_front();
      states_[r].posted.takeFirstOf(message->peer);
    }
    return true;
  }

  bool execute(size_t r) {
    const Program& program = ranks_[r].program;
    const Instruction& instruction = program.instructions.plain()[states_[r].at];
    auto& contents = states_[r].contents;
    const auto read = [&](size_t i) { return contents[instruction.inputs[i].index()].value(); };
    const size_t peer = instruction.peer.index();
    if (!takeWhatIsNeeded(r, instruction)) return false;
    switch (instruction.kind) {
      case InstructionKind::kLoadInput:
        contents[instruction.outputs[0].index()] = load(program, instruction);
        break;
      case InstructionKind::kUpdate:
        for (const Result& result : program.results) {
          const bool reads = std::find(instruction.inputs.begin(), instruction.inputs.end(), result.buffer) !=
                             instruction.inputs.end();
          if (passes(result) && reads && result.update == updateOf(program, instruction))
            addResult(r, result, passed_);
        }
        run(r, instruction);
        break;
      case InstructionKind::kRun: run(r, instruction); break;
      case InstructionKind::kAccumulate: {
        auto& sum = contents[instruction.outputs[0].index()];
        sum = instruction.overwrite ? read(0) : symbol("add", {sum.value(), read(0)});
        break;
      }
      case InstructionKind::kSend: channels_[{r, peer}].push_back(read(0)); break;
      case InstructionKind::kReceive: {
        if (instruction.background) {
          states_[r].posted.post(instruction);
          break;
        }
        auto& channel = channels_[{peer, r}];
        if (channel.empty()) return false;
        contents[instruction.outputs[0].index()] = channel.front();
        channel.pop_front();
        break;
      }
      case InstructionKind::kFree: contents[instruction.inputs[0].index()].reset(); break;
      case InstructionKind::kAllReduce:
      case InstructionKind::kSlice:
      case InstructionKind::kConcatenate:
      case InstructionKind::kZero: ADD_FAILURE() << "unexpected"; break;
    }
    ++states_[r].at;
    return true;
  }

  uint64_t load(const Program& program, const Instruction& instruction) const {
    const Buffer& buffer = program.buffer(instruction.outputs[0]);
    for (const ProgramInput& input : program.inputs) {
      if (input.name == buffer.value)
        return inputSymbol(input.name, input.axis, instruction.microbatch, step_);
    }
    ADD_FAILURE() << "no input " << buffer.value;
    return 0;
  }

  void run(size_t r, const Instruction& instruction) {
    const Graph& graph = ranks_[r].subgraphs[instruction.subgraph.index()];
    std::map<std::string, uint64_t> symbols;
    for (const auto& [id, initializer] : graph.initializers)
      symbols[graph.value(id).name] = symbol("file " + graph.value(id).name);
    for (size_t i = 0; i < instruction.inputs.size(); ++i) {
      symbols[graph.value(graph.inputs[i]).name] = states_[r].contents[instruction.inputs[i].index()].value();
    }
    for (const Node& node : graph.nodes) pipeshard::execute(graph, node, symbols);
    for (size_t i = 0; i < instruction.outputs.size(); ++i) {
      states_[r].contents[instruction.outputs[i].index()] = symbols.at(graph.value(graph.outputs[i]).name);
    }
  }

  const std::vector<RankProgram> ranks_;
  std::vector<RankState> states_;
  std::map<std::pair<size_t, size_t>, std::deque<uint64_t>> channels_;
  Symbols passed_;  // gradients of the updates so far
  int step_ = 0;
};

class DefinitionExecutor {
 public:
  explicit DefinitionExecutor(const TrainingGraph& training) : training_(training), graph_(training.graph) {
    for (const auto& [id, initializer] : graph_.initializers) lasting_[name(id)] = symbol("file " + name(id));
    for (const Parameter& parameter : training.parameters) {
      for (const OptimizerState& state : parameter.states) lasting_[name(state.value)] = symbol("zeros");
    }
  }

  Symbols runStep(int step) { return runMinibatch(step, 0, step); }

  // A window of updates. Losses and gradients are named by their update; parameters and states are those of
  // the last one.
  Symbols runWindow(int step, int updates, const std::map<std::string, std::vector<int>>& versions) {
    versions_ = &versions;
    history_.clear();
    for (const auto& [parameter, reads] : versions) history_[parameter] = {lasting_.at(parameter)};
    Symbols results;
    for (int u = 0; u < updates; ++u) {
      const auto first = static_cast<int>(training_.microbatches) * u;
      for (const auto& [name, value] : runMinibatch(step, first, (step - 1) * updates + u + 1)) {
        const bool of_update = name == "loss" || name.starts_with("gradient ");
        results[of_update ? name + " of update " + std::to_string(u) : name] = value;
      }
      for (auto& [parameter, values] : history_) values.push_back(lasting_.at(parameter));
    }
    return results;
  }

 private:
  // Of the step's microbatches those from `first` on, and the update after them, which is the number `update`
  // of all.
  Symbols runMinibatch(int step, int first, int update_number) {
    std::map<std::string, uint64_t> totals;
    for (int k = first; k < first + training_.microbatches; ++k) {
      auto symbols = microbatch(k, step);
      run(symbols, Phase::kPrologue, Phase::kPrologue);
      for (const PrologueTotal& total : training_.totals) {
        const auto found = totals.find(name(total.total));
        totals[name(total.total)] = added(found == totals.end() ? std::nullopt : std::optional(found->second),
                                          symbols.at(name(total.part)));
      }
    }
    std::optional<uint64_t> loss;
    std::vector<std::vector<std::optional<uint64_t>>> parts;
    for (const Parameter& parameter : training_.parameters)
      parts.emplace_back(parameter.gradient_parts.size());
    for (int k = first; k < first + training_.microbatches; ++k) {
      auto symbols = microbatch(k, step);
      symbols.insert(totals.begin(), totals.end());
      run(symbols, Phase::kForward, Phase::kBackwardWeight);
      loss = added(loss, symbols.at(name(training_.loss)));
      for (const ForwardState& state : training_.forward_states)
        lasting_[name(state.value)] = symbols.at(name(state.updated));
      for (size_t p = 0; p < parts.size(); ++p) {
        for (size_t i = 0; i < parts[p].size(); ++i)
          parts[p][i] = added(parts[p][i], symbols.at(name(training_.parameters[p].gradient_parts[i])));
      }
    }
    return update(update_number, *loss, parts);
  }

  const std::string& name(ValueId id) const { return graph_.value(id).name; }

  std::map<std::string, uint64_t> microbatch(int k, int step) const {
    auto symbols = lasting_;
    for (const auto& [parameter, values] : history_)
      symbols[parameter] = values.at(versions_->at(parameter).at(k));
    for (const BatchInput& input : training_.inputs)
      symbols[name(input.value)] = inputSymbol(name(input.value), input.axis, k, step);
    return symbols;
  }

  void run(std::map<std::string, uint64_t>& symbols, Phase first, Phase last) const {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (training_.node_phase[n] >= first && training_.node_phase[n] <= last)
        pipeshard::execute(graph_, graph_.nodes[n], symbols);
    }
  }

  Symbols update(int step, uint64_t loss, const std::vector<std::vector<std::optional<uint64_t>>>& parts) {
    Symbols results = {{"loss", loss}};
    auto symbols = lasting_;
    symbols[name(training_.step)] = symbol("step", {static_cast<uint64_t>(step)});
    for (size_t p = 0; p < parts.size(); ++p) {
      const Parameter& parameter = training_.parameters[p];
      std::optional<uint64_t> gradient;
      for (const std::optional<uint64_t>& part : parts[p]) gradient = added(gradient, *part);
      if (gradient)
        results["gradient " + name(parameter.value)] = symbols[name(parameter.gradient)] = *gradient;
    }
    run(symbols, Phase::kUpdate, Phase::kUpdate);
    for (const Parameter& parameter : training_.parameters) {
      const std::string& own = name(parameter.value);
      if (!parameter.gradient_parts.empty()) lasting_[own] = symbols.at(name(parameter.updated));
      results["parameter " + own] = lasting_[own];
      for (const OptimizerState& state : parameter.states) {
        results["state " + own + "." + state.name] = lasting_[name(state.value)] =
            symbols.at(name(state.updated));
      }
    }
    for (const ForwardState& state : training_.forward_states)
      results["forward state " + name(state.value)] = lasting_[name(state.value)];
    return results;
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  // parameters, weights, constants, states of both kinds
  std::map<std::string, uint64_t> lasting_;
  const std::map<std::string, std::vector<int>>* versions_ = nullptr;  // of a window
  // of a window: by parameter and version
  std::map<std::string, std::vector<uint64_t>> history_;
};

}  // namespace

std::vector<Symbols> executeDefinition(const TrainingGraph& training, int steps) {
  DefinitionExecutor executor(training);
  std::vector<Symbols> results;
  for (int step = 1; step <= steps; ++step) results.push_back(executor.runStep(step));
  return results;
}

std::vector<Symbols> executeWindows(const TrainingGraph& training, int updates,
                                    const std::map<std::string, std::vector<int>>& versions, int steps) {
  DefinitionExecutor executor(training);
  std::vector<Symbols> results;
  for (int step = 1; step <= steps; ++step) results.push_back(executor.runWindow(step, updates, versions));
  return results;
}

std::vector<Symbols> executePrograms(const std::vector<RankProgram>& ranks, int steps) {
  ProgramExecutor executor(ranks);
  std::vector<Symbols> results;
  for (int step = 1; step <= steps; ++step) results.push_back(executor.runStep(step));
  return results;
}

}  // namespace pipeshard
