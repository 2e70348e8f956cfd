#include "runtime/kernels/chains/chain_kernel.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <set>

#include "ir/base/error.h"
#include "runtime/kernels/base/slots.h"
#include "runtime/kernels/chains/chain_rows.h"
#include "runtime/kernels/chains/group_chains.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kAlignment = 64;
// Of a register: several of them and what is read and written beside them fit a core's second cache.
constexpr int64_t kRegisterBytes = 32 << 10;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Where a tensor of an instruction is.
struct Operand {
  enum class Kind : uint8_t { kAbsent, kInput, kOutput, kRegister, kConstant };
  Kind kind = Kind::kAbsent;
  int64_t place = 0;      // number of the chain's input or output; offset in the registers
  int64_t row_bytes = 0;  // 0: all rows read it whole
  const std::byte* constant = nullptr;
};

struct Instruction {
  std::unique_ptr<Kernel> whole, rest;  // for the rows of a task; for those of the last one, if it has fewer
  std::vector<Operand> inputs, outputs;
};

// Registers by offset, shared by values that do not live at the same time.
class Registers {
 public:
  int64_t take(int64_t bytes) {
    const auto fits = [&](const std::pair<int64_t, int64_t>& block) { return block.second >= bytes; };
    const auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found != free_.end()) {
      const int64_t offset = found->first;
      sizes_[offset] = found->second;
      free_.erase(found);
      return offset;
    }
    const int64_t offset = bytes_;
    sizes_[offset] = aligned(bytes);
    bytes_ += aligned(bytes);
    return offset;
  }
  void give(int64_t offset) { free_.emplace_back(offset, sizes_.at(offset)); }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> free_;  // offset, bytes
  std::map<int64_t, int64_t> sizes_;
  int64_t bytes_ = 0;
};

class ChainKernel : public Kernel {
 public:
  ChainKernel(const KernelSpec& spec, const KernelRegistry& registry) : body_(chainBody(*spec.node)) {
    rows_ = chainRows(*spec.node);
    chooseTaskRows();
    place(registry);
    slots_ = std::min<int64_t>(tasks(), omp_get_max_threads());
  }

  size_t workspaceBytes() const override { return static_cast<size_t>(slots_ * slot_bytes_); }

  // When nothing reads the input behind the instruction that writes the output.
  bool mayRunInPlace(int input, int output) const override {
    const size_t maker = makers_.at(output);
    for (size_t s = 0; s < program_.size(); ++s) {
      for (size_t i = 0; i < program_[s].inputs.size(); ++i) {
        const Operand& operand = program_[s].inputs[i];
        if (operand.kind != Operand::Kind::kInput || operand.place != input) continue;
        if (operand.row_bytes != row_bytes_.at(output) || s > maker) return false;
        if (s == maker && !program_[s].whole->mayRunInPlace(static_cast<int>(i), positions_.at(output)))
          return false;
      }
    }
    return true;
  }

  void run(const KernelArguments& arguments) override {
    if (slots_ == 1) {
      for (int64_t task = 0; task < tasks(); ++task) runTask(arguments, 0, task);
      return;
    }
    std::exception_ptr error;  // kernels throw about wrong data; loops of threads must not
    std::atomic_flag is_taken = ATOMIC_FLAG_INIT;
    forSlots(slots_, tasks(), [&](int64_t slot, int64_t task) {
      try {
        runTask(arguments, slot, task);
      } catch (...) {
        if (!is_taken.test_and_set()) error = std::current_exception();
      }
    });
    if (error) std::rethrow_exception(error);
  }

 private:
  int64_t tasks() const { return (rows_ + task_rows_ - 1) / task_rows_; }
  int64_t rowBytes(ValueId id) const { return body_->bytes(id) / rows_; }

  // Elements alone are cut as each operator alone is; rows between whole vectors.
  void chooseTaskRows() {
    int64_t longest = 1, step = 1, most = 1;
    for (const Node& node : body_->nodes) {
      const int64_t elements = elementCount(body_->shape(node.outputs[0]));
      most = std::max(most, elements);
      if (loopsOverRows(node, *seeAsRows(*body_, node, rows_)))
        step = std::max(step, rowsOfWholeVectors(elements, rows_).value_or(1));  // of powers of two
      for (const ValueId id : node.outputs) {
        if (id.valid()) longest = std::max(longest, rowBytes(id));
      }
    }
    const int64_t rows = most == rows_ ? kBlockElements : kRegisterBytes / longest / step * step;
    task_rows_ = std::min(rows_, std::max(rows, step));
  }

