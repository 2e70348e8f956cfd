#include "runtime/execute/rank_image.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "ir/base/text_file.h"
#include "ir/program/program_json.h"
#include "ir/program/program_set_verify.h"
#include "ir/program/program_verify.h"
#include "onnx_import/format/reader.h"
#include "runtime/files/content_hash.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// The text of a file, as `parse` reads it. `digest`: contentHash of it.
template <typename Parse>
auto parsedFile(const std::string& path, const Parse& parse, uint64_t& digest) {
  const std::string text = requireTextFile(path);
  digest = contentHash(text);
  try {
    return parse(text);
  } catch (Error& error) {
    error.addContext(path);
    throw;
  }
}

RankTables readTables(const fs::path& folder, uint64_t& digest) {
  std::error_code ignored;
  const fs::path path = folder / kRanksFileName;
  if (!fs::exists(path, ignored)) {
    if (fs::is_directory(folder / "ranks", ignored)) {
      fail(ErrorCode::kVersionMismatch,
           "{} was written by an older pipeshard: it has a folder for each rank, and no {}; plan again, or "
           "use the pipeshard that wrote it",
           folder.string(), kRanksFileName);
    }
    fail(ErrorCode::kMissingInput,
         "{} is not a plan directory with programs: it has no {}; make one with `pipeshard plan`",
         folder.string(), kRanksFileName);
  }
  return parsedFile(path.string(), rankTablesFromJson, digest);
}

// A kind of so many ranks.
ProgramKind readKind(const std::string& path, size_t ranks, uint64_t& digest) {
  ProgramKind kind = parsedFile(
      path, [](const std::string& text) { return kindFromJson(text); }, digest);
  if (kind.program.world_size != static_cast<int>(ranks)) {
    fail(ErrorCode::kConfiguration, "{}: world_size: found {}; expected {}, as many as {} has", path,
         kind.program.world_size, ranks, kRanksFileName);
  }
  for (const Subgraph& subgraph : kind.program.subgraphs) {
    const fs::path name(subgraph.file);
    if (name.has_parent_path() || name.empty()) {
      fail(ErrorCode::kConfiguration, "{}: the file '{}' of subgraph '{}' is not in the folder {}", path,
           subgraph.file, subgraph.name, kSubgraphsFolder);
    }
  }
  return kind;
}

}  // namespace

std::string rankFileStem(RankId rank) { return fmt::format("{:04}", rank.index()); }

std::string kindFileName(KindId kind, StepSize size) {
  const std::string prefix = size.last_batch   ? "last_"
                             : size.length > 0 ? fmt::format("shorter{}_", size.length)
                                               : "";
  return fmt::format("{}/{}{:04}.json", kKindsFolder, prefix, kind.index());
}

ProgramFolder::ProgramFolder(std::string folder, std::map<StepSize, ProgramSet> known)
    : folder_(std::move(folder)) {
  uint64_t digest = 0;
  tables_ = readTables(folder_, digest);
  digests_[pathOf(kRanksFileName)] = digest;
  for (auto& [size, set] : known) {
    for (const KindId id : set.kinds.ids()) {
      kinds_.emplace(std::pair(size, id), std::move(set.kinds[id]));
      sound_.emplace(size, id);
    }
  }
}

std::vector<StepSize> ProgramFolder::sizes() const {
  std::vector<StepSize> sizes = {StepSize::kWholeBatch};
  if (tables_.last) sizes.push_back(StepSize::kLastBatch);
  for (size_t length = 1; length <= tables_.shorter.size(); ++length) sizes.push_back({false, length});
  return sizes;
}

const BindingTable& ProgramFolder::table(StepSize size) const {
  if (size.last_batch) return *tables_.last;
  return size.length == 0 ? tables_.whole : tables_.shorter.at(size.length - 1);
}

std::string ProgramFolder::pathOf(const std::string& file) const {
  return (fs::path(folder_) / file).string();
}

std::string ProgramFolder::pathOf(const Subgraph& subgraph) const {
  return (fs::path(folder_) / kSubgraphsFolder / subgraph.file).string();
}

