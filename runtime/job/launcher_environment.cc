#include "runtime/job/launcher_environment.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using Environment = std::map<std::string, std::string>;

constexpr int kMostNodes = 1 << 20;
constexpr size_t kMostHosts = 65536;
// Slurm's numbers for batch scripts, interactive shells and the like
constexpr uint64_t kFirstSpecialStep = 0xfffffff0;

// Reads variables and remembers which.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const {
    const auto found = environment_.find(name);
    return found != environment_.end() && !found->second.empty();
  }

  bool hasAll(const std::vector<std::string>& names) const {
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) { return has(name); });
  }

  std::string text(const std::string& name) {
    if (!has(name)) return "";
    const std::string& value = environment_.at(name);
    const std::string entry = name + "=" + value;
    if (std::find(evidence_.begin(), evidence_.end(), entry) == evidence_.end()) evidence_.push_back(entry);
    return value;
  }

  std::optional<uint64_t> count(const std::string& name) {
    if (!has(name)) return std::nullopt;
    const std::string value = text(name);
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size()) {
      fail(ErrorCode::kConfiguration,
           "environment variable {}='{}' is not a whole number; a launcher sets it: correct or unset it",
           name, value);
    }
    return number;
  }

  std::optional<int> index(const std::string& name) { return inRange(name, 0, kMostNodes); }
  std::optional<int> size(const std::string& name) { return inRange(name, 1, kMostNodes); }
  std::optional<int> port(const std::string& name) { return inRange(name, 1, 65535); }

  const std::vector<std::string>& evidence() const { return evidence_; }

 private:
  std::optional<int> inRange(const std::string& name, uint64_t least, uint64_t most) {
    const std::optional<uint64_t> number = count(name);
    if (!number) return std::nullopt;
    if (*number < least || *number > most) {
      fail(ErrorCode::kConfiguration,
           "environment variable {}={} is not from {} to {}; a launcher sets it: correct or unset it", name,
           *number, least, most);
    }
    return *number;
  }

  const Environment& environment_;
  std::vector<std::string> evidence_;
};

// One launcher's answer, and its number for this process among all of the job.
struct Layer {
  LauncherPlace place;
  std::optional<int> rank;
};

std::string fileNamePart(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  }
  return text.substr(0, 120);
}

std::optional<Layer> readSlurm(const Environment& environment) {
  Variables variables(environment);
  if (!variables.hasAll({"SLURM_STEP_ID", "SLURM_PROCID"})) return std::nullopt;
  const uint64_t step = *variables.count("SLURM_STEP_ID");
  if (step >= kFirstSpecialStep) return std::nullopt;
  Layer layer;
  LauncherPlace& place = layer.place;
  layer.rank = variables.index("SLURM_PROCID");
  place.launcher = "Slurm";
  const std::string job =
      variables.has("SLURM_JOB_ID") ? variables.text("SLURM_JOB_ID") : variables.text("SLURM_JOBID");
  place.job = fileNamePart(fmt::format("slurm-{}.{}", job, step));
  place.node = variables.index("SLURM_NODEID");
  place.local_rank = variables.index("SLURM_LOCALID").value_or(0);
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}) {
    if (!place.nodes) place.nodes = variables.size(name);
  }
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (!place.coordinator_host.empty() || !variables.has(name)) continue;
    try {
      place.coordinator_host = expandNodeList(variables.text(name)).front();
    } catch (Error& error) {
      error.addContext(fmt::format("environment variable {}", name));
      throw;
    }
  }
  place.generation = variables.count("SLURM_RESTART_COUNT").value_or(0);
  place.evidence = variables.evidence();
  return layer;
}

// "27852800.0;tcp://192.0.2.2,10.0.0.2:57949;tcp6://[fd00::2]:33413" has host 192.0.2.2.
std::string hostOfUri(const std::string& uri) {
  size_t start = uri.find("tcp://");
  const bool is_v4 = start != std::string::npos;
  if (!is_v4) start = uri.find("tcp6://[");
  if (start == std::string::npos) return "";
  start += is_v4 ? 6 : 8;
  const size_t end = uri.find_first_of(is_v4 ? ",:;" : ",];", start);
  return uri.substr(start, end == std::string::npos ? end : end - start);
}

