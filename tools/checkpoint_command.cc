#include <cmath>
#include <filesystem>
#include <memory>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

int64_t bytesOf(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const CheckpointFile& file : checkpoint.files) bytes += file.bytes;
  return bytes;
}

struct CheckpointCommand {
  std::string directory;
  std::string other;
  std::string json;
  std::vector<int64_t> deleted;
  bool verify = false;

  int run() {
    refuseSeveralActions();
    if (!json.empty()) requireWritable(json);
    if (!other.empty()) return compare();
    const std::vector<std::string> found = listCheckpoints(directory);
    if (!deleted.empty()) return remove(found);
    const std::vector<std::string> damaged = listDamaged(directory);
    for (const std::string& path : damaged) fmt::print(stderr, "{}\n", describeDamaged(path));
    if (found.empty() && !damaged.empty()) return static_cast<int>(ErrorCode::kNoGoodCheckpoint);
    if (found.empty()) {
      fmt::print("no checkpoint in {}\n", directory);
      return 0;
    }
    const int code = list(found);
    return code == 0 && !damaged.empty() ? static_cast<int>(ErrorCode::kNoGoodCheckpoint) : code;
  }

  // A command does one thing: what was verified before others were removed is no longer what is there.
  void refuseSeveralActions() const {
    const char* first = !other.empty() ? "--compare" : !deleted.empty() ? "--delete" : "";
    const char* second = verify                               ? "--verify"
                         : !other.empty() && !deleted.empty() ? "--delete"
                         : !json.empty() && *first != '\0'    ? "--json"
                                                              : "";
    if (*first == '\0' || *second == '\0') return;
    fail(ErrorCode::kUsage, "{} {}: a command does one of both; {}", first, second,
         second == std::string_view("--json") ? "--json writes the list, without the other"
                                              : "give them one after the other");
  }

  // Bad ones are told, and decide the exit code.
  int list(const std::vector<std::string>& found) const {
    std::vector<std::vector<std::string>> rows = {
        {"checkpoint", "step", "tensors", "ranks", "bytes", "state"}};
    nlohmann::ordered_json document = nlohmann::ordered_json::array();
    Progress progress;
    int code = 0;
    for (const std::string& path : found) {
      std::string state = verify ? "verified" : "whole";
      Checkpoint checkpoint;
      try {
        checkpoint = readCheckpoint(path);
        const auto show = [&](size_t files) {
          progress.phase(fmt::format("verifying {}: {} of {}", path, files, checkpoint.files.size()));
        };
        if (verify) verifyCheckpoint(checkpoint, show);
        if (verify) verifyPlanFiles(checkpoint);
        if (!checkpoint.elsewhere.empty()) {
          state = fmt::format("{}, as far as it is here; not here: {}", state,
                              describeElsewhere(checkpoint, checkpoint.elsewhere));
        }
      } catch (const Error& error) {
        state = error.message();
        code = static_cast<int>(error.code());
      }
      rows.push_back({path, std::to_string(checkpoint.step), std::to_string(checkpoint.tensors.size()),
                      std::to_string(checkpoint.files.size()), formatBytes(bytesOf(checkpoint)), state});
      document.push_back({{"directory", path},
                          {"step", checkpoint.step},
                          {"tensors", checkpoint.tensors.size()},
                          {"ranks", checkpoint.files.size()},
                          {"bytes", bytesOf(checkpoint)},
                          {"state", state}});
      for (const int file : checkpoint.elsewhere) {
        document.back()["elsewhere"].push_back(
            {{"file", checkpoint.files[file].name}, {"host", checkpoint.files[file].host}});
      }
    }
    progress.clear();
    fmt::print("{}", formatTable(rows));
    if (!json.empty()) writeTextFile(json, document.dump(1) + "\n");
    return code;
  }

