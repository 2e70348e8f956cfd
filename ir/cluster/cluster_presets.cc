// Published numbers of devices and nodes. docs/clusters.md has the table with the source of each; change both
// together.
#include "ir/cluster/cluster_presets.h"

#include <array>

namespace pipeshard {
namespace {

// The part of the peaks that large operators reach, by class of work (DeviceKind::efficiency).
using Reached = std::array<double, kWorkClassCount>;
// Of ours, where no source says more: library matrix products and convolutions, and memory-bound kernels.
constexpr Reached kAssumed = {0.7, 0.55, 0.8, 0.8, 0.8};
// What steps of one V100 reached that Alpa's authors published (`plan_quality --fit`, docs/plan-quality.md).
constexpr Reached kReachedByV100 = {0.58, 0.59, 0.8, 0.8, 0.8};
constexpr int64_t kLaunch = 4'000;  // ns from one kernel's end to the next one's full speed

// Dense arithmetic in TFLOP/s; 0: the device has no such units. `matrix`: of matrix products and convolutions
// (tensor cores; of float32 TF32, where the device has it).
struct Peaks {
  double float64 = 0;
  double matrix64 = 0;
  double float32 = 0;
  double matrix32 = 0;
  double matrix16 = 0;      // float16
  double matrix_brain = 0;  // bfloat16
  double memory_gb = 0;     // GB/s
};

struct DeviceSheet {
  const char* name;
  int64_t memory_gb;
  Peaks peaks;
  const char* source;
  Reached reached = kAssumed;
};

constexpr Peaks kV100Peaks{7.8, 7.8, 15.7, 15.7, 125, 0, 900};
constexpr const char* kV100Source = "NVIDIA V100 data sheet (January 2020), V100 for NVLink";
constexpr DeviceSheet kV100{"V100-SXM2-16GB", 16, kV100Peaks, kV100Source, kReachedByV100};
constexpr DeviceSheet kV100Large{"V100-SXM2-32GB", 32, kV100Peaks, kV100Source, kReachedByV100};
constexpr DeviceSheet kA100{"A100-SXM4-80GB",
                            80,
                            {9.7, 19.5, 19.5, 156, 312, 312, 2039},
                            "NVIDIA A100 data sheet (June 2021), 80GB SXM, without sparsity"};
constexpr DeviceSheet kA100Small{"A100-SXM4-40GB",
                                 40,
                                 {9.7, 19.5, 19.5, 156, 312, 312, 1555},
                                 "NVIDIA A100 data sheet (November 2020), 40GB SXM, without sparsity"};
constexpr DeviceSheet kH100{"H100-SXM5-80GB",
                            80,
                            {34, 67, 67, 494.5, 989.5, 989.5, 3350},
                            "NVIDIA H100 data sheet, H100 SXM, halved where it counts sparsity"};
constexpr DeviceSheet kH200{"H200-SXM5-141GB",
                            141,
                            {34, 67, 67, 494.5, 989.5, 989.5, 4800},
                            "NVIDIA H200 data sheet, H200 SXM, halved where it counts sparsity"};
constexpr DeviceSheet kT4{"T4-16GB",
                          15,
                          {0.25, 0.25, 8.1, 8.1, 65, 0, 320},
                          "NVIDIA T4 data sheet; float64: 1/32 of float32 (Turing white paper)"};

void addRates(DeviceKind& kind, DataType type, double matrix_tflops, double other_tflops) {
  for (int c = 0; c < kWorkClassCount; ++c) {
    const auto work_class = static_cast<WorkClass>(c);
    const bool matrix = work_class == WorkClass::kContraction || work_class == WorkClass::kConvolution;
    const double tflops = matrix ? matrix_tflops : other_tflops;
    if (tflops > 0) kind.rates.push_back({work_class, type, CostCurve::ofRate(tflops * 1e3, 0, kLaunch), {}});
  }
}

DeviceKind kindOf(const DeviceSheet& sheet) {
  DeviceKind kind;
  kind.name = sheet.name;
  kind.memory_bytes = sheet.memory_gb * 1'000'000'000;
  kind.memory = CostCurve::ofRate(sheet.peaks.memory_gb, 0, kLaunch);
  kind.efficiency = sheet.reached;
  kind.source = sheet.source;
  addRates(kind, DataType::kFloat32, sheet.peaks.matrix32, sheet.peaks.float32);
  addRates(kind, DataType::kFloat16, sheet.peaks.matrix16, sheet.peaks.float32);
  addRates(kind, DataType::kBfloat16, sheet.peaks.matrix_brain, sheet.peaks.float32);
  addRates(kind, DataType::kFloat64, sheet.peaks.matrix64, sheet.peaks.float64);
  return kind;
}

// Links in GB/s of one direction, effective.
struct NodeSheet {
  const char* name;
  const char* description;
  bool of_device;
  DeviceSheet device;
  int devices;
  double inside_gb;
  int nics;
  double nic_gbits;        // of one
  bool cube_mesh = false;  // of V100, without a switch: kCubeMesh
};

// NVIDIA DGX-1 with V100, system architecture white paper: of a device's six NVLinks of 25 GB/s one goes to
// its neighbour, and four stay among four. Three devices make rings of one link each way.
constexpr GroupRate kCubeMesh[] = {{2, 25}, {3, 50}, {4, 100}};

constexpr double kReachedOnLinks = 0.8;     // of a link's data sheet, by NCCL's large messages
constexpr int64_t kInsideLatency = 10'000;  // ns of a collective between devices of a node
constexpr int64_t kNicLatency = 30'000;     // between nodes

constexpr NodeSheet kNodes[] = {
    {"p3.2xlarge", "AWS: 1 V100-16GB, 10 Gbit/s", false, kV100, 1, 150, 1, 10},
    {"p3.8xlarge", "AWS: 4 V100-16GB, NVLink, 10 Gbit/s", false, kV100, 4, 100, 1, 10, true},
    {"p3.16xlarge", "AWS: 8 V100-16GB, NVLink, 25 Gbit/s", false, kV100, 8, 150, 1, 25, true},
    {"p3dn.24xlarge", "AWS: 8 V100-32GB, NVLink, 100 Gbit/s", false, kV100Large, 8, 150, 1, 100, true},
    {"p4d.24xlarge", "AWS: 8 A100-40GB, NVSwitch, 4 x 100 Gbit/s", false, kA100Small, 8, 300, 4, 100},
    {"p4de.24xlarge", "AWS: 8 A100-80GB, NVSwitch, 4 x 100 Gbit/s", false, kA100, 8, 300, 4, 100},
    {"p5.48xlarge", "AWS: 8 H100, NVSwitch, 3200 Gbit/s", false, kH100, 8, 450, 8, 400},
    {"g4dn.12xlarge", "AWS: 4 T4, PCIe, 50 Gbit/s", false, kT4, 4, 16, 1, 50},
    {"dgx-1", "NVIDIA DGX-1: 8 V100-32GB, NVLink, 4 x 100 Gbit/s", false, kV100Large, 8, 150, 4, 100, true},
    {"dgx-a100", "NVIDIA DGX A100: 8 A100-80GB, NVSwitch, 8 x 200 Gbit/s", false, kA100, 8, 300, 8, 200},
    {"dgx-a100-40gb", "NVIDIA DGX A100: 8 A100-40GB, NVSwitch, 8 x 200 Gbit/s", false, kA100Small, 8, 300, 8,
     200},
    {"dgx-h100", "NVIDIA DGX H100: 8 H100, NVSwitch, 8 x 400 Gbit/s", false, kH100, 8, 450, 8, 400},
    {"dgx-h200", "NVIDIA DGX H200: 8 H200, NVSwitch, 8 x 400 Gbit/s", false, kH200, 8, 450, 8, 400},
    {"v100", "V100-16GB as in p3.16xlarge", true, kV100, 8, 150, 1, 25, true},
    {"v100-32gb", "V100-32GB as in p3dn.24xlarge", true, kV100Large, 8, 150, 1, 100, true},
    {"a100", "A100-80GB as in dgx-a100", true, kA100, 8, 300, 8, 200},
    {"a100-40gb", "A100-40GB as in dgx-a100-40gb", true, kA100Small, 8, 300, 8, 200},
    {"h100", "H100 as in dgx-h100", true, kH100, 8, 450, 8, 400},
    {"h200", "H200 as in dgx-h200", true, kH200, 8, 450, 8, 400},
    {"t4", "T4 as in g4dn.12xlarge", true, kT4, 4, 16, 1, 50},
};

ClusterPreset presetOf(const NodeSheet& sheet) {
  ClusterPreset preset;
  preset.name = preset.one.name = sheet.name;
  preset.description = sheet.description;
  preset.of_device = sheet.of_device;
  preset.one.kinds = {kindOf(sheet.device)};
  ClusterNode& node = preset.one.nodes[0];
  node.devices = sheet.devices;
  node.inside = {kInsideLatency, sheet.inside_gb * kReachedOnLinks, {}};
  for (const GroupRate& group : kCubeMesh) {
    if (sheet.cube_mesh && group.devices < sheet.devices)
      node.inside_groups.push_back({group.devices, group.bytes_per_ns * kReachedOnLinks});
  }
  node.nic = {kNicLatency, sheet.nic_gbits / 8 * kReachedOnLinks, {}};
  node.nics = sheet.nics;
  return preset;
}

}  // namespace

const std::vector<ClusterPreset>& clusterPresets() {
  static const std::vector<ClusterPreset> presets = [] {
    std::vector<ClusterPreset> all;
    for (const NodeSheet& sheet : kNodes) all.push_back(presetOf(sheet));
    return all;
  }();
  return presets;
}

}  // namespace pipeshard
