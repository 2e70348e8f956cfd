#include "runtime/job/node.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "runtime/disks/node_disk.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/feed/batch_pieces.h"
#include "runtime/identity/build_identity.h"
#include "runtime/identity/identity_reader.h"
#include "runtime/job/host_name.h"
#include "runtime/job/job.h"
#include "runtime/job/worker_placement.h"
#include "runtime/machine/limits.h"
#include "runtime/messages/control_types.h"
#include "runtime/rendezvous/host_wire.h"
#include "transport/control/control.h"
#include "transport/control/control_client.h"
#include "transport/control/control_endpoint.h"
#include "transport/control/coordinator_search.h"
#include "transport/control/job_keys.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kNodeLookAround{100};

// One thread, two phases: join() until a coordinator has welcomed this node, then look() until the job is
// over. Each look waits for a message, the end of a worker or of the command, a signal, or kNodeLookAround,
// and then handles all that is there. The messages are those of runtime/job/node_placement.h.
//
// The workers end with the daemon on every way out: `stop` from the coordinator, its silence, a signal, the
// end of the command. Silence is counted only while this process listens: time in which it was stopped itself
// is added to last_heard_.
//
// `command_`, where there is one, is the coordinator's own command, a child of this process. Signals go on to
// it, and its exit code becomes the daemon's.
class NodeDaemon {
 public:
  NodeDaemon(const NodeOptions& options, const NodeMessages& say) : options_(options), say_(say) {}

  NodeEnd run() {
    requireLimits({});
    if (!options_.command.empty())
      command_.emplace(ChildProcess::start(options_.executable, options_.command, {}, true));
    while (!over_) {
      if (const std::optional<int> early = join()) return {*early, false};
      joined_ = true;
      say_(fmt::format("joined the coordinator at {}", endpoint_));
      last_heard_ = last_look_ = Clock::now();
      resting_ = false;
      try {
        while (!over_) look();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kPeerUnavailable || !options_.rejoin || command_) throw;
        say_(fmt::format("{}; joining again", error.message()));
        dropAttempt();
        client_.reset();
      }
    }
    return {command_ ? commandsEnd(exit_code_ != 0) : exit_code_, true};
  }

 private:
  // Until the coordinator has welcomed this node. The command's exit code, should it end before.
  std::optional<int> join();
  bool tryToJoin(const CoordinatorSearch::Place& place);
  void look();
  void handle(const ControlMessage& message);
  void useDisk(const ControlMessage* message);
  void completePlan(const ControlMessage& start);
  void readFiles(const nlohmann::json& body, bool starts = true);
  void lookAtFiles();
  void startWorkers(const nlohmann::json& body);
  void openRelay(const WorkerGroupSpec& workers);
  void connectRelay(const nlohmann::json& body);
  void endWorkers(bool may_stay = false);
  void dropAttempt();
  void reportEnds();
  void checkCoordinator();
  void tell(std::string_view type, nlohmann::json body, std::span<const std::byte> payload = {});
  void tellError(const Error& error);
  void sayLast(std::string_view type, nlohmann::json body);
  [[noreturn]] void loseCoordinator(const std::string& what);
  void checkSignals();
  int commandsEnd(bool must_end);

  const NodeOptions& options_;
  const NodeMessages& say_;
  SignalWatch signals_;
  std::optional<ChildProcess> command_;
  std::unique_ptr<ControlClient> client_;
  std::string endpoint_;  // of the coordinator, as it was said
  std::string address_;   // likewise, where it has answered
  bool joined_ = false;   // before
  std::optional<ClientKeys> keys_;
  std::optional<ClientKeys> worker_keys_;
  Clock::time_point last_heard_;
  Clock::time_point last_look_;
  Clock::time_point last_sent_;
  bool resting_ = false;  // the job is about to be started again
  milliseconds patience_ = kNodeSilence;
  bool saves_ = false;   // the job keeps checkpoints, and has workers here
  bool ending_ = false;  // a signal has come, and what it is asked for is under way
  bool over_ = false;
  int exit_code_ = 0;
  nlohmann::json start_;                  // what it was told to start last
  std::vector<ControlMessage> held_;      // "start", and what is not taken before it
  std::optional<PlanCompletion> plan_;    // while what the ranks need of it is made
  std::optional<IdentityReader> files_;   // while they are read
  bool starts_ = true;                    // behind that; false: a spare is asked what it has
  std::optional<NodeDisk> disk_;          // where a job keeps checkpoints
  std::unique_ptr<HostWire> wire_;        // to the ranks of other hosts, where there are any
  std::optional<BatchReceiver> batches_;  // of data that come through a pipe
  KeptWorkers kept_;                      // between two attempts
  std::optional<WorkerGroup> workers_;
};

