#include "runtime/checkpoint/resume_check.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/plan/moving_average.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/execute/rank_image.h"

namespace pipeshard {
namespace {

constexpr size_t kMost = 4;  // names in a message
constexpr std::string_view kLossScale = "loss_scale";

// "w" of "parameter/w".
std::string withoutPrefix(const std::string& tensor) { return tensor.substr(tensor.find('/') + 1); }

// "first_moment" of "state/w.first_moment"; the scale of the loss and its count of steps are one kind.
std::string kindOfState(const std::string& tensor) {
  const std::string name = withoutPrefix(tensor);
  if (name == kLossScale || name == fmt::format("{}.steps", kLossScale)) return std::string(kLossScale);
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

std::vector<std::string> namesOf(const std::vector<std::string>& tensors, std::string_view prefix) {
  std::vector<std::string> names;
  for (const std::string& tensor : tensors) {
    if (tensor.starts_with(prefix)) names.push_back(withoutPrefix(tensor));
  }
  return names;
}

std::set<std::string> kindsOf(const std::vector<std::string>& tensors) {
  std::set<std::string> kinds;
  for (const std::string& tensor : tensors) {
    if (tensor.starts_with(kStatePrefix)) kinds.insert(kindOfState(tensor));
  }
  return kinds;
}

// What goes on in any case.
std::string exportIt(const Checkpoint& checkpoint) {
  return fmt::format(
      "export it (`pipeshard export {} -o trained.onnx`), plan trained.onnx with this plan's options, and "
      "run that plan with another --checkpoint folder",
      checkpoint.directory);
}

// Of a damaged manifest the most that can be counted.
int64_t times(int64_t steps, int64_t each) {
  int64_t all = 0;
  return __builtin_mul_overflow(steps, each, &all) ? INT64_MAX : all;
}

std::string describeExtent(const StepExtent& extent, int64_t steps) {
  return fmt::format("{} and {}", counted(times(steps, extent.examples), "example"),
                     counted(times(steps, extent.updates), "update"));
}

class ResumeCheck {
 public:
  ResumeCheck(const KeptTensors& kept, const Checkpoint& checkpoint) : kept_(kept), checkpoint_(checkpoint) {
    std::set<std::string> found;
    for (const CheckpointTensor& tensor : checkpoint.tensors) {
      found.insert(tensor.name);
      if (!kept.contains(tensor.name)) left_.push_back(tensor.name);
    }
    for (const auto& [name, tensor] : kept) {
      if (!found.contains(name))
        missing_.push_back(name);
      else
        goes_on_ |= name.starts_with(kParameterPrefix);
    }
  }

  std::vector<std::string> run() const {
    if (!goes_on_) refuseModel();
    for (const CheckpointTensor& tensor : checkpoint_.tensors) compare(tensor);
    refuseToLose(kParameterPrefix, "parameter", "train", "--freeze, --train and --loss");
    refuseToLose(kForwardStatePrefix, "running statistic", "keep", "--mode");
    refuseMissing(kParameterPrefix, "parameter", "trains",
                  "did not train them: it froze them (--freeze, --train), or its loss or its model does not "
                  "have them");
    refuseMissing(kForwardStatePrefix, "running statistic", "keeps",
                  "left them as the model's file has them (--mode)");
    refuseMissingStates();
    const std::set<std::string> kinds = kindsOf(left_);
    return {kinds.begin(), kinds.end()};
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    fail(ErrorCode::kConfiguration, "checkpoint {} {}", checkpoint_.directory, reason);
  }

  [[noreturn]] void refuseModel() const {
    refuse(fmt::format(
        "has none of the parameters that this plan trains ({}): it was made of another model, or its plan "
        "trains others; give another --checkpoint folder",
        listed(namesOf(missing_, kParameterPrefix), kMost)));
  }

  void compare(const CheckpointTensor& tensor) const {
    const auto found = kept_.find(tensor.name);
    if (found == kept_.end()) return;
    const auto& [data_type, shape] = found->second;
    if (!haveOneShape(shape, tensor.shape)) {
      refuse(fmt::format(
          "has '{}' of {}, this plan of {}: it was made {}; give another --checkpoint folder", tensor.name,
          shapeToString(tensor.shape), shapeToString(shape),
          tensor.name.starts_with(kStatePrefix) ? "with another --optimizer" : "of another model"));
    }
    if (data_type != tensor.data_type) {
      refuse(fmt::format(
          "has '{}' as {}, this plan keeps it as {}. Plan with the --precision of the plan that saved it; or "
          "{}",
          tensor.name, dataTypeName(tensor.data_type), dataTypeName(data_type), exportIt(checkpoint_)));
    }
  }

  void refuseToLose(std::string_view prefix, const char* noun, const char* verb, const char* options) const {
    const std::vector<std::string> names = namesOf(left_, prefix);
    if (names.empty()) return;
    refuse(fmt::format(
        "has {} that this plan does not {}: {}. The plan would take what the model's file has, and what was "
        "learned would be lost. Plan with the {} of the plan that saved it; or {}",
        counted(std::ssize(names), noun), verb, listed(names, kMost), options, exportIt(checkpoint_)));
  }

  void refuseMissing(std::string_view prefix, const char* noun, const char* verb, const char* reason) const {
    const std::vector<std::string> names = namesOf(missing_, prefix);
    if (names.empty()) return;
    refuse(fmt::format(
        "has not {} that this plan {}: {}. The plan that saved it {}. Plan with its options; or {}",
        counted(std::ssize(names), noun), verb, listed(names, kMost), reason, exportIt(checkpoint_)));
  }

  void refuseMissingStates() const {
    constexpr const char* kText =
        "has no {}, which this plan's {} keeps: the plan that saved it has another one, or none. Plan with "
        "that; or {}";
    std::set<std::string> kinds = kindsOf(missing_);
    if (kinds.empty()) return;
    if (kinds.contains(std::string(kLossScale)))
      refuse(fmt::format(kText, "scale of the loss", "--precision float16", exportIt(checkpoint_)));
    if (kinds == std::set<std::string>{std::string(kMovingAverage)})
      refuse(fmt::format(kText, "moving averages of parameters", "--ema", exportIt(checkpoint_)));
    kinds.erase(std::string(kMovingAverage));
    refuse(fmt::format(kText, listed({kinds.begin(), kinds.end()}, kMost), "--optimizer",
                       exportIt(checkpoint_)));
  }

  const KeptTensors& kept_;
  const Checkpoint& checkpoint_;
  std::vector<std::string> left_, missing_;  // tensors that the plan, the checkpoint has not
  bool goes_on_ = false;                     // some parameter
};

}  // namespace

KeptTensors keptTensors(ProgramFolder& programs) {
  KeptTensors kept;
  std::set<KindId> seen;
  for (const RankId rank : idsBelow<RankId>(programs.ranks())) {
    if (!seen.insert(programs.kindOf(rank)).second) continue;
    const Program program = programs.program(rank);
    for (const Buffer& buffer : program.buffers) {
      const std::string name = stateTensorName(buffer);
      if (!name.empty()) kept.try_emplace(name, KeptTensor{buffer.data_type, wholeShape(buffer)});
    }
  }
  return kept;
}

std::vector<std::string> requireFits(const KeptTensors& kept, const Checkpoint& checkpoint) {
  return ResumeCheck(kept, checkpoint).run();
}

void requireSameExtent(const StepExtent& plan, const Checkpoint& checkpoint) {
  if (!checkpoint.extent || *checkpoint.extent == plan) return;
  const StepExtent& saved = *checkpoint.extent;
  const int64_t batch = saved.examples / saved.updates;
  const std::string same =
      saved.updates > 1
          ? fmt::format("`--schedule pipedream --window {} --dim batch={}`", saved.updates, batch)
          : fmt::format("`--dim batch={}`{}", batch,
                        plan.updates > 1 ? " and a synchronous schedule (1f1b)" : "");
  fail(ErrorCode::kConfiguration,
       "checkpoint {} is of step {} of a plan whose steps are {}: it has done {}, or fewer examples where "
       "epochs have ended in a shorter batch. This plan's steps are {}: {} of them stand for {}, so data "
       "would be left out or used again, and learning rates be those of "
       "other updates. Plan with steps of the same size ({}, where the batch's dimension is named so; with "
       "--accumulate N, an Nth of it); or {}: data and learning rates begin anew there",
       checkpoint.directory, checkpoint.step, describeExtent(saved, 1),
       describeExtent(saved, checkpoint.step), describeExtent(plan, 1), checkpoint.step,
       describeExtent(plan, checkpoint.step), same, exportIt(checkpoint));
}

}  // namespace pipeshard
