// Loading a rank's directory, and the one-process form of a program.

#include <filesystem>
#include <fstream>
#include <sstream>

#include "ir/base/error.h"
#include "onnx_import/format/reader.h"
#include "runtime/execute/executor.h"
#include "runtime/files/convert.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

std::string rankDirectoryName(int rank) { return fmt::format("{:04}", rank); }

Program loadProgram(const std::string& directory) {
  const std::string program_path = (std::filesystem::path(directory) / "program.json").string();
  const Descriptor file = openForReading(program_path);
  std::string text(fileBytes(file, program_path), '\0');
  readExactly(file, 0, std::as_writable_bytes(std::span(text)), program_path);
  try {
    return programFromJson(text);
  } catch (Error& error) {
    throw error.addContext(program_path);
  }
}

RankImage loadRank(const std::string& directory) {
  const std::filesystem::path folder(directory);
  RankImage image;
  image.directory = directory;
  image.program = loadProgram(directory);
  for (const Subgraph& subgraph : image.program.subgraphs) {
    const std::filesystem::path name(subgraph.file);
    if (name.has_parent_path() || name.empty()) {
      fail(ErrorCode::kConfiguration, "{}: the file '{}' of subgraph '{}' is not in the rank's folder",
           (folder / "program.json").string(), subgraph.file, subgraph.name);
    }
    image.subgraphs.push_back(readModel((folder / name).string()));
  }
  return image;
}

LocalProgram::LocalProgram(RankImage image, const DataDescription& data, const ExecutorOptions& options)
    : executor_(std::move(image), options) {
  const Program& program = executor_.program();
  if (program.world_size != 1) {
    fail(ErrorCode::kConfiguration,
         "the program is for {} ranks; only a program of one rank runs in one process", program.world_size);
  }
  arena_ = AlignedMemory(static_cast<size_t>(executor_.memory().total_bytes));
  data_ = makeDataSource(data, program);
  executor_.attach(arena_.bytes(), nullptr, data_.get());
}

const Result* LocalProgram::findResult(Result::Kind kind, std::string_view name,
                                       std::string_view state) const {
  for (const Result& result : executor_.program().results) {
    if (result.kind == kind && result.state == state && (kind == Result::Kind::kLoss || result.name == name))
      return &result;
  }
  return nullptr;
}

std::vector<double> LocalProgram::elements(const Result& result) const {
  const Buffer& buffer = executor_.program().buffer(result.buffer);
  std::vector<double> numbers(static_cast<size_t>(elementCount(buffer.shape)));
  convertElements(buffer.data_type, executor_.content(result.buffer).data(), DataType::kFloat64,
                  numbers.data(), numbers.size());
  return numbers;
}

}  // namespace pipeshard
