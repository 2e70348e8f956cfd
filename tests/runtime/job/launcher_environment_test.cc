#include "runtime/job/launcher_environment.h"

#include <cstdlib>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using Environment = std::map<std::string, std::string>;
using ::testing::Contains;
using ::testing::ElementsAre;

Environment operator+(Environment a, const Environment& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

Environment mpirun(int rank, int size, int local_rank, int local_size, int nodes) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(local_rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(local_size)},
          {"OMPI_COMM_WORLD_NODE_RANK", std::to_string(local_rank)},
          {"OMPI_MCA_orte_num_nodes", std::to_string(nodes)},
          {"OMPI_MCA_orte_hnp_uri", "27852800.0;tcp://192.0.2.2,10.0.0.2:57949;tcp6://[fd00::2]:33413"},
          {"OMPI_MCA_ess_base_jobid", "27852801"},
          {"PMIX_NAMESPACE", "27852801"},
          {"PMIX_RANK", std::to_string(rank)}};
}

Environment srun(int node, int nodes, int local_rank = 0, int per_node = 1) {
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", std::to_string(node * per_node + local_rank)},
          {"SLURM_NODEID", std::to_string(node)},
          {"SLURM_LOCALID", std::to_string(local_rank)},
          {"SLURM_STEP_NUM_NODES", std::to_string(nodes)},
          {"SLURM_NNODES", "8"},
          {"SLURM_TASKS_PER_NODE", "2(x3),1"},
          {"SLURM_STEP_NODELIST", "node[003-004,009]"},
          {"SLURM_JOB_NODELIST", "node[001-008]"}};
}

Environment torchrun(int rank, int size, int local_rank, int local_size, int group, int groups) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(local_size)},
          {"GROUP_RANK", std::to_string(group)},
          {"GROUP_WORLD_SIZE", std::to_string(groups)},
          {"MASTER_ADDR", "trainer-0"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "none"},
          {"TORCHELASTIC_RESTART_COUNT", "3"}};
}

LauncherPlace detected(const Environment& environment) {
  const std::optional<LauncherPlace> place = detectLauncher(environment);
  EXPECT_TRUE(place);
  return place.value_or(LauncherPlace{});
}

