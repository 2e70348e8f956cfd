#include "ir/graph/lost_calls.h"

#include <algorithm>
#include <cstdlib>
#include <map>
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

bool isSumCall(std::string_view name) {
  const std::string_view kind = callKind(name);
  return kind == "add" || kind == "sub" || kind == "rsub";
}

std::string parentOf(const std::string& module) {
  const size_t dot = module.rfind('.');
  return dot == std::string::npos ? "" : module.substr(0, dot);
}

// The innermost module that has both in it.
std::string commonModule(std::string a, const std::string& b) {
  while (!a.empty() && a != b && !b.starts_with(a + ".")) a = parentOf(a);
  return a;
}

// Around the call. That of a layer computes nothing else.
std::string computingModule(const ExportedCall& call) {
  for (const char* layer : {"aten.linear", "aten.conv", "aten.embedding", "_norm"}) {
    if (isCallOf(call, layer)) return parentOf(call.module);
  }
  return call.module;
}

// "view(%x, [%mul_6, 5])"
bool isSizeOf(const ExportedCall& reader, const std::string& name) {
  const bool takes_sizes = isCallOf(reader, "aten.view.") || isCallOf(reader, "aten.reshape.") ||
                           isCallOf(reader, "aten.expand.") || isCallOf(reader, "aten.slice.");
  return takes_sizes && name != reader.arguments.front();
}

// sqrt(v + 1e-12): the optimizer takes so small a number of the module's code for 0.
bool isKeptFromZero(const ExportedCall& reader, const std::string& name) {
  if (!isSumCall(name)) return false;
  if (isCallOf(reader, "aten.div.")) return name == reader.arguments.back() && reader.arguments.size() > 1;
  return isCallOf(reader, "aten.sqrt.") || isCallOf(reader, "aten.rsqrt.") || isCallOf(reader, "aten.log.") ||
         isCallOf(reader, "aten.reciprocal.");
}

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

  std::vector<LeftOutCall> leftOut() {
    const std::vector<std::string> outputs = signatureOutputs(graph_);
    for (const std::string& output : outputs) users_[output].insert("");  // the module's result
    for (const ExportedCall& call : calls_) {
      for (const std::string& argument : call.arguments) users_[argument].insert(call.name);
    }
    for (size_t n = 0; n < calls_.size(); ++n) findLeftOut(n);
    if (outputs.size() != graph_.outputs.size()) return std::move(left_out_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const NodeId maker = uses_.producer[graph_.outputs[i].index()];
      if (!isLeftOut(outputs[i]) || !maker.valid() || !mayBeNumber(graph_.outputs[i])) continue;
      // Where marks are gone (a file that was written again, a traced backward pass) nothing tells.
      const ExportedCall& kept = calls_[maker.index()];
      if (!kept.name.empty() && hasLostUsers(kept, outputs[i])) addLeftOut({outputs[i], kept.name, ""});
    }
    return std::move(left_out_);
  }

 private:
  bool isLeftOut(const std::string& name) const {
    return (isSumCall(name) || isProductCall(name)) && !known_.contains(name);
  }

  bool mayBeNumber(ValueId id) const {
    const DataType type = graph_.value(id).data_type;
    return type == DataType::kUndefined || isFloatingPoint(type);
  }

  // Another call than the file's takes what `kept` gives, and `lost` is not just another one like it.
  bool hasLostUsers(const ExportedCall& kept, const std::string& lost) const {
    const auto found = users_.find(kept.name);
    const auto users = found != users_.end() ? std::ssize(found->second) : 0;
    return kept.users >= 0 ? kept.users > users : !mayBeMerged(lost, kept.name);
  }

  void findLeftOut(size_t n) {
    const ExportedCall& reader = calls_[n];
    const auto lost =
        std::find_if(reader.arguments.begin(), reader.arguments.end(), [&](const std::string& name) {
          return isLeftOut(name) && !isSizeOf(reader, name) && !isKeptFromZero(reader, name);
        });
    if (lost == reader.arguments.end()) return;
    std::vector<std::string> open = reader.arguments;
    for (const ValueId input : graph_.nodes[n].inputs) {
      if (!input.valid() || graph_.initializers.contains(input)) continue;
      const NodeId maker = uses_.producer[input.index()];
      const ExportedCall* kept = maker.valid() ? &calls_[maker.index()] : nullptr;
      if (kept != nullptr && kept->name == reader.name) continue;
      const Value& value = graph_.value(input);
      const std::string name = kept != nullptr ? mentionedAs(graph_.node(maker), value) : value.name;
      const auto mention = std::find(open.begin(), open.end(), name);
      if (mention != open.end()) {
        open.erase(mention);
        continue;
      }
      const bool is_call = kept != nullptr && kept->name == name;
      if (name.empty() || !mayBeNumber(input) || (is_call && !hasLostUsers(*kept, *lost))) continue;
      const std::string module = computingModule(reader);
      addLeftOut({*lost, name, kept != nullptr ? commonModule(module, computingModule(*kept)) : module});
    }
  }

  void addLeftOut(LeftOutCall call) {
    for (LeftOutCall& other : left_out_) {
      if (other.name != call.name) continue;
      other.module = commonModule(other.module, call.module);
      return;
    }
    left_out_.push_back(std::move(call));
  }

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
  std::vector<ExportedCall> calls_;                     // by node
  std::set<std::string> known_;                         // what a mention may be of
  std::map<std::string, std::set<std::string>> users_;  // calls by what they mention
  std::vector<LostCall> found_;
  std::vector<LeftOutCall> left_out_;
};

}  // namespace

bool isProductCall(std::string_view name) {
  const std::string_view kind = callKind(name);
  return kind == "mul" || kind == "div" || kind == "true_divide";
}

std::string mentionedAs(const Node& maker, const Value& value) {
  return isResult(value.name) ? value.name : exportedCall(maker).name;
}

std::vector<LostCall> lostCalls(const Graph& graph) { return LostCalls(graph).run(); }

std::vector<LeftOutCall> leftOutCalls(const Graph& graph) { return LostCalls(graph).leftOut(); }

}  // namespace pipeshard
