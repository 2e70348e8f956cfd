#include "runtime/recovery/checkpoint_parts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/disks/file_pieces.h"
#include "runtime/job/node_pool.h"
#include "runtime/messages/control_types.h"
#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// For nodes to look at their disks.
constexpr std::chrono::seconds kAnswers{10};
constexpr std::chrono::milliseconds kAnswer{10};
// Of a host's files, in a sentence.
constexpr size_t kMostNamed = 3;

// A question about files of one checkpoint, which are known by their index.
class PartSearch {
 public:
  PartSearch(const NextCheckpoint& next, NodePool& nodes, const JobProgressCallback& progress)
      : checkpoint_(next.checkpoint),
        nodes_(nodes),
        progress_(progress),
        lacked_(next.elsewhere.begin(), next.elsewhere.end()) {}

  // Asks for what is still lacking: nodes of the hosts that have written it, or the others.
  void ask(bool writers) {
    for (int number = 0; number < std::ssize(nodes_.nodes()); ++number) {
      if (!nodes_.isHere(number)) continue;
      for (const int file : lacked_) {
        const CheckpointFile& wanted = checkpoint_.files.at(file);
        if ((wanted.host == nodes_.nodes()[number].host) != writers) continue;
        // Behind its last byte: the answer says how long it is, and has nothing of it.
        nlohmann::json want = wantJson(
            {checkpoint_.directory, checkpoint_.job, wanted.name, static_cast<uint64_t>(wanted.bytes)});
        want["for"] = file;
        nodes_.send(number, control::kWant, std::move(want));
        asked_[number].insert(file);
      }
    }
    const Clock::time_point end = Clock::now() + kAnswers;
    while (!lacked_.empty() && isAwaiting() && Clock::now() < end) {
      nodes_.listen(kAnswer, progress_,
                    [this](int number, const ControlMessage& message) { hear(number, message); });
    }
    asked_.clear();
  }

  std::vector<int> lacked() const { return {lacked_.begin(), lacked_.end()}; }

 private:
  bool isAwaiting() const {
    return std::ranges::any_of(
        asked_, [this](const auto& entry) { return !entry.second.empty() && nodes_.isHere(entry.first); });
  }
  void hear(int number, const ControlMessage& message) {
    if (message.type != control::kPiece) return;
    const int file = message.body.value("for", -1);
    const auto asked = asked_.find(number);
    if (asked == asked_.end() || asked->second.erase(file) == 0 || message.body.contains("error")) return;
    if (message.body.at("total").get<int64_t>() == checkpoint_.files.at(file).bytes) lacked_.erase(file);
  }

  const Checkpoint& checkpoint_;
  NodePool& nodes_;
  const JobProgressCallback& progress_;
  std::set<int> lacked_;
  std::map<int, std::set<int>> asked_;  // by node, what it has not answered yet
};

}  // namespace

std::optional<NextCheckpoint> nextCheckpoint(const CheckpointSpec& spec) {
  std::error_code ignored;
  if (!fs::is_directory(spec.directory, ignored)) return std::nullopt;
  for (const std::string& directory : listCheckpoints(fs::absolute(spec.directory).string())) {
    if (stepOfCheckpoint(fs::path(directory).filename().string()).value_or(0) >= spec.before) continue;
    try {
      NextCheckpoint next{readCheckpoint(directory), {}};
      std::set<int> filled;
      for (const CheckpointTensor& tensor : next.checkpoint.tensors) {
        for (const CheckpointSlice& slice : tensor.slices) filled.insert(slice.file);
      }
      std::ranges::set_intersection(next.checkpoint.elsewhere, filled, std::back_inserter(next.elsewhere));
      return next;
    } catch (const Error&) {
      continue;  // whoever goes on says what is wrong with it, and takes an older one
    }
  }
  return std::nullopt;
}

std::vector<int> lackedWith(const NextCheckpoint& next, const std::set<std::string>& hosts) {
  std::vector<int> lacked;
  std::ranges::copy_if(next.elsewhere, std::back_inserter(lacked),
                       [&](int file) { return !hosts.contains(next.checkpoint.files.at(file).host); });
  return lacked;
}

std::vector<int> lackedByNodes(const NextCheckpoint& next, NodePool& nodes,
                               const JobProgressCallback& progress) {
  PartSearch search(next, nodes, progress);
  search.ask(/*writers=*/true);
  search.ask(/*writers=*/false);
  return search.lacked();
}

std::string describeLacked(const Checkpoint& checkpoint, const std::vector<int>& lacked) {
  std::map<std::string, std::vector<std::string>> by_host;
  for (const int file : lacked) {
    const CheckpointFile& entry = checkpoint.files.at(file);
    by_host[entry.host].push_back(entry.name);
  }
  std::string where;
  for (const auto& [host, names] : by_host) {
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNamed));
    where += fmt::format("{}host {} alone ({}{})", where.empty() ? "" : ", ", host,
                         fmt::join(names.begin(), end, ", "), names.size() > kMostNamed ? ", ..." : "");
  }
  return fmt::format("checkpoint {} is in part on the own disk of {}", checkpoint.directory, where);
}

}  // namespace pipeshard
