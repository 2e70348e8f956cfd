// A coordinator and nodes that only speak control: what it makes of hosts that are not as fast as others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "ir/trace/trace_event.h"
#include "runtime/identity/build_identity.h"
#include "runtime/job/coordinator.h"
#include "runtime/job/node_pool.h"
#include "runtime/messages/control_types.h"
#include "tests/expect_error.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/temporary_folder.h"
#include "transport/control/control_client.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

class PosedNode {
 public:
  PosedNode(const NodePool& pool, int number) : pool_(pool), answers_late_(number == 0) {
    client_ = connect(
        kFirstNodeRank + number, nodeCommands(),
        {{"host", "posed"}, {"pid", 1000 + number}, {"build", buildJson(thisBuild())}, {"index", number}});
  }

  // Its worker's, once it has registered.
  bool hasWorker() const { return worker_ != nullptr; }
  // Its daemon, as a spare, for its files.
  bool wasAsked() const { return was_asked_; }
  void sayError(nlohmann::json body) { worker_->send(control::kError, std::move(body)); }
  // Its daemon's.
  void sayLack() { client_->send(control::kError, {{"code", 66}, {"message", "no such file"}}); }
  // Its daemon, or its worker, that the other one does not answer it.
  void sayUnreached(bool as_daemon, int other) {
    nlohmann::json peers = nlohmann::json::array();
    peers.push_back({{"number", other}, {"address", "tcp://10.0.0.2:40123"}});
    (as_daemon ? client_ : worker_)->send(control::kUnreached, {{"peers", std::move(peers)}});
  }
  // As a worker that waits for what becomes of the job.
  void beat() {
    worker_->send(
        control::kHeartbeat,
        {{"where", "posed"}, {"progress", 0}, {"computing", false}, {"waiting", false}, {"idle", true}});
  }

  // Answers for as long as the job lasts. `rank`: of a worker that registers, and is silent from then on;
  // nothing: it has not read its files yet.
  bool isOver(std::optional<int> rank) {
    const auto message = client_->receive(milliseconds(10));
    client_->send(control::kAlive, nlohmann::json::object());
    if (!message) return false;
    if (message->type == control::kStart && rank) {
      client_->send(control::kIdentity, {{"files", nlohmann::json::array()}});
      client_->send(control::kStarted, {{"pids", {2000 + *rank}}});
      worker_ = connect(*rank, workerCommands(),
                        {{"pid", 2000 + *rank}, {"build", buildJson(thisBuild())}, {"attempt", 1}});
    }
    if (message->type == control::kCompare) {
      was_asked_ = true;
      client_->send(control::kIdentity, {{"files", nlohmann::json::array({1})}});  // no files at all
    }
    if (message->type == control::kClock) answerClock(message->body);
    if (message->type == control::kTrace && rank)
      client_->send(control::kTrace, {{"rank", *rank}, {"offset", 0}, {"total", 0}});
    if (message->type == control::kKill && rank)
      client_->send(control::kEnded, {{"rank", *rank}, {"description", "ended"}, {"code", 0}});
    if (message->type != control::kStop) return false;
    client_->send(control::kBye, nlohmann::json::object());
    return true;
  }

 private:
  std::unique_ptr<ControlClient> connect(int rank, const ControlSchema& schema, nlohmann::json body) const {
    ControlClientOptions options;
    options.schema = schema;
    options.body = std::move(body);
    return ControlClient::connect(pool_.endpoint(), pool_.job(), rank, seconds(10), options);
  }

  // Node 0 is busy when it is asked first: it answers when it is asked again.
  void answerClock(const nlohmann::json& question) {
    asked_.push_back(question.at("asked"));
    if (answers_late_ && asked_.size() == 1) return;
    answers_late_ = false;
    for (const nlohmann::json& asked : std::exchange(asked_, {}))
      client_->send(control::kClock, {{"asked", asked}, {"now", asked}});
  }

  const NodePool& pool_;
  std::unique_ptr<ControlClient> client_, worker_;
  std::vector<nlohmann::json> asked_;  // questions about its clock
  bool answers_late_;
  bool was_asked_ = false;
};

// Two nodes with a worker each; `act`, again and again, once both workers have registered.
template <typename Act>
void poseUntilOver(PosedNode (&nodes)[2], const Act& act) {
  bool is_over[] = {false, false};
  while (!is_over[0] || !is_over[1]) {
    for (int node = 0; node < 2; ++node) is_over[node] = is_over[node] || nodes[node].isOver(node);
    if (nodes[0].hasWorker() && nodes[1].hasWorker()) act();
  }
}

