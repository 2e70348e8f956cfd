// Keys of a job, and the file that carries them.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "ir/base/error.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "transport/control/control_client.h"
#include "transport/control/control_endpoint.h"
#include "transport/control/control_server.h"
#include "transport/control/coordinator_search.h"
#include "transport/control/job_keys.h"

namespace pipeshard {
namespace {

JobTicket makeTicket() {
  const JobKeys keys = makeJobKeys();
  return {"job \"1\"",        uint64_t{1} << 60,  "tcp://10.0.0.1:4000",
          keys.server_public, keys.client_public, keys.client_secret};
}

mode_t modeOf(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

TEST(JobKeys, AreFreshAndWellFormed) {
  const JobKeys one = makeJobKeys();
  const JobKeys two = makeJobKeys();
  for (const std::string* key :
       {&one.server_public, &one.server_secret, &one.client_public, &one.client_secret}) {
    EXPECT_TRUE(isJobKey(*key)) << *key;
  }
  EXPECT_NE(one.client_secret, two.client_secret);
  EXPECT_NE(one.server_secret, one.client_secret);
  for (const std::string bad : {"", "short", "                                        ",
                                "########################################"}) {
    EXPECT_FALSE(isJobKey(bad)) << bad;
  }
}

TEST(JobKeys, TravelAsOneVariable) {
  const ClientKeys keys = makeJobKeys().clientKeys();
  const ClientKeys read = parseClientKeys(clientKeysText(keys));
  EXPECT_EQ(read.server_public, keys.server_public);
  EXPECT_EQ(read.client_public, keys.client_public);
  EXPECT_EQ(read.client_secret, keys.client_secret);
  for (const std::string& bad : {std::string(), keys.server_public, clientKeysText(keys) + " x"}) {
    EXPECT_ERROR(parseClientKeys(bad), ErrorCode::kAuthentication, "three keys");
  }
}

// A node's workers have a key of the node's own: it is good for its ranks, and no other key is.
TEST(JobKeys, ProveThePlaceOfWhoHasThem) {
  const JobKeys job = makeJobKeys();
  const JobKeys node = makeJobKeys();
  const auto server = ControlServer::bind({.job_id = "job", .keys = job});
  server->allow(node.client_public, "node 1");
  server->reserve(2, "node 1");
  server->reserve(3, "node 2");
  std::jthread serving([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) server->receive(std::chrono::milliseconds(20));
  });
  const auto connect = [&](int rank, const JobKeys& keys) {
    ControlClientOptions options;
    options.keys = ClientKeys{job.server_public, keys.client_public, keys.client_secret};
    return ControlClient::connect(server->endpoint(), "job", rank, std::chrono::seconds(5), options);
  };
  EXPECT_ERROR(connect(2, job), ErrorCode::kAuthentication, "rank 2 is not a rank of the host whose key");
  EXPECT_ERROR(connect(3, node), ErrorCode::kAuthentication, "rank 3 is not a rank of the host whose key");
  EXPECT_EQ(connect(2, node)->rank(), 2);
  EXPECT_EQ(connect(0, job)->rank(), 0);
}

TEST(JobTicket, ComesBackAsItWasWritten) {
  const TemporaryFolder folder;
  const JobTicket ticket = makeTicket();
  EXPECT_FALSE(readJobTicket(folder.file("ticket")));
  writeJobTicket(folder.file("ticket"), ticket);
  const auto read = readJobTicket(folder.file("ticket"));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->job_id, ticket.job_id);
  EXPECT_EQ(read->generation, ticket.generation);
  EXPECT_EQ(read->endpoint, ticket.endpoint);
  EXPECT_EQ(clientKeysText(read->clientKeys()), clientKeysText(ticket.clientKeys()));
}

TEST(JobTicket, IsReadableByItsOwnerOnlyWhateverTheUmaskAndTheFileBefore) {
  const TemporaryFolder folder;
  const mode_t previous = ::umask(0);
  writeJobTicket(folder.file("new"), makeTicket());
  const std::string old = folder.write("old", "world-readable");
  writeJobTicket(old, makeTicket());
  ::umask(previous);
  EXPECT_EQ(modeOf(folder.file("new")), 0600U);
  EXPECT_EQ(modeOf(old), 0600U);
  EXPECT_TRUE(readJobTicket(old));
}

TEST(JobTicket, ThatOthersMayReadIsRefused) {
  const TemporaryFolder folder;
  writeJobTicket(folder.file("ticket"), makeTicket());
  for (const mode_t mode : {0640U, 0604U, 0620U, 0666U}) {
    ASSERT_EQ(::chmod(folder.file("ticket").c_str(), mode), 0);
    EXPECT_ERROR(readJobTicket(folder.file("ticket")), ErrorCode::kAuthentication, "chmod 600");
  }
  ASSERT_EQ(::chmod(folder.file("ticket").c_str(), 0400), 0);
  EXPECT_TRUE(readJobTicket(folder.file("ticket")));
}

TEST(JobTicket, ThatIsMalformedSaysWhy) {
  const TemporaryFolder folder;
  const auto expectRefused = [&](const std::string& text, ErrorCode code, const std::string& part) {
    const std::string path = folder.write("ticket", text);
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    EXPECT_ERROR(readJobTicket(path), code, part);
  };
  expectRefused("", ErrorCode::kAuthentication, "not a key file");
  expectRefused("[1]", ErrorCode::kAuthentication, "not a key file");
  expectRefused(R"({"pipeshard_ticket": 2})", ErrorCode::kVersionMismatch, "version 2");
  expectRefused(R"({"pipeshard_ticket": 1, "generation": 1, "job": 5})", ErrorCode::kAuthentication,
                "no \"job\"");
  expectRefused(R"({"pipeshard_ticket": 1, "generation": -1, "job": ""})", ErrorCode::kAuthentication,
                "no \"generation\"");
  expectRefused(
      R"({"pipeshard_ticket": 1, "generation": 1, "job": "j", "endpoint": "e", "server_public": "a", "client_public": "b",
                    "client_secret": "c"})",
      ErrorCode::kAuthentication, "40 characters");
  expectRefused(std::string(1 << 20, ' '), ErrorCode::kAuthentication, "1048576 bytes");
  EXPECT_ERROR(readJobTicket(folder.path().string()), ErrorCode::kAuthentication, "not a plain file");
  EXPECT_ERROR(writeJobTicket(folder.file("no/such/folder"), makeTicket()), ErrorCode::kDiskFull,
               "No such file");
}

