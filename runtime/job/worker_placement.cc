#include "runtime/job/worker_placement.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/job/host_name.h"

namespace pipeshard {
namespace {

// A worker that lost its peer speaks before the peer's own end is noticed: the cause gets this long to show
// up.
constexpr std::chrono::milliseconds kCauseWindow{500};

class HerePlacement : public WorkerPlacement {
 public:
  explicit HerePlacement(WorkerGroupSpec spec) : spec_(std::move(spec)) {}

  bool start() override {
    if (!group_) group_.emplace(spec_);
    return true;
  }
  std::string describeMissing() const override { return ""; }
  std::chrono::milliseconds startTimeout() const override { return std::chrono::minutes(1); }
  int pid(RankId rank) const override { return group_ ? group_->pid(rank) : 0; }
  std::string host(RankId) const override { return hostName(); }
  ProcessState processState(RankId rank) const override { return readProcessState(pid(rank)); }
  std::vector<int> descriptors() const override {
    return group_ ? group_->descriptors() : std::vector<int>();
  }
  std::vector<WorkerEnd> takeEnds() override {
    return group_ ? group_->takeEnds() : std::vector<WorkerEnd>();
  }
  bool allEnded() const override { return !group_ || group_->allEnded(); }
  std::optional<Failure> handleMessage(const ControlMessage&) override { return std::nullopt; }
  std::optional<Failure> look(std::chrono::steady_clock::duration) override { return std::nullopt; }
  std::chrono::milliseconds causeWindow() const override { return kCauseWindow; }
  void kill() override {
    if (group_) group_->kill();
  }
  void keep() override {
    if (group_) group_->keep();
  }
  std::vector<RankId> unkillable() const override {
    return group_ ? group_->unkillable() : std::vector<RankId>();
  }
  Recorded collectTraces(std::chrono::steady_clock::time_point) override {
    Recorded recorded;
    recorded.clocks.resize(spec_.ranks.size());
    for (RankId rank : spec_.ranks)
      recorded.bytes.push_back(group_ ? group_->readTrace(rank) : std::vector<std::byte>());
    return recorded;
  }
  void release(int, const std::string&) override {}

 private:
  WorkerGroupSpec spec_;
  std::optional<WorkerGroup> group_;
};

}  // namespace

void keepFirstCause(std::optional<Failure>& first, std::optional<Failure> later) {
  if (!later) return;
  const auto began = first ? std::min(first->began, later->began) : later->began;
  if (!first || (!first->is_cause && later->is_cause)) first = std::move(later);
  first->began = began;
}

Failure failureOf(const nlohmann::json& error, const std::string& name, int64_t steps_done,
                  const std::string& unreached) {
  const ErrorCode code = knownErrorCode(error.at("code").get<int>());
  const bool is_of_another = code == ErrorCode::kPeerUnavailable || code == ErrorCode::kHang;
  if (is_of_another && !unreached.empty()) return {ErrorCode::kPeerUnavailable, unreached};
  return {code, fmt::format("{}: {}", name, error.at("message").get<std::string>()),
          error.value("is_cause", !is_of_another), code == ErrorCode::kNotANumber ? steps_done : 0};
}

ErrorCode knownErrorCode(int code) {
  const auto first = static_cast<int>(ErrorCode::kUsage);
  const auto last = static_cast<int>(ErrorCode::kReplicasDiffer);
  return code >= first && code <= last ? static_cast<ErrorCode>(code) : ErrorCode::kInternal;
}

std::unique_ptr<WorkerPlacement> placeHere(WorkerGroupSpec spec) {
  return std::make_unique<HerePlacement>(std::move(spec));
}

}  // namespace pipeshard