const RankBinding& ProgramFolder::binding(RankId rank, StepSize size) const {
  if (rank.index() < ranks()) return table(size).ranks[rank];
  fail(ErrorCode::kConfiguration, "{}: found {} ranks, and none with the number {}", pathOf(kRanksFileName),
       ranks(), rank);
}

KindId ProgramFolder::kindOf(RankId rank, StepSize size) const { return binding(rank, size).kind; }

const ProgramKind& ProgramFolder::kind(KindId id, StepSize size) {
  const auto found = kinds_.find({size, id});
  if (found != kinds_.end()) return found->second;
  const std::string path = pathOf(kindFileName(id, size));
  uint64_t digest = 0;
  ProgramKind read = readKind(path, ranks(), digest);
  noteRead(path, digest);
  return kinds_.emplace(std::pair(size, id), std::move(read)).first->second;
}

void ProgramFolder::readAll() {
  for (const StepSize size : sizes()) {
    for (const KindId id : idsBelow<KindId>(kinds(size))) kind(id, size);
  }
}

void ProgramFolder::noteRead(const std::string& path, uint64_t digest) {
  if (digests_.try_emplace(path, digest).first->second == digest) return;
  fail(ErrorCode::kVersionMismatch,
       "the plan {} was replaced while it was being used: {} is another file than it was; plan into another "
       "folder",
       folder_, path);
}

// Whoever reads a program uses its numbers as indices.
template <typename Verify>
void ProgramFolder::requireSound(const std::string& file, const Verify& verify) const {
  try {
    verify();
  } catch (const Error& error) {
    fail(ErrorCode::kConfiguration, "{}: {}; the file was changed since it was made: plan again",
         pathOf(file), error.message());
  }
}

Program ProgramFolder::program(RankId rank, StepSize size) {
  const RankBinding& own = binding(rank, size);
  const ProgramKind& of = kind(own.kind, size);
  Program program;
  requireSound(kindFileName(own.kind, size), [&] {
    verifyProgram(of.program);
    verifyBinding(of, own, table(size).groups, rank, ranks());
    program = instantiate(of, own, table(size).groups, rank);
    if (rank != of.program.rank) verifyProgram(program);
  });
  return program;
}

std::vector<Graph> ProgramFolder::subgraphs(const Program& program) const {
  std::vector<Graph> graphs;
  for (const Subgraph& subgraph : program.subgraphs) graphs.push_back(graphOf(subgraph));
  return graphs;
}

Graph ProgramFolder::graphOf(const Subgraph& subgraph) const { return readModel(pathOf(subgraph)); }

RankImage ProgramFolder::image(RankId rank, StepSize size) {
  RankImage image{program(rank, size), {}, folder_};
  for (const Subgraph& subgraph : image.program.subgraphs) {
    const std::string path = pathOf(subgraph);
    const std::string bytes = requireTextFile(path);
    noteRead(path, contentHash(bytes));
    image.subgraphs.push_back(parseModel(bytes, fs::path(path).parent_path().string(), path));
  }
  const RankBinding& own = binding(rank, size);
  requireSound(kindFileName(own.kind, size),
               [&] { bindConstants(kind(own.kind, size), own, image.subgraphs); });
  return image;
}

RankImage ProgramFolder::takeImage(RankId rank, StepSize size) {
  RankImage taken = image(rank, size);
  subgraphFiles(rank, size);  // they stay known
  kinds_.erase({size, kindOf(rank, size)});
  sound_.erase({size, kindOf(rank, size)});
  return taken;
}

std::set<SubgraphId> ProgramFolder::ownSubgraphs(RankId rank, StepSize size) {
  std::set<SubgraphId> subgraphs;
  for (const OwnConstant& own : kind(kindOf(rank, size), size).own_constants) subgraphs.insert(own.subgraph);
  return subgraphs;
}