  void place(const KernelRegistry& registry) {
    const Graph& body = *body_;
    std::map<ValueId, Operand> places;
    std::map<ValueId, size_t> last_reads;
    for (size_t i = 0; i < body.inputs.size(); ++i)
      places[body.inputs[i]] = {Operand::Kind::kInput, static_cast<int64_t>(i), 0, nullptr};
    for (const auto& [id, initializer] : body.initializers)
      places[id] = {Operand::Kind::kConstant, 0, 0, std::get<Constant>(initializer).bytes.data()};
    for (size_t n = 0; n < body.nodes.size(); ++n) {
      for (const ValueId id : body.nodes[n].inputs) {
        if (id.valid()) last_reads[id] = n;
      }
    }
    makers_.resize(body.outputs.size());
    positions_.resize(body.outputs.size());
    row_bytes_.resize(body.outputs.size());
    Registers registers;
    std::set<ValueId> given;
    int64_t workspace = 0;
    for (size_t n = 0; n < body.nodes.size(); ++n) {
      placeOutputs(n, places, registers);
      program_.push_back(instruction(body.nodes[n], places, registry));
      for (const Kernel* kernel : {program_.back().whole.get(), program_.back().rest.get()}) {
        if (kernel != nullptr)
          workspace = std::max(workspace, static_cast<int64_t>(kernel->workspaceBytes()));
      }
      for (const auto& [id, operand] : places) {
        const bool is_over = operand.kind == Operand::Kind::kRegister && lastRead(last_reads, id, n) == n;
        if (is_over && given.insert(id).second) registers.give(operand.place);
      }
    }
    member_workspace_ = registers.bytes();
    slot_bytes_ = registers.bytes() + aligned(workspace);
  }

  // What nobody reads is over with the instruction that makes it.
  static size_t lastRead(const std::map<ValueId, size_t>& last_reads, ValueId id, size_t made) {
    const auto found = last_reads.find(id);
    return found == last_reads.end() ? made : found->second;
  }

