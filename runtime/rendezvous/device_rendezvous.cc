#include "runtime/rendezvous/device_rendezvous.h"

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
constexpr std::string_view kStaged = "staged ";

std::string placeKey(RankId rank) { return fmt::format("devices/{}", rank); }

// Why ranks do not reach each other straight; "": they can.
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
  const std::string why = obstacle(rendezvous, device);
  if (why.empty()) return fmt::format("{}{}", kStraight, device.network()->newMeeting());
  if (rendezvous.asked == DeviceTransport::kNccl) {
    fail(ErrorCode::kConfiguration,
         "--transport nccl: {}; --transport staged lets tensors go through the host's memory", why);
  }
  return fmt::format("{}{}", kStaged, why);
}

}  // namespace

DeviceConnection connectDevices(const DeviceRendezvous& rendezvous, Device& device) {
  DeviceConnection connection;
  if (rendezvous.ranks == 1) return connection;
  rendezvous.store(placeKey(rendezvous.rank), device.place());
  if (rendezvous.rank == RankId(0)) rendezvous.store(kChoice, choose(rendezvous, device));
  const std::string choice = rendezvous.fetch(kChoice);
  if (choice.starts_with(kStaged)) {
    connection.text = fmt::format("GPUs give each other tensors through the host's memory: {}",
                                  choice.substr(kStaged.size()));
    return connection;
  }
  std::set<std::vector<RankId>> groups;
  for (ProgramFolder* folder : rendezvous.folders) {
    connection.orders.push_back(deviceOrder(*folder, rendezvous.rank));
    groups.insert(connection.orders.back().groups.begin(), connection.orders.back().groups.end());
  }
  DeviceNetwork* network = device.network();
  if (network == nullptr)
    fail(ErrorCode::kConfiguration, "rank {}: this pipeshard was built without NCCL, that of rank 0 with it",
         rendezvous.rank);
  connection.text =
      fmt::format("GPUs give each other tensors by {}, all {} ranks", network->name(), rendezvous.ranks);
  connection.communicator = network->meet({choice.substr(kStraight.size()),
                                           rendezvous.rank,
                                           rendezvous.ranks,
                                           {groups.begin(), groups.end()},
                                           rendezvous.timeout});
  return connection;
}

}  // namespace pipeshard
