// Control groups of both versions, as files that a test makes.
#include "runtime/machine/control_group.h"

#include <gtest/gtest.h>

#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

struct Machine {
  TemporaryFolder folder;
  ControlGroupFiles files{folder.path() / "proc", folder.path() / "groups"};
};

TEST(ControlGroups, OfVersion2) {
  const Machine machine;
  machine.folder.write("proc/7/cgroup", "0::/pods/job\n");
  machine.folder.write("groups/cgroup.controllers", "memory pids\n");
  machine.folder.write("groups/pods/memory.max", "4096\n");
  machine.folder.write("groups/pods/job/memory.max", "max\n");
  machine.folder.write("groups/pods/job/memory.events", "low 0\noom 3\noom_kill 2\n");
  machine.folder.write("groups/pods/job/cgroup.events", "populated 1\nfrozen 1\n");
  machine.folder.write("groups/pods/job/pids.max", "100\n");
  machine.folder.write("groups/pods/job/pids.current", "12\n");
  const MemoryGroup group = readMemoryGroup(7, machine.files);
  EXPECT_EQ(group.limit, 4096u);
  EXPECT_EQ(group.kills, 2u);
  machine.folder.write("groups/pods/job/memory.events", "oom_kill 3\n");
  EXPECT_EQ(readMemoryGroupAgain(group, machine.files).kills, 3u);
  EXPECT_TRUE(isFrozen(7, machine.files));
  machine.folder.write("groups/pods/job/cgroup.events", "populated 1\nfrozen 0\n");
  EXPECT_FALSE(isFrozen(7, machine.files));
  EXPECT_EQ(readTaskGroup(7, machine.files).limit, 100u);
  EXPECT_EQ(readTaskGroup(7, machine.files).used, 12u);
}

TEST(ControlGroups, OfVersion1) {
  const Machine machine;
  machine.folder.write("proc/7/cgroup", "6:freezer:/job\n5:cpu,memory:/job\n4:pids:/\n0::/\n");
  machine.folder.write("groups/freezer/job/freezer.state", "FROZEN\n");
  machine.folder.write("groups/memory/job/memory.limit_in_bytes", "1024\n");
  machine.folder.write("groups/memory/job/memory.oom_control",
                       "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  machine.folder.write("groups/pids/pids.max", "max\n");
  EXPECT_TRUE(isFrozen(7, machine.files));
  const MemoryGroup group = readMemoryGroup(7, machine.files);
  EXPECT_EQ(group.limit, 1024u);
  EXPECT_EQ(group.kills, 5u);
  EXPECT_FALSE(readTaskGroup(7, machine.files).limit);
}

TEST(ControlGroups, ThatSayNothing) {
  const Machine machine;
  EXPECT_FALSE(isFrozen(7, machine.files));
  EXPECT_FALSE(readMemoryGroup(7, machine.files).limit);
  EXPECT_EQ(readMemoryGroup(7, machine.files).kills, 0u);
  EXPECT_FALSE(readTaskGroup(7, machine.files).limit);
  machine.folder.write("proc/vmstat", "nr_free_pages 5\noom_kill 4\n");
  EXPECT_EQ(countMemoryKills(machine.files), 4u);
  // no limit, as version 1 writes it
  machine.folder.write("proc/8/cgroup", "5:memory:/elsewhere\n");
  machine.folder.write("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(readMemoryGroup(8, machine.files).limit);
}

}  // namespace
}  // namespace pipeshard
