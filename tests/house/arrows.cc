// Rooms and neighbourhoods: which others each of them may include.
#include "tests/house/house.h"

namespace pipeshard::house {

const Arrows& roomArrows() {
  static const Arrows arrows = {
      {"ir", {}},
      {"onnx_import", {"ir", "onnx_import/lowering"}},
      {"onnx_import/autodiff", {"ir"}},  // rooms of their own: no protobuf comes in there
      {"onnx_import/forms", {"ir", "onnx_import", "onnx_import/autodiff", "onnx_import/precision"}},
      {"onnx_import/lowering", {"ir"}},
      {"onnx_import/patterns", {"ir", "onnx_import/autodiff"}},
      {"onnx_import/precision", {"ir"}},
      {"sharding", {"ir"}},
      {"partition", {"ir", "sharding"}},
      {"transport", {"ir"}},
      {"runtime", {"ir", "onnx_import", "transport"}},
      {"planning",
       {"ir", "onnx_import", "onnx_import/autodiff", "onnx_import/forms", "onnx_import/patterns",
        "onnx_import/precision", "sharding", "partition", "runtime"}},
      {"tools",
       {"ir", "onnx_import", "onnx_import/autodiff", "onnx_import/forms", "onnx_import/patterns",
        "onnx_import/precision", "sharding", "partition", "transport", "runtime", "planning"}},
  };
  return arrows;
}

const Arrows& neighbourhoodArrows() {
  static const Arrows arrows = {
      {"ir/base", {}},
      {"ir/graph", {"ir/base"}},
      {"ir/cluster", {"ir/base"}},
      {"ir/operators", {"ir/base", "ir/graph", "ir/cluster"}},
      {"ir/plan", {"ir/base", "ir/cluster"}},
      {"ir/program", {"ir/base", "ir/graph"}},
      {"ir/trace", {"ir/base", "ir/program"}},

      {"onnx_import/format", {}},
      {"onnx_import/prepare", {"onnx_import/format", "onnx_import/row_numbers"}},
      {"onnx_import/row_numbers", {}},
      {"onnx_import/exporter", {"onnx_import/format", "onnx_import/prepare"}},
      {"onnx_import/loss", {"onnx_import/prepare"}},
      {"onnx_import/autodiff", {}},
      {"onnx_import/forms", {}},
      {"onnx_import/lowering", {}},
      {"onnx_import/patterns", {}},
      {"onnx_import/precision", {}},

      {"sharding/solver", {}},
      {"sharding/rules", {}},
      {"sharding/specs", {}},
      {"sharding/spmd", {"sharding/rules", "sharding/specs"}},
      {"sharding/batch", {"sharding/rules", "sharding/specs", "sharding/spmd"}},
      {"sharding/stage",
       {"sharding/rules", "sharding/specs", "sharding/spmd", "sharding/batch", "sharding/solver"}},
      {"sharding/pricing", {"sharding/spmd", "sharding/stage"}},

      {"partition/schedules", {}},
      {"partition/simulation", {"partition/schedules"}},
      {"partition/families", {"partition/schedules", "partition/simulation"}},
      {"partition/layers", {}},
      {"partition/cut", {"partition/families"}},
      {"partition/stages",
       {"partition/cut", "partition/families", "partition/layers", "partition/schedules"}},
      {"partition/costs", {"partition/cut", "partition/layers"}},
      {"partition/search",
       {"partition/costs", "partition/families", "partition/schedules", "partition/simulation"}},
      {"partition/emit", {"partition/cut", "partition/families", "partition/schedules", "partition/stages"}},
      {"partition/pipedream", {"partition/costs", "partition/search"}},

      {"transport/control", {}},
      {"transport/collectives", {}},
      {"transport/shared", {"transport/collectives"}},
      {"transport/gloo", {"transport/collectives"}},
      {"transport/wire", {"transport/collectives", "transport/control"}},

      {"runtime/kernels/base", {}},
      {"runtime/kernels/elementwise", {"runtime/kernels/base"}},
      {"runtime/kernels/movement", {"runtime/kernels/base"}},
      {"runtime/kernels/reductions", {"runtime/kernels/base"}},
      {"runtime/kernels/fusion", {"runtime/kernels/base"}},
      {"runtime/kernels/products", {"runtime/kernels/base", "runtime/kernels/elementwise"}},
      {"runtime/files", {}},
      {"runtime/data", {"runtime/files"}},
      {"runtime/trace", {"runtime/files"}},
      {"runtime/device", {"runtime/kernels/base"}},
      {"runtime/device/cuda", {"runtime/device", "runtime/identity", "runtime/kernels/base"}},
      {"runtime/execute",
       {"runtime/data", "runtime/device", "runtime/files", "runtime/kernels/base", "runtime/kernels/fusion",
        "runtime/trace"}},
      {"runtime/checkpoint", {"runtime/device", "runtime/execute", "runtime/files"}},
      {"runtime/messages", {}},
      {"runtime/disks", {"runtime/checkpoint", "runtime/execute", "runtime/files", "runtime/messages"}},
      {"runtime/feed", {"runtime/data", "runtime/files"}},
      {"runtime/machine", {"runtime/files"}},
      {"runtime/identity", {"runtime/checkpoint", "runtime/execute", "runtime/files"}},
      {"runtime/evaluation", {"runtime/data", "runtime/execute", "runtime/files"}},
      {"runtime/job",
       {"runtime/checkpoint", "runtime/data", "runtime/device", "runtime/disks", "runtime/evaluation",
        "runtime/feed", "runtime/identity", "runtime/machine", "runtime/execute", "runtime/files",
        "runtime/messages", "runtime/profiling", "runtime/rendezvous", "runtime/trace"}},
      {"runtime/recovery",
       {"runtime/checkpoint", "runtime/disks", "runtime/identity", "runtime/job", "runtime/messages"}},
      {"runtime/rendezvous", {"runtime/device", "runtime/execute", "runtime/messages"}},
      {"runtime/tokenizer", {}},
      {"runtime/validation", {"runtime/execute", "runtime/files", "runtime/identity", "runtime/job"}},
      {"runtime/profiling", {"runtime/device", "runtime/execute", "runtime/files", "runtime/kernels/base"}},

      {"planning/request", {}},
      {"planning/model", {"planning/request"}},
      {"planning/programs", {"planning/model", "planning/request"}},
      {"planning/search", {"planning/model", "planning/programs", "planning/request"}},
      {"planning/directory", {"planning/model", "planning/programs", "planning/request"}},
      {"planning/fewer", {"planning", "planning/directory", "planning/model", "planning/request"}},
      {"planning/trained", {"planning/model", "planning/directory"}},
      {"planning", {"planning/model", "planning/programs", "planning/request", "planning/search"}},

      {"tools",
       {"tools/observe", "tools/options", "tools/output", "tools/report", "tools/simulation",
        "tools/validation"}},
      {"tools/observe", {"tools/output", "tools/report"}},
      {"tools/options", {"tools/simulation"}},
      {"tools/output", {}},
      {"tools/report", {"tools/simulation"}},
      {"tools/simulation", {}},
      {"tools/validation", {"tools/report"}},
  };
  return arrows;
}

}  // namespace pipeshard::house
