#include "tests/fuzz/fuzz_targets.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/name_pattern.h"
#include "ir/cluster/cluster_file.h"
#include "ir/cluster/profile.h"
#include "ir/graph/weight_files.h"
#include "ir/operators/operator_facts.h"
#include "ir/plan/loss_spec.h"
#include "ir/plan/optimizer.h"
#include "ir/plan/plan_json.h"
#include "ir/plan/recomputation.h"
#include "ir/plan/schedule_spec.h"
#include "ir/plan/shard_constraint.h"
#include "ir/plan/sharding_method.h"
#include "ir/plan/stage_file.h"
#include "ir/program/loops.h"
#include "ir/program/program_json.h"
#include "ir/program/program_set_json.h"
#include "ir/program/program_set_verify.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/rehearsal.h"
#include "onnx_import/format/stored_tensor.h"
#include "onnx_import/prepare/prepare.h"
#include "partition/pipedream/pipedream_profile.h"
#include "partition/schedules/schedule_csv.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/array_files.h"
#include "runtime/data/number_table.h"
#include "runtime/data/row_lengths.h"
#include "runtime/files/npz.h"
#include "runtime/files/tensor_file.h"
#include "runtime/identity/identity_message.h"
#include "runtime/messages/control_types.h"
#include "runtime/tokenizer/tokenizer_file.h"
#include "tests/temporary_folder.h"
#include "tools/report/report_training.h"
#include "tools/report/run_history.h"
#include "tools/report/validation_file.h"
#include "tools/simulation/trace_reader.h"
#include "transport/control/control_message.h"
#include "transport/control/job_keys.h"

namespace pipeshard::testing {
namespace {

// For readers that want a path: a file in memory alone.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& content) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || ::write(descriptor_, content.data(), content.size()) != std::ssize(content) ||
        ::fchmod(descriptor_, 0600) != 0)
      std::abort();
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }
  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

constexpr int64_t kMostBytes = int64_t{1} << 24;  // that a reader is asked to unpack

ReadOptions withoutWeights() {
  ReadOptions options;
  options.require_external_data = false;
  return options;
}

void readTheModel(const std::string& input) { parseModel(input, "/nonexistent", "model", withoutWeights()); }

// Inference, too: ONNX's own functions crash on some attributes, which a child finds out. And what operators
// without a kernel become.
void prepareTheModel(const std::string& input) {
  const Rehearsals rehearsals(Rehearsing::kOfOddNumbers);
  Graph graph = parseModel(input, "/nonexistent", "model", withoutWeights());
  PrepareOptions options;
  options.fold_limit_bytes = 1 << 12;
  options.supported = hasKernel;
  for (const ValueId id : graph.inputs) {
    for (const std::string& symbol : graph.value(id).symbols) {
      if (!symbol.empty()) options.dimensions[symbol] = 2;
    }
  }
  prepareModel(std::move(graph), options);
}

void readPlan(const std::string& input) {
  if (planFaults(input).empty()) printPlan(planFromJson(input));
}

// What loops stand for may take gigabytes, as they may; a fuzzer has less, and wants to be quick.
const LoopBudget kLoops(1 << 16, 1 << 24);

// The programs of a plan directory: ranks.json and its kinds, with form feeds between them. That they do not
// fit each other, the verifier calls a bug of who has made them.
void verifyThePrograms(const std::string& input) {
  const size_t end_of_ranks = input.find('\f');
  if (end_of_ranks == std::string::npos) return;
  BindingTable table = rankTablesFromJson(std::string_view(input).substr(0, end_of_ranks)).whole;
  ProgramSet set;
  for (size_t at = end_of_ranks + 1; at <= input.size();) {
    const size_t end = std::min(input.find('\f', at), input.size());
    set.kinds.push_back(kindFromJson(std::string_view(input).substr(at, end - at), kLoops));
    at = end + 1;
  }
  if (set.kinds.size() != table.kinds) return;
  set.groups = std::move(table.groups);
  set.ranks = std::move(table.ranks);
  try {
    verifyProgramSet(set);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInternal) throw;
  }
}

void readKind(const std::string& input) { kindFromJson(input, kLoops); }
void readRanks(const std::string& input) { rankTablesFromJson(input); }
void readCluster(const std::string& input) { printCluster(parseClusterFile(input, "cluster.json")); }
void readProfile(const std::string& input) { profileToJson(profileFromJson(input, "profile.json")); }
void readStages(const std::string& input) { parseStageFile(input, "stages.json", uniformCluster(2, 4)); }
void readCheckpointManifest(const std::string& input) { checkpointToJson(checkpointFromJson(input)); }
void readWeightFiles(const std::string& input) { weightFilesFromJson(input); }