TEST(DetectLauncher, FindsNothingWithoutALauncher) {
  EXPECT_FALSE(detectLauncher({}));
  EXPECT_FALSE(detectLauncher({{"HOME", "/root"}, {"RANK", "3"}, {"MASTER_ADDR", "a"}}));
  EXPECT_FALSE(
      detectLauncher({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", ""}, {"MASTER_PORT", "1"}}));
}

TEST(DetectLauncher, ReadsASlurmStep) {
  const LauncherPlace place = detected(srun(1, 3));
  EXPECT_EQ(place.launcher, "Slurm");
  EXPECT_EQ(place.job, "slurm-1234.0");
  EXPECT_EQ(place.node, 1);
  EXPECT_EQ(place.nodes, 3);
  EXPECT_EQ(place.local_rank, 0);
  EXPECT_EQ(place.coordinator_host, "node003");
  EXPECT_FALSE(place.coordinator_port);
  EXPECT_EQ(place.generation, 0u);
  EXPECT_THAT(place.evidence, Contains("SLURM_NODEID=1"));
  EXPECT_EQ(detected(srun(1, 3, 1, 2)).local_rank, 1);
  EXPECT_EQ(detected(srun(1, 3) + Environment{{"SLURM_RESTART_COUNT", "2"}}).generation, 2u);
}

TEST(DetectLauncher, TakesAllocationsAndBatchScriptsForNoStep) {
  Environment allocation = srun(0, 2);
  allocation.erase("SLURM_STEP_ID");
  EXPECT_FALSE(detectLauncher(allocation));  // a batch script has SLURM_PROCID=0
  EXPECT_FALSE(detectLauncher(srun(0, 2) + Environment{{"SLURM_STEP_ID", "4294967291"}}));
  EXPECT_FALSE(detectLauncher(srun(0, 2) + Environment{{"SLURM_STEP_ID", "4294967290"}}));
}

TEST(DetectLauncher, ReadsOpenMpi) {
  const LauncherPlace place = detected(mpirun(1, 2, 0, 1, 2));
  EXPECT_EQ(place.launcher, "Open MPI");
  EXPECT_EQ(place.job, "openmpi-27852801");
  EXPECT_EQ(place.node, 1);
  EXPECT_EQ(place.nodes, 2);
  EXPECT_EQ(place.coordinator_host, "192.0.2.2");
  const LauncherPlace surplus = detected(mpirun(1, 2, 1, 2, 1));
  EXPECT_EQ(surplus.node, 0);
  EXPECT_EQ(surplus.nodes, 1);
  EXPECT_EQ(surplus.local_rank, 1);
}

TEST(DetectLauncher, DoesNotGuessTheNodeOfSeveralProcessesOfOpenMpi) {
  const LauncherPlace place = detected(mpirun(2, 4, 0, 2, 2));
  EXPECT_FALSE(place.node);
  EXPECT_EQ(place.nodes, 2);
}

TEST(DetectLauncher, ReadsTorchrun) {
  const LauncherPlace place = detected(torchrun(5, 8, 1, 4, 1, 2));
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.job, "torchrun-none-trainer-0-29500");
  EXPECT_EQ(place.node, 1);
  EXPECT_EQ(place.nodes, 2);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.coordinator_host, "trainer-0");
  EXPECT_EQ(place.coordinator_port, 29500);
  EXPECT_EQ(place.generation, 3u);
}

TEST(DetectLauncher, ReadsTorchrunVariablesSetByOthers) {
  const Environment few = {
      {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(detected(few).node, 5);
  EXPECT_EQ(detected(few).nodes, 8);
  EXPECT_EQ(detected(few + Environment{{"LOCAL_WORLD_SIZE", "4"}}).node, 1);
  EXPECT_EQ(detected(few + Environment{{"LOCAL_WORLD_SIZE", "4"}}).nodes, 2);
  EXPECT_FALSE(detected(few + Environment{{"LOCAL_WORLD_SIZE", "3"}}).node);
  EXPECT_FALSE(detected(few + Environment{{"LOCAL_RANK", "1"}}).node);
}

TEST(DetectLauncher, DoesNotOfferThePortOfTorchrunsAgent) {
  EXPECT_FALSE(detected(torchrun(0, 2, 0, 1, 0, 2) + Environment{{"TORCHELASTIC_USE_AGENT_STORE", "True"}})
                   .coordinator_port);
  EXPECT_TRUE(detected(torchrun(0, 2, 0, 1, 0, 2) + Environment{{"TORCHELASTIC_USE_AGENT_STORE", "False"}})
                  .coordinator_port);
}

TEST(DetectLauncher, ReadsKubeflowAndKubernetes) {
  const Environment kubeflow = {{"PET_NODE_RANK", "2"},
                                {"PET_NNODES", "4"},
                                {"PET_MASTER_ADDR", "job-node-0-0.job"},
                                {"PET_MASTER_PORT", "29400"}};
  const LauncherPlace place = detected(kubeflow);
  EXPECT_EQ(place.launcher, "Kubeflow");
  EXPECT_EQ(place.job, "kubeflow-job-node-0-0.job");
  EXPECT_EQ(place.node, 2);
  EXPECT_EQ(place.nodes, 4);
  EXPECT_EQ(place.coordinator_port, 29400);
  EXPECT_FALSE(detected(kubeflow + Environment{{"PET_NNODES", "2:4"}}).nodes);

  const Environment pod = {
      {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "train-w-0-1"}};
  EXPECT_EQ(detected(pod).launcher, "Kubernetes Job");
  EXPECT_EQ(detected(pod).job, "kubernetes-train-w-0");
  EXPECT_EQ(detected(pod).node, 1);
  EXPECT_FALSE(detected(pod).nodes);
  EXPECT_EQ(detected(pod).coordinator_host, "");
  const LauncherPlace set =
      detected(pod + Environment{{"JOBSET_NAME", "train"}, {"JOBSET_RESTART_ATTEMPT", "4"}});
  EXPECT_EQ(set.coordinator_host, "train-w-0-0.train");
  EXPECT_EQ(set.generation, 4u);
}

TEST(DetectLauncher, ReadsPmixAndMpichOnTheirOwnOnly) {
  EXPECT_EQ(detected({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prterun-a/b@1"}}).job, "pmix-prterun-a_b_1");
  const Environment hydra = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_EQ(detected(hydra).launcher, "MPICH");
  EXPECT_EQ(detected(hydra).local_rank, 1);
  EXPECT_EQ(detected(hydra).nodes, 1);
  EXPECT_EQ(detected(srun(1, 2) + Environment{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).launcher, "Slurm");
}

TEST(DetectLauncher, TheInnermostAnswersWhenAllAgree) {
  const LauncherPlace place =
      detected(srun(1, 2) + torchrun(5, 8, 1, 4, 1, 2) + Environment{{"SLURM_RESTART_COUNT", "2"}});
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.generation, (2u << 16) + 3);
}

TEST(DetectLauncher, TakesTheSlurmStepOfMpirunsDaemonsForTheirs) {
  // `salloc -N3 mpirun -N 1` where mpirun runs on n1: the processes on n2 and n3 have the step of mpirun's
  // daemons around them.
  const LauncherPlace place = detected(srun(1, 2) + mpirun(2, 3, 0, 1, 3));
  EXPECT_EQ(place.launcher, "Open MPI");
  EXPECT_EQ(place.node, 2);
  EXPECT_EQ(place.nodes, 3);
  EXPECT_EQ(detected(srun(1, 2) + mpirun(4, 6, 0, 2, 3)).nodes, 3);
  EXPECT_ERROR(detectLauncher(srun(0, 2) + mpirun(2, 3, 0, 1, 3)), ErrorCode::kConfiguration,
               "number of nodes (2 and 3)");
}

TEST(DetectLauncher, RefusesLaunchersThatContradict) {
  // `srun -N2 mpirun -np 1`: each task has a whole world of its own.
  EXPECT_ERROR(detectLauncher(srun(1, 2) + mpirun(0, 1, 0, 1, 1)), ErrorCode::kConfiguration,
               "number of nodes (2 and 1)");
  EXPECT_ERROR(detectLauncher(srun(1, 2) + mpirun(0, 1, 0, 1, 1)), ErrorCode::kConfiguration,
               "SLURM_NODEID=1");
  EXPECT_ERROR(detectLauncher(srun(1, 2) + mpirun(0, 1, 0, 1, 1)), ErrorCode::kConfiguration,
               "OMPI_COMM_WORLD_RANK=0");
  EXPECT_ERROR(detectLauncher(srun(1, 2) + torchrun(0, 2, 0, 1, 0, 2)), ErrorCode::kConfiguration,
               "node's number (1 and 0)");
  // `srun -N1 -n2 mpirun -np 1`
  EXPECT_ERROR(detectLauncher(srun(0, 1, 1, 2) + mpirun(0, 1, 0, 1, 1)), ErrorCode::kConfiguration,
               "number on this host (1 and 0)");
}

TEST(DetectLauncher, NamesAVariableThatIsMalformed) {
  EXPECT_ERROR(detectLauncher(srun(1, 2) + Environment{{"SLURM_NODEID", "1x"}}), ErrorCode::kConfiguration,
               "SLURM_NODEID='1x'");
  EXPECT_ERROR(detectLauncher(srun(1, 2) + Environment{{"SLURM_PROCID", "-1"}}), ErrorCode::kConfiguration,
               "SLURM_PROCID='-1'");
  EXPECT_ERROR(detectLauncher(srun(1, 2) + Environment{{"SLURM_STEP_NODELIST", "n[1-"}}),
               ErrorCode::kConfiguration, "environment variable SLURM_STEP_NODELIST: node list 'n[1-'");
  EXPECT_ERROR(detectLauncher(mpirun(0, 0, 0, 1, 1)), ErrorCode::kConfiguration, "OMPI_COMM_WORLD_SIZE=0");
  EXPECT_ERROR(detectLauncher(torchrun(0, 1, 0, 1, 0, 1) + Environment{{"MASTER_PORT", "70000"}}),
               ErrorCode::kConfiguration, "MASTER_PORT=70000");
}

// What Slurm 22.05 and Open MPI 4.1 set on two nodes (see tests/cluster/slurm.sh), without what says nothing
// of places.
constexpr const char* kRecordedBatchScript = R"(
SLURMD_NODENAME=n1
SLURM_JOB_ID=2
SLURM_JOB_NODELIST=n[1-2]
SLURM_JOB_NUM_NODES=2
SLURM_LOCALID=0
SLURM_NNODES=2
SLURM_NODEID=0
SLURM_NODELIST=n[1-2]
SLURM_PROCID=0
SLURM_TASKS_PER_NODE=2(x2)
)";
constexpr const char* kRecordedStep = R"(
SLURMD_NODENAME=n2
SLURM_GTIDS=1
SLURM_JOB_ID=1
SLURM_JOB_NODELIST=n[1-2]
SLURM_JOB_NUM_NODES=2
SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
SLURM_LOCALID=0
SLURM_NNODES=2
SLURM_NODEID=1
SLURM_NODELIST=n[1-2]
SLURM_NTASKS=2
SLURM_NTASKS_PER_NODE=1
SLURM_PROCID=1
SLURM_STEPID=0
SLURM_STEP_ID=0
SLURM_STEP_NODELIST=n[1-2]
SLURM_STEP_NUM_NODES=2
SLURM_STEP_NUM_TASKS=2
SLURM_STEP_TASKS_PER_NODE=1(x2)
SLURM_TASKS_PER_NODE=1(x2)
)";
// On n2, by `mpirun -N 1` in the salloc shell on n1.
constexpr const char* kRecordedMpirunUnderSalloc = R"(
OMPI_COMM_WORLD_LOCAL_RANK=0
OMPI_COMM_WORLD_LOCAL_SIZE=1
OMPI_COMM_WORLD_NODE_RANK=0
OMPI_COMM_WORLD_RANK=1
OMPI_COMM_WORLD_SIZE=2
OMPI_MCA_ess_base_jobid=427556865
OMPI_MCA_orte_ess_node_rank=0
OMPI_MCA_orte_hnp_uri=427556864.0;tcp://192.0.2.1:45551
OMPI_MCA_orte_node_regex=n[1:1-2]@0(2)
OMPI_MCA_orte_num_nodes=2
OMPI_UNIVERSE_SIZE=4
PMIX_ID=427556865.1
PMIX_NAMESPACE=427556865
PMIX_RANK=1
SLURMD_NODENAME=n2
SLURM_JOB_ID=1
SLURM_JOB_NODELIST=n[1-2]
SLURM_LOCALID=0
SLURM_NNODES=1
SLURM_NODEID=0
SLURM_NODELIST=n[1-2]
SLURM_PROCID=0
SLURM_STEP_ID=0
SLURM_STEP_NODELIST=n2
SLURM_STEP_NUM_NODES=1
SLURM_STEP_NUM_TASKS=1
)";

Environment recorded(const std::string& text) {
  Environment environment;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) environment[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  }
  return environment;
}

TEST(DetectLauncher, ReadsRecordedEnvironments) {
  EXPECT_FALSE(detectLauncher(recorded(kRecordedBatchScript)));
  const LauncherPlace step = detected(recorded(kRecordedStep));
  EXPECT_EQ(step.launcher, "Slurm");
  EXPECT_EQ(step.job, "slurm-1.0");
  EXPECT_EQ(step.node, 1);
  EXPECT_EQ(step.nodes, 2);
  EXPECT_EQ(step.coordinator_host, "n1");
  const LauncherPlace mpi = detected(recorded(kRecordedMpirunUnderSalloc));
  EXPECT_EQ(mpi.launcher, "Open MPI");
  EXPECT_EQ(mpi.job, "openmpi-427556865");
  EXPECT_EQ(mpi.node, 1);
  EXPECT_EQ(mpi.nodes, 2);
  EXPECT_EQ(mpi.coordinator_host, "192.0.2.1");
}

TEST(CurrentEnvironment, HasTheVariablesOfThisProcess) {
  setenv("PIPESHARD_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(currentEnvironment().at("PIPESHARD_TEST_VARIABLE"), "a=b");
  unsetenv("PIPESHARD_TEST_VARIABLE");
  EXPECT_EQ(currentEnvironment().count("PIPESHARD_TEST_VARIABLE"), 0u);
}

TEST(NodeList, IsExpandedAsSlurmDoes) {
  EXPECT_THAT(expandNodeList("login"), ElementsAre("login"));
  EXPECT_THAT(expandNodeList("node[001-003,007],login"),
              ElementsAre("node001", "node002", "node003", "node007", "login"));
  EXPECT_THAT(expandNodeList("n[9-11]"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(expandNodeList("r[0-1]n[08-09]-ib"),
              ElementsAre("r0n08-ib", "r0n09-ib", "r1n08-ib", "r1n09-ib"));
}

TEST(NodeList, IsRefusedWhenMalformed) {
  for (const char* list : {"", "a,", ",a", "n[1", "n1]", "n[]", "n[1,]", "n[a-b]", "n[3-1]", "n[1-2-3]",
                           "n[[1]]", "n[-1]", "n[ 1]", "n[99999999999999999999]"}) {
    EXPECT_ERROR(expandNodeList(list), ErrorCode::kConfiguration, "node list");
  }
  EXPECT_ERROR(expandNodeList("n[0-18446744073709551615]"), ErrorCode::kConfiguration, "more than 65536");
  EXPECT_ERROR(expandNodeList("n[0-299]m[0-299]"), ErrorCode::kConfiguration, "more than 65536");
}

}  // namespace
}  // namespace pipeshard
