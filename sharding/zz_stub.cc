#include "sharding/shard_stage.h"
#include "ir/error.h"
namespace pipeshard {
std::vector<Decision> explainSharding(const TrainingGraph&, const std::vector<NodeId>&, const CostModel&, const ShardStageOptions&, const ShardingResult&, int) { fail(ErrorCode::kInternal, "not yet"); }
std::vector<Combination> exhaustiveSharding(const TrainingGraph&, const std::vector<NodeId>&, const LogicalMesh&, const CostModel&, const ShardStageOptions&, int64_t) { fail(ErrorCode::kInternal, "not yet"); }
}
