// Writes Programs by hand, for tests: buffers by name, one call per instruction.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program.h"
#include "ir/program/program_verify.h"

namespace pipeshard {

class ProgramWriter {
 public:
  ProgramWriter(int rank, int world_size, int64_t microbatches) {
    program_.rank = RankId(rank);
    program_.world_size = world_size;
    program_.microbatches = microbatches;
  }

  // Buffers are activations of this type and shape until declared otherwise.
  BufferId buffer(const std::string& name, BufferKind kind = BufferKind::kActivation, Shape shape = {2, 3}) {
    const auto [found, is_new] = ids_.try_emplace(name, program_.buffers.size());
    if (is_new)
      program_.buffers.push_back({name,
                                  kind,
                                  DataType::kFloat32,
                                  std::move(shape),
                                  name.substr(0, name.find('@')),
                                  std::nullopt,
                                  {}});
    return found->second;
  }
  BufferId parameter(const std::string& name) {
    const BufferId id = buffer(name, BufferKind::kParameter);
    program_.buffers[id.index()].source = WeightReference{"/models/weights.bin", 128, 24};
    program_.buffers[id.index()].source_type = DataType::kFloat32;
    return id;
  }
  BufferId step() {
    const BufferId id = buffer("step", BufferKind::kStep, {});
    program_.buffers[id.index()].data_type = DataType::kInt64;
    return id;
  }
  void input(const std::string& name, Shape whole, int axis) {
    program_.inputs.push_back({name, DataType::kFloat32, std::move(whole), axis, 0, 0});
  }
  void subgraph(const std::string& name, Phase phase, std::vector<std::string> inputs,
                std::vector<std::string> outputs, const std::vector<int>& groups = {}) {
    program_.subgraphs.push_back(
        {name, name + ".onnx", phase, std::move(inputs), std::move(outputs), idsAt<GroupId>(groups)});
  }

  void load(const std::string& name, int microbatch, int64_t offset = 0) {
    add(InstructionKind::kLoadInput, microbatch, {}, {buffer(name, BufferKind::kInput)}).offset = offset;
  }
  void slice(const std::string& whole, const std::string& part, int axis, int64_t offset) {
    Instruction& instruction = add(InstructionKind::kSlice, -1, ids({whole}), ids({part}));
    instruction.axis = axis;
    instruction.offset = offset;
  }
  void concatenate(const std::vector<std::string>& parts, const std::string& whole, int axis) {
    add(InstructionKind::kConcatenate, -1, ids(parts), ids({whole})).axis = axis;
  }
  void zero(const std::string& name) { add(InstructionKind::kZero, -1, {}, ids({name})); }
  void run(size_t subgraph, int microbatch, const std::vector<std::string>& inputs,
           const std::vector<std::string>& outputs) {
    add(InstructionKind::kRun, microbatch, ids(inputs), ids(outputs)).subgraph = SubgraphId(subgraph);
  }
  void update(size_t subgraph, const std::vector<std::string>& inputs,
              const std::vector<std::string>& outputs) {
    add(InstructionKind::kUpdate, -1, ids(inputs), ids(outputs)).subgraph = SubgraphId(subgraph);
  }
  void accumulate(const std::string& part, const std::string& total, bool overwrite, int microbatch) {
    add(InstructionKind::kAccumulate, microbatch, ids({part}), ids({total})).overwrite = overwrite;
  }
  void send(int peer, const std::string& name, int microbatch = -1) {
    add(InstructionKind::kSend, microbatch, ids({name}), {}).peer = RankId(peer);
  }
  void receive(int peer, const std::string& name, int microbatch = -1) {
    add(InstructionKind::kReceive, microbatch, {}, ids({name})).peer = RankId(peer);
  }
  void release(const std::string& name) { add(InstructionKind::kFree, -1, ids({name}), {}); }
  void allReduce(int group, const std::string& name) {
    add(InstructionKind::kAllReduce, -1, ids({name}), ids({name})).group = GroupId(group);
  }
  // The last instruction goes on in the background.
  void inBackground() { program_.instructions.back().background = true; }
  void result(Result::Kind kind, const std::string& name, const std::string& buffer_name) {
    program_.results.push_back({kind, name, "", buffer(buffer_name)});
  }

  Program& program() { return program_; }

 private:
  std::vector<BufferId> ids(const std::vector<std::string>& names) {
    std::vector<BufferId> result;
    for (const std::string& name : names) result.push_back(buffer(name));
    return result;
  }
  Instruction& add(InstructionKind kind, int microbatch, std::vector<BufferId> inputs,
                   std::vector<BufferId> outputs) {
    Instruction& instruction = program_.instructions.emplace_back();
    instruction.kind = kind;
    instruction.microbatch = microbatch;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    return instruction;
  }

  Program program_;
  std::map<std::string, BufferId> ids_;
};

// Two ranks, two microbatches, GPipe: rank 0 holds "w", rank 1 the loss.
inline std::vector<Program> twoRankPrograms() {
  ProgramWriter first(0, 2, 2);
  first.input("x", {4, 3}, 0);
  first.parameter("w");
  first.step();
  first.buffer("dw", BufferKind::kGradient);
  first.subgraph("forward", Phase::kForward, {"x", "w"}, {"h"});
  first.subgraph("backward_weight", Phase::kBackwardWeight, {"x", "dh"}, {"dw"});
  first.subgraph("update", Phase::kUpdate, {"w", "dw", "step"}, {"w_new"});
  for (int k = 0; k < 2; ++k) {
    const std::string at = "@" + std::to_string(k);
    first.load("x" + at, k, 2 * k);
    first.run(0, k, {"x" + at, "w"}, {"h" + at});
    first.send(1, "h" + at, k);
  }
  for (int k = 0; k < 2; ++k) {
    const std::string at = "@" + std::to_string(k);
    first.receive(1, "dh" + at, k);
    first.release("h" + at);
    first.run(1, k, {"x" + at, "dh" + at}, {"dw" + at});
    first.release("x" + at);
    first.release("dh" + at);
    first.accumulate("dw" + at, "dw", k == 0, k);
    first.release("dw" + at);
  }
  first.update(2, {"w", "dw", "step"}, {"w"});
  first.result(Result::Kind::kGradient, "w", "dw");
  first.result(Result::Kind::kParameter, "w", "w");

  ProgramWriter second(1, 2, 2);
  second.input("x", {4, 3}, 0);
  second.buffer("loss", BufferKind::kAccumulator, {});
  second.subgraph("forward", Phase::kForward, {"h"}, {"loss"});
  second.subgraph("backward_input", Phase::kBackwardInput, {"h"}, {"dh"});
  for (int k = 0; k < 2; ++k) second.receive(0, "h@" + std::to_string(k), k);
  for (int k = 0; k < 2; ++k) {
    const std::string at = "@" + std::to_string(k);
    second.buffer("loss" + at, BufferKind::kActivation, {});
    second.run(0, k, {"h" + at}, {"loss" + at});
    second.accumulate("loss" + at, "loss", k == 0, k);
    second.release("loss" + at);
    second.run(1, k, {"h" + at}, {"dh" + at});
    second.release("h" + at);
    second.send(0, "dh" + at, k);
  }
  second.release("dh@0");
  second.release("dh@1");
  second.result(Result::Kind::kLoss, "loss", "loss");
  return {first.program(), second.program()};
}

// The verifier's message; fails the test if it finds nothing.
inline std::string verifierMessage(const std::vector<Program>& programs) {
  try {
    verifyPrograms(programs);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.message();
  }
  ADD_FAILURE() << "the verifier accepted the programs";
  return "";
}

}  // namespace pipeshard