NodePoolOptions ofTwo() {
  NodePoolOptions options;
  options.count = 2;
  options.wait = seconds(20);
  return options;
}

JobSpec jobOf(const TemporaryFolder& folder, NodePool& pool) {
  JobSpec spec;
  spec.plan_directory = folder.path();
  spec.steps = 1;
  spec.load_timeout = seconds(10);
  spec.nodes = &pool;
  spec.node_of_rank = {0, 1};
  return spec;
}

// Rank 1 sees that rank 0 is gone before rank 0 says why.
TEST(PosedNodes, AnErrorOfTheNetworkIsTheCauseWhereItBegan) {
  for (const bool has_begun_there : {true, false}) {
    const TemporaryFolder folder;
    writePlanDirectory(folder.path(), pipelineImages(2));
    NodePool pool(ofTwo());
    std::thread posing([&] {
      PosedNode nodes[] = {{pool, 0}, {pool, 1}};
      bool has_said = false;
      poseUntilOver(nodes, [&] {
        for (PosedNode& node : nodes) node.beat();
        if (has_said) return;
        has_said = true;
        nodes[1].sayError({{"code", 69}, {"message", "a peer has given up"}});
        std::this_thread::sleep_for(milliseconds(300));
        nlohmann::json cause = {{"code", 69}, {"message", "a broken cable"}};
        if (has_begun_there) cause["is_cause"] = true;
        nodes[0].sayError(std::move(cause));
      });
    });
    EXPECT_ERROR(runJob(jobOf(folder, pool)), ErrorCode::kPeerUnavailable,
                 has_begun_there ? "rank 0 (host posed, pid 2000): a broken cable"
                                 : "rank 1 (host posed, pid 2001): a peer has given up");
    pool.dismiss(0, "");
    posing.join();
  }
}

// So that who goes on without it need not look for its name in the text.
TEST(PosedNodes, TheErrorOfANodeSaysWhoseItIs) {
  const TemporaryFolder folder;
  writePlanDirectory(folder.path(), pipelineImages(2));
  NodePool pool(ofTwo());
  std::thread posing([&] {
    PosedNode nodes[] = {{pool, 0}, {pool, 1}};
    bool has_said = false;
    poseUntilOver(nodes, [&] {
      for (PosedNode& node : nodes) node.beat();
      if (!std::exchange(has_said, true)) nodes[1].sayLack();
    });
  });
  try {
    runJob(jobOf(folder, pool));
    ADD_FAILURE() << "the job has ended well";
  } catch (const JobFailed& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMissingInput);
    EXPECT_EQ(error.daemons(), std::vector<int>{kFirstNodeRank + 1});
  } catch (const Error& error) {
    ADD_FAILURE() << error.message();
  }
  pool.dismiss(0, "");
  posing.join();
}

// What a spare has is compared with what all others have said; nonsense of it is told, and ends nothing.
TEST(PosedNodes, ASpareIsAskedLastAndEndsNothing) {
  const TemporaryFolder folder;
  writePlanDirectory(folder.path(), pipelineImages(2));
  NodePoolOptions options = ofTwo();
  options.takes_spares = true;
  NodePool pool(options);
  std::thread posing([&] {
    PosedNode nodes[] = {{pool, 0}, {pool, 1}, {pool, 2}};
    bool is_over[] = {false, false, false}, has_said = false;
    const Clock::time_point begin = Clock::now();
    std::optional<Clock::time_point> asked;
    while (!is_over[0] || !is_over[1] || !is_over[2]) {
      const bool is_early = Clock::now() < begin + seconds(1);  // the second has not said what it has
      for (int node = 0; node < 3; ++node) {
        if (is_over[node] || (node == 1 && is_early)) continue;
        is_over[node] = nodes[node].isOver(node < 2 ? std::optional<int>(node) : std::nullopt);
      }
      if (is_early) {
        EXPECT_FALSE(nodes[2].wasAsked());
      }
      for (PosedNode& node : nodes) {
        if (node.hasWorker()) node.beat();
      }
      if (nodes[2].wasAsked() && !asked) asked = Clock::now();
      const bool is_time =
          asked ? Clock::now() > *asked + milliseconds(500) : Clock::now() > begin + seconds(8);
      if (is_time && nodes[0].hasWorker() && !std::exchange(has_said, true))
        nodes[0].sayError({{"code", 78}, {"message", "the end"}});
    }
  });
  std::string notices;
  const auto listen = [&](const JobProgress& event) { notices += event.text + "\n"; };
  EXPECT_ERROR(runJob(jobOf(folder, pool), listen), ErrorCode::kConfiguration,
               "rank 0 (host posed, pid 2000): the end");
  EXPECT_THAT(notices,
              ::testing::HasSubstr("is a spare, and may be left out as its files are now: it does not "
                                   "say which files it reads"));
  pool.dismiss(0, "");
  posing.join();
}

