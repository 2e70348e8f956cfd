#include "tools/output/run_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/text_file.h"
#include "runtime/files/posix_file.h"
#include "tools/output/log_lines.h"

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

RunFile::RunFile(std::string path, const std::function<void(const std::string&)>& notice)
    : path_(std::move(path)), file_(notice) {
  if (path_.empty()) return;
  requireWritable(path_);
  steps_.reset(openWithoutName(path_));
  if (!steps_) failToWrite(path_, errno);
}

void RunFile::take(const JobProgress& event) {
  if (event.kind == JobProgress::Kind::kEvaluated) {
    std::erase_if(evaluations_, [&](const Evaluation& of) { return of.step >= event.step; });
    evaluations_.push_back({event.step, event.loss, event.seconds, event.exact});
  }
  if (event.kind != JobProgress::Kind::kStep) return;
  const bool goes_back = event.step <= last_step_;
  if (goes_back) goBackBehind(event.step - 1);
  if (first_step_ < 0 || event.step <= first_step_) {
    first_step_ = event.step;
    first_loss_ = event.loss;
  }
  last_step_ = event.step;
  last_loss_ = event.loss;
  if (!event.result->applied) left_out_.push_back(event.step);
  if (steps_) file_.attempt([&] { writeStep(*event.result, goes_back); });
}

void RunFile::goBackBehind(int64_t step) {
  std::erase_if(evaluations_, [&](const Evaluation& of) { return of.step > step; });
  std::erase_if(left_out_, [&](int64_t of) { return of > step; });
}

void RunFile::writeStep(const StepResult& step, bool goes_back) {
  if (goes_back) {
    if (std::fflush(steps_.get()) != 0) failToWrite(path_, errno);
    // the only name that the file has
    cutLogBehind(fmt::format("/proc/self/fd/{}", ::fileno(steps_.get())), step.step - 1);
    if (std::fseek(steps_.get(), 0, SEEK_END) != 0) failToWrite(path_, errno);
  }
  const std::string line = lineOf(step) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), steps_.get()) != line.size()) failToWrite(path_, errno);
}

std::string RunFile::evaluationsText() const {
  OrderedJson evaluations = OrderedJson::array();
  for (const Evaluation& of : evaluations_) {
    evaluations.push_back({{"step", of.step},
                           {"loss", of.loss ? OrderedJson(*of.loss) : nullptr},
                           {"seconds", of.seconds},
                           {"exact", of.exact}});
  }
  return evaluations.dump();
}

void RunFile::finish(const JobResult& result, const std::string& operators) {
  file_.requireWhole();
  if (!steps_) return;
  writeFile("{\n \"load_seconds\": " + OrderedJson(result.load_seconds).dump() + ",\n",
            (operators.empty() ? "" : ",\n \"operators\": " + operators) +
                ",\n \"ranks\": " + ranksOf(result).dump() + "\n}\n");
}

void RunFile::finishEarly(const std::string& ended) {
  if (!steps_ || stepsDone() == 0) return;
  file_.attempt([&] {
    writeFile("{\n \"ended\": " +
                  OrderedJson(ended).dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + ",\n",
              "\n}\n");
  });
}

void RunFile::writeFile(const std::string& head, const std::string& tail) {
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
  write(head + " \"steps\": [");
  char* line = nullptr;
  size_t room = 0;
  const char* between = "\n  ";
  for (ssize_t got; (got = ::getline(&line, &room, steps_.get())) > 0; between = ",\n  ")
    write(between + std::string(line, got - 1));
  std::free(line);
  write("\n ]");
  if (!evaluations_.empty()) write(",\n \"evaluations\": " + evaluationsText());
  write(tail);
  if (file) return file->commit(false);
  stream.close();
  if (!stream) failToWrite(path_, errno);
}

}  // namespace pipeshard
