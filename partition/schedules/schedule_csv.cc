#include "partition/schedules/schedule_csv.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "ir/base/error.h"
#include "partition/schedules/schedule_transfers.h"
#include "partition/schedules/schedule_verify.h"

namespace pipeshard {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::string_view kBlanks = " \t\r";
constexpr int kMostNumber = (1 << 20) - 1;  // of a stage or microbatch

class CsvReader {
 public:
  CsvReader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  ScheduleOrders read() {
    ScheduleOrders orders;
    std::vector<int> lines;
    for (size_t begin = 0; begin < text_.size(); ++line_) {
      const size_t end = std::min(text_.find('\n', begin), text_.size());
      line_begin_ = begin;
      orders.push_back(readLine(text_.substr(begin, end - begin)));
      begin = end + 1;
    }
    while (!orders.empty() && orders.back().empty()) orders.pop_back();
    if (orders.empty())
      fail(ErrorCode::kConfiguration,
           "{}: found no action; expected a line per pipeline rank, as 0F0,0F1,0B0,0B1", what_);
    const auto idle =
        std::find_if(orders.begin(), orders.end(), [](const auto& order) { return order.empty(); });
    if (idle != orders.end()) {
      fail(ErrorCode::kConfiguration,
           "{}:{}:1: found a line without actions; expected those of pipeline rank {}", what_,
           idle - orders.begin() + 1, idle - orders.begin());
    }
    return orders;
  }

 private:
  [[noreturn]] void failAt(std::string_view at, std::string_view expected) const {
    const size_t column = at.data() - text_.data() - line_begin_ + 1;
    fail(ErrorCode::kConfiguration, "{}:{}:{}: found \"{}\"; expected {}", what_, line_, column,
         at.substr(0, 40), expected);
  }

  static std::string_view trim(std::string_view text) {
    const size_t first = text.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) return text.substr(text.size());
    return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
  }

  std::vector<Action> readLine(std::string_view line) const {
    std::vector<Action> order;
    for (size_t begin = 0; begin <= line.size();) {
      const size_t end = std::min(line.find(',', begin), line.size());
      const std::string_view cell = trim(line.substr(begin, end - begin));
      begin = end + 1;
      if (cell.empty()) continue;
      if (cell.front() == '(') {
        readPair(cell, order);
      } else if (const std::optional<Action> action = readAction(cell)) {
        order.push_back(*action);
      }
    }
    return order;
  }

  void readPair(std::string_view cell, std::vector<Action>& order) const {
    const size_t close = cell.find(')');
    const size_t middle = cell.find(';');
    if (close == std::string_view::npos || middle > close || trim(cell.substr(close + 1)) != kOverlap) {
      failAt(cell, "a pair of a forward and a backward pass, as (0F3;7B1)OVERLAP_F_B");
    }
    const std::string_view texts[] = {trim(cell.substr(1, middle - 1)),
                                      trim(cell.substr(middle + 1, close - middle - 1))};
    for (const std::string_view text : texts) {
      const std::optional<Action> action = readAction(text);
      if (!action || !isPass(action->kind)) failAt(text, "a pass of an overlapped pair, as 0F3 or 7B1");
      order.push_back(*action);
    }
    order[order.size() - 2].overlaps_next = true;
  }

  // Stage or microbatch at `position`, which moves behind it; -1 where there is no digit.
  int readNumber(std::string_view cell, size_t& position) const {
    int number = -1;
    const auto [end, error] = std::from_chars(cell.data() + position, cell.data() + cell.size(), number);
    if (end == cell.data() + position || cell[position] == '-') return -1;
    if (error != std::errc() || number > kMostNumber)
      failAt(cell.substr(position), "a number up to " + std::to_string(kMostNumber));
    position = end - cell.data();
    return number;
  }

  // Nothing for UNSHARD and RESHARD.
  std::optional<Action> readAction(std::string_view cell) const {
    constexpr std::string_view kExpected =
        "an action: stage, one of F B I W SEND_F RECV_F SEND_B RECV_B REDUCE_GRAD UPDATE UNSHARD RESHARD, "
        "microbatch; as 2F0 or 3SEND_B1";
    size_t position = 0;
    Action action;
    const int stage = readNumber(cell, position);
    const size_t end = std::min(cell.find_first_of("0123456789", position), cell.size());
    const std::string_view name = cell.substr(position, end - position);
    position = end;
    action.microbatch = position < cell.size() ? readNumber(cell, position) : -1;
    if (stage < 0 || position < cell.size()) failAt(cell, kExpected);
    action.stage = StageId(stage);
    if (name == "UNSHARD" || name == "RESHARD") return std::nullopt;
    for (auto kind = ActionKind::kForward; kind <= ActionKind::kReceiveBackward;
         kind = static_cast<ActionKind>(static_cast<int>(kind) + 1)) {
      if (name != actionKindName(kind)) continue;
      action.kind = kind;
      const bool numbered = kind != ActionKind::kReduceGradients;
      if (numbered && action.microbatch < 0) failAt(cell, "a microbatch behind it, as 2F0");
      if (!numbered) action.microbatch = -1;
      return action;
    }
    failAt(cell, kExpected);
  }

  std::string_view text_;
  std::string_view what_;
  int line_ = 1;
  size_t line_begin_ = 0;
};

}  // namespace

std::string scheduleToCsv(const ScheduleOrders& orders) {
  std::string text;
  for (const std::vector<Action>& order : orders) {
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) text += ',';
      if (!order[i].overlaps_next || i + 1 == order.size()) {
        text += actionToString(order[i]);
        continue;
      }
      text += '(' + actionToString(order[i]) + ';' + actionToString(order[i + 1]) + ')';
      text += kOverlap;
      ++i;
    }
    text += '\n';
  }
  return text;
}

ScheduleOrders ordersFromCsv(std::string_view text, std::string_view what) {
  return CsvReader(text, what).read();
}

Schedule scheduleFromCsv(std::string_view text, std::string_view what) {
  Schedule schedule;
  schedule.spec = ScheduleSpec::ofFile();
  schedule.rank_of_stage.clear();
  schedule.forward_only = true;
  const ScheduleOrders read = ordersFromCsv(text, what);
  for (const PipelineRankId rank : read.ids()) {
    std::vector<Action>& order = schedule.orders.emplace_back();
    for (const Action& action : read[rank]) {
      if (isTransfer(action.kind) || action.kind == ActionKind::kReduceGradients) continue;
      if (action.kind == ActionKind::kUpdate) {
        fail(ErrorCode::kConfiguration,
             "{}: found {}; expected passes only: which weights the passes of an asynchronous schedule read "
             "is not part of a file; name the schedule instead",
             what, actionToString(action));
      }
      order.push_back(action);
      schedule.forward_only = schedule.forward_only && action.kind == ActionKind::kForward;
      schedule.microbatches = std::max(schedule.microbatches, action.microbatch + 1);
      RankOfStage& ranks = schedule.rank_of_stage;
      if (!ranks.has(action.stage)) ranks.resize(action.stage.index() + 1);
      if (!ranks[action.stage].valid()) ranks[action.stage] = rank;
    }
  }
  schedule.stages = schedule.rank_of_stage.size();
  try {
    verifySchedule(schedule);
  } catch (Error& error) {
    error.addContext(what);
    throw;
  }
  return schedule;
}

}  // namespace pipeshard
