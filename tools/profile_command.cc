// `profile`: measures this machine once; `plan`, `simulate` and `validate` read the result.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "planning/pipeline.h"
#include "planning/request/profile_store.h"
#include "runtime/device/cpu_device.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/device/device_choice.h"
#include "runtime/execute/rank_image.h"
#include "runtime/profiling/device_links.h"
#include "runtime/profiling/profiling_links.h"
#include "runtime/profiling/profiling_memory.h"
#include "runtime/profiling/profiling_passes.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options/option_checks.h"
#include "tools/options/plan_options.h"
#include "tools/profile_ladder.h"
#include "tools/profile_samples.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

constexpr const char* kProfileFooter = R"(
The profile is a readable JSON file (docs/profile.md). `plan`, `simulate` and `validate` read the default one when it is of this
machine; --profile FILE takes another, --profile off none, and so does PIPESHARD_PROFILE=off in the environment. Let the machine
be idle meanwhile: what else runs makes operators look slow.

Examples:
  pipeshard profile                                          all, in under two minutes
  pipeshard profile --model gpt2.onnx --dim batch=32 --microbatches 8      and exactly what this model needs
  pipeshard plan gpt2.onnx --dim batch=32 --cluster 1x2 -o gpt2.plan && pipeshard simulate gpt2.plan)";

constexpr const char* kModelsPlan = "Planning (with --model MODEL)";
constexpr int kFewRepetitions = 3;
constexpr int64_t kModelSample = 8'000'000'000;  // ns: of a model there are few programs, of a ladder many

struct ProfileCommand {
  const CLI::App* command = nullptr;
  std::string output;
  std::string model;
  std::string device = "cpu";
  int threads = 1;
  int workers = 0;
  bool quick = false;
  PlanOptions plan;
  std::unique_ptr<Device> gpu = {};  // nullptr: CPUs are measured
  DeviceLinks straight = {};

  int run() {
    const auto start = std::chrono::steady_clock::now();
    if (model.empty()) refuseGroupInVain(*command, kModelsPlan, "--model MODEL");
    if (std::filesystem::is_directory(model))
      refuseGroupInVain(*command, kModelsPlan,
                        fmt::format("a MODEL to plan; in {}, a plan, everything is decided", model));
    Progress progress;
    if (device != nameOf(DeviceBackend::kCpu)) openDevice(progress);
    if (output.empty()) output = defaultProfilePath(gpu ? nameOf(DeviceBackend::kCuda) : "");
    if (output.empty())
      fail(ErrorCode::kUsage,
           "there is no home folder to keep the profile in; -o FILE says where to write it");
    ProfileSamples samples(gpu ? gpu->kernels() : cpuKernels());
    if (!model.empty()) {
      addModel(samples, progress);
    } else {
      addLadder(samples, quick);
    }
    Profile profile = known();
    const ProfilingOptions options = profilingOptions();
    if (model.empty() || profile.memory.points.empty()) {
      measureMachine(profile, options, progress);
    } else {
      straight = {};  // the file has links already
    }
    const std::vector<OperatorTime> times = samples.measure(options, [&](size_t done, size_t all) {
      progress.phase(fmt::format("measuring operators: {} of {} programs", done, all));
    });
    if (model.empty() || profile.rates.empty()) profile.rates = samples.rates(times);
    mergePoints(profile, samples.points(times));
    writeProfile(profile, output);
    progress.clear();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    show(profile, samples.points(times));
    if (!straight.text.empty())
      fmt::print("links inside a node are {}\n",
                 straight.times ? straight.text : fmt::format("the host's: {}", straight.text));
    fmt::print("{} operators measured in {:.1f} s; {} has {} points, digest {}\n", samples.size(), seconds,
               output, profile.points.size(), profileDigest(profile));
    showNotes(times, samples.leftOut(times));
    return 0;
  }

