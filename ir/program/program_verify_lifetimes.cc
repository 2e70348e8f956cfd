#include "ir/program/program_verify_lifetimes.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "ir/base/ids_format.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify_failure.h"

namespace pipeshard {
namespace {

constexpr uint32_t kNoParameter = UINT32_MAX;

// One walk over a rank's instructions with the state of every buffer: written, freed, and three things that
// the content of a buffer must keep:
//   * a persistent buffer needs no first write and may not be freed;
//   * of each parameter, the passes of one microbatch read one version (buffer, and how often it has been
//     written: contents_), whichever buffer it lies in;
//   * what a pass has read of a forward state is replaced before a pass of another microbatch reads it, and
//     before the step ends (held_).
// A buffer is dead after its first free; nothing may use it again, not even as an output.
class LifetimeVerifier {
 public:
  explicit LifetimeVerifier(const Program& program)
      : program_(program),
        written_(program.buffers.size()),
        freed_(program.buffers.size()),
        held_(program.buffers.size()),
        contents_(program.buffers.size()),
        parameter_(program.buffers.size(), kNoParameter) {
    std::unordered_map<std::string_view, uint32_t> parameters;
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      const Buffer& buffer = program.buffer(BufferId(b));
      if (buffer.kind == BufferKind::kParameter || buffer.kind == BufferKind::kWeightVersion)
        parameter_[b] = parameters.try_emplace(buffer.value, parameters.size()).first->second;
    }
  }

  void run() {
    at_ = 0;
    for (const Instruction& instruction : program_.instructions) {
      step(instruction);
      ++at_;
    }
    std::vector<bool> is_result(program_.buffers.size());
    for (const Result& result : program_.results) is_result[result.buffer.index()] = true;
    if (program_.guard.valid()) is_result[program_.guard.index()] = true;
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffer(BufferId(i));
      const auto fail_here = [&](const std::string& message) {
        failVerification(fmt::format("rank {}, buffer \"{}\"", program_.rank, program_.nameOf(BufferId(i))),
                         message);
      };
      if (held_[i]) fail_here(fmt::format("nothing hands on what {} read", describeAt(program_, *held_[i])));
      if (isPersistent(buffer.kind)) continue;
      if (!written_[i]) fail_here("no instruction writes it");
      if (is_result[i] && freed_[i])
        fail_here(fmt::format("it is a result but is freed by {}", describeAt(program_, *freed_[i])));
      if (!is_result[i] && !freed_[i])
        fail_here(fmt::format("it is never freed; {} wrote it", describeAt(program_, *written_[i])));
    }
  }

 private:
  struct VersionRead {
    BufferId buffer;
    int64_t content = 0;
    size_t instruction = 0;
  };

  [[noreturn]] void failHere(const std::string& message) const {
    failVerification(describeAt(program_, at_), message);
  }

  void step(const Instruction& instruction) {
    if (instruction.kind == InstructionKind::kFree) return release(instruction.inputs[0]);
    for (BufferId id : instruction.inputs) {
      read(id);
      hold(id, instruction);
      readVersion(id, instruction);
    }
    const bool adds = instruction.kind == InstructionKind::kAccumulate && !instruction.overwrite;
    if (adds) read(instruction.outputs[0]);
    for (BufferId id : instruction.outputs) write(id, instruction);
  }

  void read(BufferId id) const {
    const Buffer& buffer = program_.buffer(id);
    if (isPersistent(buffer.kind)) return;
    if (freed_[id.index()])
      failHere(fmt::format("it uses \"{}\" after {} freed it", program_.nameOf(id),
                           describeAt(program_, *freed_[id.index()])));
    if (!written_[id.index()])
      failHere(fmt::format("it reads \"{}\", which nothing has written yet", program_.nameOf(id)));
  }

  // What the passes of one microbatch read of a forward state must be replaced before those of the next read
  // it.
  void hold(BufferId id, const Instruction& instruction) {
    if (program_.buffer(id).kind != BufferKind::kForwardState || instruction.kind != InstructionKind::kRun)
      return;
    std::optional<size_t>& held = held_[id.index()];
    if (held && program_.instructions.copyAt(*held).microbatch != instruction.microbatch) {
      failHere(fmt::format("it reads \"{}\", which still holds what {} read", program_.nameOf(id),
                           describeAt(program_, *held)));
    }
    held = at_;
  }

  // The passes of a microbatch read one version of a parameter, wherever it lies.
  void readVersion(BufferId id, const Instruction& instruction) {
    const uint32_t parameter = parameter_[id.index()];
    if (parameter == kNoParameter || instruction.kind != InstructionKind::kRun || instruction.microbatch < 0)
      return;
    const VersionRead read{id, contents_[id.index()], at_};
    const uint64_t key = uint64_t{parameter} << 32 | static_cast<uint32_t>(instruction.microbatch);
    const VersionRead& first = versions_.try_emplace(key, read).first->second;
    if (first.buffer == read.buffer && first.content == read.content) return;
    failHere(fmt::format("it reads another version of \"{}\" than {}", program_.buffer(id).value,
                         describeAt(program_, first.instruction)));
  }

  void write(BufferId id, const Instruction& instruction) {
    held_[id.index()].reset();
    ++contents_[id.index()];
    const Buffer& buffer = program_.buffer(id);
    std::optional<size_t>& written = written_[id.index()];
    if (isPersistent(buffer.kind)) return;
    if (freed_[id.index()])
      failHere(fmt::format("it writes \"{}\" after {} freed it", program_.nameOf(id),
                           describeAt(program_, *freed_[id.index()])));
    const bool may_replace = instruction.kind == InstructionKind::kAccumulate ||
                             instruction.kind == InstructionKind::kUpdate ||
                             instruction.kind == InstructionKind::kAllReduce;
    if (written && !may_replace) {
      failHere(fmt::format("it writes \"{}\", which still holds what {} wrote", program_.nameOf(id),
                           describeAt(program_, *written)));
    }
    if (!written) written = at_;
  }

  void release(BufferId id) {
    const Buffer& buffer = program_.buffer(id);
    std::optional<size_t>& freed = freed_[id.index()];
    if (isPersistent(buffer.kind))
      failHere(fmt::format("\"{}\" is a {} and lives across steps", program_.nameOf(id),
                           bufferKindName(buffer.kind)));
    if (freed)
      failHere(
          fmt::format("\"{}\" was freed before by {}", program_.nameOf(id), describeAt(program_, *freed)));
    if (!written_[id.index()]) failHere(fmt::format("\"{}\" has not been written yet", program_.nameOf(id)));
    freed = at_;
  }

  const Program& program_;
  std::vector<std::optional<size_t>> written_;  // by buffer: the first instruction that writes it
  std::vector<std::optional<size_t>> freed_;
  // forward states: the last run that read what nothing has replaced since
  std::vector<std::optional<size_t>> held_;
  std::vector<int64_t> contents_;    // by buffer: how often it has been written
  std::vector<uint32_t> parameter_;  // by buffer: the number of the one that it is a version of
  std::unordered_map<uint64_t, VersionRead> versions_;  // by parameter and microbatch: the first read of it
  size_t at_ = 0;
};

}  // namespace

void verifyLifetimes(const Program& program) { LifetimeVerifier(program).run(); }

}  // namespace pipeshard
