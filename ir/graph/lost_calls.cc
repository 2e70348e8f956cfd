#include "ir/graph/lost_calls.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "ir/graph/exporter_marks.h"

namespace pipeshard {
namespace {

// 12 of "mul_12", 0 of "mul".
int64_t numberPart(std::string_view name) {
  const size_t end = callKind(name).size();
  return end == name.size() ? 0 : std::strtoll(std::string(name.substr(end + 1)).c_str(), nullptr, 10);
}

// The optimizer keeps the first one of two.
bool mayBeMerged(std::string_view lost, std::string_view kept) {
  return callKind(lost) == callKind(kept) && numberPart(lost) > numberPart(kept);
}

bool isResult(std::string_view name) { return callKind(name) == "getitem"; }

class LostCalls {
 public:
  explicit LostCalls(const Graph& graph) : graph_(graph), uses_(computeUseDef(graph)) {
    for (const Value& value : graph.values) {
      if (isResult(value.name)) known_.insert(value.name);
    }
    for (const ValueId input : graph.inputs) known_.insert(graph.value(input).name);
    for (const auto& [id, initializer] : graph.initializers) known_.insert(graph.value(id).name);
    for (const SignatureParameter& parameter : signatureParameters(graph)) known_.insert(parameter.argument);
    for (const SignatureParameter& buffer : signatureBuffers(graph)) known_.insert(buffer.argument);
    for (const Node& node : graph.nodes) calls_.push_back(exportedCall(node));
    for (const ExportedCall& call : calls_) known_.insert(call.name);
  }

  std::vector<LostCall> run() {
    for (size_t n = 0; n < calls_.size(); ++n) {
      std::vector<std::string> lost;
      for (const std::string& argument : calls_[n].arguments) {
        if (!known_.contains(argument)) lost.push_back(argument);
      }
      if (!lost.empty()) compare(n, lost);
    }
    return std::move(found_);
  }

 private:
  // Each mention stands for one operand.
  void compare(size_t n, const std::vector<std::string>& lost) {
    std::vector<std::string> open = calls_[n].arguments;
    for (const ValueId input : graph_.nodes[n].inputs) {
      const NodeId maker = input.valid() ? uses_.producer[input.index()] : NodeId();
      if (!maker.valid() || calls_[maker.index()].name == calls_[n].name) continue;
      const std::string kept = mentionedAs(graph_.node(maker), graph_.value(input));
      const auto mention = std::find(open.begin(), open.end(), kept);
      if (kept.empty() || mention != open.end()) {
        if (mention != open.end()) open.erase(mention);
        continue;
      }
      const auto equal = std::find_if(lost.begin(), lost.end(),
                                      [&](const std::string& name) { return mayBeMerged(name, kept); });
      const bool is_merged = equal != lost.end();
      found_.push_back({.reader = NodeId(n),
                        .value = input,
                        .kept = kept,
                        .lost = is_merged ? *equal : lost.front(),
                        .is_merged = is_merged});
    }
  }

  const Graph& graph_;
  const UseDef uses_;
  std::vector<ExportedCall> calls_;  // by node
  std::set<std::string> known_;      // what a mention may be of
  std::vector<LostCall> found_;
};

}  // namespace

std::string mentionedAs(const Node& maker, const Value& value) {
  return isResult(value.name) ? value.name : exportedCall(maker).name;
}

std::vector<LostCall> lostCalls(const Graph& graph) { return LostCalls(graph).run(); }

}  // namespace pipeshard
