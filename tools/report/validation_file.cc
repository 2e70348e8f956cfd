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
  Json json = {{"arena_bytes", rank.arena_bytes},
               {"constant_bytes", rank.constant_bytes},
               {"peak_resident_bytes", rank.peak_resident_bytes},
               {"parameters", parts.parameters},
               {"states", parts.states},
               {"gradients", parts.gradients},
               {"activations", parts.activations},
               {"workspace", parts.workspace},
               {"padding", parts.padding}};
  if (!rank.device.empty()) {
    json["device"] = rank.device;
    json["peak_device_bytes"] = rank.peak_device_bytes;
  }
  return json;
}

// Looked at before it is cast: what the library makes of 1e300 is undefined.
int64_t wholeOf(const Json& object, const char* key, int64_t high) {
  return JsonReader(object.at(key), key).integer(0, high);
}

RankResult memoryFromJson(const Json& json) {
  constexpr int64_t kMostBytes = int64_t{1} << 56;  // of which some can be added
  const auto bytes = [&](const char* key) { return wholeOf(json, key, kMostBytes); };
  RankResult rank;
  rank.device = json.value("device", "");
  rank.arena_bytes = bytes("arena_bytes");
  rank.constant_bytes = bytes("constant_bytes");
  rank.peak_resident_bytes = bytes("peak_resident_bytes");
  if (json.contains("peak_device_bytes")) rank.peak_device_bytes = bytes("peak_device_bytes");
  rank.memory = {bytes("parameters"),  bytes("states"),    bytes("gradients"),
                 bytes("activations"), bytes("workspace"), bytes("padding")};
  return rank;
}

ValidationReport fromJson(const Json& json) {
  if (json.at("version") != kVersion)
    fail(ErrorCode::kVersionMismatch, "version {}: expected {}; validate again", json.at("version").dump(),
         kVersion);
  ValidationReport report;
  report.ranks = static_cast<int>(wholeOf(json, "ranks", INT32_MAX));
  for (const Json& step : json.at("steps"))
    report.steps.push_back({numberFrom(step.at(0)), numberFrom(step.at(1))});
  for (const Json& entry : json.at("tensors")) {
    TensorComparison tensor;
    constexpr auto kLastKind = static_cast<int64_t>(ComparedKind::kUpdatedState);
    tensor.kind = static_cast<ComparedKind>(wholeOf(entry, "kind", kLastKind));
    tensor.name = entry.at("name");
    tensor.state = entry.value("state", "");
    tensor.step = wholeOf(entry, "step", INT64_MAX);
    tensor.error = numberFrom(entry.at("error"));
    tensor.largest_difference = numberFrom(entry.at("largest_difference"));
    tensor.bound = numberFrom(entry.at("bound"));
    report.tensors.push_back(std::move(tensor));
  }
  if (json.contains("float64")) {
    const Json& float64 = json.at("float64");
    report.in_float64.emplace();
    report.in_float64->passed = float64.at("passed");
    report.in_float64->compared = wholeOf(float64, "compared", INT64_MAX);
    report.in_float64->worst.error = numberFrom(float64.at("error"));
    report.in_float64->worst.bound = numberFrom(float64.at("bound"));
    if (float64.contains("own")) {
      const Json& own = float64.at("own");
      report.in_float64->own = {own.at("name"), numberFrom(own.at("error")), numberFrom(own.at("own"))};
    }
  }
  for (const Json& rank : json.at("memory")) report.planned.ranks.push_back(memoryFromJson(rank));
  if (json.contains("last_step")) {
    const Json& last = json.at("last_step");
    StepResult& step = report.planned.steps.emplace_back();
    step.step = wholeOf(last, "step", INT64_MAX);
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
  if (report.in_float64) {
    json["float64"] = {{"passed", report.in_float64->passed},
                       {"compared", report.in_float64->compared},
                       {"error", number(report.in_float64->worst.error)},
                       {"bound", number(report.in_float64->worst.bound)}};
    if (const auto& own = report.in_float64->own)
      json["float64"]["own"] = {
          {"name", own->name}, {"error", number(own->error)}, {"own", number(own->own)}};
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
