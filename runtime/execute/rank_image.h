// Folders of programs: what a plan directory, and reference/, imported/ and evaluation/ in it, hold for
// ranks.
//
//   ranks.json              which kind every rank is of, and what is its own (ir/program/program_set_json.h)
//   kinds/0000.json         the programs, one per kind; kinds/last_0000.json: those of the last batch;
//                           kinds/shorter1_0000.json: those of the longest sequences but one
//   subgraphs/DIGEST.onnx   what they run; DIGEST is of the contents, so that each is there once
//
// A rank reads ranks.json, its own kind, and the subgraphs of that: each once. Whoever asks for several
// things of a folder asks one ProgramFolder.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/program/program.h"
#include "ir/program/program_set_json.h"
#include "ir/program/step_size.h"

namespace pipeshard {

inline constexpr const char* kRanksFileName = "ranks.json";
inline constexpr const char* kKindsFolder = "kinds";
inline constexpr const char* kSubgraphsFolder = "subgraphs";

// "kinds/0003.json", "kinds/last_0003.json", "kinds/shorter1_0003.json"
std::string kindFileName(KindId kind, StepSize size);

// What one rank runs, in memory.
struct RankImage {
  Program program;
  std::vector<Graph> subgraphs;  // by SubgraphId
  std::string directory;         // where relative weight locations start
};

// A folder of programs, read in parts: each file once, when it is first asked for; subgraphs are not kept.
// What is given away is read again when it is asked for again: it is what was read first, or refused.
// Errors of all its functions, naming the file: kMissingInput,
// kVersionMismatch (a plan directory of an older form; a file that is another one than it was when it was
// read first), kConfiguration, kBadModel.
class ProgramFolder {
 public:
  // Reads ranks.json. `known`: of sizes whose programs are in memory as the folder has them, and verified.
  explicit ProgramFolder(std::string folder, std::map<StepSize, ProgramSet> known = {});

  const std::string& folder() const { return folder_; }
  size_t ranks() const { return tables_.whole.ranks.size(); }
  bool hasLastBatch() const { return tables_.last.has_value(); }
  // All that there are: whole batches, the last one, shorter sequences.
  std::vector<StepSize> sizes() const;
  KindId kindOf(RankId rank, StepSize size = StepSize::kWholeBatch) const;
  size_t kinds(StepSize size = StepSize::kWholeBatch) const { return table(size).kinds; }

  // A rank's own program, after what it says of this rank alone has been verified.
  Program program(RankId rank, StepSize size = StepSize::kWholeBatch);
  // The same with the subgraphs.
  RankImage image(RankId rank, StepSize size = StepSize::kWholeBatch);
  // The same, and its kind is not kept: who asks for it again reads it again.
  RankImage takeImage(RankId rank, StepSize size = StepSize::kWholeBatch);
  // Of a kind, as its first rank has them: others have other constants of their own.
  std::vector<Graph> subgraphs(const Program& program) const;
  Graph graphOf(const Subgraph& subgraph) const;
  // Those with constants of the rank's own: it has others than the files.
  std::set<SubgraphId> ownSubgraphs(RankId rank, StepSize size = StepSize::kWholeBatch);
  // The programs of all ranks, of which each has been verified alone (verifyBindings, and every kind). They
  // are given away: who asks for one of them again reads it again.
  ProgramSet takeSet(StepSize size = StepSize::kWholeBatch);
  // Reads every kind of every size: whatever is put in the folder's place later, programs are those of now.
  void readAll();
  // All that the rank reads, of every size: ranks.json, kinds and subgraphs; sorted.
  std::vector<std::string> files(RankId rank);
  // The subgraphs among them, of one size, by SubgraphId.
  std::vector<std::string> subgraphFiles(RankId rank, StepSize size = StepSize::kWholeBatch);
  // contentHash of the files of `files` that have been read by now (subgraphs: by `image`), by path: what is
  // known of them came from these bytes.
  const std::map<std::string, uint64_t>& digests() const { return digests_; }

 private:
  const BindingTable& table(StepSize size) const;
  const RankBinding& binding(RankId rank, StepSize size) const;
  // Read when it is first asked for.
  const ProgramKind& kind(KindId kind, StepSize size);
  // A file has been read, with this contentHash.
  void noteRead(const std::string& path, uint64_t digest);
  // What `verify` throws was made by hand.
  template <typename Verify>
  void requireSound(const std::string& file, const Verify& verify) const;
  std::string pathOf(const std::string& file) const;
  std::string pathOf(const Subgraph& subgraph) const;

  std::string folder_;
  RankTables tables_;
  std::map<std::pair<StepSize, KindId>, ProgramKind> kinds_;
  std::set<std::pair<StepSize, KindId>> sound_;  // of kinds_: verified
  std::map<std::pair<StepSize, KindId>, std::vector<std::string>> subgraph_files_;
  std::map<std::string, uint64_t> digests_;  // by path
};

// One rank's of a folder. Errors as ProgramFolder.
Program loadProgram(const std::string& folder, RankId rank, StepSize size = StepSize::kWholeBatch);
RankImage loadRank(const std::string& folder, RankId rank, StepSize size = StepSize::kWholeBatch);

// By rank: equal for those that run the same subgraphs, though one may also send what another receives, or
// report the loss. Where there are very many kinds, they are not read for it. Errors as ProgramFolder.
IdVector<RankId, size_t> whoDoTheSame(ProgramFolder& folder);

// Bytes of the tensors that the neediest rank holds at once, whole batches; about what its arena takes
// without the workspaces of kernels. Errors as ProgramFolder.
uint64_t tensorBytesOfLargestRank(ProgramFolder& folder);

// How many ranks a plan directory has. Errors as ProgramFolder.
int countRanks(const std::string& plan_directory);

// "0003": in the names of files of one rank.
std::string rankFileStem(RankId rank);

}  // namespace pipeshard