// At the end of the time to load, or of the worker's own.
TEST(PosedNodes, HostsThatDoNotReachEachOtherAreNamed) {
  for (const bool as_daemon : {true, false}) {
    const TemporaryFolder folder;
    writePlanDirectory(folder.path(), pipelineImages(2));
    NodePool pool(ofTwo());
    std::thread posing([&] {
      PosedNode nodes[] = {{pool, 0}, {pool, 1}};
      const Clock::time_point begin = Clock::now();
      bool has_said = false, has_given_up = as_daemon;
      poseUntilOver(nodes, [&] {
        for (PosedNode& node : nodes) node.beat();
        if (!std::exchange(has_said, true)) nodes[1].sayUnreached(as_daemon, 0);
        if (Clock::now() > begin + seconds(1) && !std::exchange(has_given_up, true))
          nodes[1].sayError({{"code", 81}, {"message", "rank 0 did not connect"}});
      });
    });
    JobSpec spec = jobOf(folder, pool);
    spec.load_timeout = seconds(as_daemon ? 3 : 30);
    std::string notices;
    const auto listen = [&](const JobProgress& event) { notices += event.text + "\n"; };
    EXPECT_ERROR(
        runJob(spec, listen), ErrorCode::kPeerUnavailable,
        "node 1 (host posed) does not reach node 0 (host posed) at tcp://10.0.0.2:40123: a firewall");
    if (as_daemon) {
      EXPECT_THAT(notices,
                  ::testing::HasSubstr("loading: 0 of 2 workers are ready; node 1 (host posed) does"));
    }
    pool.dismiss(0, "");
    posing.join();
  }
}

TEST(PosedNodes, ASilentWorkerIsNamedWhileAnotherHostStillReads) {
  const TemporaryFolder folder;
  writePlanDirectory(folder.path(), pipelineImages(2));
  NodePool pool(ofTwo());
  std::thread posing([&] {
    PosedNode first(pool, 0), second(pool, 1);
    bool first_is_over = false, second_is_over = false;
    while (!first_is_over || !second_is_over) {
      first_is_over = first_is_over || first.isOver(0);
      second_is_over = second_is_over || second.isOver(std::nullopt);
    }
  });
  const Clock::time_point start = Clock::now();
  EXPECT_ERROR(runJob(jobOf(folder, pool)), ErrorCode::kPeerUnavailable,
               "worker of rank 0 (host posed, pid 2000) has not answered for 5 s");
  EXPECT_LT(Clock::now() - start, seconds(15));
  pool.dismiss(0, "");
  posing.join();
}

// The end of a job that fails while it loads: each question of the first round may be under way still.
TEST(PosedNodes, ATraceIsNotWaitedForWhereANodeAnswersLate) {
  const TemporaryFolder folder;
  writePlanDirectory(folder.path(), pipelineImages(2));
  NodePool pool(ofTwo());
  Clock::time_point said;
  std::thread posing([&] {
    PosedNode nodes[] = {{pool, 0}, {pool, 1}};
    bool has_said = false;
    poseUntilOver(nodes, [&] {
      if (std::exchange(has_said, true)) return;
      said = Clock::now();
      nodes[0].sayError({{"code", 78}, {"message", "no such file"}});
    });
  });
  JobSpec spec = jobOf(folder, pool);
  Trace trace;
  spec.trace = &trace;
  spec.trace_steps = 1;
  EXPECT_ERROR(runJob(spec), ErrorCode::kConfiguration, "rank 0 (host posed, pid 2000): no such file");
  const Clock::time_point end = Clock::now();
  pool.dismiss(0, "");
  posing.join();
  EXPECT_LT(end - said, seconds(4));
}

}  // namespace
}  // namespace pipeshard