  int remove(const std::vector<std::string>& found) const {
    for (const int64_t step : deleted) {
      const auto is_of_step = [&](const std::string& path) {
        return std::filesystem::path(path).filename() == checkpointName(step);
      };
      const auto at = std::find_if(found.begin(), found.end(), is_of_step);
      if (at == found.end())
        fail(ErrorCode::kMissingInput, "{} has no checkpoint of step {}; see `pipeshard checkpoint {}`",
             directory, step, directory);
      deleteCheckpoint(*at);
      fmt::print("removed {}\n", *at);
    }
    return 0;
  }

  // Tensor by tensor, whatever plans have saved them.
  int compare() const {
    const Checkpoint left = newestOf(directory);
    const Checkpoint right = newestOf(other);
    const JoinedTensors a = openTensors(left);
    const JoinedTensors b = openTensors(right);
    std::vector<std::vector<std::string>> rows = {{"tensor", "largest difference", "elements that differ"}};
    size_t equal = 0;
    size_t missing = 0;
    for (const std::string& name : a.names()) {
      if (!b.has(name)) {
        rows.push_back({name, "only in " + left.directory, ""});
        ++missing;
        continue;
      }
      const JoinedTensors::Tensor x = a.read(name), y = b.read(name);
      if (x.shape == y.shape && x.bytes == y.bytes) {
        ++equal;
      } else {
        rows.push_back(difference(name, x, y));
      }
    }
    for (const std::string& name : b.names()) {
      if (a.has(name)) continue;
      rows.push_back({name, "only in " + right.directory, ""});
      ++missing;
    }
    fmt::print("{} (step {}) and {} (step {}): {} of {} equal bit for bit\n", left.directory, left.step,
               right.directory, right.step, equal, counted(std::ssize(a.names()), "tensor"));
    if (rows.size() > 1) fmt::print("{}", formatTable(rows));
    return rows.size() > 1 ? 1 : 0;
  }

  static Checkpoint newestOf(const std::string& folder) {
    const std::vector<std::string> found = listCheckpoints(folder);
    if (found.empty()) fail(ErrorCode::kMissingInput, "no checkpoint in {}", folder);
    return readCheckpoint(found.front());
  }

  static std::vector<std::string> difference(const std::string& name, const JoinedTensors::Tensor& x,
                                             const JoinedTensors::Tensor& y) {
    if (x.shape != y.shape || x.data_type != y.data_type) {
      return {name,
              fmt::format("{}{} and {}{}", dataTypeName(x.data_type), shapeToString(x.shape),
                          dataTypeName(y.data_type), shapeToString(y.shape)),
              ""};
    }
    const std::vector<double> left = x.elements(), right = y.elements();
    double largest = 0;
    int64_t differing = 0;
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i] != right[i]) ++differing;
      const double distance = std::abs(left[i] - right[i]);
      if (!(distance <= largest)) largest = distance;  // NaN is the largest
    }
    return {name, fmt::format("{:.3g}", largest), fmt::format("{} of {}", differing, left.size())};
  }
};

}  // namespace

CommandFunction addCheckpointCommand(CLI::App& app) {
  auto command = std::make_shared<CheckpointCommand>();
  CLI::App* sub =
      app.add_subcommand("checkpoint", "List, verify, compare and remove what `run --checkpoint` has saved");
  sub->add_option("DIR", command->directory, "A folder of checkpoints, or one of them")->required();
  sub->add_flag("--verify", command->verify,
                "Read every file, also those that `export` needs, and compare hashes with the manifest's");
  sub->add_option("--compare", command->other,
                  "Compare the newest one with that of this folder, tensor by tensor")
      ->type_name("DIR");
  sub->add_option("--delete", command->deleted, "Remove the checkpoints of these steps")->type_name("STEP");
  sub->add_option("--json", command->json, "Also write the list to this file")->type_name("FILE");
  sub->footer(
      "Exit codes: 0; 1 --compare has found a difference; 85 a checkpoint is not good.\n"
      "Example: pipeshard run gpt2.plan --steps 100 --checkpoint saved --every 20 && pipeshard checkpoint "
      "saved "
      "--verify");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