void readTrace(const std::string& input) { traceFromJson(input); }
void readValidation(const std::string& input) { validationToJson(validationFromJson(input)); }
// What one host says that it reads, and another, with a form feed between them.
void compareIdentities(const std::string& input) {
  IdentityComparison comparison;
  for (size_t at = 0; at <= input.size();) {
    const size_t end = std::min(input.find('\f', at), input.size());
    const auto files = nlohmann::json::parse(std::string_view(input).substr(at, end - at), nullptr,
                                             /*allow_exceptions=*/false);
    comparison.add(fmt::format("node {}", at), identityFromJson(files));
    at = end + 1;
  }
}

// Lines with form feeds between them, which go to the three files in turn.
void drawHistory(const std::string& input) {
  const TemporaryFolder folder;
  {
    std::array<std::ofstream, 3> files;
    for (size_t i = 0; const char* name : {"steps.jsonl", "evaluations.jsonl", "events.jsonl"})
      files.at(i++).open(folder.file(name), std::ios::binary);
    size_t line = 0;
    for (size_t at = 0; at <= input.size(); ++line) {
      const size_t end = std::min(input.find('\f', at), input.size());
      files.at(line % files.size()) << input.substr(at, end - at) << '\n';
      at = end + 1;
    }
  }
  renderTraining(readRunHistory(folder.path()));
}

void readSchedule(const std::string& input) { scheduleToCsv(scheduleFromCsv(input, "schedule.csv").orders); }
void readPipeDreamProfile(const std::string& input) {
  parsePipeDreamProfile(input, "profile.txt").computeNs();
}

void readTensors(const std::string& input) {
  TensorFile::parse(std::as_bytes(std::span(input)), "t.safetensors");
}

void readArchive(const std::string& input) {
  const MemoryFile memory(input);
  const NpzFile archive = NpzFile::open(memory.path());
  for (const std::string& name : archive.names()) {
    const NpzMember member = archive.look(name);
    archive.verify(name);
    if (byteCount(member.header.data_type, member.header.shape) <= kMostBytes) archive.read(name);
  }
}

void readTensorOfTest(const std::string& input) {
  const MemoryFile memory(input);
  readStoredTensor(memory.path());
}

// A folder of arrays has a file for each.
void readNpy(const std::string& input) {
  const TemporaryFolder folder;
  folder.write("x.npy", input);
  const auto array = openNpyFolder(folder.path().string())->open({"x", DataType::kFloat32, {2}, 0, 0, 0});
  const int64_t bytes = byteCount(array->dataType(), array->shape());
  if (bytes > kMostBytes) return;
  std::vector<std::byte> content(bytes);
  array->read(0, content);
}

// Lines of CSV ('c') or of JSON, with an input of one length ('j') or of several ('l'), as the first byte
// says.
void readTable(const std::string& input) {
  if (input.empty()) return;
  const MemoryFile memory(input.substr(1));
  const ProgramInput pairs{"x", DataType::kFloat32, {2, 2}, 0, 0, 0};
  if (input[0] == 'c') {
    openCsvTable(memory.path())->open(pairs);
    return;
  }
  const ProgramInput ids{"ids", DataType::kInt64, {2, 4}, 0, 0, 0};
  ProgramInput shorter = ids;
  shorter.shape = {2, 2};
  const bool several = input[0] == 'l';
  const RowLengths lengths = several ? RowLengths({}, {ids}, {{shorter}}) : RowLengths();
  openJsonLines(memory.path(), lengths)->open(several ? ids : pairs);
}

void tokenize(const std::string& input) {
  const MemoryFile memory(input);
  Tokenizer tokenizer = readTokenizer(memory.path());
  tokenizer.encode("A text, of 12 words or so;\n  and some sp\u00e4ces <|endoftext|>.", [](const auto&) {});
}

// GPT-2's rules, with few words, and a token that takes spaces.
Tokenizer ownTokenizer() {
  nlohmann::json vocabulary = {{"th", 256}, {"\u0120t", 257}};
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int letter = is_printable ? byte : next++;
    const std::array<char, 2> wide = {static_cast<char>(0xc0 | letter >> 6),
                                      static_cast<char>(0x80 | (letter & 63))};
    vocabulary[letter < 128 ? std::string(1, static_cast<char>(letter))
                            : std::string(wide.data(), wide.size())] = byte;
  }
  const nlohmann::json added = {{"id", 258}, {"content", "<|end|>"}, {"lstrip", true}, {"rstrip", true}};
  const nlohmann::json rules = {
      {"added_tokens", nlohmann::json::array({added})},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"t h", "\u0120 t"}}}}};
  const MemoryFile memory(rules.dump());
  return readTokenizer(memory.path());
}

