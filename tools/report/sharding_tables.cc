#include "tools/report/sharding_tables.h"

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/ids_format.h"
#include "ir/base/sharding_spec.h"
#include "tools/report/text_table.h"

namespace pipeshard {

std::string combinationTable(const StageCombinations& stage, size_t most) {
  if (stage.combinations.empty()) return "";
  std::vector<std::vector<std::string>> rows(1);
  for (const auto& [name, spec] : stage.combinations.front().inputs) rows[0].push_back(name);
  for (const char* heading : {"compute", "communication", "exchanged", "memory"}) rows[0].push_back(heading);
  const size_t count = stage.combinations.size();
  for (size_t i = count > most ? count - most : 0; i < count; ++i) {
    const Combination& combination = stage.combinations[i];
    std::vector<std::string>& row = rows.emplace_back();
    for (const auto& [name, spec] : combination.inputs) row.push_back(printSpec(spec));
    row.push_back(formatNanoseconds(combination.compute_ns));
    row.push_back(formatNanoseconds(combination.communication_ns));
    row.push_back(formatBytes(combination.communication_bytes));
    row.push_back(formatBytes(combination.memory_bytes));
  }
  return fmt::format("stage {}: {} combinations of input shardings, best last{}\n{}", stage.stage, count,
                     count > most ? fmt::format(" (the best {})", most) : "", formatTable(rows));
}

}  // namespace pipeshard
