#include "runtime/rendezvous/device_rendezvous.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

// What rank 0 says to all: the way, and behind it the id of a meeting, or why.
constexpr const char* kChoice = "devices/choice";
constexpr std::string_view kStraight = "straight ";
constexpr std::string_view kNear = "near ";
constexpr std::string_view kStaged = "staged ";

std::string placeKey(RankId rank) { return fmt::format("devices/{}", rank); }

// Why ranks do not reach each other by NCCL; "": they can.
std::string obstacle(const DeviceRendezvous& rendezvous, Device& device) {
  if (device.network() == nullptr) return "this pipeshard was built without NCCL";
  std::map<std::string, RankId> found;
  for (const RankId rank : idsBelow<RankId>(rendezvous.ranks)) {
    const auto [other, is_first] = found.try_emplace(rendezvous.fetch(placeKey(rank)), rank);
    if (!is_first) return fmt::format("ranks {} and {} have one GPU", other->second, rank);
  }
  return "";
}

// Rank 0's.
std::string choose(const DeviceRendezvous& rendezvous, Device& device) {
  if (rendezvous.asked == DeviceTransport::kStaged) return fmt::format("{}as asked for", kStaged);
  if (rendezvous.asked == DeviceTransport::kIpc) return fmt::format("{}as asked for", kNear);
  const std::string why = obstacle(rendezvous, device);
  if (why.empty()) return fmt::format("{}{}", kStraight, device.network()->newMeeting());
  if (rendezvous.asked == DeviceTransport::kNccl) {
    fail(ErrorCode::kConfiguration,
         "--transport nccl: {}; --transport staged lets tensors go through the host's memory", why);
  }
  return fmt::format("{}{}", device.nearNetwork() == nullptr ? kStaged : kNear, why);
}

// Of this rank, for all folders.
std::set<std::vector<RankId>> findOrders(const DeviceRendezvous& rendezvous,
                                         std::vector<DeviceOrder>& orders) {
  std::set<std::vector<RankId>> groups;
  for (ProgramFolder* folder : rendezvous.folders) {
    orders.push_back(deviceOrder(*folder, rendezvous.rank));
    groups.insert(orders.back().groups.begin(), orders.back().groups.end());
  }
  return groups;
}

DeviceConnection staged(std::string_view why) {
  DeviceConnection connection;
  connection.text = fmt::format("GPUs give each other tensors through the host's memory: {}", why);
  return connection;
}

DeviceConnection connectStraight(const DeviceRendezvous& rendezvous, Device& device, std::string_view id) {
  DeviceConnection connection;
  const std::set<std::vector<RankId>> groups = findOrders(rendezvous, connection.orders);
  DeviceNetwork* network = device.network();
  if (network == nullptr)
    fail(ErrorCode::kConfiguration, "rank {}: this pipeshard was built without NCCL, that of rank 0 with it",
         rendezvous.rank);
  connection.text =
      fmt::format("GPUs give each other tensors by {}, all {} ranks", network->name(), rendezvous.ranks);
  connection.communicator = network->meet({std::string(id),
                                           rendezvous.rank,
                                           rendezvous.ranks,
                                           {groups.begin(), groups.end()},
                                           rendezvous.timeout});
  return connection;
}

// Each rank says something to all, several times: what all say, by rank.
auto exchangeBy(const DeviceRendezvous& rendezvous) {
  return [&rendezvous, round = 0](const std::string& said) mutable {
    const auto key = [&](RankId rank) { return fmt::format("devices/near/{}/{}", round, rank); };
    rendezvous.store(key(rendezvous.rank), said);
    std::vector<std::string> all;
    for (const RankId rank : idsBelow<RankId>(rendezvous.ranks)) all.push_back(rendezvous.fetch(key(rank)));
    ++round;
    return all;
  };
}

// Where it does not work, all ranks find the same reason. An order is missing on all of them, or on none.
DeviceConnection connectNear(const DeviceRendezvous& rendezvous, Device& device, std::string_view why) {
  DeviceNetwork* network = device.nearNetwork();
  if (network == nullptr)
    fail(ErrorCode::kConfiguration, "rank {}: its GPU cannot share memory, that of rank 0 can",
         rendezvous.rank);
  DeviceConnection connection;
  try {
    findOrders(rendezvous, connection.orders);
    DeviceMeeting meeting{"",
                          rendezvous.rank,
                          rendezvous.ranks,
                          {},
                          rendezvous.timeout,
                          rendezvous.host,
                          exchangeBy(rendezvous)};
    connection.communicator = network->meet(meeting);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    if (rendezvous.asked == DeviceTransport::kIpc) {
      fail(ErrorCode::kConfiguration,
           "--transport ipc: {}; --transport staged lets tensors go through the host's memory",
           error.message());
    }
    return staged(fmt::format("{}, and {} does not work: {}", why, network->name(), error.message()));
  }
  connection.text = fmt::format("GPUs give each other tensors by {}, all {} ranks: {}", network->name(),
                                rendezvous.ranks, why);
  return connection;
}

}  // namespace

DeviceConnection connectDevices(const DeviceRendezvous& rendezvous, Device& device) {
  if (rendezvous.ranks == 1) return {};
  rendezvous.store(placeKey(rendezvous.rank), device.place());
  if (rendezvous.rank == RankId(0)) rendezvous.store(kChoice, choose(rendezvous, device));
  const std::string choice = rendezvous.fetch(kChoice);
  const auto rest = [&](std::string_view way) { return std::string_view(choice).substr(way.size()); };
  if (choice.starts_with(kStaged)) return staged(rest(kStaged));
  if (choice.starts_with(kNear)) return connectNear(rendezvous, device, rest(kNear));
  return connectStraight(rendezvous, device, rest(kStraight));
}

}  // namespace pipeshard
