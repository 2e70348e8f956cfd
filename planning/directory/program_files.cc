#include "planning/directory/program_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "ir/base/text_file.h"
#include "ir/program/program_json.h"
#include "ir/program/program_set_json.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "planning/directory/stored_constants.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/durable_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// What the program reads that lies in its own folder: copied weights, stored constants.
std::set<std::string> filesOfFolder(const Program& program) {
  std::set<std::string> files;
  for (const Buffer& buffer : program.buffers) {
    const auto* weight = buffer.source ? std::get_if<WeightReference>(&*buffer.source) : nullptr;
    if (weight != nullptr && !weight->drawn && fs::path(weight->location).is_relative())
      files.insert(weight->location);
  }
  return files;
}

// Kinds of all sizes share subgraphs/.
class ProgramWriter {
 public:
  ProgramWriter(const fs::path& folder, const ProgressCallback& progress)
      : folder_(folder), progress_(progress) {
    makeFolder(folder_ / kKindsFolder);
    makeFolder(folder_ / kSubgraphsFolder);
  }

  void expect(size_t kinds) { kinds_ += kinds; }

  BindingTable add(EmittedPrograms programs, StepSize size) {
    ProgramSet& set = written_.sets[size] = std::move(programs.set);
    for (const KindId id : set.kinds.ids()) {
      writeGraphs(*programs.subgraphs[id]);
      for (size_t i = 0; i < programs.subgraphs[id]->size(); ++i)
        set.kinds[id].program.subgraphs[i].file = of_graphs_.at(&(*programs.subgraphs[id])[i]);
      programs.subgraphs[id].reset();
      ++written_kinds_;
    }
    of_graphs_.clear();
    writeKinds(set.kinds, size);
    return bindingsOf(set);
  }

  void write(const std::string& file, const std::string& text) {
    writeTextFile((folder_ / file).string(), text);
    written_.digests[file] = contentHash(text);
  }

  WrittenPrograms take() && { return std::move(written_); }

 private:
  // As many at a time as there are processors, so that whoever wants to stop the work is heard.
  void writeKinds(const IdVector<KindId, ProgramKind>& kinds, StepSize size) {
    const size_t together = processorCount();
    for (size_t first = 0; first < kinds.size(); first += together) {
      if (progress_) tell(0);
      std::vector<std::string> texts(std::min(together, kinds.size() - first));
      parallelFor(processorCount(), static_cast<int32_t>(texts.size()),
                  [&](int32_t i) { texts[i] = kindToJson(kinds[KindId(first + i)]); });
      for (size_t i = 0; i < texts.size(); ++i) write(kindFileName(KindId(first + i), size), texts[i]);
    }
  }

  // `share`: of the current kind.
  void tell(double share) const {
    const double done = (static_cast<double>(written_kinds_) + share) / static_cast<double>(kinds_);
    progress_(fmt::format("kind {} of {}", std::min(written_kinds_ + 1, kinds_), kinds_) + work_.text(done));
  }

  // Those that have no file yet: as many at a time as there are processors are serialised, and written in
  // order.
  void writeGraphs(const std::vector<Graph>& graphs) {
    std::vector<const Graph*> fresh;
    for (const Graph& graph : graphs) {
      if (!of_graphs_.contains(&graph)) fresh.push_back(&graph);
    }
    const size_t together = processorCount();
    for (size_t first = 0; first < fresh.size(); first += together) {
      if (progress_) tell(static_cast<double>(first) / static_cast<double>(fresh.size()));
      std::vector<std::string> texts(std::min(together, fresh.size() - first));
      parallelFor(processorCount(), static_cast<int32_t>(texts.size()),
                  [&](int32_t i) { texts[i] = serializeModel(*fresh[first + i]); });
      for (size_t i = 0; i < texts.size(); ++i) of_graphs_[fresh[first + i]] = fileOf(texts[i]);
    }
  }