ProgramSet ProgramFolder::takeSet(StepSize size) {
  ProgramSet set;
  set.kinds.resize(kinds(size));
  IdVector<KindId, std::optional<uint64_t>> read(kinds(size));  // threads share no map
  parallelFor(processorCount(), static_cast<int32_t>(kinds(size)), [&](int32_t index) {
    const KindId id(index);
    const auto known = kinds_.find({size, id});
    ProgramKind& kind = set.kinds[id];
    kind = known != kinds_.end() ? std::move(known->second)
                                 : readKind(pathOf(kindFileName(id, size)), ranks(), read[id].emplace());
    if (!sound_.contains({size, id}))
      requireSound(kindFileName(id, size), [&] { verifyProgram(kind.program); });
  });
  for (const KindId id : set.kinds.ids()) {
    kinds_.erase({size, id});
    sound_.erase({size, id});
    if (read[id]) noteRead(pathOf(kindFileName(id, size)), *read[id]);
  }
  set.groups = table(size).groups;
  set.ranks = table(size).ranks;
  requireSound(kRanksFileName, [&] { verifyBindings(set); });
  return set;
}

std::vector<std::string> ProgramFolder::files(RankId rank) {
  std::set<std::string> files = {pathOf(kRanksFileName)};
  for (const StepSize size : sizes()) {
    const KindId id = kindOf(rank, size);
    files.insert(pathOf(kindFileName(id, size)));
    for (std::string& file : subgraphFiles(rank, size)) files.insert(std::move(file));
  }
  return {files.begin(), files.end()};
}

std::vector<std::string> ProgramFolder::subgraphFiles(RankId rank, StepSize size) {
  const KindId id = kindOf(rank, size);
  const auto [found, is_new] = subgraph_files_.try_emplace({size, id});
  if (is_new) {
    for (const Subgraph& subgraph : kind(id, size).program.subgraphs)
      found->second.push_back(pathOf(subgraph));
  }
  return found->second;
}

Program loadProgram(const std::string& folder, RankId rank, StepSize size) {
  return ProgramFolder(folder).program(rank, size);
}

RankImage loadRank(const std::string& folder, RankId rank, StepSize size) {
  return ProgramFolder(folder).image(rank, size);
}

IdVector<RankId, size_t> whoDoTheSame(ProgramFolder& folder) {
  constexpr size_t kMostKinds = 64;
  std::map<KindId, size_t> class_of;
  std::map<std::vector<std::string>, size_t> class_of_files;
  IdVector<RankId, size_t> classes;
  for (size_t rank = 0; rank < folder.ranks(); ++rank) {
    const KindId kind = folder.kindOf(RankId(rank));
    if (!class_of.contains(kind)) {
      std::vector<std::string> files = {std::to_string(kind.index())};
      if (folder.kinds() <= kMostKinds) files = folder.subgraphFiles(RankId(rank));
      class_of[kind] = class_of_files.try_emplace(files, class_of_files.size()).first->second;
    }
    classes.push_back(class_of[kind]);
  }
  return classes;
}

uint64_t tensorBytesOfLargestRank(ProgramFolder& folder) {
  uint64_t largest = 0;
  std::set<KindId> seen;
  for (const RankId rank : idsBelow<RankId>(folder.ranks())) {
    if (!seen.insert(folder.kindOf(rank)).second) continue;
    const Program program = folder.program(rank);
    IdVector<BufferId, bool> held(program.buffers.size());
    uint64_t bytes = 0, most = 0;
    const auto hold = [&](BufferId id, bool is_held) {
      if (held[id] == is_held) return;
      const auto size =
          static_cast<uint64_t>(byteCount(program.buffer(id).data_type, program.buffer(id).shape));
      held[id] = is_held;
      bytes = is_held ? bytes + size : bytes - size;
      most = std::max(most, bytes);
    };
    for (const BufferId id : held.ids()) {
      if (isPersistent(program.buffer(id).kind)) hold(id, true);
    }
    for (const Instruction& instruction : program.instructions) {
      for (const BufferId id : instruction.outputs) hold(id, true);
      if (instruction.kind == InstructionKind::kFree) hold(instruction.inputs[0], false);
    }
    largest = std::max(largest, most);
  }
  return largest;
}

int countRanks(const std::string& plan_directory) {
  return static_cast<int>(ProgramFolder(plan_directory).ranks());
}

}  // namespace pipeshard
