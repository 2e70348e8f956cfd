#include "onnx_import/prepare/splice.h"

#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using Attributes = std::map<std::string, Attribute>;
using Renames = std::map<std::string, std::string>;

std::shared_ptr<const Graph> rewriteSubgraph(const Graph& subgraph, const Attributes& attributes,
                                             const Renames& renames, const Node& call);

Attributes rewriteAttributes(const Attributes& own, const Attributes& given, const Renames& renames,
                             const Node& call) {
  Attributes result;
  for (const auto& [name, attribute] : own) {
    if (const auto* reference = std::get_if<AttributeReference>(&attribute)) {
      const auto it = given.find(reference->name);
      if (it != given.end()) result.emplace(name, it->second);
    } else if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute)) {
      result.emplace(name, rewriteSubgraph(**body, given, renames, call));
    } else {
      result.emplace(name, attribute);
    }
  }
  return result;
}

// Two captured values that have become one are one: body(a, b) {.. a .. b ..} where both are x outside.
void mergeCaptures(Graph& subgraph, const std::vector<ValueId>& captured) {
  std::map<std::string, ValueId> first;
  std::map<ValueId, ValueId> merged;
  for (ValueId id : captured) {
    const auto [it, is_new] = first.emplace(subgraph.value(id).name, id);
    if (!is_new) merged.emplace(id, it->second);
  }
  if (merged.empty()) return;
  const auto replace = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) {
      const auto it = merged.find(id);
      if (it != merged.end()) id = it->second;
    }
  };
  for (Node& node : subgraph.nodes) replace(node.inputs);
  replace(subgraph.outputs);
  removeDeadCode(subgraph);
}

// A copy in which references to the caller's attributes are filled in and captured values have their new
// names.
std::shared_ptr<const Graph> rewriteSubgraph(const Graph& subgraph, const Attributes& attributes,
                                             const Renames& renames, const Node& call) {
  auto copy = std::make_shared<Graph>(subgraph);
  const std::map<std::string, ValueId> captured = capturedValues(subgraph);
  std::unordered_set<std::string> taken;
  for (const Value& value : subgraph.values) taken.insert(value.name);
  for (const auto& [from, to] : renames) taken.insert(to);
  Renames inner = renames;
  for (Value& value : copy->values) {
    if (captured.contains(value.name)) continue;
    inner.erase(value.name);  // shadowed from here on
    // A local name that equals the new name of something captured would hide it.
    for (const auto& [from, to] : renames) {
      if (to != value.name) continue;
      std::string fresh = value.name;
      for (int suffix = 1; taken.contains(fresh); ++suffix) fresh = fmt::format("{}_{}", value.name, suffix);
      inner[value.name] = fresh;
      taken.insert(fresh);
      value.name = fresh;
      break;
    }
  }
  for (const auto& [name, id] : captured) {
    const auto it = renames.find(name);
    if (it == renames.end()) continue;
    if (it->second.empty())
      fail(ErrorCode::kBadModel, "{}: a subgraph reads the input '{}', which the call omits",
           describeNode(call), name);
    copy->value(id).name = it->second;
  }
  for (Node& node : copy->nodes)
    node.attributes = rewriteAttributes(node.attributes, attributes, inner, call);
  std::vector<ValueId> captures;
  for (const auto& [name, id] : captured) captures.push_back(id);
  mergeCaptures(*copy, captures);
  return copy;
}

class Splicer {
 public:
  Splicer(GraphBuilder& builder, const Graph& body, const Node& call,
          const std::map<std::string, ValueId>& captures, std::vector<Node>& nodes)
      : builder_(builder),
        body_(body),
        call_(call),
        captures_(captures),
        nodes_(nodes),
        mapped_(body.values.size()),
        known_(body.values.size(), false) {
    prefix_ = call.name;
    for (ValueId id : call.outputs) {
      if (prefix_.empty() && id.valid()) prefix_ = builder.graph().value(id).name;
    }
  }

  void run(const Attributes& attributes) {
    for (size_t i = 0; i < body_.inputs.size(); ++i)
      bind(body_.inputs[i], i < call_.inputs.size() ? call_.inputs[i] : ValueId());
    for (const auto& [name, id] : capturedValues(body_)) {
      const auto it = captures_.find(name);
      if (it == captures_.end())
        fail(ErrorCode::kBadModel, "{}: its body reads '{}', which nothing defines", describeNode(call_),
             name);
      bind(id, it->second);
    }
    for (const auto& [id, initializer] : body_.initializers) {
      if (known_[id.index()]) continue;  // the default of an input that is given
      bind(id, fresh(id));
      builder_.graph().initializers.emplace(mapped_[id.index()], initializer);
    }
    bindOutputs();
    for (const Node& node : body_.nodes) copyNode(node, attributes);
    for (const auto& [from, to] : pass_through_) {
      Node identity;
      identity.op_type = "Identity";
      const auto opset = builder_.graph().opset_imports.find("");
      identity.opset_version = opset == builder_.graph().opset_imports.end() ? 1 : opset->second;
      identity.name = nodeName("Identity");
      identity.metadata = call_.metadata;
      identity.inputs = {mapped_[from.index()]};
      identity.outputs = {to};
      if (!identity.inputs[0].valid())
        fail(ErrorCode::kBadModel, "{}: an output is an input that the call omits", describeNode(call_));
      nodes_.push_back(std::move(identity));
    }
  }