  // The name of the file that has a serialised graph, which is written where no graph before was the same.
  std::string fileOf(const std::string& bytes) {
    const uint64_t digest = contentHash(bytes);
    // Two contents of one digest are not expected; they would get two names.
    for (int copy = 0;; ++copy) {
      std::string name = hashText(digest) + (copy > 0 ? fmt::format("_{}", copy) : "") + ".onnx";
      const fs::path path = folder_ / kSubgraphsFolder / name;
      const auto [same, is_first] = sizes_.try_emplace(name, bytes.size());
      if (is_first) {
        writeTextFile(path.string(), bytes);
        written_.digests[fmt::format("{}/{}", kSubgraphsFolder, name)] = digest;
      }
      if (is_first || (same->second == bytes.size() && requireTextFile(path.string()) == bytes)) return name;
    }
  }

  fs::path folder_;
  const ProgressCallback& progress_;
  size_t kinds_ = 0;
  size_t written_kinds_ = 0;
  WorkShare work_;
  WrittenPrograms written_;
  std::map<const Graph*, std::string> of_graphs_;  // of what is added; kinds may share theirs
  std::map<std::string, size_t> sizes_;
};

}  // namespace

WrittenPrograms writePrograms(ProgramsBySize programs, const std::string& folder,
                              const ProgressCallback& progress) {
  makeFolder(folder);
  storeConstants(programs, folder);
  ProgramWriter writer(folder, progress);
  for (const auto& [size, emitted] : programs) writer.expect(emitted.set.kinds.size());
  RankTables tables;
  for (auto& [size, emitted] : programs) {
    BindingTable table = writer.add(std::move(emitted), size);
    if (size == StepSize::kWholeBatch) {
      tables.whole = std::move(table);
    } else if (size == StepSize::kLastBatch) {
      tables.last = std::move(table);
    } else {
      tables.shorter.push_back(std::move(table));
    }
  }
  writer.write(kRanksFileName, rankTablesToJson(tables));
  return std::move(writer).take();
}

EmittedPrograms aloneProgram(RankProgram rank) {
  std::vector<Program> programs;
  programs.push_back(std::move(rank.program));
  EmittedPrograms alone{setOf(std::move(programs)), {}};
  alone.subgraphs.push_back(std::make_shared<const std::vector<Graph>>(std::move(rank.subgraphs)));
  return alone;
}

DialectChanges expandRank(const std::string& plan_directory, RankId rank, const std::string& folder,
                          Dialect dialect) {
  ProgramFolder programs(plan_directory);
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !(fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored)))
    fail(ErrorCode::kConfiguration, "{} exists and is not empty; choose another -o", folder);
  if (rank.index() >= programs.ranks())
    fail(ErrorCode::kUsage, "--expand-rank {}: the ranks of {} are 0 to {}", rank, plan_directory,
         programs.ranks() - 1);
  DialectChanges changes;
  const auto expand = [&](StepSize size, const fs::path& into) {
    makeFolder(into);
    RankImage image = programs.image(rank, size);
    const std::set<SubgraphId> own = programs.ownSubgraphs(rank, size);
    for (size_t s = 0; s < image.subgraphs.size(); ++s) {
      Subgraph& subgraph = image.program.subgraphs[s];
      const std::string stored = (fs::path(plan_directory) / kSubgraphsFolder / subgraph.file).string();
      subgraph.file = subgraph.name + ".onnx";
      if (dialect == Dialect::kOrt) {
        writeOrtCollectives(image.program, image.subgraphs[s], changes);
        writeModel(image.subgraphs[s], (into / subgraph.file).string());
      } else {
        writeTextFile((into / subgraph.file).string(), own.contains(SubgraphId(s))
                                                           ? serializeModel(image.subgraphs[s])
                                                           : requireTextFile(stored));
      }
    }
    const Program& program = image.program;
    writeTextFile((into / "program.json").string(), programToJson(program));
    for (const std::string& file : filesOfFolder(program)) {
      makeFolder((into / file).parent_path());
      fs::copy_file(fs::path(plan_directory) / file, into / file);
    }
  };
  for (const StepSize size : programs.sizes()) {
    const std::string inside = size.last_batch   ? "last_batch"
                               : size.length > 0 ? fmt::format("shorter{}", size.length)
                                                 : "";
    expand(size, fs::path(folder) / inside);
  }
  return changes;
}

}  // namespace pipeshard
