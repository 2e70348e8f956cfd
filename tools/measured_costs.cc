#include "tools/measured_costs.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/error.h"
#include "ir/trace_names.h"

namespace pipeshard {
namespace {

bool isDigit(char c) { return c >= '0' && c <= '9'; }

// Without numbers of microbatches: "0F3" and "recompute 0F3" lose the last one, "load x@3" what follows the @.
std::string stemOf(const std::string& name) {
  std::string stem;
  for (size_t i = 0; i < name.size(); ++i) {
    stem += name[i];
    if (name[i] != '@') continue;
    while (i + 1 < name.size() && isDigit(name[i + 1])) ++i;
  }
  size_t end = stem.size();
  while (end > 0 && isDigit(stem[end - 1])) --end;
  const bool pass = end > 1 && end < stem.size() && isDigit(stem[end - 2]) && std::string("FBIW").find(stem[end - 1]) != std::string::npos;
  return pass ? stem.substr(0, end) : stem;
}

Ticks median(std::vector<Ticks> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Sample {
  int rank = 0;
  std::string stem;
  int64_t step = 1;
  Ticks duration = 0;
};

// The rank in "measured rank 3 (stage 1)".
std::optional<int> rankIn(const std::string& process) {
  const size_t at = process.find("rank ");
  if (at == std::string::npos || at + 5 >= process.size() || !isDigit(process[at + 5])) return std::nullopt;
  return std::stoi(process.substr(at + 5, 6));
}

std::vector<Sample> samplesOf(const nlohmann::json& file) {
  std::map<int64_t, int> rank_of;
  for (const auto& event : file.at("traceEvents")) {
    if (event.at("name") != "process_name") continue;
    if (const std::optional<int> rank = rankIn(event.at("args").at("name"))) rank_of[event.at("pid")] = *rank;
  }
  std::vector<Sample> samples;
  for (const auto& event : file.at("traceEvents")) {
    const std::string category = event.value("cat", "");
    if (event.at("ph") != "X" || (category != "compute" && category != "copy")) continue;
    const auto rank = rank_of.find(event.at("pid"));
    if (rank == rank_of.end()) continue;
    samples.push_back({rank->second, stemOf(event.at("name")), event.at("args").value("step", int64_t{1}),
                       std::llround(event.at("dur").get<double>() * 1000)});
  }
  return samples;
}

}  // namespace

MeasuredDurations MeasuredDurations::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) fail(ErrorCode::kMissingInput, "{} cannot be read", path);
  std::vector<Sample> samples;
  try {
    samples = samplesOf(nlohmann::json::parse(text.str()));
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kConfiguration, "{}: expected a trace that `run --trace` has written: {}", path, error.what());
  }
  if (samples.empty()) fail(ErrorCode::kConfiguration, "{}: found no computing; expected a trace that `run --trace` has written", path);
  const auto [first, last] =
      std::minmax_element(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.step < b.step; });
  const int64_t left_out = first->step < last->step ? first->step : first->step - 1;
  std::map<std::pair<int, std::string>, std::vector<Ticks>> by_rank;
  std::map<std::string, std::vector<Ticks>> anywhere;
  for (const Sample& sample : samples) {
    if (sample.step == left_out) continue;
    by_rank[{sample.rank, sample.stem}].push_back(sample.duration);
    anywhere[sample.stem].push_back(sample.duration);
  }
  MeasuredDurations result;
  for (const auto& [key, values] : by_rank) result.by_rank_[key] = median(values);
  for (const auto& [key, values] : anywhere) result.anywhere_[key] = median(values);
  return result;
}

size_t MeasuredDurations::apply(const Program& program, ProgramCosts& costs) const {
  size_t applied = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    std::vector<WorkPart>& parts = costs.instructions[i];
    if (parts.size() != 1 || parts[0].group >= 0) continue;
    const std::string stem = stemOf(traceName(program, program.instructions[i]));
    const auto own = by_rank_.find({program.rank, stem});
    const auto other = anywhere_.find(stem);
    if (other == anywhere_.end()) continue;
    parts[0].compute = own != by_rank_.end() ? own->second : other->second;
    ++applied;
  }
  return applied;
}

}  // namespace pipeshard