void encodeText(const std::string& input) {
  static Tokenizer tokenizer = ownTokenizer();
  tokenizer.encode(input, [](const auto&) {});
}

void readTicket(const std::string& input) {
  const MemoryFile memory(input);
  readJobTicket(memory.path());
}

void decodeControl(const std::string& input) {
  const auto message = decodeControlMessage(input);
  if (!message) return;
  const auto whole = decodeControlFrames(std::vector<std::string>{input, input});
  for (const auto* schema : {&workerMessages(), &workerCommands(), &nodeMessages(), &nodeCommands()})
    controlFault(*schema, message->type, message->body, whole ? whole->payload.size() : 0);
  decodeControlMessage(encodeControlMessage(*message));
}

// What command lines have, the first byte says which.
void readOption(const std::string& input) {
  if (input.empty()) return;
  const std::string text = input.substr(1);
  switch (input[0]) {
    case 'c': printCluster(parseCluster(text)); break;
    case 'g': parseParameterGroup(text); break;
    case 'l': lossToString(parseLoss(text)); break;
    case 'm': parseSearchedMethod(text); break;
    case 'o': parseOptimizer(text); break;
    case 'p': NamePattern("--freeze", text).isFoundIn("transformer.h.0.weight"); break;
    case 'r': parseRecomputation(text); break;
    case 's': parseScheduleSpec(text); break;
    default: parseShardConstraint(text);
  }
}

// Ends the process that computes too long for one input. Of the processor: on a busy machine the clock says
// nothing. Who sleeps is ended by the fuzzer.
class ProcessorLimit {
 public:
  ProcessorLimit() {
    ::signal(SIGPROF, [](int) {
      constexpr std::string_view kSaid = "ALARM: 20 s of the processor for one input\n";
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kSaid.data(), kSaid.size());
      std::abort();
    });
    set(20);
  }
  ~ProcessorLimit() { set(0); }
  ProcessorLimit(const ProcessorLimit&) = delete;
  ProcessorLimit& operator=(const ProcessorLimit&) = delete;

 private:
  static void set(time_t seconds) {
    const itimerval timer{{0, 0}, {seconds, 0}};
    ::setitimer(ITIMER_PROF, &timer, nullptr);
  }
};

}  // namespace

const std::vector<FuzzTarget>& fuzzTargets() {
  static const std::vector<FuzzTarget> targets = {
      {"model", FuzzForm::kModel, readTheModel},
      {"preparation", FuzzForm::kModel, prepareTheModel},
      {"plan", FuzzForm::kJson, readPlan},
      {"programs", FuzzForm::kJson, verifyThePrograms},
      {"kind", FuzzForm::kJson, readKind},
      {"ranks", FuzzForm::kJson, readRanks},
      {"cluster", FuzzForm::kJson, readCluster},
      {"profile", FuzzForm::kJson, readProfile},
      {"stages", FuzzForm::kJson, readStages},
      {"checkpoint", FuzzForm::kJson, readCheckpointManifest},
      {"weights", FuzzForm::kJson, readWeightFiles},
      {"tokenizer", FuzzForm::kJson, tokenize},
      {"control", FuzzForm::kJson, decodeControl},
      {"safetensors", FuzzForm::kBytes, readTensors},
      {"npz", FuzzForm::kBytes, readArchive},
      {"tensor", FuzzForm::kBytes, readTensorOfTest},
      {"option", FuzzForm::kBytes, readOption},
      {"table", FuzzForm::kBytes, readTable},
      {"trace", FuzzForm::kJson, readTrace},
      {"validation", FuzzForm::kJson, readValidation},
      {"schedule", FuzzForm::kBytes, readSchedule},
      {"pipedream", FuzzForm::kBytes, readPipeDreamProfile},
      {"history", FuzzForm::kJson, drawHistory},
      {"identity", FuzzForm::kJson, compareIdentities},
      {"npy", FuzzForm::kBytes, readNpy},
      {"text", FuzzForm::kBytes, encodeText},
      {"ticket", FuzzForm::kJson, readTicket},
  };
  return targets;
}

void runFuzzTarget(const FuzzTarget& target, const std::string& input) {
  const ProcessorLimit limit;
  try {
    target.run(input);
    return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInternal) return;
    std::fprintf(stderr, "%s: a bug: %s\n", std::string(target.name).c_str(), error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: not an Error: %s\n", std::string(target.name).c_str(), error.what());
  }
  std::abort();
}

}  // namespace pipeshard::testing
