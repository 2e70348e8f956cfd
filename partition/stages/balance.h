// --balance: what is to be equal among stages, and the layers and stages that follow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "partition/layers/chain.h"

namespace pipeshard {

struct Balance {
  enum class Kind : uint8_t {
    kFlops,  // "flops": forward and backward FLOPs per device; the default
    // "time": nanoseconds of the passes per device, as profiled or predicted (torchgpipe's balance_by_time)
    kTime,
    // "size": bytes per stage: activations, parameters, gradients, optimizer states (torchgpipe's
    // balance_by_size)
    kSize,
    kParameters,  // "parameters": bytes of parameters per stage (DeepSpeed's "parameters")
    kType,        // "type:REGEX": modules or operators that match, per device (DeepSpeed's "type:regex")
    kCounts,      // "3,5,5,1": layers per stage (torchgpipe's balance)
  };
  Kind kind = Kind::kFlops;
  std::string pattern;      // kType
  std::vector<int> counts;  // kCounts, each at least 1
};

// Error(kUsage) that lists the accepted forms.
Balance parseBalance(std::string_view text);
std::string balanceToString(const Balance& balance);  // parse gives the same balance

// A way to cut the forward nodes: layers, and the last layer of each stage.
struct Cuts {
  LayerEnds layer_ends;
  std::vector<LayerId> stage_ends;
};

// As many stages as widths[s] (devices of stage s) has entries. `layers`: how many layers to form, 0:
// automatic, four per stage or, for kCounts, as many as the counts have together; with kType each matching
// module is a layer, and so is each run of operators between them. Balances exactly, by assignStages: the
// largest stage first, then the others evenly. Errors: kConfiguration (fewer nodes, layers or matching
// modules than stages; counts that are not as many as the layers or the stages), kUsage (--layers with
// kType). `model`: of one device, for kTime.
Cuts balanceStages(const Chain& chain, const Balance& balance, const std::vector<int>& widths, int layers,
                   const CostModel& model = {});

}  // namespace pipeshard