std::optional<int> NodeDaemon::join() {
  CoordinatorSearch search({options_.join, options_.key_file, options_.wait, /*waits_for_another=*/joined_});
  std::set<std::string> said;
  while (true) {
    checkSignals();
    if (command_ && command_->tryReap()) return command_->exitCode();
    try {
      const std::optional<CoordinatorSearch::Place> place = search.next();
      if (place && tryToJoin(*place)) return std::nullopt;
    } catch (const Error& error) {
      search.heed(error);
    }
    search.requireTime();
    if (const std::string awaited = search.awaited(); said.insert(awaited).second) say_(awaited);
    std::this_thread::sleep_for(search.pause());
  }
}

bool NodeDaemon::tryToJoin(const CoordinatorSearch::Place& place) {
  const std::optional<JobTicket>& ticket = place.ticket;
  endpoint_ = place.endpoint;
  address_ = place.address;
  keys_.reset();
  if (ticket) keys_ = ticket->clientKeys();
  // The workers get keys of this node's own, so that the coordinator knows whose they are.
  const JobKeys own = makeJobKeys();
  worker_keys_.reset();
  if (ticket) worker_keys_ = {ticket->server_public, own.client_public, own.client_secret};
  ControlClientOptions options;
  options.generation = options_.generation;
  options.keys = keys_;
  options.any_job = !ticket;
  options.schema = nodeCommands();
  options.body = {{"host", hostName()}, {"pid", ::getpid()}, {"build", buildJson(thisBuild())}};
  if (worker_keys_) options.body["key"] = worker_keys_->client_public;
  if (options_.index) options.body["index"] = *options_.index;
  if (options_.devices > 0) options.body["devices"] = options_.devices;
  const int control_rank = kFirstNodeRank + static_cast<int>(std::random_device()() % 1'000'000'000u);
  try {
    client_ =
        ControlClient::connect(address_, ticket ? ticket->job_id : "", control_rank, place.time, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerUnavailable) throw;
    return false;
  }
  return true;
}

// Those that cannot be killed are given up, and said. `may_stay`: for another attempt.
void NodeDaemon::endWorkers(bool may_stay) {
  if (!may_stay) kept_.workers.clear();
  if (!workers_) return;
  may_stay ? workers_->keep() : workers_->kill();
  for (const RankId rank : workers_->unkillable()) {
    const int pid = workers_->pid(rank);
    say_(fmt::format("unkillable: worker of rank {} (host {}, pid {}){}; it goes when the kernel lets it",
                     rank, hostName(), pid, describe(readProcessState(pid))));
  }
}

void NodeDaemon::look() {
  std::vector<int> descriptors = workers_ ? workers_->descriptors() : std::vector<int>();
  descriptors.push_back(signals_.descriptor());
  if (command_) descriptors.push_back(command_->descriptor());
  const Clock::time_point before = Clock::now();
  // Nobody was silent while this process did not listen.
  if (before - last_look_ > std::chrono::seconds(1)) last_heard_ += before - last_look_;
  ControlEvent event = client_->poll(kNodeLookAround, descriptors);
  last_look_ = Clock::now();
  checkSignals();
  while (event.message && !over_) {
    handle(*event.message);
    event.message = client_->receive(milliseconds(0));
  }
  if (over_) return;
  if (command_ && command_->tryReap()) {
    endWorkers();
    say_("the coordinator " + command_->describeEnd());
    over_ = true;
    return;
  }
  lookAtFiles();
  reportEnds();
  // Strangers at the port of the tensors do no harm, but are to be known.
  if (const auto notice = wire_ ? wire_->look() : std::nullopt) {
    say_(*notice);
    tell(control::kNotice, {{"message", *notice}});
  }
  if (disk_) useDisk(nullptr);
  checkCoordinator();
}

// What its ranks go on from must be on this host before they start.
void NodeDaemon::useDisk(const ControlMessage* message) try {
  if (!disk_)
    disk_.emplace([this](auto type, auto body, auto payload) { tell(type, std::move(body), payload); });
  const bool begins = message != nullptr && message->type == control::kStart;
  if (begins) start_ = message->body;
  if (begins && start_.contains("steps_done")) {  // batches may come from now on
    batches_.emplace(loadProgram(start_.at("directory").get<std::string>(), RankId(0)).inputs,
                     start_["steps_done"].get<int64_t>());
  }
  message != nullptr ? disk_->hear(message->type, message->body, message->payload) : disk_->look();
  if (disk_->takeReady()) readFiles(start_);
} catch (const Error& error) {
  if (error.code() == ErrorCode::kPeerUnavailable) throw;
  tellError(error);
}

void NodeDaemon::tellError(const Error& error) {
  tell(control::kError, {{"code", static_cast<int>(error.code())}, {"message", error.message()}});
}

// Before it starts ranks, it says what they will read: the coordinator compares that with others.
void NodeDaemon::readFiles(const nlohmann::json& body, bool starts) {
  const WorkerGroupSpec workers = workerGroupFromJson(body);
  files_.reset();
  starts_ = starts;
  if (!workers.ranks.empty()) {
    IdentityRequest request = filesOf(workers, workers.ranks);
    request.may_be_unmade = !starts && options_.complete_plan;  // which it makes when it takes over
    return void(files_.emplace(std::move(request)));
  }
  kept_.workers.clear();
  startWorkers(body);
}

// Before anything here reads the plan.
void NodeDaemon::completePlan(const ControlMessage& start) {
  const WorkerGroupSpec workers = workerGroupFromJson(start.body);
  plan_.reset();
  if (!options_.complete_plan || workers.ranks.empty()) return useDisk(&start);
  held_ = {start};
  plan_.emplace(options_.complete_plan, workers.plan_directory, workers.options.evaluation.rows);
  lookAtFiles();
}

void NodeDaemon::lookAtFiles() try {
  if (plan_) {
    const bool is_done = plan_->isDone();
    if (const std::optional<std::string> notice = plan_->takeNotice()) say_(*notice);
    if (!is_done) return;
    plan_->take();
    plan_.reset();
    for (const ControlMessage& message : std::exchange(held_, {}))
      message.type == control::kStart ? useDisk(&message) : handle(message);
  }
  if (!files_) return;
  if (const std::optional<std::string> notice = files_->takeNotice()) say_(*notice);
  if (!files_->isDone()) return;
  const JobIdentity identity = files_->take();
  files_.reset();
  tell(control::kIdentity, {{"files", identityJson(identity)}});
  if (starts_) startWorkers(start_);
} catch (const Error& error) {
  plan_.reset();
  files_.reset();
  tellError(error);
}

void NodeDaemon::checkSignals() {
  const int signal = signals_.take();
  if (signal == 0 || (signal == SIGPIPE && ending_)) return;  // stdout and stderr each raise one
  if (signal != SIGUSR1 && saves_ && !ending_ && !over_) {
    ending_ = true;
    say_(fmt::format("asked to end by SIG{}: the job is saved first; once more ends at once",
                     ::sigabbrev_np(signal)));
    return tell(control::kEnding, {{"signal", signal}});
  }
  if (signal == SIGUSR1) {  // to end soon, which the coordinator arranges
    if (command_) ::kill(command_->pid(), signal);
    if (!command_) say_("SIGUSR1 is for the coordinator, which ends the job; a node ends with it");
    return;
  }
  endWorkers();
  const JobInterrupted interrupted(signal);
  if (client_) sayLast(control::kLeaving, {{"message", interrupted.message()}});
  if (command_) {
    ::kill(command_->pid(), signal);
    commandsEnd(/*must_end=*/true);
  }
  throw interrupted;
}

void NodeDaemon::handle(const ControlMessage& message) {
  last_heard_ = Clock::now();
  if (message.type == control::kStart) {
    resting_ = false;
    completePlan(message);
  } else if (message.type == control::kCompare) {
    if (!files_ && !plan_ && !workers_) readFiles(message.body, /*starts=*/false);
  } else if (message.type == control::kAlive) {
    patience_ = milliseconds(message.body.at("patience").get<int64_t>());
  } else if (message.type == control::kBatch) {
    if (plan_) return held_.push_back(message);
    if (batches_) batches_->take(message.body, message.payload);
    tell(control::kTook, nlohmann::json::object());
  } else if (isForDisk(message.type)) {
    useDisk(&message);
  } else if (message.type == control::kWires || message.type == control::kConnect) {
    connectRelay(message.body);
  } else if (message.type == control::kKill || message.type == control::kLeave) {
    plan_.reset();
    files_.reset();
    disk_.reset();
    endWorkers(/*may_stay=*/message.type == control::kLeave);
  } else if (message.type == control::kRest) {
    endWorkers(/*may_stay=*/true);
    dropAttempt();
    resting_ = true;
    say_("the job starts again: " + message.body.at("message").get<std::string>());
    tell(control::kRested, nlohmann::json::object());
  } else if (message.type == control::kClock) {
    tell(control::kClock,
         {{"asked", message.body.at("asked")}, {"now", Clock::now().time_since_epoch().count()}});
  } else if (message.type == control::kTrace) {
    const auto send = [&](auto place, auto piece) { tell(control::kTrace, std::move(place), piece); };
    if (workers_) forEachTracePiece(*workers_, say_, send);
  } else if (message.type == control::kStop) {
    endWorkers();
    exit_code_ = message.body.at("code").get<int>();
    const auto text = message.body.at("message").get<std::string>();
    say_(text.empty() ? "the job is done" : "the job is over: " + text);
    over_ = true;
    sayLast(control::kBye, nlohmann::json::object());
  }
}

// Whatever it has of an attempt to run the job.
void NodeDaemon::dropAttempt() {
  plan_.reset();
  files_.reset();
  workers_.reset();
  wire_.reset();
  disk_.reset();
  batches_.reset();
  saves_ = false;
}

void NodeDaemon::startWorkers(const nlohmann::json& body) {
  WorkerGroupSpec spec = workerGroupFromJson(body);
  spec.executable = options_.executable;
  spec.arguments = options_.worker_arguments;
  spec.options.endpoint = address_;
  spec.options.keys = worker_keys_;
  const auto towards = body.at("towards").get<std::string>();
  const std::string other = towards.empty() ? address_ : "tcp://" + towards + ":1";
  spec.options.host = options_.host.empty() ? addressTowards(other) : options_.host;
  std::vector<int> pids;
  if (!spec.ranks.empty()) {
    const int here = static_cast<int>(spec.ranks.size());
    requireLimits({here, threadsPerWorker(spec.threads, here),
                   std::max<int>(here, std::ssize(spec.options.node_of_rank))});
    openRelay(spec);
    spec.relay = wire_ ? &wire_->relay() : nullptr;
    spec.kept = &kept_;
    if (batches_) spec.options.data.ring_descriptor = batches_->descriptor();
    workers_.emplace(spec);
    saves_ = body.value("saves", false);
    for (RankId rank : spec.ranks) pids.push_back(workers_->pid(rank));
    say_(fmt::format("started rank{} {}", spec.ranks.size() == 1 ? "" : "s", fmt::join(spec.ranks, ", ")));
  }
  tell(control::kStarted, {{"pids", pids}});
}

// Where ranks of other hosts take part and their messages are to be encrypted.
void NodeDaemon::openRelay(const WorkerGroupSpec& workers) {
  const IdVector<RankId, int>& host_of_rank = workers.options.node_of_rank;
  wire_.reset();
  if (workers.ranks.size() == host_of_rank.size()) return;
  if (workers.options.data_plane != DataPlane::kCurve) {
    if (options_.data_ports.first == 0) return;
    fail(ErrorCode::kConfiguration,
         "--data-ports: with --data-plane private every worker listens at any free port; leave out one of "
         "the two");
  }
  wire_ = std::make_unique<HostWire>(
      RelayOptions{host_of_rank.at(workers.ranks.front()), host_of_rank, workers.options.host,
                   options_.data_ports},
      [this](std::string_view type, const nlohmann::json& body) { tell(type, body); });
}

void NodeDaemon::connectRelay(const nlohmann::json& body) try {
  if (wire_) wire_->hear(body);
} catch (const Error& error) {
  tellError(error);
}

void NodeDaemon::reportEnds() {
  if (!workers_) return;
  for (const WorkerEnd& end : workers_->takeEnds())
    tell(
        control::kEnded,
        {{"rank", end.rank.index()}, {"description", end.description}, {"code", static_cast<int>(end.code)}});
}

void NodeDaemon::tell(std::string_view type, nlohmann::json body, std::span<const std::byte> payload) {
  try {
    client_->send(type, std::move(body), payload);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerUnavailable) throw;
    loseCoordinator("has closed its connection");
  }
}

