#include "tools/report/validation_file.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"

namespace pipeshard {
namespace {

constexpr int kVersion = 1;

// JSON has no infinity: null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }
double numberFrom(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::infinity() : json.get<double>();
}

Json memoryToJson(const RankResult& rank) {
  const MemoryParts& parts = rank.memory;
  return {{"arena_bytes", rank.arena_bytes},
          {"constant_bytes", rank.constant_bytes},
          {"peak_resident_bytes", rank.peak_resident_bytes},
          {"parameters", parts.parameters},
          {"states", parts.states},
          {"gradients", parts.gradients},
          {"activations", parts.activations},
          {"workspace", parts.workspace},
          {"padding", parts.padding}};
}

RankResult memoryFromJson(const Json& json) {
  RankResult rank;
  rank.arena_bytes = json.at("arena_bytes");
  rank.constant_bytes = json.at("constant_bytes");
  rank.peak_resident_bytes = json.at("peak_resident_bytes");
  rank.memory = {json.at("parameters"),  json.at("states"),    json.at("gradients"),
                 json.at("activations"), json.at("workspace"), json.at("padding")};
  return rank;
}

ValidationReport fromJson(const Json& json) {
  if (json.at("version") != kVersion)
    fail(ErrorCode::kVersionMismatch, "version {}: expected {}; validate again", json.at("version").dump(),
         kVersion);
  ValidationReport report;
  report.ranks = json.at("ranks");
  for (const Json& step : json.at("steps"))
    report.steps.push_back({numberFrom(step.at(0)), numberFrom(step.at(1))});
  for (const Json& entry : json.at("tensors")) {
    TensorComparison tensor;
    const int kind = entry.at("kind");
    if (kind < 0 || kind > static_cast<int>(ComparedKind::kUpdatedState))
      fail(ErrorCode::kConfiguration, "tensors: there is no kind {}", kind);
    tensor.kind = static_cast<ComparedKind>(kind);
    tensor.name = entry.at("name");
    tensor.state = entry.value("state", "");
    tensor.step = entry.at("step");
    tensor.error = numberFrom(entry.at("error"));
    tensor.largest_difference = numberFrom(entry.at("largest_difference"));
    tensor.bound = numberFrom(entry.at("bound"));
    report.tensors.push_back(std::move(tensor));
  }
  for (const Json& rank : json.at("memory")) report.planned.ranks.push_back(memoryFromJson(rank));
  if (json.contains("last_step")) {
    const Json& last = json.at("last_step");
    StepResult& step = report.planned.steps.emplace_back();
    step.step = last.at("step");
    step.seconds = last.at("seconds");
    step.compute_seconds = last.at("compute_seconds").get<IdVector<RankId, double>>();
    step.transfer_seconds = last.at("transfer_seconds").get<IdVector<RankId, double>>();
  }
  return report;
}

}  // namespace

std::string validationToJson(const ValidationReport& report) {
  Json json;
  json["version"] = kVersion;
  json["ranks"] = report.ranks;
  json["steps"] = json["tensors"] = json["memory"] = Json::array();
  for (const StepComparison& step : report.steps)
    json["steps"].push_back({number(step.loss), number(step.reference_loss)});
  for (const TensorComparison& tensor : report.tensors) {
    Json entry = {{"kind", static_cast<int>(tensor.kind)}, {"name", tensor.name}};
    if (!tensor.state.empty()) entry["state"] = tensor.state;
    entry["step"] = tensor.step;
    entry["error"] = number(tensor.error);
    entry["largest_difference"] = number(tensor.largest_difference);
    entry["bound"] = number(tensor.bound);
    json["tensors"].push_back(std::move(entry));
  }
  for (const RankResult& rank : report.planned.ranks) json["memory"].push_back(memoryToJson(rank));
  if (!report.planned.steps.empty()) {
    const StepResult& last = report.planned.steps.back();
    json["last_step"] = {{"step", last.step},
                         {"seconds", last.seconds},
                         {"compute_seconds", last.compute_seconds},
                         {"transfer_seconds", last.transfer_seconds}};
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

ValidationReport validationFromJson(std::string_view text) {
  try {
    return fromJson(parseJson(text, "it"));
  } catch (const Json::exception& error) {
    fail(ErrorCode::kConfiguration, "this is no result of `validate`: {}", error.what());
  }
}

std::optional<ValidationReport> readValidation(const std::string& plan_directory) {
  const std::string path = (std::filesystem::path(plan_directory) / kValidationFileName).string();
  const std::optional<std::string> text = readTextFile(path);
  if (!text) return std::nullopt;
  try {
    return validationFromJson(*text);
  } catch (Error& error) {
    error.addContext(path);
    throw;
  }
}

}  // namespace pipeshard
