#include "runtime/machine/handover.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include <gtest/gtest.h>

#include "runtime/job/worker_arguments.h"
#include "transport/control/job_keys.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

int openDescriptors() {
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

TEST(Handover, AChildThatRunsGetsWhatWasOpenedLater) {
  HandoverSockets sockets = makeHandoverSockets();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::optional<Handover> got = takeHandover(sockets.child.get());
    if (!got || got->text != "two pipes" || got->descriptors.size() != 2) ::_exit(1);
    if (::fcntl(got->descriptors[0].get(), F_GETFD) != FD_CLOEXEC) ::_exit(2);
    const bool written =
        ::write(got->descriptors[0].get(), "a", 1) == 1 && ::write(got->descriptors[1].get(), "b", 1) == 1;
    ::_exit(written && handOver(sockets.child, "done") ? 0 : 3);
  }
  int first[2], second[2];
  ASSERT_EQ(::pipe(first), 0);
  ASSERT_EQ(::pipe(second), 0);
  ASSERT_TRUE(handOver(sockets.parent, "two pipes", std::array{first[1], second[1]}));
  char letter = 0;
  EXPECT_EQ(::read(first[0], &letter, 1), 1);
  EXPECT_EQ(letter, 'a');
  EXPECT_EQ(::read(second[0], &letter, 1), 1);
  EXPECT_EQ(letter, 'b');
  EXPECT_EQ(takeHandover(sockets.parent.get()).value_or(Handover{}).text, "done");
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int descriptor : {first[0], first[1], second[0], second[1]}) ::close(descriptor);
}

TEST(Handover, TooMuchIsRefusedWholeAndAnEndThatIsGoneIsNothing) {
  HandoverSockets sockets = makeHandoverSockets();
  EXPECT_FALSE(handOver(sockets.parent, std::string(kLongestHandover + 1, 'x')));
  EXPECT_FALSE(handOver(sockets.parent, "x", std::vector<int>(kMostHandedOver + 1, sockets.parent.get())));
  const int before = openDescriptors();
  {
    ASSERT_TRUE(handOver(sockets.parent, "x", std::vector<int>(kMostHandedOver, sockets.parent.get())));
    const std::optional<Handover> got = takeHandover(sockets.child.get());
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->descriptors.size(), kMostHandedOver);
  }
  EXPECT_EQ(openDescriptors(), before);
  sockets.parent.reset();
  EXPECT_FALSE(takeHandover(sockets.child.get()).has_value());
  EXPECT_FALSE(handOver(sockets.child, "x"));
}

// The numbers of the descriptors are others where they arrive; what they stand for is the same.
TEST(Handover, AnAttemptArrivesAsItWasMade) {
  const SharedSegments segments = SharedSegments::create(3);
  WorkerOptions options;
  options.endpoint = "tcp://127.0.0.1:1";
  options.job = "a job";
  options.directory = "a plan";
  options.rank = RankId(2);
  options.attempt = 4;
  options.segments = segments.describe();
  options.keys = makeJobKeys().clientKeys();
  Descriptor ring(::open("/dev/null", O_RDONLY)), wire(::open("/dev/zero", O_RDONLY));
  options.data.ring_descriptor = ring.get();
  options.wires = {wire.get(), -1};
  HandoverSockets sockets = makeHandoverSockets();
  const AttemptMessage message = attemptMessage(options);
  ASSERT_TRUE(handOver(sockets.parent, message.text, message.descriptors));
  const WorkerOptions got = parseAttempt(takeHandover(sockets.child.get()).value());
  EXPECT_EQ(got.endpoint, options.endpoint);
  EXPECT_EQ(got.rank, options.rank);
  EXPECT_EQ(got.attempt, 4);
  EXPECT_EQ(clientKeysText(*got.keys), clientKeysText(*options.keys));
  EXPECT_EQ(got.trace_descriptor, -1);
  EXPECT_EQ(SharedSegments::inherit(got.segments).size(), 3);
  const auto path = [](int descriptor) {
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor)).string();
  };
  EXPECT_EQ(path(got.data.ring_descriptor), "/dev/null");
  EXPECT_EQ(path(got.wires[0]), "/dev/zero");
  EXPECT_NE(got.wires[0], wire.get());
  ::close(got.data.ring_descriptor);
  ::close(got.wires[0]);
}

TEST(Handover, AnAttemptWithoutItsDescriptorsIsRefused) {
  WorkerOptions options;
  options.segments = SharedSegments::create(2).describe();
  options.job = "a job";
  AttemptMessage message = attemptMessage(options);
  EXPECT_THROW(parseAttempt(Handover{message.text, {}}), Error);
  EXPECT_THROW(parseAttempt(Handover{"{", {}}), Error);
}

}  // namespace
}  // namespace pipeshard
