#include "tests/sharding/device_threads.h"

#include <map>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "runtime/execute/collective_call.h"
#include "sharding/specs/resharding_emit.h"
#include "tests/transport/rank_threads.h"

namespace pipeshard::testing {
namespace {

class MeshCollectives : public Collectives {
 public:
  MeshCollectives(Communicator& communicator, const LogicalMesh& mesh, RankId first_rank)
      : communicator_(communicator) {
    for (int axis = 0; axis < mesh.rank(); ++axis) {
      Group& line = lines_.emplace_back();
      for (const DeviceId member :
           mesh.lineOf(DeviceId(communicator.rank().index() - first_rank.index()), axis))
        line.push_back(RankId(first_rank.index() + member.index()));
    }
  }
  void call(const CollectiveCall& call) override {
    runCollective(communicator_, lines_.at(call.group), call);
  }

 private:
  Communicator& communicator_;
  IdVector<GroupId, Group> lines_;
};

template <typename Body>
void withElements(DataType type, Body&& body) {
  switch (type) {
    case DataType::kFloat32: return body(float{});
    case DataType::kFloat64: return body(double{});
    case DataType::kInt32: return body(int32_t{});
    case DataType::kInt64: return body(int64_t{});
    default: PIPESHARD_CHECK(false, "tests use no {}", dataTypeName(type));
  }
}

// splitmix64: the same everywhere.
int64_t smallInteger(uint64_t number) {
  number += 0x9e3779b97f4a7c15ULL;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9ULL;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<int64_t>((number ^ (number >> 31)) % 2001) - 1000;
}

// For every element of the shard, in order: body(position in the shard, position in the whole tensor).
template <typename Body>
void forElements(const Shard& shard, const Shape& whole, Body&& body) {
  const Shape strides = rowMajorStrides(whole);
  const int64_t count = elementCount(shard.size);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0;
    int64_t rest = i;
    for (size_t a = whole.size(); a-- > 0;) {
      at += (shard.start[a] + rest % shard.size[a]) * strides[a];
      rest /= shard.size[a];
    }
    body(i, at);
  }
}

// Which summand a device holds, and how many there are.
std::pair<uint64_t, uint64_t> summandOf(const ShardingSpec& spec, const LogicalMesh& mesh, DeviceId device) {
  uint64_t index = 0, count = 1;
  for (int axis : spec.partial) {
    index = index * static_cast<uint64_t>(mesh.axisSize(axis)) +
            static_cast<uint64_t>(mesh.coordinate(device, axis));
    count *= static_cast<uint64_t>(mesh.axisSize(axis));
  }
  return {index, count};
}

Constant emptyShard(const Constant& whole, const Shard& shard) {
  return {whole.data_type, shard.size, std::vector<std::byte>(byteCount(whole.data_type, shard.size))};
}

}  // namespace

MeshGroups meshGroups(const LogicalMesh& mesh) {
  MeshGroups groups;
  for (int axis = 0; axis < mesh.rank(); ++axis)
    groups.group_of_axis.push_back(mesh.axisSize(axis) == 1 ? GroupId() : GroupId(axis));
  return groups;
}

std::unique_ptr<Collectives> meshCollectives(Communicator& communicator, const LogicalMesh& mesh,
                                             RankId first_rank) {
  return std::make_unique<MeshCollectives>(communicator, mesh, first_rank);
}

void runDevices(const LogicalMesh& mesh, const std::function<void(DeviceId, Collectives&)>& body) {
  runRankThreads(mesh.deviceCount(), [&](Communicator& communicator) {
    body(DeviceId(communicator.rank().index()), *meshCollectives(communicator, mesh, RankId(0)));
  });
}

Constant shardOfTensor(const Constant& whole, const ShardingSpec& spec, const LogicalMesh& mesh,
                       DeviceId device) {
  const Shard shard = shardOf(spec, whole.shape, mesh, device);
  const std::pair<uint64_t, uint64_t> place = summandOf(spec, mesh, device);
  const uint64_t summand = place.first, count = place.second;
  Constant result = emptyShard(whole, shard);
  withElements(whole.data_type, [&](auto zero) {
    using T = decltype(zero);
    const auto* from = reinterpret_cast<const T*>(whole.bytes.data());
    auto* to = reinterpret_cast<T*>(result.bytes.data());
    forElements(shard, whole.shape, [&](size_t here, size_t there) {
      const auto part = [&](uint64_t k) { return static_cast<T>(smallInteger(there * 64 + k)); };
      to[here] = part(summand);
      if (summand + 1 < count) return;
      to[here] = from[there];
      for (uint64_t k = 0; k + 1 < count; ++k) to[here] -= part(k);
    });
  });
  return result;
}

void expectShards(const std::vector<Constant>& shards, const Constant& whole, const ShardingSpec& spec,
                  const LogicalMesh& mesh) {
  std::map<std::pair<Shape, uint64_t>, DeviceId> first;  // device by place and summand
  for (const DeviceId device : mesh.devices()) {
    const Constant& mine = shards[device.index()];
    const Shard shard = shardOf(spec, whole.shape, mesh, device);
    ASSERT_EQ(mine.shape, shard.size) << "device " << device.index();
    ASSERT_EQ(mine.data_type, whole.data_type);
    const auto known = first.try_emplace({shard.start, summandOf(spec, mesh, device).first}, device).first;
    EXPECT_EQ(mine.bytes, shards[known->second.index()].bytes)
        << "devices " << known->second.index() << ", " << device.index();
  }
  const uint64_t summands = summandOf(spec, mesh, DeviceId(0)).second;
  for (const auto& [place, device] : first) {
    if (place.second != 0) continue;
    const Shard shard = shardOf(spec, whole.shape, mesh, device);
    Constant sum = emptyShard(whole, shard);
    withElements(whole.data_type, [&, &place = place](auto zero) {
      using T = decltype(zero);
      auto* to = reinterpret_cast<T*>(sum.bytes.data());
      for (uint64_t k = 0; k < summands; ++k) {
        const Constant& part = shards[first.at({place.first, k}).index()];
        const auto* from = reinterpret_cast<const T*>(part.bytes.data());
        for (size_t i = 0; i < part.bytes.size() / sizeof(T); ++i) to[i] += from[i];
      }
    });
    ShardingSpec resolved = spec;
    resolved.partial.clear();
    EXPECT_EQ(sum.bytes, shardOfTensor(whole, resolved, mesh, device).bytes) << "device " << device.index();
  }
}

Constant integerTensor(DataType type, const Shape& shape, uint64_t seed) {
  Constant tensor{type, shape, std::vector<std::byte>(byteCount(type, shape))};
  withElements(type, [&](auto zero) {
    using T = decltype(zero);
    auto* elements = reinterpret_cast<T*>(tensor.bytes.data());
    for (size_t i = 0; i < tensor.bytes.size() / sizeof(T); ++i)
      elements[i] = static_cast<T>(smallInteger(seed * 1'000'003 + i));
  });
  return tensor;
}

}  // namespace pipeshard::testing
