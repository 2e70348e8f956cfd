// Where a job scheduler or launcher has put this process, read from the environment variables that it sets.
//
//   if (const auto place = detectLauncher(currentEnvironment())) {
//     place->launcher              // "Slurm"
//     *place->node, *place->nodes  // 1, 2: the second of two nodes
//     place->local_rank            // 0: the daemon that serves this host
//     place->coordinator_host      // "node001"
//     place->evidence              // {"SLURM_STEP_ID=0", "SLURM_NODEID=1", ...}
//   }
//
// Nothing here asks a launcher or the network; any thread may call it.
//
// | launcher       | is there when these are set                   | node, nodes                        |
// |----------------|-----------------------------------------------|------------------------------------|
// | Slurm          | SLURM_STEP_ID (of a real step), SLURM_PROCID  | SLURM_NODEID, SLURM_STEP_NUM_NODES |
// | Open MPI       | OMPI_COMM_WORLD_RANK and _SIZE                | rank, OMPI_MCA_orte_num_nodes (1)  |
// | torchrun       | RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT    | GROUP_RANK, GROUP_WORLD_SIZE (2)   |
// | Kubeflow       | PET_NODE_RANK and PET_NNODES                  | these                              |
// | Kubernetes Job | JOB_COMPLETION_INDEX, KUBERNETES_SERVICE_HOST | the index; the number is not told  |
// | PMIx           | PMIX_NAMESPACE, PMIX_RANK, none of the above  | not told                           |
// | MPICH          | PMI_RANK and PMI_SIZE, none of the above      | rank, size (1)                     |
//
// (1) if there is one process per node; (2) or by LOCAL_WORLD_SIZE.
//
// The shell of `salloc` and the script of `sbatch` are not steps: there, nothing is detected. An empty
// variable counts as unset. Several at once (mpirun inside srun, torchrun inside a Kubernetes job): the
// innermost answers, where all agree on node and nodes; where two contradict, detectLauncher refuses and
// names both.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pipeshard {

struct LauncherPlace {
  // "Slurm", "Open MPI", "torchrun", "Kubeflow", "Kubernetes Job", "PMIx", "MPICH"
  std::string launcher;
  // names the job among this user's: "slurm-1234.0"; letters, digits and "._-" only
  std::string job;
  std::optional<int> node;   // 0-based index of this host's node daemon, where the launcher tells
  std::optional<int> nodes;  // how many
  // > 0: a surplus process on this host; the daemon of local rank 0 serves the host
  int local_rank = 0;
  std::string coordinator_host;  // "" when unknown
  // one that is free for a coordinator on that host, where the launcher has chosen one
  std::optional<int> coordinator_port;
  uint64_t generation = 0;            // grows with every restart of the job by the launcher
  std::vector<std::string> evidence;  // the variables it was read from: "SLURM_NODEID=1"
};

// Nothing when no launcher is recognised. Errors: kConfiguration (a number or node list is malformed, names
// the variable; two launchers contradict each other, prints both).
std::optional<LauncherPlace> detectLauncher(const std::map<std::string, std::string>& environment);

// The variables of this process. Not while another thread changes them.
std::map<std::string, std::string> currentEnvironment();

// The hosts of a Slurm node list: "node[001-003,007],login" is {"node001", "node002", "node003", "node007",
// "login"}. Several brackets in one name multiply ("r[0-1]n[0-1]"). Errors: kConfiguration (malformed, or
// more than 65536 hosts).
std::vector<std::string> expandNodeList(const std::string& list);

}  // namespace pipeshard
