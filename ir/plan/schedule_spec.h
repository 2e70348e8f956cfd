// A schedule as a value, with its text and back: a family by name, and its options. Which families and
// options there are, and what they mean, partition/families/make_schedule.h says.
//
//   "1f1b"                       {"1f1b"}
//   "interleaved:v=3,group=4"    {"interleaved", {{"v", 3}, {"group", 4}}}
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pipeshard {

struct ScheduleOption {
  std::string name;
  int64_t value = 0;
  friend auto operator<=>(const ScheduleOption&, const ScheduleOption&) = default;
};

struct ScheduleSpec {
  std::string family;
  std::vector<ScheduleOption> options = {};  // in the order of the text

  // A plan's whose orders are those of a file: it has them beside (Plan::schedule_orders).
  static ScheduleSpec ofFile() { return {"file"}; }
  bool isOfFile() const { return *this == ofFile(); }
  // With one option more.
  ScheduleSpec with(std::string name, int64_t value) const;
  friend auto operator<=>(const ScheduleSpec&, const ScheduleSpec&) = default;
};

// A text taken apart, up to the first part that is no NAME=NUMBER from 0 on.
struct ScheduleText {
  ScheduleSpec spec;
  bool understood = true;
  std::string_view wrong = {};  // that part of the text, where it is not
};
ScheduleText readScheduleText(std::string_view text);
// Any family, any options. Error(kUsage) that shows the form.
ScheduleSpec parseScheduleSpec(std::string_view text);
std::string scheduleSpecToString(const ScheduleSpec& spec);  // parse gives the same

// Orders that a file has, in the form of scheduleToCsv (partition/schedules/schedule_csv.h).
struct OrdersFile {
  std::string path;
  friend bool operator==(const OrdersFile&, const OrdersFile&) = default;
};
// What --schedule may be.
using ScheduleChoice = std::variant<ScheduleSpec, OrdersFile>;
std::string scheduleChoiceToString(const ScheduleChoice& choice);

}  // namespace pipeshard