std::optional<Layer> readOpenMpi(const Environment& environment) {
  Variables variables(environment);
  if (!variables.hasAll({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) return std::nullopt;
  Layer layer;
  LauncherPlace& place = layer.place;
  place.launcher = "Open MPI";
  const int rank = *variables.index("OMPI_COMM_WORLD_RANK");
  const int size = *variables.size("OMPI_COMM_WORLD_SIZE");
  const std::optional<int> local_size = variables.size("OMPI_COMM_WORLD_LOCAL_SIZE");
  layer.rank = rank;
  place.local_rank = variables.index("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0);
  place.nodes = variables.size("OMPI_MCA_orte_num_nodes");
  if (!place.nodes && local_size == size) place.nodes = 1;
  // Ranks are dealt to nodes in more than one way: only with one on each, or with one node, is the node's
  // number certain.
  if (place.nodes == 1) place.node = 0;
  if (place.nodes == size) place.node = rank;
  const std::string name = variables.has("PMIX_NAMESPACE") ? variables.text("PMIX_NAMESPACE")
                                                           : variables.text("OMPI_MCA_ess_base_jobid");
  place.job = fileNamePart("openmpi-" + name);
  place.coordinator_host = hostOfUri(variables.text("OMPI_MCA_orte_hnp_uri"));
  place.evidence = variables.evidence();
  return layer;
}

std::optional<Layer> readTorchrun(const Environment& environment) {
  Variables variables(environment);
  if (!variables.hasAll({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})) return std::nullopt;
  Layer layer;
  LauncherPlace& place = layer.place;
  place.launcher = "torchrun";
  const int rank = *variables.index("RANK");
  const int size = *variables.size("WORLD_SIZE");
  const std::optional<int> local_rank = variables.index("LOCAL_RANK");
  const std::optional<int> local_size = variables.size("LOCAL_WORLD_SIZE");
  layer.rank = rank;
  place.local_rank = local_rank.value_or(0);
  place.node = variables.index("GROUP_RANK");
  place.nodes = variables.size("GROUP_WORLD_SIZE");
  // Without any word of local ranks there is one process per node; else ranks are numbered node by node.
  const std::optional<int> per_node = local_size   ? local_size
                                      : local_rank ? std::nullopt
                                                   : std::optional<int>(1);
  if (per_node && size % *per_node == 0) {
    if (!place.node) place.node = rank / *per_node;
    if (!place.nodes) place.nodes = size / *per_node;
  }
  place.coordinator_host = variables.text("MASTER_ADDR");
  const std::optional<int> port = variables.port("MASTER_PORT");
  // torchrun's own agent listens there, unless it says that it does not.
  const std::string taken = variables.text("TORCHELASTIC_USE_AGENT_STORE");
  if (taken.empty() || taken == "False" || taken == "0") place.coordinator_port = port;
  place.job = fileNamePart(
      fmt::format("torchrun-{}-{}-{}",
                  variables.has("TORCHELASTIC_RUN_ID") ? variables.text("TORCHELASTIC_RUN_ID") : "none",
                  place.coordinator_host, *port));
  place.generation = variables.count("TORCHELASTIC_RESTART_COUNT").value_or(0);
  place.evidence = variables.evidence();
  return layer;
}

std::optional<Layer> readKubeflow(const Environment& environment) {
  Variables variables(environment);
  if (!variables.hasAll({"PET_NODE_RANK", "PET_NNODES"})) return std::nullopt;
  Layer layer;
  LauncherPlace& place = layer.place;
  place.launcher = "Kubeflow";
  place.node = variables.index("PET_NODE_RANK");
  // "2:4": from 2 to 4
  if (variables.text("PET_NNODES").find(':') == std::string::npos) place.nodes = variables.size("PET_NNODES");
  place.coordinator_host = variables.text("PET_MASTER_ADDR");
  place.coordinator_port = variables.port("PET_MASTER_PORT");
  place.job = fileNamePart(
      "kubeflow-" + (variables.has("PET_RDZV_ID") ? variables.text("PET_RDZV_ID") : place.coordinator_host));
  place.evidence = variables.evidence();
  return layer;
}

// The pod's host name is "JOB-INDEX". The number of a restart and the headless service are what a manifest of
// a JobSet may pass as JOBSET_RESTART_ATTEMPT and JOBSET_NAME from the pod's labels.
std::optional<Layer> readKubernetes(const Environment& environment) {
  Variables variables(environment);
  if (!variables.hasAll({"JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"})) return std::nullopt;
  Layer layer;
  LauncherPlace& place = layer.place;
  place.launcher = "Kubernetes Job";
  place.node = variables.index("JOB_COMPLETION_INDEX");
  std::string job = variables.text("HOSTNAME");
  const std::string suffix = fmt::format("-{}", *place.node);
  if (job.ends_with(suffix)) {
    job.resize(job.size() - suffix.size());
    if (variables.has("JOBSET_NAME"))
      place.coordinator_host = fmt::format("{}-0.{}", job, variables.text("JOBSET_NAME"));
  }
  place.job = fileNamePart("kubernetes-" + job);
  place.generation = variables.count("JOBSET_RESTART_ATTEMPT").value_or(0);
  place.evidence = variables.evidence();
  return layer;
}

std::optional<Layer> readPmix(const Environment& environment) {
  Variables variables(environment);
  if (!variables.hasAll({"PMIX_RANK", "PMIX_NAMESPACE"})) return std::nullopt;
  Layer layer;
  layer.rank = variables.index("PMIX_RANK");
  layer.place.launcher = "PMIx";
  layer.place.job = fileNamePart("pmix-" + variables.text("PMIX_NAMESPACE"));
  layer.place.evidence = variables.evidence();
  return layer;
}

std::optional<Layer> readMpich(const Environment& environment) {
  Variables variables(environment);
  if (!variables.hasAll({"PMI_RANK", "PMI_SIZE"})) return std::nullopt;
  Layer layer;
  LauncherPlace& place = layer.place;
  place.launcher = "MPICH";
  layer.rank = variables.index("PMI_RANK");
  const int size = *variables.size("PMI_SIZE");
  place.local_rank = variables.index("MPI_LOCALRANKID").value_or(0);
  if (variables.size("MPI_LOCALNRANKS") == size) {
    place.node = 0;
    place.nodes = 1;
  }
  place.job = fileNamePart(
      "mpich-" + (variables.has("PMI_JOBID") ? variables.text("PMI_JOBID") : variables.text("PMI_PORT")));
  place.evidence = variables.evidence();
  return layer;
}

[[noreturn]] void refuse(const LauncherPlace& outer, const LauncherPlace& inner, const std::string& what) {
  fail(ErrorCode::kConfiguration,
       "{} and {} contradict each other on {}: {} says {}; {} says {}. Start one node daemon per host with "
       "one launcher, or unset the variables of the one that does not count",
       outer.launcher, inner.launcher, what, outer.launcher, fmt::join(outer.evidence, ", "), inner.launcher,
       fmt::join(inner.evidence, ", "));
}

// mpirun on the first node of an allocation starts its daemons on the others as a Slurm step, whose variables
// they pass on: there, node 1 of mpirun's is node 0 of that step, which has a node less. (On its own node, no
// step is seen.)
bool isStepOfMpirunsDaemons(const LauncherPlace& outer, const LauncherPlace& inner) {
  if (outer.launcher != "Slurm" || inner.launcher != "Open MPI" || !outer.nodes || !inner.nodes ||
      !outer.node)
    return false;
  return *outer.nodes + 1 == *inner.nodes && (!inner.node || *outer.node + 1 == *inner.node);
}

void checkAgreement(const Layer& outer, const Layer& inner) {
  const LauncherPlace& a = outer.place;
  const LauncherPlace& b = inner.place;
  if (isStepOfMpirunsDaemons(a, b)) return;
  if (a.nodes && b.nodes && a.nodes != b.nodes)
    refuse(a, b, fmt::format("the number of nodes ({} and {})", *a.nodes, *b.nodes));
  if (a.node && b.node && a.node != b.node)
    refuse(a, b, fmt::format("the node's number ({} and {})", *a.node, *b.node));
  // Two inner launchers on one host, each with its own local rank 0.
  if (a.local_rank > 0 && b.local_rank != a.local_rank) {
    refuse(a, b, fmt::format("the process's number on this host ({} and {})", a.local_rank, b.local_rank));
  }
}

}  // namespace

std::optional<LauncherPlace> detectLauncher(const Environment& environment) {
  std::vector<Layer> layers;  // outermost first
  for (const auto read : {readKubernetes, readKubeflow, readSlurm, readOpenMpi, readTorchrun}) {
    if (std::optional<Layer> layer = read(environment)) layers.push_back(std::move(*layer));
  }
  // PMIx and PMI are how launchers talk to their processes, the ones above too: they say less, and count only
  // on their own.
  for (const auto read : {readPmix, readMpich}) {
    if (!layers.empty()) break;
    if (std::optional<Layer> layer = read(environment)) layers.push_back(std::move(*layer));
  }
  if (layers.empty()) return std::nullopt;
  LauncherPlace place = layers.back().place;
  for (size_t i = 0; i + 1 < layers.size(); ++i) checkAgreement(layers[i], layers.back());
  // A restart by an outer launcher starts the counts of the inner ones again.
  for (size_t i = 0; i + 1 < layers.size(); ++i) place.generation += layers[i].place.generation << 16;
  return place;
}

Environment currentEnvironment() {
  Environment variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

namespace {

[[noreturn]] void malformedList(const std::string& list, const std::string& why) {
  fail(ErrorCode::kConfiguration, "node list '{}': {}; expected names like node[001-003,007],login", list,
       why);
}

uint64_t listNumber(const std::string& list, const std::string& digits) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size())
    malformedList(list, fmt::format("'{}' is not a number", digits));
  return number;
}

// What is between brackets: "001-003,007".
std::vector<std::string> expandRanges(const std::string& list, const std::string& ranges) {
  std::vector<std::string> numbers;
  size_t start = 0;
  while (start <= ranges.size()) {
    const size_t comma = std::min(ranges.find(',', start), ranges.size());
    const std::string range = ranges.substr(start, comma - start);
    const size_t dash = range.find('-');
    const std::string low = range.substr(0, dash);
    const uint64_t first = listNumber(list, low);
    const uint64_t last = dash == std::string::npos ? first : listNumber(list, range.substr(dash + 1));
    if (last < first) malformedList(list, fmt::format("the range '{}' is empty", range));
    if (last - first >= kMostHosts - numbers.size())
      malformedList(list, fmt::format("it has more than {} hosts", kMostHosts));
    for (uint64_t number = first; number <= last; ++number)
      numbers.push_back(fmt::format("{:0{}}", number, low.size()));
    start = comma + 1;
  }
  return numbers;
}

}  // namespace

std::vector<std::string> expandNodeList(const std::string& list) {
  std::vector<std::string> hosts;
  std::vector<std::string> names = {""};  // of the item being read
  const auto append = [&](const std::vector<std::string>& parts) {
    if (names.size() * parts.size() > kMostHosts)
      malformedList(list, fmt::format("it has more than {} hosts", kMostHosts));
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& part : parts) longer.push_back(name + part);
    }
    names = std::move(longer);
  };
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i == list.size() || list[i] == ',') {
      if (names.front().empty()) malformedList(list, "a name is empty");
      if (hosts.size() + names.size() > kMostHosts)
        malformedList(list, fmt::format("it has more than {} hosts", kMostHosts));
      hosts.insert(hosts.end(), names.begin(), names.end());
      names = {""};
    } else if (list[i] == '[') {
      const size_t end = list.find(']', i);
      if (end == std::string::npos) malformedList(list, "a bracket is not closed");
      append(expandRanges(list, list.substr(i + 1, end - i - 1)));
      i = end;
    } else if (list[i] == ']') {
      malformedList(list, "a bracket is closed that was not opened");
    } else {
      append({std::string(1, list[i])});
    }
  }
  return hosts;
}

}  // namespace pipeshard