 private:
  void openDevice(Progress& progress) {
    if (threads != 1 || workers > 1)
      fail(ErrorCode::kUsage, "--threads and --workers are of CPUs; a rank has a GPU to itself");
    progress.phase("measuring links between GPUs");
    // Before this process has a GPU.
    straight = measureDeviceLinks([](int number) { return openCudaDevice(number); }, mostBytes());
    gpu = openCudaDevice(0);
  }

  int64_t mostBytes() const { return quick ? int64_t{1} << 16 : int64_t{1} << 26; }

  static void showNotes(const std::vector<OperatorTime>& times, const std::set<std::string>& left_out) {
    const auto seldom = std::count_if(times.begin(), times.end(), [](const OperatorTime& time) {
      return time.ns > 0 && time.repetitions < kFewRepetitions;
    });
    if (seldom > 0) {
      fmt::print(
          "Note: {} of them were run fewer than {} times, because a step is long: their times are less "
          "certain\n",
          seldom, kFewRepetitions);
    }
    if (!left_out.empty())
      fmt::print("Note: without a kernel on this device, and so without a time: {}\n",
                 fmt::join(left_out, ", "));
  }

  // Of what was measured now: by operator, the range of times, and the best rates.
  static void show(const Profile& profile, const std::vector<ProfilePoint>& points) {
    struct Row {
      int count = 0;
      int64_t fastest = INT64_MAX, slowest = 0;
      double flops = 0, bytes = 0, busy = 0;
    };
    std::map<std::string, Row> rows;
    for (const ProfilePoint& point : points) {
      Row& row = rows[point.work.op];
      const auto ns = static_cast<double>(point.ns);
      ++row.count;
      row.fastest = std::min(row.fastest, point.ns);
      row.slowest = std::max(row.slowest, point.ns);
      row.flops = std::max(row.flops, static_cast<double>(point.work.flops) / ns);
      row.bytes = std::max(row.bytes, static_cast<double>(point.work.bytes) / ns);
      row.busy += point.busy_ns > 0 ? static_cast<double>(point.busy_ns) / ns : 1;
    }
    std::vector<std::vector<std::string>> table = {
        {"operator", "sizes", "fastest", "slowest", "best GFLOP/s", "best GB/s", "both busy"}};
    for (const auto& [op, row] : rows) {
      table.push_back({op, std::to_string(row.count), formatNanoseconds(row.fastest),
                       formatNanoseconds(row.slowest), fmt::format("{:.1f}", row.flops),
                       fmt::format("{:.1f}", row.bytes), fmt::format("x{:.2f}", row.busy / row.count)});
    }
    fmt::print("{}\n\n{}\n", printDevice(profile.device), formatTable(table));
    const auto link = [](const char* name, const CostCurve& curve) {
      if (curve.points.empty()) return;
      const CostPoint& last = curve.points.back();
      fmt::print("{:<24} {} for {} bytes, {:.2f} GB/s\n", name, formatNanoseconds(curve.points.front().ns),
                 curve.points.front().amount,
                 static_cast<double>(last.amount) / static_cast<double>(last.ns));
    };
    link("message inside a node", profile.inside);
    link("message between nodes", profile.between);
    for (const CollectiveCurve& curve : profile.collectives)
      link(fmt::format("{} of {}", curve.kind, curve.devices).c_str(), curve.ns);
  }

  // What the file has already, of the same device.
  Profile known() const {
    Profile profile;
    profile.device = gpu ? profiledGpu(gpu->name()) : thisDevice(threads);
    if (!std::filesystem::exists(output)) return profile;
    Profile before = readProfile(output).profile;
    return before.device == profile.device ? before : profile;
  }

  ProfilingOptions profilingOptions() const {
    ProfilingOptions options;
    options.device = gpu.get();
    options.threads = threads;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    options.workers = gpu ? 1 : workers > 0 ? workers : std::max(1, cores / threads);
    if (!model.empty()) options.sample_ns = kModelSample;
    if (quick) options.sample_ns = 20'000'000;
    return options;
  }