TEST(JobTicket, IsNeverSeenInHalf) {
  const TemporaryFolder folder;
  std::atomic<bool> done{false};
  std::jthread writer([&] {
    for (int i = 0; i < 300; ++i) writeJobTicket(folder.file("ticket"), makeTicket());
    done = true;
  });
  int read = 0;
  while (!done) read += readJobTicket(folder.file("ticket")) ? 1 : 0;
  EXPECT_GT(read, 0);
  writer.join();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator()),
            1);
}

TEST(ControlEndpoint, OnlyLoopbackIsLocal) {
  for (const char* local : {"tcp://127.0.0.1:*", "tcp://127.9.9.9:1", "tcp://[::1]:5000", "tcp://localhost:*",
                            "tcp://lo:*", "ipc:///tmp/x"}) {
    EXPECT_TRUE(isLocalEndpoint(local)) << local;
  }
  for (const char* open : {"tcp://*:*", "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.0.0.1:1", "tcp://eth0:1",
                           "tcp://127.0.0.1.a.org:1", "tcp://128.0.0.1:1", "udp://127.0.0.1:1",
                           "pgm://127.0.0.1:1", "nonsense", ""}) {
    EXPECT_FALSE(isLocalEndpoint(open)) << open;
  }
  EXPECT_EQ(reachableHere("tcp://0.0.0.0:77"), "tcp://127.0.0.1:77");
  EXPECT_EQ(reachableHere("tcp://[::]:77"), "tcp://[::1]:77");
  EXPECT_EQ(reachableHere("tcp://10.0.0.1:77"), "tcp://10.0.0.1:77");
}

TEST(ControlEndpoint, WhereAllAddressesAreMeantOneIsPutInTheirPlace) {
  for (const char* any : {"tcp://*:*", "tcp://0.0.0.0:7000", "tcp://[::]:7000", "tcp://[0::0]:7000"})
    EXPECT_TRUE(isAnyAddress(any)) << any;
  for (const char* one :
       {"tcp://10.0.0.1:1", "tcp://[::1]:1", "tcp://[fd09::]:1", "tcp://host:1", "ipc:///x"})
    EXPECT_FALSE(isAnyAddress(one)) << one;
  EXPECT_EQ(withHost("tcp://[::]:7000", "alpha"), "tcp://alpha:7000");
  EXPECT_EQ(withHost("tcp://0.0.0.0:7000", "fd09::1"), "tcp://[fd09::1]:7000");
  EXPECT_EQ(withHost("tcp://*:7000", "[fd09::1]"), "tcp://[fd09::1]:7000");
  EXPECT_EQ(withHost("ipc:///x", "alpha"), "ipc:///x");
}

