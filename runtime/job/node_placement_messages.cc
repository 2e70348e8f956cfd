#include "ir/base/ids_format.h"
#include "runtime/identity/job_identity.h"
#include "runtime/job/node_placement_parts.h"

// What nodes say, and what follows from it.
namespace pipeshard {

NodePlacement::Hearing NodePlacement::hearingOf(std::string_view type) {
  using P = NodePlacement;
  static const std::map<std::string_view, Hearing> hearings{{control::kAlive, &P::hearAlive},
                                                            {control::kBye, &P::hearBye},
                                                            {control::kClock, &P::hearClock},
                                                            {control::kEnded, &P::hearEnded},
                                                            {control::kEnding, &P::hearEnding},
                                                            {control::kError, &P::hearError},
                                                            {control::kIdentity, &P::hearIdentity},
                                                            {control::kLeaving, &P::hearLeaving},
                                                            {control::kNotice, &P::hearNotice},
                                                            {control::kStarted, &P::hearStarted},
                                                            {control::kTook, &P::hearTook},
                                                            {control::kTrace, &P::hearTrace},
                                                            {control::kWire, &P::hearWire},
                                                            {control::kWired, &P::hearWire},
                                                            {kFault, &P::hearFault}};
  const auto found = hearings.find(type);
  return found == hearings.end() ? nullptr : found->second;
}

std::optional<Failure> NodePlacement::handleMessage(const ControlMessage& message) {
  if (message.type == kRegister) {
    const std::optional<std::string> other = pool_.admit(message, progress_);
    if (other && !has_told_) return Failure{ErrorCode::kVersionMismatch, *other};
    return std::nullopt;
  }
  if (message.type == control::kUnreached) hearUnreached(message);
  const std::optional<int> number = pool_.numberOf(message.rank);
  if (!number) return std::nullopt;
  pool_.hear(*number);
  if (disks_ && disks_->hear(*number, message.type, message.body, message.payload)) return std::nullopt;
  const auto node = std::find_if(nodes_.begin(), nodes_.end(),
                                 [&](const PlacedNode& entry) { return entry.control_rank == message.rank; });
  if (node == nodes_.end() || node->ranks.empty()) {
    hearSpare(*number, message);
    return std::nullopt;
  }
  const Hearing hearing = hearingOf(message.type);
  return hearing == nullptr ? std::nullopt : (this->*hearing)(*node, message);
}

// One without ranks. What it has, or lacks, ends nothing: it is left out when it is to take over.
void NodePlacement::hearSpare(int number, const ControlMessage& message) {
  const std::string& type = message.type;
  std::string text;
  ErrorCode code = ErrorCode::kVersionMismatch;
  if (type == control::kIdentity) {
    try {
      const JobIdentity identity = identityFromJson(message.body.at("files"));
      text = identities_.difference(pool_.nameOf(number), identity).value_or("");
    } catch (const Error& error) {
      text = error.message();
    }
  } else if (type == control::kError) {
    code = knownErrorCode(message.body.at("code").get<int>());
    text = message.body.at("message").get<std::string>();
  }
  if (!text.empty() && progress_) {
    const bool is_of_files = code == ErrorCode::kVersionMismatch || code == ErrorCode::kMissingInput ||
                             code == ErrorCode::kConfiguration;
    progress_({.kind = JobProgress::Kind::kNotice,
               .text = fmt::format(
                   "{} is a spare, and {}: {}", pool_.nameOf(number),
                   is_of_files ? "may be left out as its files are now" : "what it has could not be compared",
                   text)});
  }
  if (type == control::kLeaving || type == control::kBye || type == kFault) pool_.drop(number);
  if (type == control::kEnding)
    pool_.sendAway(number, static_cast<int>(ErrorCode::kRequeue), "it had no ranks");
}

std::optional<Failure> NodePlacement::hearAlive(PlacedNode& node, const ControlMessage& message) try {
  node.states = statesFromJson(message.body);
  return std::nullopt;
} catch (const Error& error) {
  return Failure{error.code(), fmt::format("{}: {}", node.name, error.message())};
}

std::optional<Failure> NodePlacement::hearBye(PlacedNode& node, const ControlMessage&) {
  pool_.drop(node.number);
  return std::nullopt;
}

std::optional<Failure> NodePlacement::hearClock(PlacedNode& node, const ControlMessage& message) {
  const int64_t answered = Clock::now().time_since_epoch().count();
  node.clock.add({message.body.at("asked").get<int64_t>(), message.body.at("now").get<int64_t>(), answered});
  // Where the last round begins before the first has been answered, one answer more comes than it counts.
  if (node.clock_questions > 0) askClock(node, --node.clock_questions);
  return std::nullopt;
}

std::optional<Failure> NodePlacement::hearEnded(PlacedNode& node, const ControlMessage& message) {
  const RankId rank(message.body.at("rank").get<size_t>());
  if (!node.pids.contains(rank)) return std::nullopt;
  ends_.push_back({rank, message.body.at("description").get<std::string>(),
                   knownErrorCode(message.body.at("code").get<int>())});
  ++ended_;
  return std::nullopt;
}

std::optional<Failure> NodePlacement::hearEnding(PlacedNode& node, const ControlMessage& message) {
  pool_.askToEnd(node.number, message.body.at("signal").get<int>());
  return std::nullopt;
}

std::optional<Failure> NodePlacement::hearError(PlacedNode& node, const ControlMessage& message) {
  Failure failure{knownErrorCode(message.body.at("code").get<int>()),
                  fmt::format("{}: {}", node.name, message.body.at("message").get<std::string>())};
  failure.daemons = {node.control_rank};
  return failure;
}

std::optional<Failure> NodePlacement::hearFault(PlacedNode& node, const ControlMessage& message) {
  return Failure{ErrorCode::kInternal,
                 fmt::format("{}: {}", node.name, message.body.at("message").get<std::string>())};
}

std::optional<Failure> NodePlacement::hearIdentity(PlacedNode& node, const ControlMessage& message) {
  return compare(node.name, identityFromJson(message.body.at("files")));
}

// The names are those that were given to `identities_`, not words of its text.
std::optional<Failure> NodePlacement::compare(const std::string& who, const JobIdentity& identity) {
  std::string other;
  const std::optional<std::string> difference = identities_.add(who, identity, &other);
  if (!difference) return std::nullopt;
  Failure failure{ErrorCode::kVersionMismatch, *difference};
  for (const PlacedNode& node : nodes_) {
    if (node.control_rank >= 0 && (node.name == who || node.name == other))
      failure.daemons.push_back(node.control_rank);
  }
  return failure;
}

std::optional<Failure> NodePlacement::hearLeaving(PlacedNode& node, const ControlMessage& message) {
  pool_.drop(node.number);
  return Failure{ErrorCode::kPeerUnavailable,
                 fmt::format("{} has left: {}", node.name, message.body.at("message").get<std::string>())};
}

std::optional<Failure> NodePlacement::hearNotice(PlacedNode& node, const ControlMessage& message) {
  if (!progress_) return std::nullopt;
  progress_({.kind = JobProgress::Kind::kNotice,
             .text = fmt::format("{}: {}", node.name, message.body.at("message").get<std::string>())});
  return std::nullopt;
}

std::optional<Failure> NodePlacement::hearStarted(PlacedNode& node, const ControlMessage& message) {
  const auto pids = message.body.at("pids").get<std::vector<int>>();
  if (pids.size() != node.ranks.size()) {
    return Failure{ErrorCode::kInternal,
                   fmt::format("{} started {} workers of {}", node.name, pids.size(), node.ranks.size())};
  }
  for (size_t i = 0; i < pids.size(); ++i) node.pids[node.ranks[i]] = pids[i];
  if (workers_.options.trace_steps > 0) askClock(node, kClockQuestions);
  return std::nullopt;
}

std::optional<Failure> NodePlacement::hearTook(PlacedNode& node, const ControlMessage&) {
  if (!node.batches) return std::nullopt;
  node.batches->acknowledge();
  sendBatches();
  return std::nullopt;
}

std::optional<Failure> NodePlacement::hearTrace(PlacedNode& node, const ControlMessage& message) {
  const nlohmann::json& body = message.body;
  const RankId rank(body.at("rank").get<size_t>());
  std::vector<std::byte>& trace = node.traces[rank];
  // where a piece is missing the rest is of no use
  if (body.at("offset").get<size_t>() != trace.size()) return std::nullopt;
  trace.insert(trace.end(), message.payload.begin(), message.payload.end());
  if (trace.size() == body.at("total").get<size_t>()) node.whole_traces.insert(rank);
  return std::nullopt;
}

// Every host that has ranks learns where the others' relays are; when all let each other in, they connect.
std::optional<Failure> NodePlacement::hearWire(PlacedNode& node, const ControlMessage& message) {
  nlohmann::json body;
  const std::string_view type = reach_.take(node.number, message.type, message.body, body);
  for (const int number : reach_.nodes()) {
    if (!type.empty()) pool_.send(number, type, body);
  }
  return std::nullopt;
}

// Of a daemon, which names nodes, or of a worker, which names ranks.
void NodePlacement::hearUnreached(const ControlMessage& message) {
  const bool is_daemon = isNodeRank(message.rank);
  const std::optional<int> from =
      is_daemon ? pool_.numberOf(message.rank) : node_of_rank_.at(RankId(message.rank));
  const auto most = is_daemon ? std::ssize(nodes_) : std::ssize(node_of_rank_);
  std::map<int, std::string> unreached;
  for (const nlohmann::json& peer : message.body.at("peers")) {
    const int number = peer.at("number").get<int>();
    if (number >= most) continue;
    unreached[is_daemon ? number : node_of_rank_[RankId(number)]] = peer.at("address").get<std::string>();
  }
  if (from) reach_.note(message.rank, *from, std::move(unreached));
}

}  // namespace pipeshard
