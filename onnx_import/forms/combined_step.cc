#include "onnx_import/forms/combined_step.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using NamedValues = std::unordered_map<std::string, ValueId>;

std::vector<std::string> namesAttribute(const Node& node, const std::string& attribute) {
  const auto found = node.attributes.find(attribute);
  if (found == node.attributes.end()) return {};
  const auto* names = std::get_if<std::vector<std::string>>(&found->second);
  if (names == nullptr)
    fail(ErrorCode::kBadModel, "{}: its attribute '{}' is no list of names", describeNode(node), attribute);
  return *names;
}

// Nodes behind all that they read, else in their order: a Gradient now reads what may be computed later.
void sortNodes(Graph& graph) {
  std::vector<bool> known(graph.values.size(), true);
  for (const Node& node : graph.nodes) {
    for (ValueId id : node.outputs) {
      if (id.valid()) known[id.index()] = false;
    }
  }
  std::vector<Node> sorted, left = std::move(graph.nodes);
  while (!left.empty()) {
    std::vector<Node> later;
    for (Node& node : left) {
      const bool ready = std::all_of(node.inputs.begin(), node.inputs.end(),
                                     [&](ValueId id) -> bool { return !id.valid() || known[id.index()]; });
      std::vector<Node>& place = ready ? sorted : later;
      for (ValueId id : node.outputs) {
        if (ready && id.valid()) known[id.index()] = true;
      }
      place.push_back(std::move(node));
    }
    if (later.size() == left.size())
      fail(ErrorCode::kBadModel, "{}: the gradient depends on itself", describeNode(later.front()));
    left = std::move(later);
  }
  graph.nodes = std::move(sorted);
}

class StepCombiner {
 public:
  explicit StepCombiner(const Graph& graph) : step_{graph, {}, {}, {}}, builder_(step_.graph) {
    for (size_t i = 0; i < graph.values.size(); ++i) model_.emplace(graph.values[i].name, ValueId(i));
  }

  CombinedStep combine(const std::vector<TrainingInfo>& infos) {
    for (size_t i = 0; i < infos.size(); ++i) {
      try {
        add(infos[i]);
      } catch (Error& error) {
        error.addContext(fmt::format("TrainingInfoProto {}", i));
        throw;
      }
    }
    const UseDef uses = computeUseDef(step_.graph);
    for (const auto& [node, independent] : independent_) checkIndependent(uses, node, independent);
    const std::vector<bool> before =
        step_.loss.valid() ? valuesBefore(step_.graph, {step_.loss}) : std::vector<bool>();
    for (const auto& [of, gradient] : step_.gradients) {
      if (before[gradient.index()]) {
        fail(ErrorCode::kBadModel,
             "'{}' depends on its own gradient by '{}': gradients of gradients are not supported",
             name(step_.loss), name(of));
      }
    }
    sortNodes(step_.graph);
    return std::move(step_);
  }

 private:
  const std::string& name(ValueId id) const { return step_.graph.value(id).name; }

