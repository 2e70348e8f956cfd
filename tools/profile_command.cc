// `profile`: measures this machine once; `plan`, `simulate` and `validate` read the result.
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "ir/error.h"
#include "runtime/executor.h"
#include "runtime/profiling.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/option_checks.h"
#include "tools/planning.h"
#include "tools/profile_samples.h"
#include "tools/profile_store.h"

namespace pipeshard {
namespace {

struct ProfileCommand {
  std::string output;
  std::string model;
  std::string device = "cpu";
  int threads = 1;
  int workers = 0;
  bool quick = false;
  int64_t footprint = 0;
  PlanRequest request;

  int run() {
    if (device != "cpu") fail(ErrorCode::kConfiguration, "--device {}: no CUDA device: this pipeshard runs workers on CPUs only", device);
    const auto start = std::chrono::steady_clock::now();
    if (output.empty()) output = defaultProfilePath();
    if (output.empty()) fail(ErrorCode::kUsage, "there is no home folder to keep the profile in; -o FILE says where to write it");
    Progress progress;
    ProfileSamples samples;
    if (!model.empty()) addModel(samples, progress);
    Profile profile = known();
    const ProfilingOptions options = profilingOptions();
    if (profile.memory.points.empty()) measureMachine(profile, options, progress);
    const std::vector<OperatorTime> times = measureOperators(samples.samples(), options, [&](size_t done, size_t all) {
      progress.phase(fmt::format("measuring operators: {} of {}", done, all));
    });
    mergePoints(profile, samples.points(times));
    writeProfile(profile, output);
    progress.clear();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print("{} operators measured in {:.1f} s; {} points in {}\n", samples.size(), seconds, profile.points.size(), output);
    return 0;
  }

 private:
  // What the file has already, of the same device.
  Profile known() const {
    Profile profile;
    profile.device = thisDevice(threads);
    if (!std::filesystem::exists(output)) return profile;
    Profile before = readProfile(output).profile;
    return before.device == profile.device ? before : profile;
  }

  ProfilingOptions profilingOptions() const {
    ProfilingOptions options;
    options.threads = threads;
    options.workers = workers > 0 ? workers : std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / threads);
    options.footprint_bytes = footprint;
    if (quick) options.budget_ns = 200'000;
    return options;
  }

  void addModel(ProfileSamples& samples, Progress& progress) {
    if (std::filesystem::is_directory(model)) {
      int ranks = 1;
      for (int rank = 0; rank < ranks; ++rank) {
        const RankImage image = loadRank((std::filesystem::path(model) / "ranks" / rankDirectoryName(rank)).string());
        ranks = image.program.world_size;
        samples.add(image.program, image.subgraphs);
      }
      return;
    }
    request.model_path = model;
    request.allow_missing_weights = true;
    const PlannedTraining planned = planTraining(request, [&](const std::string& phase) { progress.phase(phase); });
    for (const RankProgram& rank : planned.whole.ranks) samples.add(rank.program, rank.subgraphs);
    samples.add(planned.whole.reference.program, planned.whole.reference.subgraphs);
  }

  void measureMachine(Profile& profile, const ProfilingOptions& options, Progress& progress) const {
    const int64_t most = quick ? int64_t{1} << 16 : int64_t{1} << 26;
    progress.phase("measuring links");
    const LinkTimes inside = measureInside(most);
    profile.inside = inside.send;
    profile.collectives = {{"AllReduce", 2, inside.all_reduce},
                           {"AllGather", 2, inside.all_gather},
                           {"ReduceScatter", 2, inside.reduce_scatter},
                           {"AllToAll", 2, inside.all_to_all}};
    profile.between = measureBetween(std::min(most, int64_t{1} << 24)).send;
    progress.phase("measuring memory");
    profile.memory = measureMemory(options);
  }
};

}  // namespace

CommandFunction addProfileCommand(CLI::App& app) {
  auto command = std::make_shared<ProfileCommand>();
  CLI::App* sub = app.add_subcommand("profile", "Measure this machine's operators and links once; planning and simulation read the result");
  sub->add_option("-o,--output", command->output, "The file to write, or to add to (default: " + defaultProfilePath() + ")")
      ->type_name("FILE");
  sub->add_option("--model", command->model,
                  "Measure exactly the operators of this model's plan (the options below), or of a plan directory")
      ->type_name("MODEL|DIR");
  sub->add_option("--threads", command->threads, "Threads of a worker")->check(positiveWhole(4096))->capture_default_str();
  sub->add_option("--workers", command->workers, "Workers that are busy at once (default: the processors / --threads)")
      ->check(positiveWhole(4096));
  sub->add_option("--footprint", command->footprint, "Experimental");
  sub->add_option("--device", command->device, "cpu")->type_name("cpu|cuda")->capture_default_str();
  sub->add_flag("--quick", command->quick, "Less precise, in a few seconds");
  addPlanOptions(*sub, command->request);
  return [command] { return command->run(); };
}

}  // namespace pipeshard