  void placeOutputs(size_t n, std::map<ValueId, Operand>& places, Registers& registers) {
    const Node& node = body_->nodes[n];
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = node.outputs[o];
      if (!id.valid()) continue;
      const auto found = std::find(body_->outputs.begin(), body_->outputs.end(), id);
      if (found == body_->outputs.end()) {
        places[id] = {Operand::Kind::kRegister, registers.take(rowBytes(id) * task_rows_), 0, nullptr};
        continue;
      }
      const size_t number = found - body_->outputs.begin();
      places[id] = {Operand::Kind::kOutput, static_cast<int64_t>(number), rowBytes(id), nullptr};
      makers_[number] = n;
      positions_[number] = static_cast<int>(o);
      row_bytes_[number] = rowBytes(id);
    }
  }

  Instruction instruction(const Node& node, const std::map<ValueId, Operand>& places,
                          const KernelRegistry& registry) const {
    const std::optional<NodeRows> seen = seeAsRows(*body_, node, rows_);
    PIPESHARD_CHECK(seen.has_value(), "{} of a chain has not {} rows", describeNode(node), rows_);
    Instruction made;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      made.inputs.push_back(id.valid() ? places.at(id) : Operand{});
      Operand& operand = made.inputs.back();
      const bool is_outside =
          operand.kind == Operand::Kind::kInput || operand.kind == Operand::Kind::kConstant;
      if (is_outside && seen->inputs_move[i]) operand.row_bytes = rowBytes(id);
    }
    for (const ValueId id : node.outputs) made.outputs.push_back(id.valid() ? places.at(id) : Operand{});
    made.whole = kernelOf(node, *seen, task_rows_, registry);
    const int64_t left = rows_ % task_rows_;
    if (left != 0) made.rest = kernelOf(node, *seen, left, registry);
    return made;
  }

  std::unique_ptr<Kernel> kernelOf(const Node& node, const NodeRows& seen, int64_t count,
                                   const KernelRegistry& registry) const {
    const Node of_rows = nodeOfRows(*body_, node);
    KernelSpec spec;
    spec.node = &of_rows;
    const auto describe = [&](ValueId id, bool moves) {
      if (!id.valid()) return TensorSpec{};
      return TensorSpec{body_->dataType(id), shapeOfRows(*body_, node, seen, rows_, count, id, moves),
                        moves ? nullptr : body_->constant(id)};
    };
    for (size_t i = 0; i < node.inputs.size(); ++i)
      spec.inputs.push_back(describe(node.inputs[i], seen.inputs_move[i]));
    for (const ValueId id : node.outputs) spec.outputs.push_back(describe(id, true));
    return registry.create(spec);
  }

  void runTask(const KernelArguments& arguments, int64_t slot, int64_t task) {
    auto* registers = static_cast<std::byte*>(arguments.workspace) + slot * slot_bytes_;
    const int64_t row = task * task_rows_;
    const bool is_rest = row + task_rows_ > rows_;
    std::array<const void*, kMostChainOperands> inputs;
    std::array<void*, kMostChainOperands> outputs;
    for (const Instruction& step : program_) {
      if (&step == &program_.back() && task + 1 < tasks()) fetchAhead(arguments, task + 1);
      for (size_t i = 0; i < step.inputs.size(); ++i)
        inputs[i] = address(step.inputs[i], arguments, registers, row);
      for (size_t o = 0; o < step.outputs.size(); ++o)
        outputs[o] = const_cast<std::byte*>(address(step.outputs[o], arguments, registers, row));
      (is_rest ? step.rest : step.whole)
          ->run({std::span(inputs).first(step.inputs.size()), std::span(outputs).first(step.outputs.size()),
                 registers + member_workspace_, nullptr, 0, arguments.queue});
    }
  }

  // What the first instructions of a task read, while the task before works on its last one: an instruction
  // that reads one tensor alone would wait for the memory, which many streams keep busy.
  void fetchAhead(const KernelArguments& arguments, int64_t task) const {
    const int64_t row = task * task_rows_;
    const int64_t count = std::min(task_rows_, rows_ - row);
    for (size_t s = 0; s + 1 < program_.size(); ++s) {
      for (const Operand& operand : program_[s].inputs) {
        if (operand.kind != Operand::Kind::kInput || operand.row_bytes == 0) continue;
        const std::byte* from = address(operand, arguments, nullptr, row);
        for (int64_t at = 0; at < count * operand.row_bytes; at += kAlignment)
          __builtin_prefetch(from + at, 0, 2);
      }
    }
  }

  static const std::byte* address(const Operand& operand, const KernelArguments& arguments,
                                  const std::byte* registers, int64_t row) {
    switch (operand.kind) {
      case Operand::Kind::kInput:
        return static_cast<const std::byte*>(arguments.inputs[operand.place]) + row * operand.row_bytes;
      case Operand::Kind::kOutput:
        return static_cast<const std::byte*>(arguments.outputs[operand.place]) + row * operand.row_bytes;
      case Operand::Kind::kRegister: return registers + operand.place;
      case Operand::Kind::kConstant: return operand.constant + row * operand.row_bytes;
      case Operand::Kind::kAbsent: break;
    }
    return nullptr;
  }

  std::shared_ptr<const Graph> body_;  // its constants are read
  int64_t rows_ = 0, task_rows_ = 0, slots_ = 1;
  int64_t slot_bytes_ = 0, member_workspace_ = 0;
  std::vector<Instruction> program_;
  // By output: the instruction that makes it, which of that one's outputs it is, and bytes of a row.
  std::vector<size_t> makers_;
  std::vector<int> positions_;
  std::vector<int64_t> row_bytes_;
};

}  // namespace

std::unique_ptr<Kernel> makeChainKernel(const KernelSpec& spec, const KernelRegistry& registry) {
  return std::make_unique<ChainKernel>(spec, registry);
}

}  // namespace pipeshard::kernels