TEST(ControlEndpoint, NamesAreAddressesBeforeTheyAreUsed) {
  std::string why_none;
  for (const char* same : {"tcp://10.0.0.1:7000", "tcp://[fd09::1]:7000", "tcp://127.0.0.1:*", "no endpoint"})
    EXPECT_EQ(addressesOf(same, why_none), std::vector<std::string>{same});
  const std::vector<std::string> local = addressesOf("tcp://localhost:7000", why_none);
  ASSERT_FALSE(local.empty()) << why_none;
  for (const std::string& one : local)
    EXPECT_TRUE(isLocalEndpoint(one) && one != "tcp://localhost:7000") << one;
  EXPECT_TRUE(addressesOf("tcp://no-such-host.invalid:7000", why_none).empty());
  EXPECT_NE(why_none, "");
  EXPECT_EQ(listeningEndpoint("tcp://localhost:*").substr(0, 10), local.front().substr(0, 10));
  for (const char* same : {"tcp://*:7000", "tcp://lo:7000", "tcp://10.0.0.1:*", "ipc:///x"})
    EXPECT_EQ(listeningEndpoint(same), same);
}

TEST(ControlServer, SaysWhatToListenOn) {
  const auto listen = [](const std::string& endpoint) {
    return ControlServer::bind({.job_id = "job", .endpoint = endpoint, .keys = makeJobKeys()});
  };
  EXPECT_EQ(listen("tcp://localhost:*")->endpoint().substr(0, 6), "tcp://");
  for (const char* malformed : {"10.0.0.1:7000", "tcp://10.0.0.1", "tcp://:7000", "tcp://127.0.0.1:many"})
    EXPECT_ERROR(listen(malformed), ErrorCode::kConfiguration, "expected tcp://ADDRESS:PORT");
  EXPECT_ERROR(listen("tcp://no-such-host.invalid:7000"), ErrorCode::kConfiguration,
               "'no-such-host.invalid' has no address here");
  EXPECT_ERROR(listen("tcp://192.0.2.1:7000"), ErrorCode::kConfiguration, "as tcp://*:7000");
  const auto first = listen("tcp://127.0.0.1:*");
  EXPECT_ERROR(listen(first->endpoint()), ErrorCode::kAddressInUse, "port * takes a free one");
}

TEST(JobTicket, IsRemovedByItsOwnJobOnly) {
  const TemporaryFolder folder;
  const std::string path = folder.file("job.key");
  removeJobTicket(path, "none");
  writeJobTicket(path, makeTicket());
  removeJobTicket(path, "another");
  EXPECT_TRUE(std::filesystem::exists(path));
  removeJobTicket(path, makeTicket().job_id);
  EXPECT_FALSE(std::filesystem::exists(path));
}

// As a node has it that has lost its coordinator, and whose key file is a copy by hand.
TEST(CoordinatorSearch, WaitsForAKeyFileThatHasChangedWhereOneWasRefused) {
  using std::chrono::seconds;
  const TemporaryFolder folder;
  const std::string path = folder.file("job.key");
  const auto refuse = [](CoordinatorSearch& search) {
    try {
      fail(ErrorCode::kAuthentication, "this key was refused");
    } catch (const Error& error) {
      search.heed(error);
    }
  };
  writeJobTicket(path, makeTicket());
  CoordinatorSearch again({.key_file = path, .wait = seconds(60), .waits_for_another = true});
  ASSERT_TRUE(again.next());
  for (int times = 0; times < 3; ++times) {
    EXPECT_NO_THROW(refuse(again));
    EXPECT_FALSE(again.next());
    EXPECT_THAT(again.awaited(), ::testing::HasSubstr("this key was refused; waiting for a key file"));
  }
  writeJobTicket(path, makeTicket());
  const auto place = again.next();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->address, "tcp://10.0.0.1:4000");
  CoordinatorSearch brief({.key_file = path, .wait = seconds(0), .waits_for_another = true});
  ASSERT_TRUE(brief.next());
  refuse(brief);
  EXPECT_ERROR(brief.requireTime(), ErrorCode::kAuthentication, "has not changed within 0 s");
  // The first time, one may be that of a job before, which is replaced just then.
  CoordinatorSearch first({.key_file = path, .wait = seconds(60)});
  ASSERT_TRUE(first.next());
  EXPECT_NO_THROW(refuse(first));
  ASSERT_TRUE(first.next());
  EXPECT_ERROR(refuse(first), ErrorCode::kAuthentication, "this key was refused");
}

TEST(CoordinatorSearch, SaysThatANameHasNoAddress) {
  CoordinatorSearch search({.join = "tcp://no-such-host.invalid:7000", .wait = std::chrono::seconds(0)});
  EXPECT_FALSE(search.next());
  EXPECT_THAT(search.awaited(), ::testing::HasSubstr("its name has no address on this host"));
  EXPECT_ERROR(search.requireTime(), ErrorCode::kPeerUnavailable, "its name has no address on this host");
}

}  // namespace
}  // namespace pipeshard
