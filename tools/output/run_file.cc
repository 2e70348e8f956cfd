#include "tools/output/run_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>

#include <nlohmann/json.hpp>

#include "ir/base/text_file.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string lineOf(const StepResult& step) {
  OrderedJson line = {{"step", step.step},
                      {"loss", step.loss ? OrderedJson(*step.loss) : nullptr},
                      {"seconds", step.seconds},
                      {"compute_seconds", step.compute_seconds},
                      {"transfer_seconds", step.transfer_seconds}};
  if (!step.losses.empty()) line["losses"] = step.losses;
  return line.dump();
}

OrderedJson ranksOf(const JobResult& result) {
  OrderedJson ranks = OrderedJson::array();
  for (const RankResult& rank : result.ranks) {
    ranks.push_back({{"arena_bytes", rank.arena_bytes},
                     {"constant_bytes", rank.constant_bytes},
                     {"communicator_bytes", rank.communicator_bytes},
                     {"peak_resident_bytes", rank.peak_resident_bytes}});
    if (rank.device.empty()) continue;
    ranks.back()["device"] = rank.device;
    ranks.back()["peak_device_bytes"] = rank.peak_device_bytes;
  }
  return ranks;
}

// Beside the file that it becomes a part of, where there is room for it; what is no file in a folder
// (/dev/stdout) has it where temporary files are.
std::FILE* openWithoutName(const std::string& path) {
  std::string name = path + ".XXXXXX";
  const int descriptor = path.starts_with("/dev/") ? -1 : ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) return std::tmpfile();
  ::unlink(name.c_str());
  return ::fdopen(descriptor, "w+");
}

}  // namespace

RunFile::RunFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  requireWritable(path_);
  steps_.reset(openWithoutName(path_));
  if (!steps_) failToWrite(path_, errno);
}

void RunFile::take(const JobProgress& event) {
  if (event.kind == JobProgress::Kind::kEvaluated)
    evaluations_.push_back({event.step, event.loss, event.seconds});
  if (event.kind != JobProgress::Kind::kStep) return;
  const bool goes_on = event.step == last_step_ + 1;
  last_step_ = event.step;
  if (!goes_on) {
    first_loss_ = event.loss;
    evaluations_.clear();
  }
  if (!steps_) return;
  if (!goes_on) {
    std::rewind(steps_.get());
    if (::ftruncate(::fileno(steps_.get()), 0) != 0) failToWrite(path_, errno);
  }
  const std::string line = (goes_on ? ",\n  " : "  ") + lineOf(*event.result);
  if (std::fwrite(line.data(), 1, line.size(), steps_.get()) != line.size()) failToWrite(path_, errno);
}

std::string RunFile::evaluationsText() const {
  OrderedJson evaluations = OrderedJson::array();
  for (const Evaluation& of : evaluations_) {
    evaluations.push_back(
        {{"step", of.step}, {"loss", of.loss ? OrderedJson(*of.loss) : nullptr}, {"seconds", of.seconds}});
  }
  return evaluations.dump();
}

void RunFile::finish(const JobResult& result, const std::string& operators) {
  if (!steps_) return;
  errno = 0;
  if (std::fflush(steps_.get()) != 0) failToWrite(path_, errno);
  std::rewind(steps_.get());
  std::error_code ignored;
  const bool is_plain =
      !std::filesystem::exists(path_, ignored) || std::filesystem::is_regular_file(path_, ignored);
  // A pipe or device is written as it is; a file when it is whole.
  std::optional<PendingFile> file;
  std::ofstream stream;
  if (is_plain) {
    file.emplace(std::filesystem::weakly_canonical(path_).string());
  } else {
    stream.open(path_, std::ios::binary);
  }
  const auto write = [&](std::string_view text) {
    if (file) return file->append(text.data(), text.size());
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  };
  write("{\n \"load_seconds\": " + OrderedJson(result.load_seconds).dump() + ",\n \"steps\": [\n");
  std::array<char, 1 << 16> block;
  while (const size_t got = std::fread(block.data(), 1, block.size(), steps_.get()))
    write({block.data(), got});
  write("\n ],\n");
  if (!evaluations_.empty()) write(" \"evaluations\": " + evaluationsText() + ",\n");
  if (!operators.empty()) write(" \"operators\": " + operators + ",\n");
  write(" \"ranks\": " + ranksOf(result).dump() + "\n}\n");
  if (file) return file->commit(false);
  stream.close();
  if (!stream) failToWrite(path_, errno);
}

}  // namespace pipeshard