 private:
  void bind(ValueId id, ValueId outer) {
    mapped_[id.index()] = outer;
    known_[id.index()] = true;
  }

  ValueId fresh(ValueId id) {
    const Value& value = body_.value(id);
    const ValueId copy = builder_.addValue(prefix_ + "/" + value.name, value.data_type, {});
    Value& added = builder_.graph().value(copy);
    // A symbol of the body need not mean what the same symbol means outside.
    added.shape = value.shape && isStatic(*value.shape) ? value.shape : std::nullopt;
    added.opaque_type = value.opaque_type;
    added.metadata = value.metadata;
    return copy;
  }

  std::string nodeName(const std::string& name) {
    const int count = node_names_[name]++;
    return count == 0 ? fmt::format("{}/{}", prefix_, name) : fmt::format("{}/{}_{}", prefix_, name, count);
  }

  // Body outputs that a node of the body defines take the place of the call's outputs; others are copied by
  // an Identity.
  void bindOutputs() {
    std::set<ValueId> produced;
    for (const Node& node : body_.nodes) produced.insert(node.outputs.begin(), node.outputs.end());
    for (size_t i = 0; i < std::min(body_.outputs.size(), call_.outputs.size()); ++i) {
      const ValueId inner = body_.outputs[i];
      if (!call_.outputs[i].valid()) continue;
      if (produced.contains(inner) && !known_[inner.index()]) {
        bind(inner, call_.outputs[i]);
      } else {
        pass_through_.emplace_back(inner, call_.outputs[i]);
      }
    }
    if (call_.outputs.size() > body_.outputs.size()) {
      fail(ErrorCode::kBadModel, "{} has {} outputs, but its body gives {}", describeNode(call_),
           call_.outputs.size(), body_.outputs.size());
    }
  }

  void copyNode(const Node& node, const Attributes& attributes) {
    Node copy = node;
    copy.name = nodeName(node.name.empty() ? node.op_type : node.name);
    for (ValueId& id : copy.inputs) {
      if (id.valid()) id = mapped_[id.index()];
    }
    for (ValueId& id : copy.outputs) {
      if (!id.valid()) continue;
      if (!known_[id.index()]) bind(id, fresh(id));
      id = mapped_[id.index()];
    }
    Renames renames;
    bool subgraphs = false;
    for (const auto& [name, attribute] : node.attributes)
      subgraphs = subgraphs || std::holds_alternative<std::shared_ptr<const Graph>>(attribute);
    if (subgraphs) {
      for (size_t i = 0; i < body_.values.size(); ++i) {
        if (known_[i])
          renames[body_.values[i].name] = mapped_[i].valid() ? builder_.graph().value(mapped_[i]).name : "";
      }
    }
    copy.attributes = rewriteAttributes(node.attributes, attributes, renames, call_);
    for (const auto& entry : call_.metadata) {
      bool present = false;
      for (const auto& own : copy.metadata) present = present || own.first == entry.first;
      if (!present) copy.metadata.push_back(entry);
    }
    nodes_.push_back(std::move(copy));
  }

  GraphBuilder& builder_;
  const Graph& body_;
  const Node& call_;
  const std::map<std::string, ValueId>& captures_;
  std::vector<Node>& nodes_;
  std::vector<ValueId> mapped_;  // body value -> value of the graph; invalid: an input that the call omits
  std::vector<bool> known_;
  std::vector<std::pair<ValueId, ValueId>> pass_through_;
  std::string prefix_;
  std::unordered_map<std::string, int> node_names_;  // how often each occurs
};

}  // namespace

std::map<std::string, ValueId> capturedValues(const Graph& subgraph) {
  std::vector<bool> defined(subgraph.values.size(), false);
  for (ValueId id : subgraph.inputs) defined[id.index()] = true;
  for (const auto& [id, initializer] : subgraph.initializers) defined[id.index()] = true;
  for (const Node& node : subgraph.nodes) {
    for (ValueId id : node.outputs) {
      if (id.valid()) defined[id.index()] = true;
    }
  }
  std::map<std::string, ValueId> captured;
  for (size_t i = 0; i < subgraph.values.size(); ++i) {
    if (!defined[i]) captured.emplace(subgraph.values[i].name, ValueId(i));
  }
  return captured;
}

void collectCaptures(const Node& node, std::vector<std::string>& names) {
  for (const auto& [name, attribute] : node.attributes) {
    const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
    if (body == nullptr) continue;
    for (const auto& [captured, id] : capturedValues(**body)) names.push_back(captured);
    for (const Node& inner : (*body)->nodes) collectCaptures(inner, names);
  }
}

void spliceBody(GraphBuilder& builder, const Graph& body, const Node& call, const Attributes& attributes,
                const std::map<std::string, ValueId>& captures, std::vector<Node>& nodes) {
  for (const auto& [domain, version] : body.opset_imports)
    builder.graph().opset_imports.emplace(domain, version);
  Splicer(builder, body, call, captures, nodes).run(attributes);
}

}  // namespace pipeshard