  void add(const TrainingInfo& info) {
    const Graph& algorithm = info.algorithm;
    NamedValues own;
    std::vector<ValueId> ids = defineOwn(algorithm, own);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!ids[i].valid()) ids[i] = read(model_.at(algorithm.values[i].name));
    }
    const auto mapped = [&](ValueId id) { return id.valid() ? ids[id.index()] : id; };
    for (Node node : algorithm.nodes) {
      if (hasSubgraphs(node) && !assigned_.empty()) {
        fail(ErrorCode::kBadModel, "{}: control flow in a step behind another one is not supported",
             describeNode(node));
      }
      std::transform(node.inputs.begin(), node.inputs.end(), node.inputs.begin(), mapped);
      std::transform(node.outputs.begin(), node.outputs.end(), node.outputs.begin(), mapped);
      if (isGradient(node)) addGradient(node, own);
      step_.graph.nodes.push_back(std::move(node));
    }
    for (ValueId id : algorithm.outputs) addOnce(mapped(id), step_.graph.outputs);
    assign(info.update_binding, own);
  }

  // What the algorithm defines itself: its inputs, its initializers, what its nodes make.
  std::vector<ValueId> defineOwn(const Graph& algorithm, NamedValues& own) {
    std::vector<ValueId> ids(algorithm.values.size());
    const auto define = [&](ValueId id) {
      const Value& value = algorithm.value(id);
      ValueId& made = ids[id.index()];
      if (made.valid()) return;
      if (model_.contains(value.name)) {
        fail(ErrorCode::kBadModel, "the algorithm defines '{}', which the model defines already", value.name);
      }
      made = builder_.addValue(value.name, value.data_type, {});
      const std::string unique = name(made);
      step_.graph.value(made) = value;
      step_.graph.value(made).name = unique;
      own.emplace(value.name, made);
    };
    for (ValueId id : algorithm.inputs) {
      const auto known = model_.find(algorithm.value(id).name);
      if (known != model_.end() && contains(step_.graph.inputs, known->second)) continue;  // the model's
      define(id);
      step_.graph.inputs.push_back(ids[id.index()]);
    }
    for (const auto& [id, initializer] : algorithm.initializers) {
      define(id);
      step_.graph.initializers.emplace(ids[id.index()], initializer);
    }
    for (const Node& node : algorithm.nodes) {
      for (ValueId id : node.outputs) {
        if (id.valid()) define(id);
      }
    }
    return ids;
  }

  static bool contains(const std::vector<ValueId>& values, ValueId id) {
    return std::find(values.begin(), values.end(), id) != values.end();
  }
  static void addOnce(ValueId id, std::vector<ValueId>& values) {
    if (!contains(values, id)) values.push_back(id);
  }

  // A value of the model as an algorithm sees it: what the steps before have assigned to it.
  ValueId read(ValueId id) const {
    if (const auto found = assigned_.find(id); found != assigned_.end()) return found->second;
    if (!step_.graph.initializers.contains(id)) refuseAfterChange(id);
    return id;
  }

  // What depends on an initializer that a step before has changed would have to be computed again.
  void refuseAfterChange(ValueId id) const {
    if (assigned_.empty()) return;
    const std::vector<bool> before = valuesBefore(step_.graph, {id});
    for (const auto& [initializer, updated] : assigned_) {
      if (!before[initializer.index()]) continue;
      fail(ErrorCode::kBadModel,
           "it needs '{}' once more, after the step before has changed '{}': pipeshard updates all weights "
           "at once, with gradients at the same weights. Put the updates into one TrainingInfoProto, or take "
           "the loss alone (a file without them)",
           name(id), name(initializer));
    }
  }

  ValueId named(const std::string& text, const NamedValues& own, const std::string& what) const {
    if (const auto found = own.find(text); found != own.end()) return found->second;
    if (const auto found = model_.find(text); found != model_.end()) return found->second;
    fail(ErrorCode::kBadModel, "{} names '{}', which is neither in the model nor in the algorithm", what,
         text);
  }

  // Reads `loss` and what it is differentiated by, from now on.
  void addGradient(Node& node, const NamedValues& own) {
    const std::string what = describeNode(node);
    const std::vector<std::string> xs = namesAttribute(node, "xs"), zs = namesAttribute(node, "zs");
    if (xs.empty() || node.inputs.size() != xs.size() + zs.size() || node.outputs.size() > xs.size()) {
      fail(ErrorCode::kBadModel, "{}: it has {} inputs and {} outputs, but {} xs and {} zs", what,
           node.inputs.size(), node.outputs.size(), xs.size(), zs.size());
    }
    const ValueId y = named(node.stringAttribute("y", ""), own, what);
    refuseAfterChange(y);
    if (step_.loss.valid() && step_.loss != y) {
      fail(ErrorCode::kBadModel,
           "{}: it differentiates '{}', another one '{}': pipeshard trains with one loss for all weights",
           what, name(y), name(step_.loss));
    }
    step_.loss = y;
    std::vector<ValueId> independent;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const std::string& symbol = i < xs.size() ? xs[i] : zs[i - xs.size()];
      independent.push_back(named(symbol, own, what));
      if (node.inputs[i] == independent[i]) continue;
      fail(ErrorCode::kBadModel,
           "{}: it differentiates at '{}' in the place of '{}': pipeshard differentiates where the loss is "
           "computed",
           what, node.inputs[i].valid() ? name(node.inputs[i]) : "", symbol);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId gradient = node.outputs[i];
      if (!gradient.valid()) continue;
      if (!step_.gradients.emplace(independent[i], gradient).second)
        fail(ErrorCode::kBadModel, "{}: '{}' has a gradient already", what, xs[i]);
      step_.graph.value(gradient).data_type = step_.graph.dataType(independent[i]);
      step_.graph.value(gradient).shape = step_.graph.value(independent[i]).shape;
    }
    node.inputs = {y};
    node.inputs.insert(node.inputs.end(), independent.begin(),
                       independent.begin() + static_cast<std::ptrdiff_t>(xs.size()));
    independent_.emplace_back(what, std::move(independent));
  }

  // A value that is held, and follows from one that is differentiated by, takes a part of the gradient away.
  void checkIndependent(const UseDef& uses, const std::string& node,
                        const std::vector<ValueId>& independent) const {
    for (ValueId held : independent) {
      if (!uses.producer[held.index()].valid()) continue;
      const std::vector<bool> before = valuesBefore(step_.graph, {held});
      for (ValueId id : independent) {
        if (id == held || !before[id.index()]) continue;
        fail(ErrorCode::kBadModel,
             "{}: it holds '{}', which follows from '{}': what passes it is left out of the gradient, which "
             "pipeshard does not do",
             node, name(held), name(id));
      }
    }
  }

  void assign(const Metadata& binding, const NamedValues& own) {
    std::map<ValueId, ValueId> made;
    for (const auto& [key, value] : binding) {
      const ValueId initializer = named(key, own, "update_binding"),
                    updated = named(value, own, "update_binding");
      if (!step_.graph.initializers.contains(initializer))
        fail(ErrorCode::kBadModel, "update_binding sets '{}', which is no initializer", key);
      const bool of_model = !own.contains(value);
      if (!step_.updates.emplace(initializer, of_model ? read(updated) : updated).second)
        fail(ErrorCode::kBadModel, "update_binding sets '{}' twice", key);
      made.emplace(initializer, step_.updates.at(initializer));
    }
    assigned_.merge(made);
  }

  CombinedStep step_;
  GraphBuilder builder_;
  NamedValues model_;                                                      // of the model alone
  std::map<ValueId, ValueId> assigned_;                                    // by the steps so far
  std::vector<std::pair<std::string, std::vector<ValueId>>> independent_;  // of each Gradient: xs and zs
};

}  // namespace

CombinedStep combineStep(const Graph& graph, const std::vector<TrainingInfo>& infos) {
  return StepCombiner(graph).combine(infos);
}

std::vector<bool> valuesBefore(const Graph& graph, const std::vector<ValueId>& values) {
  const UseDef uses = computeUseDef(graph);
  std::vector<bool> before(graph.values.size(), false);
  std::vector<ValueId> open = values;
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    if (before[id.index()]) continue;
    before[id.index()] = true;
    const NodeId producer = uses.producer[id.index()];
    if (!producer.valid()) continue;
    for (ValueId input : graph.node(producer).inputs) {
      if (input.valid()) open.push_back(input);
    }
  }
  return before;
}

bool isGradient(const Node& node) { return node.domain == kTrainingDomain && node.op_type == "Gradient"; }

}  // namespace pipeshard