  void addModel(ProfileSamples& samples, Progress& progress) {
    if (std::filesystem::is_directory(model)) {
      ProgramFolder folder(model);
      std::set<KindId> seen;
      for (const RankId rank : idsBelow<RankId>(folder.ranks())) {
        if (seen.insert(folder.kindOf(rank)).second) samples.add(folder.image(rank));
      }
      return;
    }
    PlanRequest request = planRequest(plan);
    request.model_path = model;
    request.allow_missing_weights = true;
    const PlannedTraining planned =
        planTraining(request, [&](const std::string& phase) { progress.phase(phase); });
    const EmittedPrograms& ranks = planned.whole.ranks;
    for (const KindId kind : ranks.set.kinds.ids())
      samples.add({ranks.set.kinds[kind].program, *ranks.subgraphs[kind], ""});
    samples.add({planned.whole.reference.program, planned.whole.reference.subgraphs, ""});
  }

  void measureMachine(Profile& profile, const ProfilingOptions& options, Progress& progress) const {
    const int64_t most = mostBytes();
    progress.phase("measuring links");
    profile.collectives.clear();
    std::set<int> sizes = {2};
    if (options.workers > 2) sizes.insert(options.workers);
    for (const int ranks : sizes) {
      const LinkTimes inside = straight.times ? *straight.times : measureInside(most, ranks);
      if (ranks == 2) profile.inside = inside.send;
      profile.collectives.push_back({"AllReduce", ranks, inside.all_reduce});
      profile.collectives.push_back({"AllGather", ranks, inside.all_gather});
      profile.collectives.push_back({"ReduceScatter", ranks, inside.reduce_scatter});
      profile.collectives.push_back({"AllToAll", ranks, inside.all_to_all});
    }
    profile.between = measureBetween(std::min(most, int64_t{1} << 24));
    progress.phase("measuring memory");
    profile.memory = gpu ? measureMemory(*gpu, most) : measureMemory(cpuDevice());
    if (gpu) addStaging(profile, measureStaging(*gpu, most));
  }

  // Tensors of GPUs go through the host, but for those that go straight.
  void addStaging(Profile& profile, const CostCurve& staging) const {
    const auto add = [&](CostCurve& curve) {
      for (CostPoint& point : curve.points) point.ns += staging.at(static_cast<double>(point.amount));
    };
    add(profile.between);
    if (straight.times) return;
    add(profile.inside);
    for (CollectiveCurve& collective : profile.collectives) add(collective.ns);
  }
};

}  // namespace

CommandFunction addProfileCommand(CLI::App& app) {
  auto command = std::make_shared<ProfileCommand>();
  CLI::App* sub = app.add_subcommand(
      "profile", "Measure this machine's operators and links once; planning and simulation read the result");
  sub->add_option(
         "-o,--output", command->output,
         "The file to write, or to add to when it is of this device (default: pipeshard/profile.json in\n"
         "$XDG_CONFIG_HOME or ~/.config)")
      ->type_name("FILE");
  sub->add_option("--model", command->model,
                  "Measure exactly the operators of this model's plan, with the options of `plan` below, or "
                  "those of a\n"
                  "plan directory, instead of the general ladder of sizes")
      ->type_name("MODEL|DIR");
  sub->add_option("--threads", command->threads, "Threads of a worker")
      ->check(positiveWhole(4096))
      ->capture_default_str();
  sub->add_option("--workers", command->workers,
                  "Workers that are busy at once, for the times of a busy machine (default: its processors / "
                  "--threads)")
      ->check(positiveWhole(4096));
  sub->add_option("--device", command->device,
                  "What to measure: cpu, or cuda: the first GPU (default file: profile-cuda.json, which\n"
                  "--profile names to the others)")
      ->type_name("DEVICE")
      ->check(CLI::IsMember(std::vector<std::string>(kDeviceBackends.begin(), kDeviceBackends.end())))
      ->capture_default_str();
  sub->add_flag("--quick", command->quick, "Fewer and smaller sizes, less precisely, in some seconds");
  sub->option_defaults()->group(kModelsPlan);
  addPlanOptions(*sub, command->plan);
  sub->footer(kProfileFooter);
  command->command = sub;
  return [command] { return command->run(); };
}

}  // namespace pipeshard