// On the way out: a coordinator that is gone already need not be told.
void NodeDaemon::sayLast(std::string_view type, nlohmann::json body) {
  try {
    client_->send(type, std::move(body));
  } catch (const Error&) {
  }
}

void NodeDaemon::loseCoordinator(const std::string& what) {
  endWorkers();
  fail(ErrorCode::kPeerUnavailable,
       "the coordinator at {} {}: it was killed, or the network between is cut; the workers here were ended",
       endpoint_, what);
}

void NodeDaemon::checkCoordinator() {
  const Clock::time_point now = Clock::now();
  // Between two attempts it may have to read a large checkpoint.
  const milliseconds limit = resting_ ? milliseconds(options_.wait) : patience_;
  if (now - last_heard_ >= limit)
    loseCoordinator(fmt::format("has not been heard of for {} s",
                                std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
  if (now - last_sent_ < kNodeHeartbeat) return;
  last_sent_ = now;
  tell(control::kAlive, workers_ ? statesToJson(*workers_) : nlohmann::json::object());
}

int NodeDaemon::commandsEnd(bool must_end) {
  std::optional<Clock::time_point> end;
  while (!command_->tryReap()) {
    if (const int signal = signals_.take(); signal != 0) {
      ::kill(command_->pid(), signal);
      must_end = true;
    }
    if (must_end && !end) end = Clock::now() + options_.command_end;
    if (end && Clock::now() > *end) command_->kill();
    ::usleep(20'000);
  }
  return command_->exitCode();
}

}  // namespace

NodeEnd runNode(const NodeOptions& options, const NodeMessages& say) {
  if (options.join.empty() && options.key_file.empty()) {
    fail(ErrorCode::kUsage,
         "where to join? give --join tcp://HOST:PORT, --key-file FILE, or both, as the coordinator prints "
         "them");
  }
  if (options.key_file.empty() && !options.insecure && !isLocalEndpoint(options.join)) {
    fail(ErrorCode::kConfiguration,
         "{} is on another machine, and without keys whoever is between the two could take its place; add "
         "--key-file FILE (the coordinator writes it), or --insecure on a network that you trust",
         options.join);
  }
  return NodeDaemon(options, say).run();
}

}  // namespace pipeshard
